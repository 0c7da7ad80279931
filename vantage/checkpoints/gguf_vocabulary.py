"""The tokenizer that GGUF metadata describes, rebuilt: byte-level BPE, SentencePiece's BPE, WordPiece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from vantage.checkpoints.gguf import GGUF, Strings
from vantage.errors import CheckpointError, unknown

SPACE = "▁"  # how SentencePiece writes a space
CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


class GGUFVocabulary:
    """The metadata under ``tokenizer.ggml.``, checked."""

    def __init__(self, file: GGUF):
        self._metadata, self._file = file.metadata, file.path.name
        self.model = self.text("model", "")
        self.pre = self.text("pre", "")
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Strings) or not len(tokens):
            raise self.wrong("'tokenizer.ggml.tokens' is no list of words")
        self.tokens: list[str] = list(tokens)
        self.kinds = self._numbers("token_type")
        self.scores = self._numbers("scores")
        self.merges = self._merges()

    def text(self, name: str, default: str) -> str:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, str) else default

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        return value if isinstance(value, bool) else default

    def token(self, name: str) -> str | None:
        """A special token by its role."""
        number = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is None:
            return None
        if not isinstance(number, int) or not 0 <= number < len(self.tokens):
            raise self.wrong(f"{name}_token_id is {number!r}, and there are {len(self.tokens)} tokens")
        return self.tokens[number]

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file}: {what}")

    def _numbers(self, name: str) -> np.ndarray | None:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != len(self.tokens):
            raise self.wrong(f"'tokenizer.ggml.{name}' must have one number for each of the {len(self.tokens)} tokens")
        return value

    def _merges(self) -> list[tuple[str, str]] | None:
        value = self._metadata.get("tokenizer.ggml.merges")
        if value is None:
            return None
        pairs = [merge.split(" ") for merge in value] if isinstance(value, Strings) else [[]]
        if any(len(pair) != 2 for pair in pairs):
            raise self.wrong("'tokenizer.ggml.merges' must be pairs of tokens")
        return [(left, right) for left, right in pairs]


def backend_of(file: GGUF) -> Tokenizer:
    v = GGUFVocabulary(file)
    if v.model not in MODELS:
        raise v.wrong(unknown("tokenizer", v.model, MODELS))
    try:
        backend = MODELS[v.model](v, str(file.metadata.get("general.architecture")))
        _add(backend, v)
    except CheckpointError:
        raise
    except Exception as e:  # the tokenizers package raises bare Exception
        raise v.wrong(f"the vocabulary makes no tokenizer: {e}") from e
    return backend


# ---- byte-level BPE

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _split(*patterns: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How a text is cut before merges are applied. SmolLM and its like take every digit by itself first.
DIGIT = r"\p{N}"
CUTS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "gpt2": (GPT2,),
    "smollm": (DIGIT, GPT2),
    "starcoder": (DIGIT, GPT2),
    "refact": (DIGIT, GPT2),
    "command-r": (DIGIT, GPT2),
    "qwen2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
}
COMPOSED = ("qwen2", "deepseek-r1-qwen")  # their texts are put into Unicode's composed form first
WHOLE_FIRST = ("llama-bpe", "llama3", "llama-v3")  # a word that is a token is not cut at all; BOS comes in front


def _byte_level(v: GGUFVocabulary, arch: str) -> Tokenizer:
    pre = v.pre or ("gpt-2" if arch == "gpt2" else "")
    if pre not in CUTS:
        raise v.wrong(unknown("pre-tokenizer", pre, CUTS))
    if v.merges is None:
        raise v.wrong("a byte-level vocabulary needs 'tokenizer.ggml.merges'")
    model = models.BPE(_numbered(v, v.tokens), v.merges, ignore_merges=pre in WHOLE_FIRST)
    backend = Tokenizer(model)
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _split(*CUTS[pre])
    backend.decoder = decoders.ByteLevel()
    _surround(backend, v, bos=pre in WHOLE_FIRST)
    return backend


# ---- SentencePiece


def _sentencepiece(v: GGUFVocabulary, arch: str) -> Tokenizer:
    # Runs of spaces are stored as spaces in the file; inside the tokenizer a space is always written ▁.
    tokens = [SPACE * len(t) if t and not t.strip(" ") else t for t in v.tokens]
    numbered = _numbered(v, tokens)
    merges = v.merges if v.merges is not None else _implied(v, tokens, numbered, by_place=arch.startswith("gemma"))
    model = models.BPE(numbered, merges, unk_token=v.token("unknown"), fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(model)
    prefix = v.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _surround(backend, v, bos=True)
    return backend


def _implied(
    v: GGUFVocabulary, tokens: list[str], numbered: dict[str, int], *, by_place: bool
) -> list[tuple[str, str]]:
    """The merges behind a vocabulary: every way to make a token from two, the best tokens first.

    A token's score says when it was made; in Gemma's files its place does.
    """
    if by_place:
        ranks = list(range(len(tokens)))
    elif v.scores is None:
        raise v.wrong("a SentencePiece vocabulary needs 'tokenizer.ggml.scores' or 'tokenizer.ggml.merges'")
    else:
        ranks = (-v.scores).tolist()
    merges = []
    for number, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in numbered and right in numbered:
                merges.append((ranks[number], -cut, cut - len(token), number, left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


# ---- WordPiece


def _wordpiece(v: GGUFVocabulary, arch: str) -> Tokenizer:
    """The file marks the beginnings of words (▁); WordPiece marks what is not one (##)."""

    def spelled(token: str) -> str:
        if token.startswith(SPACE):
            return token[1:]
        return token if token.startswith("[") and token.endswith("]") else "##" + token

    tokens = [spelled(token) for token in v.tokens]
    backend = Tokenizer(models.WordPiece(_numbered(v, tokens), unk_token=v.token("unknown") or "[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    first, last = v.token("cls") or v.token("bos") or "[CLS]", v.token("seperator") or v.token("eos") or "[SEP]"
    ends = [(token, backend.token_to_id(token)) for token in (first, last)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=ends
    )
    return backend


# ---- all

MODELS: dict[str, Callable[[GGUFVocabulary, str], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "bert": _wordpiece,
}


def _numbered(v: GGUFVocabulary, tokens: list[str]) -> dict[str, int]:
    numbered = {token: number for number, token in enumerate(tokens)}
    if len(numbered) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if numbered[token] != number)
        raise v.wrong(f"the token {twice!r} is there twice")
    return numbered


def _surround(backend: Tokenizer, v: GGUFVocabulary, *, bos: bool) -> None:
    """BOS in front and EOS behind, where the file wants them; ``bos`` is what files mean that do not say."""
    front = v.token("bos") if v.flag("add_bos_token", bos) else None
    behind = v.token("eos") if v.flag("add_eos_token", False) else None
    around = [token for token in (front, behind) if token is not None]
    if not around:
        return
    special = [(token, backend.token_to_id(token)) for token in dict.fromkeys(around)]
    one = " ".join(token for token in (front, "$A", behind) if token is not None)
    two = " ".join(token for token in (front, "$B:1", behind) if token is not None)
    backend.post_processor = processors.TemplateProcessing(single=one, pair=f"{one} {two}", special_tokens=special)


def _add(backend: Tokenizer, v: GGUFVocabulary) -> None:
    """Tokens that are found whole in the text, before anything else looks at it."""
    kinds = np.zeros(len(v.tokens), int) if v.kinds is None else v.kinds
    control = [v.tokens[i] for i in np.flatnonzero(kinds == CONTROL)]
    control += [] if v.kinds is not None else [t for t in map(v.token, ("bos", "eos", "unknown")) if t is not None]
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in dict.fromkeys(control) if t])
    # runs of spaces are made by merges instead, from the ▁ that spaces have become by then
    whole = [v.tokens[i] for i in np.flatnonzero(kinds == USER_DEFINED)]
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in whole if t.strip(" ")])
