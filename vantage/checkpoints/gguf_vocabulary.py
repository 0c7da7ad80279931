"""The tokenizer that GGUF metadata describes, rebuilt: byte-level BPE, SentencePiece's BPE, WordPiece.

A whole vocabulary takes longer to set up than a small model takes to load. What a short text is cut into depends only
on the tokens that are written in it, and on the merges that lead to them: a tokenizer with these alone cuts it alike.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from vantage.checkpoints.gguf import GGUF, Strings
from vantage.errors import CheckpointError, unknown

SPACE = "▁"  # how SentencePiece writes a space
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # of tokenizer.ggml.token_type
ROLES = ("bos", "eos", "unknown")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # SentencePiece's, for what has no token of its own


class GGUFVocabulary:
    """The metadata under ``tokenizer.ggml.``, checked."""

    def __init__(self, file: GGUF):
        self._metadata, self._file = file.metadata, file.path.name
        self.model = self.text("model", "")
        self.pre = self.text("pre", "")
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Strings) or not len(tokens):
            raise self.wrong("'tokenizer.ggml.tokens' is no list of words")
        self.tokens = tokens.read()
        self.numbers: Sequence[int] = range(len(self.tokens))  # of the tokens that are wanted
        self.kinds = self._numbers("token_type")
        self.scores = self._numbers("scores")
        merges = self._metadata.get("tokenizer.ggml.merges")
        if merges is not None and not isinstance(merges, Strings):
            raise self._no_pairs()
        self.merges: list[str] | None = None if merges is None else merges.read()  # pairs, with a space between

    @functools.cached_property
    def numbered(self) -> dict[str, int]:
        """Every token's number."""
        return _numbered(self, self.tokens)

    def part(self, written: Collection[str], numbers: Iterable[int] = ()) -> GGUFVocabulary:
        """With those of ``written`` that are tokens, the tokens with these numbers, and all special ones."""
        wanted = {self.numbered[token] for token in written if token in self.numbered}
        roles = (self._metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ROLES)
        wanted.update(n for n in (*numbers, *roles) if isinstance(n, int) and 0 <= n < len(self.tokens))
        if self.kinds is not None:
            wanted.update(np.flatnonzero((self.kinds != NORMAL) & (self.kinds != UNUSED)).tolist())
        part = copy.copy(self)
        part.numbers = sorted(wanted)
        if self.merges is not None:
            tokens = {self.tokens[number] for number in wanted} if written else set()  # merges are for texts alone
            pairs = {
                f"{left} {right}"
                for token in tokens
                for cut in range(1, len(token))
                if (left := token[:cut]) in tokens and (right := token[cut:]) in tokens
            }
            part.merges = [merge for merge in self.merges if merge in pairs]
        return part

    @property
    def longest(self) -> int:
        """The characters of the longest token."""
        return max(map(len, self.tokens))

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

    def pairs(self) -> list[tuple[str, str]] | None:
        """The merges, taken apart."""
        if self.merges is None:
            return None
        pairs = [tuple(merge.split(" ")) for merge in self.merges]
        if any(len(pair) != 2 for pair in pairs):
            raise self._no_pairs()
        return pairs  # pyright: ignore[reportReturnType] (their lengths were looked at)

    def _no_pairs(self) -> CheckpointError:
        return self.wrong("'tokenizer.ggml.merges' must be pairs of tokens")


class GGUFBackends:
    """The tokenizers that a file's metadata makes: the whole one, and such as are enough for some text or tokens.

    What is wrong with tokens and merges that no text needed is said when the whole one is built.
    """

    def __init__(self, file: GGUF):
        self._file = file

    @functools.cached_property
    def _vocabulary(self) -> GGUFVocabulary:
        v = GGUFVocabulary(self._file)
        if v.model not in MODELS:
            raise v.wrong(unknown("tokenizer", v.model, MODELS))
        return v

    @property
    def in_parts(self) -> bool:
        """Whether less than the whole will do."""
        model = MODELS.get(str(self._file.metadata.get("tokenizer.ggml.model")))
        return model is not None and model.written is not None

    def read(self) -> None:
        """The tokens, before a text needs them, which is told what is wrong with them."""
        with suppress(CheckpointError):
            _ = self._vocabulary.numbered

    def whole(self) -> Tokenizer:
        return self._built(self._vocabulary)

    def for_text(self, text: str) -> Tokenizer:
        """One that encodes this text as the whole would."""
        v = self._vocabulary
        written = MODELS[v.model].written
        assert written is not None, "in_parts said so"
        return self._built(v.part(written(v, text)))

    def for_tokens(self, numbers: Sequence[int]) -> Tokenizer:
        """One that decodes these tokens as the whole would."""
        return self._built(self._vocabulary.part((), numbers))

    def number(self, token: str) -> int | None:
        """Of a token, as the whole one would number it."""
        return self._vocabulary.numbered.get(token)

    def _built(self, v: GGUFVocabulary) -> Tokenizer:
        try:
            backend = MODELS[v.model].build(v, str(self._file.metadata.get("general.architecture")))
            _add(backend, v)
        except CheckpointError:
            raise
        except Exception as e:  # the tokenizers package raises bare Exception
            raise v.wrong(f"the vocabulary makes no tokenizer: {e}") from e
        return backend


