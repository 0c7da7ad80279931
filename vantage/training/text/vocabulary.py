"""Vocabularies: bytes, characters, byte-level BPE, or one that exists already.

Each gives a ``Tokenizer`` of the kind that checkpoints have, so a model that was trained with it is saved, loaded
and asked for text like any other. Special tokens are named by the user; four names have a meaning.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from vantage.checkpoints.gguf import GGUF
from vantage.checkpoints.tokenizer import FILE, About, Tokenizer, from_folder, from_gguf
from vantage.errors import BadInput
from vantage.files import Files, expand
from vantage.training.text.files import OnBytes, offset_by, pieces

START, END, MASK, PAD = "<s>", "</s>", "<mask>", "<pad>"
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}  # the token of a byte has the byte's own number


class Vocabulary(Protocol):
    """How to come to a tokenizer, given the training files. A frozen dataclass: its repr says all there is to say.

    One that reads the files says how far it is to ``on_bytes``.
    """

    def build(self, files: Sequence[Path], on_bytes: OnBytes | None = None) -> Tokenizer: ...


@dataclass(frozen=True)
class Bytes:
    """One token a byte: 256, and the special ones. Any file can be read, and every text comes back exactly."""

    special: tuple[str, ...] = ()

    def build(self, files: Sequence[Path] = (), on_bytes: OnBytes | None = None) -> Tokenizer:
        backend = Backend(models.BPE(vocab=BYTES, merges=[], byte_fallback=True))
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return with_special_tokens(backend, self.special)


@dataclass(frozen=True)
class Characters:
    """One token for each character of the training files. A character that they do not have is refused by name."""

    special: tuple[str, ...] = ()

    def build(self, files: Sequence[Path], on_bytes: OnBytes | None = None) -> Tokenizer:
        seen: set[str] = set()
        for text in texts(files, on_bytes):
            seen.update(text)
        if not seen:
            raise BadInput("the training files have no characters: a vocabulary needs at least one")
        backend = Backend(models.WordLevel(vocab={c: i for i, c in enumerate(sorted(seen))}))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return with_special_tokens(backend, self.special)


@dataclass(frozen=True)
class BPE:
    """Byte-level BPE of at most ``size`` tokens, special ones included; a short text may not have that many."""

    size: int = 8192
    special: tuple[str, ...] = (END,)

    def build(self, files: Sequence[Path], on_bytes: OnBytes | None = None) -> Tokenizer:
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        train_bpe(backend, texts(files, on_bytes), self.size, self.special)
        return with_special_tokens(backend, self.special)


@dataclass(frozen=True)
class Existing:
    """The tokenizer of a folder in the Hugging Face layout, of its tokenizer.json, or of a .gguf file."""

    path: str

    def build(self, files: Sequence[Path] = (), on_bytes: OnBytes | None = None) -> Tokenizer:
        path = Path(self.path)
        if path.suffix == ".gguf":
            tokenizer = from_gguf(GGUF(path))
        else:
            tokenizer = from_folder(path.parent if path.name == FILE else path)
        if tokenizer is None:
            raise BadInput(f"{self.path} holds no tokenizer: give a folder with {FILE}, that file, or a .gguf file")
        return tokenizer


def build_vocabulary(
    vocabulary: Vocabulary | Tokenizer, files: Files = (), on_bytes: OnBytes | None = None
) -> Tokenizer:
    """A tokenizer: the one given, or one made from these training files."""
    if isinstance(vocabulary, Tokenizer):
        return vocabulary
    return vocabulary.build(expand(files) if files else [], on_bytes)


def fingerprint(tokenizer: Tokenizer) -> str:
    """A text that two tokenizers share exactly if they make the same tokens of everything."""
    identity = f"{tokenizer.bos}\n{tokenizer.eos}\n{tokenizer.backend.to_str()}"
    return hashlib.sha256(identity.encode()).hexdigest()


def plain_backend(tokenizer: Tokenizer) -> Backend:
    """The same, except that a special token's name in a text is text: files are data, they do not give orders."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def of_bytes(tokenizer: Tokenizer) -> bool:
    """Whether its tokens are the bytes of a text, so that files need no decoding."""
    return tokenizer.backend.get_vocab(with_added_tokens=False) == BYTES


def mask_token(tokenizer: Tokenizer) -> int:
    """The token that stands for a hidden one."""
    for name in (MASK, "[MASK]"):
        if (number := tokenizer.backend.token_to_id(name)) is not None:
            return number
    raise BadInput(f"this vocabulary has no mask token: make it with special=({MASK!r}, …)")


def pad_token(tokenizer: Tokenizer) -> int:
    """What stands in empty places. Nobody looks at it, so without a token of its own any other will do."""
    for name in (PAD, "[PAD]"):
        if (number := tokenizer.backend.token_to_id(name)) is not None:
            return number
    return tokenizer.eos or 0


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """The numbers of the special tokens, in order."""
    return sorted(i for i, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special)


def texts(files: Iterable[Path], on_bytes: OnBytes | None = None) -> Iterator[str]:
    """The files' text, in pieces of a moderate size."""
    before = 0
    for file in files:
        yield from (piece for piece, _ in pieces(file, on_bytes=offset_by(on_bytes, before)))
        before += file.stat().st_size


def train_bpe(backend: Backend, corpus: Iterable[str], size: int, special: Sequence[str]) -> None:
    """Fill a BPE model. The same texts give the same merges."""
    if size < (least := 256 + len(special)):
        raise BadInput(f"a BPE of {size} tokens: give at least {least}, 256 bytes and {len(special)} special tokens")
    check_special(special)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)


def check_special(special: Sequence[str]) -> None:
    if isinstance(special, str) or len(set(special)) != len(special) or not all(special):
        raise BadInput(f"special={special!r}: give a tuple of different names, as in ({START!r}, {END!r})")


def with_special_tokens(backend: Backend, special: Sequence[str], *, around: bool = True) -> Tokenizer:
    """A tokenizer that knows its special tokens. ``around``: one that has a start token puts it before every text."""
    check_special(special)
    backend.add_special_tokens(list(special))
    if around and START in special:
        number = backend.token_to_id(START)
        assert number is not None
        backend.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, number)])
    about = About(START if START in special else None, END if END in special else None)
    return Tokenizer(functools.partial(Backend.from_str, backend.to_str()), about)
