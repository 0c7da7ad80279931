"""Text in an experiment: train on short windows, read long ones.

Two ways to read a text with windows of n tokens, as the ALiBi paper (Press et al. 2022, its appendix on evaluation) has
them. *Non-overlapping* (the plain one here): the text is cut every n tokens, so a token has from 0 to n − 1 tokens
before it. *Sliding*: the window moves by a stride and only the tokens that are new in it are scored, so all but the
first have at least n − stride before them. Both score the same tokens, each once. *Over position*: the non-overlapping
windows of the longest length, scored by where in the window a token stands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.checkpoints.pull import home
from vantage.compare.names import TEXT, bpe_size
from vantage.compare.results import TestScore
from vantage.errors import BadInput
from vantage.training.batch import Batch
from vantage.training.text import BPE, Bytes, Characters, Shards, TextData, Vocabulary, expand, prepare

NAME = TEXT
SLIDING, OVER_POSITION = "text, sliding", "text, over position"
READINGS = (NAME, SLIDING, OVER_POSITION)
HELD_OUT = 0.1  # of the text, at its end, is read and not trained on
COUNT_CHUNK = 2**24  # tokens that are counted at a time
MAX_SCORES = 2**23  # scores of one head that a batch may have: windows of 1,024 come eight at a time

Logits = Callable[[Batch], Tensor]


def vocabulary(name: str) -> Vocabulary:
    """ "bytes", "characters" or "bpe-4096"."""
    if (size := bpe_size(name)) is not None:
        return BPE(size)
    return Bytes() if name == "bytes" else Characters()


def shards(files: tuple[str, ...], words: str) -> Shards:
    """The tokens of these files; made once, and found again by every process."""
    stamp = tuple((str(path), path.stat().st_mtime_ns) for path in expand(files))
    return _shards(stamp, words)


@functools.lru_cache(4)
def _shards(stamp: tuple[tuple[str, int], ...], words: str) -> Shards:
    return prepare([Path(name) for name, _ in stamp], vocabulary(words), home() / "tokens")


def unigram_loss(text: Shards) -> float:
    """What it costs, in nats a token, to say the held-out text by how frequent each token is in the rest: without any
    context. A token that the rest does not have counts as if it had been there once."""
    cut = int(len(text) * (1 - HELD_OUT))
    counts = np.ones(text.vocab)
    for start in range(0, cut, COUNT_CHUNK):
        counts += np.bincount(text.read(start, min(COUNT_CHUNK, cut - start)), minlength=text.vocab)
    costs = -np.log(counts / counts.sum())
    total = sum(
        costs[text.read(start, min(COUNT_CHUNK, len(text) - start))].sum()
        for start in range(cut, len(text), COUNT_CHUNK)
    )
    return float(total / max(1, len(text) - cut))


@dataclass(frozen=True, eq=False)
class Reading:
    """A text as a run of an experiment has it: windows to train on, and the same held-out tokens for every length."""

    text: Shards
    train_length: int
    test_lengths: tuple[int, ...]
    tokens: int  # that are read at every length, where there are as many
    seed: int = 0

    def __post_init__(self) -> None:
        top, held = max(self.test_lengths), len(self.text) - self._cut
        if held <= top:
            raise BadInput(
                f"a test length of {top}: the tenth of the text that is held out has {held:,} tokens. Give more text "
                f"(about {10 * (top + 1):,} tokens or more), or lengths up to {max(held - 1, 1)}"
            )

    @property
    def vocab(self) -> int:
        return self.text.vocab

    @property
    def stride(self) -> int:
        """By how much a sliding window moves: half the training length."""
        return max(1, self.train_length // 2)

    @property
    def _cut(self) -> int:
        return int(len(self.text) * (1 - HELD_OUT))

    @functools.cached_property
    def _train(self) -> TextData:
        return TextData(self.text, HELD_OUT, length=self.train_length, seed=self.seed)

    @functools.cached_property
    def held(self) -> Tensor:
        """The tokens that are read, and one more that is only said."""
        count = min(len(self.text) - self._cut - 1, max(self.tokens, max(self.test_lengths)))
        return torch.from_numpy(np.asarray(self.text.read(self._cut, count + 1)))

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._train.batch(indices)

    # ---- reading

    def score(self, logits: Logits, device: torch.device) -> dict[str, tuple[TestScore, ...]]:
        """By way of reading, at every length."""
        plain = [self._non_overlapping(logits, n, device) for n in self.test_lengths]
        sliding = [self._sliding(logits, n, device) for n in self.test_lengths]
        return {
            NAME: tuple(_score(n, one) for n, one in zip(self.test_lengths, plain, strict=True)),
            SLIDING: tuple(_score(n, one) for n, one in zip(self.test_lengths, sliding, strict=True)),
            OVER_POSITION: over_position(plain[-1], self.test_lengths[-1], self._stretch_ends()),
        }

    def _stretch_ends(self) -> list[int]:
        """Where the stretches of a window end that are scored apart: finer within the training length."""
        inside = {max(1, self.train_length // 4), max(1, self.train_length // 2), self.train_length}
        return sorted(n for n in inside | set(self.test_lengths) if n <= self.test_lengths[-1])

    def _non_overlapping(self, logits: Logits, n: int, device: torch.device) -> Tensor:
        """The loss of every token, in windows of n; the last one may be shorter."""
        count = len(self.held) - 1
        losses = [_losses(logits, self.held, range(0, count - count % n, n), n, device).flatten()]
        if count % n:
            losses.append(_losses(logits, self.held, range(count - count % n, count, n), count % n, device).flatten())
        return torch.cat(losses)

    def _sliding(self, logits: Logits, n: int, device: torch.device) -> Tensor:
        """The loss of every token, with as much before it as a window that moves by the stride leaves it."""
        count, step = len(self.held) - 1, min(self.stride, n)
        first = _losses(logits, self.held, range(1), min(n, count), device).flatten()
        starts = range(step, count - n + 1, step)
        losses = [first, _losses(logits, self.held, starts, n, device)[:, n - step :].flatten()]
        scored = sum(len(part) for part in losses)
        if scored < count:  # what a whole stride would overshoot
            losses.append(_losses(logits, self.held, range(count - n, count - n + 1), n, device)[0, scored - count :])
        return torch.cat(losses)


def over_position(losses: Tensor, n: int, ends: Sequence[int]) -> tuple[TestScore, ...]:
    """Losses of windows of n tokens, row after row, by stretches of the window that end there."""
    rows = losses[: len(losses) - len(losses) % n].view(-1, n)
    return tuple(_score(end, rows[:, start:end].flatten()) for start, end in zip([0, *ends], ends, strict=False))


def _score(n: int, losses: Tensor) -> TestScore:
    return TestScore(n, 0.0, 0.0, float(losses.double().mean()), len(losses))


def _losses(logits: Logits, tokens: Tensor, starts: Sequence[int], n: int, device: torch.device) -> Tensor:
    """(windows, n): minus the log-probability of each next token."""
    losses = [torch.zeros(0, n)]
    for some in _batches(starts, max(1, min(32, MAX_SCORES // n**2))):
        rows = torch.stack([tokens[start : start + n + 1] for start in some]).to(device)
        batch = Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        predictions = logits(batch).float()
        losses.append(F.cross_entropy(predictions.transpose(1, 2), batch.targets, reduction="none").cpu())
    return torch.cat(losses)


def _batches(starts: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for at in range(0, len(starts), size):
        yield starts[at : at + size]