def _substrings(text: str, longest: int) -> set[str]:
    return {text[a:b] for a in range(len(text)) for b in range(a + 1, min(len(text), a + longest) + 1)}


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
    merges = v.pairs()
    if merges is None:
        raise v.wrong("a byte-level vocabulary needs 'tokenizer.ggml.merges'")
    model = models.BPE(_numbered(v, v.tokens), merges, ignore_merges=pre in WHOLE_FIRST)
    backend = Tokenizer(model)
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _split(*CUTS[pre])
    backend.decoder = decoders.ByteLevel()
    _surround(backend, v, bos=pre in WHOLE_FIRST)
    return backend


def _in_bytes(v: GGUFVocabulary, text: str) -> set[str]:
    """Whatever may become a token of a byte-level vocabulary: a text is normalised, cut, and written in bytes."""
    forms = {text, normalizers.NFC().normalize_str(text)} if v.pre in COMPOSED else {text}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return {
        written
        for form in forms
        for piece, _ in cut.pre_tokenize_str(form)
        for written in _substrings(piece, v.longest)
    }


# ---- SentencePiece


def _sentencepiece(v: GGUFVocabulary, arch: str) -> Tokenizer:
    # Runs of spaces are stored as spaces in the file; inside the tokenizer a space is always written ▁.
    tokens = [SPACE * len(t) if t and not t.strip(" ") else t for t in v.tokens]
    numbered = _numbered(v, tokens)
    merges = v.pairs()
    merges = _implied(v, tokens, numbered, by_place=arch.startswith("gemma")) if merges is None else merges
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
    for number in v.numbers:
        token = tokens[number]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in numbered and right in numbered:
                merges.append((ranks[number], -cut, cut - len(token), number, left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _with_spaces(v: GGUFVocabulary, text: str) -> set[str]:
    """Whatever may become a token of SentencePiece's: a ▁ may be put before every part between special tokens."""
    pieces = _substrings(text.replace(" ", SPACE), v.longest)
    pieces |= {SPACE + piece for piece in pieces} | {SPACE, *BYTES}
    return pieces | {" " * len(piece) for piece in pieces if not piece.strip(SPACE)}


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


@dataclass(frozen=True)
class VocabularyModel:
    build: Callable[[GGUFVocabulary, str], Tokenizer]
    written: (
        Callable[[GGUFVocabulary, str], set[str]] | None
    )  # what a text may be cut into; None: it takes a whole vocabulary


MODELS = {
    "gpt2": VocabularyModel(_byte_level, _in_bytes),
    "llama": VocabularyModel(_sentencepiece, _with_spaces),
    "bert": VocabularyModel(_wordpiece, None),
}


def _numbered(v: GGUFVocabulary, tokens: list[str]) -> dict[str, int]:
    whole = len(v.numbers) == len(tokens)
    numbered = dict(zip(tokens, v.numbers, strict=True)) if whole else {tokens[number]: number for number in v.numbers}
    if len(numbered) != len(v.numbers):
        twice = next(tokens[number] for number in v.numbers if numbered[tokens[number]] != number)
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
    control += [] if v.kinds is not None else [t for t in map(v.token, ROLES) if t is not None]
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in dict.fromkeys(control) if t])
    # runs of spaces are made by merges instead, from the ▁ that spaces have become by then
    whole = [v.tokens[i] for i in np.flatnonzero(kinds == USER_DEFINED)]
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in whole if t.strip(" ")])
