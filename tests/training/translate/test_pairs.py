"""Pairs of sentences: the vocabulary, the words, the batches."""

import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.text.real import real
from vantage.errors import BadInput
from vantage.training.batch import IGNORE
from vantage.training.text import Bytes
from vantage.training.translate import JointBPE, PairData, read_pairs, words
from vantage.training.translate.words import spans, word_of_each

PAIRS = [
    (f"the cat number {i} sat" + " down" * (i % 7), f"le chat n° {i} s'assit" + " là" * (i % 5)) for i in range(50)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "a.en").write_text("".join(x + "\n" for x, _ in PAIRS))
    (folder / "a.fr.gz").write_bytes(gzip.compress("".join(y + "\n" for _, y in PAIRS).encode()))
    return folder / "a.en", folder / "a.fr.gz"


@pytest.fixture(scope="module")
def data(files):
    return PairData(*files, files, vocabulary=JointBPE(320), together=8)


def test_words_are_cut_as_documented():
    assert words("L'herbe d’un man's T-shirt, aujourd'hui!") == [
        *("l'", "herbe", "d’", "un", "man", "'s", "t-shirt", ",", "aujourd'", "hui", "!")
    ]
    assert words("") == words("  ") == []


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_character_but_space_is_in_one_word(text):
    covered = "".join(text[a:b] for a, b in spans(text))
    assert covered == "".join(text.split())


def test_sentences_come_back_lower_cased_and_trimmed(data):
    tokenizer = data.tokenizer
    assert tokenizer.decode(tokenizer.encode("  Le  Chat n° 3, \ts'assit; Ça! ")) == "le chat n° 3, s'assit; ça!"
    assert tokenizer.encode("") == []
    assert tokenizer.encode("chat le")[0] == tokenizer.encode("le chat")[-1]  # wherever it stands
    assert data.vocab == len(tokenizer) == 320


def test_case_can_be_kept(files):
    tokenizer = JointBPE(300, lower=False).build(list(files))
    assert tokenizer.decode(tokenizer.encode("Le Chat")) == "Le Chat"


@given(st.text(st.sampled_from("ab CÉ'’-s.,! \té")))
def test_pieces_belong_to_the_words_they_are_cut_from(data, text):
    ids, mine = word_of_each(data.tokenizer, text)
    found = words(text)
    assert len(ids) == len(mine)
    assert set(mine) == set(range(len(found)))
    assert mine == sorted(mine)


def test_a_batch_asks_for_the_translation(data):
    tokenizer, batch = data.tokenizer, data.batch(range(data.epoch))
    assert batch.source is not None
    assert batch.source_mask is not None
    found = []
    for row in range(len(batch.tokens)):
        source = batch.source[row, batch.source_mask[row]].tolist()
        targets = batch.targets[row, batch.targets[row] != IGNORE].tolist()
        read = batch.tokens[row, : len(targets)].tolist()
        assert source.pop() == targets[-1] == tokenizer.eos
        assert read == [tokenizer.bos, *targets[:-1]]
        found.append((tokenizer.decode(source), tokenizer.decode(targets)))
    assert len(found) == len(set(found)) == data.epoch == 48
    assert set(found) <= set(PAIRS)


def test_a_batch_depends_on_its_numbers_alone(data, files):
    other = PairData(*files, files, vocabulary=data.tokenizer, together=8)
    other.batch(range(300))
    a, b = data.batch([7, 100, 51]), other.batch([7, 100, 51])
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(data.batch([100]).tokens[0], a.tokens[1, : data.batch([100]).tokens.shape[1]])
    epochs = [data.batch(range(i * 48, i * 48 + 48)).tokens for i in range(2)]
    assert not torch.equal(*(rows.sum(1) for rows in epochs))


def test_all_pairs_have_their_turn(data):
    seen = set()
    for epoch in range(12):  # 2 of 50 wait in each
        batch = data.batch(range(epoch * 48, epoch * 48 + 48))
        seen |= {data.tokenizer.decode(row.tolist()) for row in batch.tokens}
    assert seen == {y for _, y in PAIRS}


def test_held_out_is_all_of_the_validation_pairs(data):
    held = data.held_out()["valid"]
    assert sum(len(batch.tokens) for batch in held) == 50
    assert data.valid == PAIRS


def test_what_does_not_fit_is_counted(files):
    data = PairData(*files, files, vocabulary=JointBPE(320), length=10, together=8)
    assert 0 < data.left_out < 50
    for batch in (data.batch(range(data.epoch)),):
        assert batch.tokens.shape[1] <= 11
    with pytest.raises(BadInput, match="none of 50 pairs"):
        PairData(*files, files, vocabulary=JointBPE(320), length=1)


def test_what_is_wrong_is_named(files, tmp_path):
    (tmp_path / "short").write_text("one line\n")
    with pytest.raises(BadInput, match=r"50 lines and .* 1: they must be translations"):
        read_pairs(files[0], tmp_path / "short")
    (tmp_path / "empty").write_text("")
    with pytest.raises(BadInput, match="none of 0 pairs"):
        PairData(tmp_path / "empty", tmp_path / "empty", files)
    with pytest.raises(BadInput, match="start and an end token"):
        PairData(*files, files, vocabulary=Bytes())
    with pytest.raises(BadInput, match="together=0"):
        PairData(*files, files, together=0)


def test_little_of_a_real_batch_is_padding():
    source, target = (real(f"multi30k/val.{side}.gz") for side in ("en", "fr"))
    data = PairData(source, target, (source, target), vocabulary=JointBPE(2000), together=32)
    filled = whole = 0
    for step in range(data.epoch // 32):
        batch = data.batch(range(step * 32, step * 32 + 32))
        assert batch.source is not None
        filled += batch.target_count + int(
            batch.source_mask.sum() if batch.source_mask is not None else batch.source.numel()
        )
        whole += batch.targets.numel() + batch.source.numel()
    assert filled / whole > 0.85
