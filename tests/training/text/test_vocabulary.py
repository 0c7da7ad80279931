"""Vocabularies: what they make of text, and that it comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.training.text.real import real
from vantage.checkpoints.tokenizer import Tokenizer, from_folder
from vantage.errors import BadInput
from vantage.training.text import BPE, END, MASK, START, Bytes, Characters, Existing, build_vocabulary, fingerprint
from vantage.training.text.vocabulary import mask_token, pad_token, plain_backend, special_tokens

TEXT = "The cat sat on the mat.\n\nThe dog did not, naïve as it was.\r\n\tNo — never </s>!\n" * 3
ANY = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT.encode())
    return path


@given(ANY)
def test_bytes_are_bytes_and_come_back(text):
    tokenizer = Bytes().build()
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_bytes_have_256_tokens_and_the_special_ones_after_them():
    assert len(Bytes().build()) == 256
    tokenizer = Bytes(special=(START, END, MASK)).build()
    assert (tokenizer.bos, tokenizer.eos, mask_token(tokenizer), len(tokenizer)) == (256, 257, 258, 259)
    assert special_tokens(tokenizer) == [256, 257, 258]
    assert tokenizer.encode("a") == [256, 97]
    assert pad_token(tokenizer) == 257


def test_characters_come_back_and_others_are_refused_by_name(file):
    tokenizer = Characters().build([file])
    assert len(tokenizer) == len(set(TEXT))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    with pytest.raises(BadInput, match="no 'Q', 'ß': leave them out"):
        tokenizer.encode("TQß")


def test_characters_still_refuse_after_saving(file, tmp_path):
    Characters().build([file]).save(tmp_path)
    loaded = from_folder(tmp_path)
    assert loaded is not None
    assert loaded.decode(loaded.encode(TEXT)) == TEXT
    with pytest.raises(BadInput, match="'Q'"):
        loaded.encode("Q")


@given(ANY)
def test_bpe_brings_every_text_back(trained, text):
    backend = plain_backend(trained)
    assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "a.txt"
    path.write_bytes(TEXT.encode())
    return BPE(300).build([path])


def test_bpe_is_the_same_each_time_and_as_large_as_asked(file):
    one, two = BPE(300).build([file]), BPE(300).build([file])
    assert fingerprint(one) == fingerprint(two)
    assert len(one) == 300
    assert len(one.encode(TEXT)) < len(TEXT.encode())
    assert fingerprint(one) != fingerprint(BPE(299).build([file]))


def test_bpe_refuses_a_size_that_does_not_hold_the_bytes(file):
    with pytest.raises(BadInput, match="at least 257"):
        BPE(256).build([file])
    with pytest.raises(BadInput, match="different names"):
        BPE(400, special=(END, END)).build([file])


def test_a_special_token_in_a_file_is_text(trained):
    assert trained.eos in trained.encode("a</s>")  # in a prompt it is the token
    assert trained.eos not in plain_backend(trained).encode("a</s>").ids


@pytest.mark.parametrize("kind", [Bytes((END,)), Characters(), BPE(280, (START, END))])
def test_an_existing_one_is_found_by_folder_and_by_file(kind, file, tmp_path):
    made = build_vocabulary(kind, file)
    made.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert fingerprint(Existing(str(path)).build()) == fingerprint(made)
    assert build_vocabulary(made) is made


def test_a_folder_without_one_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no tokenizer"):
        Existing(str(tmp_path)).build()


@pytest.mark.parametrize("kind", [Bytes((END,)), Characters((END,)), BPE(300, (START, END))])
def test_a_model_keeps_its_vocabulary(kind, file, tmp_path):
    tokenizer = build_vocabulary(kind, file)
    model = vt.build(vt.decoder(vocab=len(tokenizer), width=16, layers=1, heads=2)).eval()
    model.tokenizer = tokenizer
    vt.save(model, tmp_path / "model")
    loaded = vt.load(tmp_path / "model")
    assert fingerprint(loaded.tokenizer) == fingerprint(tokenizer)
    text = vt.generate(loaded, "The cat", max_tokens=3, temperature=0)
    assert vt.generate(model, "The cat", max_tokens=3, temperature=0).text == text.text


def test_shakespeare_has_65_characters():
    tokenizer: Tokenizer = Characters().build([real("tinyshakespeare.txt")])
    assert len(tokenizer) == 65  # as in nanoGPT's preparation
