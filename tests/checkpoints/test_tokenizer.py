"""Tokenizers: from a folder as transformers reads it, rebuilt from GGUF metadata token for token, and chats."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from tests.checkpoints import tiny
from vantage.checkpoints.gguf import GGUF
from vantage.checkpoints.gguf_vocabulary import GGUFBackends
from vantage.checkpoints.tokenizer import MOST_PARTS, SHORT, About, Tokenizer, from_folder, from_gguf
from vantage.errors import BadInput, CheckpointError

CORPUS = [
    "Hello world",
    "  leading and   trailing  ",
    "tabs\t\there\n\n\nnewlines\r\n",
    "Zażółć gęślą jaźń",
    "日本語のテキスト、漢字",
    "Привет, мир!",
    "مرحبا بالعالم",
    "हिन्दी पाठ",
    "ก็ไม่รู้ 한국어 텍스트",
    "👩‍👩‍👧‍👦 🎉🏳️‍🌈 🤷🏽‍♀️",
    "composed é, decomposed e\u0301",
    "def f(x):\n    return x**2  # comment\n",
    "12345 1,000.50 3rd x2y  7",
    "don't I'll we've",
    "\u200b\ufeff zero width",
    "ﬁ ½ ² Ⅷ",
    "\x00\x01\x7f",
    "",
    " ",
    "\n",
    " \n \n",
    "a     b",
    "begin<|end|>again <|end|>",
]
LEARN = [*CORPUS, *(" ".join(CORPUS[:14]).split())] * 3
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def byte_level(cut, normalizer=None):
    backend = Backend(models.BPE())
    backend.pre_tokenizer = cut
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(LEARN, trainer)
    return backend


def written(backend, path, model, pre=None, **more):
    """A tokenizer of the tokenizers package as GGUF metadata."""
    said = json.loads(backend.to_str())
    ids = said["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [CONTROL if t == "<|end|>" else NORMAL for t in tokens]
    metadata = {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    metadata |= {"tokenizer.ggml.eos_token_id": ids["<|end|>"]}
    merges = said["model"].get("merges")
    if merges is not None:
        metadata["tokenizer.ggml.merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    metadata |= {} if pre is None else {"tokenizer.ggml.pre": pre}
    metadata |= {f"tokenizer.ggml.{k}": v for k, v in more.items()}
    return tiny.write(path, "llama", metadata, {"x": np.ones((2, 2), np.float32)})


SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def spelled_out(digits):
    from tokenizers import Regex

    cut = pre_tokenizers.Split(Regex(SPLIT.replace("@", digits)), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


ORIGINALS = {
    "gpt-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    # as in SmolLM's own tokenizer.json
    "smollm": lambda: byte_level(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "qwen2": lambda: byte_level(spelled_out(""), normalizers.NFC()),
    "llama-bpe": lambda: byte_level(spelled_out("{1,3}")),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_vocabularies_are_rebuilt_token_for_token(pre, tmp_path):
    original = ORIGINALS[pre]()
    rebuilt = from_gguf(GGUF(written(original, tmp_path / "x.gguf", "gpt2", pre)))
    for text in CORPUS:
        ids = original.encode(text).ids
        assert rebuilt.encode(text, special=False) == ids, text
        assert rebuilt.decode(ids, special=True) == original.decode(ids, skip_special_tokens=False), text
    assert rebuilt.eos == original.token_to_id("<|end|>")


def sentencepiece(scores_from_merges=True):
    """A BPE with byte fallback, as SentencePiece would train it, and its scores."""
    backend = Backend(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<unk>", "<s>", "<|end|>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, limit_alphabet=90, show_progress=False, initial_alphabet=["▁"]
    )
    backend.train_from_iterator(LEARN, trainer)
    said = json.loads(backend.to_str())["model"]
    ids = said["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    made = {"".join(m): -float(i) for i, m in reversed(list(enumerate(said["merges"])))}
    scores = [made.get(t, -1e9 if len(t) == 1 else 0.0) for t in tokens]
    return tokens, scores


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.filterwarnings("ignore")  # transformers has much to say about such a small vocabulary
def test_sentencepiece_vocabularies_are_rebuilt_token_for_token(prefix, tmp_path):
    """Against transformers' own reading of the same metadata."""
    tokens, scores = sentencepiece()
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)]
    metadata = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds, "add_space_prefix": prefix}
    metadata |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": True}
    arch = "llama" if prefix else "gemma3"
    if not prefix:
        metadata["scores"] = [-1.0] * len(tokens)  # Gemma's say nothing: the place does
    path = tmp_path / "x.gguf"
    metadata = {f"tokenizer.ggml.{k}": v for k, v in metadata.items()}
    tiny.write(path, arch, metadata, {"x": np.ones((2, 2), np.float32)})
    rebuilt = from_gguf(GGUF(path))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="x.gguf")
    for text in CORPUS:
        if prefix and text[:1] == " ":
            continue  # transformers adds no space to a text that begins with one; SentencePiece does
        if prefix and "<|end|>" in text:
            continue  # nor does it add one after a special token
        wanted = theirs.encode(text, add_special_tokens=False)
        assert rebuilt.encode(text, special=False) == wanted, text
        assert rebuilt.encode(text)[0] == 1
        assert rebuilt.decode(wanted, special=True) == text
    assert (rebuilt.bos, rebuilt.eos) == (1, 2)


