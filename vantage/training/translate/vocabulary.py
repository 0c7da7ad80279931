"""One vocabulary for both languages: names and numbers are the same in both, and embeddings can be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.training.text.files import OnBytes, lines, offset_by
from vantage.training.text.vocabulary import END, PAD, START, train_bpe, with_special_tokens
from vantage.training.translate.words import WORD


@dataclass(frozen=True)
class JointBPE:
    """Byte-level BPE within words, of sentences in two languages. ``lower``: everything is lower-cased first.

    A word is made of the same pieces wherever it stands, because every sentence begins with a space that decoding
    takes away again; runs of spaces are one.
    """

    size: int = 8000
    lower: bool = True

    def build(self, files: Sequence[Path], on_bytes: OnBytes | None = None) -> Tokenizer:
        special = (PAD, START, END)
        backend = Backend(models.BPE())
        backend.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                *([normalizers.Lowercase()] if self.lower else []),
                normalizers.Replace(Regex(r"\s+"), " "),
                normalizers.Strip(),
                normalizers.Prepend(" "),
            ]
        )
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(rf" ?(?:{WORD})|\s+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        train_bpe(backend, _sentences(files, on_bytes), self.size, special)
        return with_special_tokens(backend, special, around=False)  # a source sentence has no start token


def _sentences(files: Sequence[Path], on_bytes: OnBytes | None) -> Iterator[str]:
    before = 0
    for path in files:
        yield from lines(path, on_bytes=offset_by(on_bytes, before))
        before += path.stat().st_size