def assert_parts_are_enough(file: GGUF):
    """A part of the vocabulary, made for one text, cuts it as the whole does."""
    backends = GGUFBackends(file)
    whole = backends.whole()
    mixed = ["<|end|>".join(CORPUS[i::7]) for i in range(7)] + [a + b for a, b in pairwise(CORPUS)]
    for text in [*CORPUS, *mixed]:
        part = backends.for_text(text)
        assert part.get_vocab_size() < whole.get_vocab_size()
        for special in (True, False):
            ids = whole.encode(text, add_special_tokens=special).ids
            assert part.encode(text, add_special_tokens=special).ids == ids, text
        for hidden in (True, False):
            shown = whole.decode(ids, skip_special_tokens=hidden)
            assert backends.for_tokens(ids).decode(ids, skip_special_tokens=hidden) == shown, text
    for token in ("<|end|>", "a", "no token"):
        assert backends.number(token) == whole.token_to_id(token)


@pytest.mark.parametrize("pre", ORIGINALS)
def test_a_part_of_a_byte_level_vocabulary_is_enough_for_a_text(pre, tmp_path):
    assert_parts_are_enough(GGUF(written(ORIGINALS[pre](), tmp_path / "x.gguf", "gpt2", pre)))


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("known_kinds", [True, False])
def test_a_part_of_a_sentencepiece_vocabulary_is_enough_for_a_text(arch, known_kinds, tmp_path):
    tokens, scores = sentencepiece()
    tokens[-1] = "     "  # written as spaces in files
    metadata = {"model": "llama", "tokens": tokens, "scores": scores, "add_space_prefix": arch == "llama"}
    metadata |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    if known_kinds:
        metadata["token_type"] = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)]
    path = tmp_path / "x.gguf"
    metadata = {f"tokenizer.ggml.{k}": v for k, v in metadata.items()}
    assert_parts_are_enough(GGUF(tiny.write(path, arch, metadata, {"x": np.ones((2, 2), np.float32)})))


def test_the_whole_vocabulary_is_set_up_after_the_first_texts(tmp_path):
    path = written(ORIGINALS["gpt-2"](), tmp_path / "x.gguf", "gpt2", "gpt-2")
    first, long = from_gguf(GGUF(path)), from_gguf(GGUF(path))
    ids = [first.encode("Hello world") for _ in range(MOST_PARTS)]
    assert (first.eos, first.token_id("no token")) == (long.token_id("<|end|>"), None)
    assert "backend" not in vars(first)
    assert [first.encode("Hello world"), first.decode(ids[0])] == [ids[0], "Hello world"]
    assert "backend" in vars(first)
    assert long.decode(long.encode("Hello world " * SHORT)) == "Hello world " * SHORT
    assert "backend" in vars(long)


def test_wordpiece_vocabularies_are_rebuilt_token_for_token(tmp_path):
    original = Backend(models.WordPiece(unk_token="[UNK]"))
    original.normalizer = normalizers.BertNormalizer(lowercase=True)
    original.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    original.train_from_iterator(
        LEARN, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    original.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    ids = original.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    # as llama.cpp's converter writes them
    spelled = [t if t in special else t[2:] if t.startswith("##") else "▁" + t for t in tokens]
    metadata = {"model": "bert", "tokens": spelled, "token_type": [3] * 4 + [1] * (len(tokens) - 4)}
    metadata |= {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    path = tmp_path / "x.gguf"
    tiny.write(
        path, "bert", {f"tokenizer.ggml.{k}": v for k, v in metadata.items()}, {"x": np.ones((2, 2), np.float32)}
    )
    rebuilt = from_gguf(GGUF(path))
    for text in CORPUS:
        assert rebuilt.encode(text) == original.encode(text).ids, text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "rwkv"}, r"no tokenizer is called 'rwkv'"),
        ({"pre": "surprise"}, r"no pre-tokenizer is called 'surprise'"),
        ({"eos_token_id": 10**6}, r"eos_token_id is 1000000"),
        ({"token_type": [1, 2, 3]}, r"token_type"),
        ({"merges": ["a b c"]}, r"merges"),
        ({"merges": ["q🎉 x"]}, r"makes no tokenizer"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(change, said, tmp_path):
    path = tmp_path / "x.gguf"
    change = {"bos_token_id": 0, "add_bos_token": True} | change
    if "eos_token_id" in change:
        change["add_eos_token"] = True
    written(ORIGINALS["gpt-2"](), path, change.pop("model", "gpt2"), change.pop("pre", "gpt-2"), **change)
    with pytest.raises(CheckpointError, match=said):
        assert from_gguf(GGUF(path)).backend


def test_what_is_wrong_is_said_when_a_text_comes_and_not_when_the_vocabulary_is_read_ahead(tmp_path):
    right = from_gguf(GGUF(written(ORIGINALS["gpt-2"](), tmp_path / "right.gguf", "gpt2", "gpt-2")))
    wrong = from_gguf(GGUF(written(ORIGINALS["gpt-2"](), tmp_path / "x.gguf", "rwkv", "gpt-2", token_type=[1, 2])))
    for tokenizer in (right, wrong):
        tokenizer.read_vocabulary()
        assert "backend" not in vars(tokenizer)
    assert "_vocabulary" in vars(right._parts)
    with pytest.raises(CheckpointError, match="token_type"):
        wrong.encode("a")


# ---- folders


@pytest.fixture
def folder(tmp_path):
    backend = ORIGINALS["gpt-2"]()
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    said = {"bos_token": None, "eos_token": {"content": "<|end|>"}, "chat_template": TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    return tmp_path


TEMPLATE = (
    "{% for m in messages %}\n{{ m['role'] + ': ' + m['content'] + eos_token }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Hey"}]


def test_a_folders_tokenizer_takes_the_whole_text(folder):
    """Whatever truncation and padding its training left in the file."""
    tokenizer = from_folder(folder)
    text = "a text of more than four tokens"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos == 0
    assert tokenizer.bos is None


def test_a_saved_tokenizer_is_read_by_transformers(folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    tokenizer = from_folder(folder)
    tokenizer.save(out)
    theirs = AutoTokenizer.from_pretrained(out)
    for text in CORPUS:
        assert theirs.encode(text) == tokenizer.encode(text)
    assert theirs.eos_token_id == tokenizer.eos
    for more in (True, False):
        wanted = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=more)
        assert tokenizer.chat(CHAT, add_generation_prompt=more) == wanted


def test_a_damaged_tokenizer_file_is_refused(folder):
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        from_folder(folder).encode("x")


# ---- chats


def chatting(template):
    return Tokenizer(Backend, About(None, "</s>", template))


def test_what_templates_need_is_there():
    template = (
        "{{ messages | tojson }}{{ '%' }}{%- for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m.content.strip() }}{% endfor %}{{ variable }}{{ strftime_now('%Y') | length }}{{ '=' * 3 }}"
    )
    said = chatting(template).chat(CHAT, variables={"variable": "v"})
    assert said == json.dumps(CHAT, ensure_ascii=False) + "%Hi <b>v4==="


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%1000000000d' % 1 }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% if %}",
    ],
)
def test_a_template_does_nothing_but_write(template):
    with pytest.raises((CheckpointError, BadInput)):
        chatting(template).chat(CHAT)


def test_a_template_may_refuse_and_a_model_may_have_none():
    with pytest.raises(BadInput, match="only users"):
        chatting("{{ raise_exception('only users') }}").chat(CHAT)
    with pytest.raises(BadInput, match="no chat template"):
        chatting(None).chat(CHAT)


def test_the_template_of_a_processor_is_read_where_the_tokenizer_has_none(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert from_folder(folder).template is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    assert from_folder(folder).chat([{"role": "user", "content": "hi"}]) == "hi"
