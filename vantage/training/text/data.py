"""Files of text as training data: the next token, or hidden ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.training.batch import IGNORE, Batch, random
from vantage.training.text.rows import Batches, EpochOrder
from vantage.training.text.shards import Shards
from vantage.training.text.vocabulary import mask_token, special_tokens
from vantage.training.text.windows import ContiguousWindows, PackedWindows, TokenRange, Windows

HELD_OUT = 2**62  # held-out rows take their random numbers from here on, examples from 0


@final
class TextData:
    """Windows of ``length`` tokens, each predicted from those before it.

    Every window comes once an epoch. Plain windows start elsewhere in each epoch; ``packed`` rows hold whole
    documents, with positions that restart. ``valid``: other shards, or the share of the text, at its end, that is
    kept for evaluation. ``lengths``: evaluate at these lengths as well, training length or not. ``most``: evaluate
    on so many windows at most, spread evenly.
    """

    def __init__(
        self,
        train: Shards,
        valid: Shards | float = 0.1,
        *,
        length: int,
        packed: bool = False,
        seed: int = 0,
        lengths: Sequence[int] = (),
        eval_batch: int = 16,
        most: int | None = None,
    ):
        if min([length, *lengths]) < 1 or (most is not None and most < 1):
            raise BadInput(f"length={length}, lengths={tuple(lengths)}, most={most}: give at least 1 of each")
        self.tokenizer: Tokenizer = train.tokenizer
        self.length, self.lengths, self.packed, self.seed = length, tuple(lengths), packed, seed
        self._eval_batch, self._most = eval_batch, most
        part, self._valid = _split(train, valid)
        self._windows: Windows = PackedWindows(part, length, seed) if packed else ContiguousWindows(part, length)
        self._order = EpochOrder(seed, self._windows.count)
        self._held: dict[int, Windows] = {}
        self._window_of(length)  # a text too short to evaluate on is refused now, not at the first evaluation
        for n in self.lengths:
            self._window_of(n)

    @property
    def vocab(self) -> int:
        return len(self.tokenizer)

    @property
    def epoch(self) -> int:
        """How many examples an epoch has."""
        return self._windows.count

    def batch(self, indices: Sequence[int]) -> Batch:
        picks = [self._order(index) for index in indices]
        shifts = {epoch: self._shift(epoch) for epoch in {epoch for epoch, _ in picks}}
        return self._windows.batch([(window, shifts[epoch]) for epoch, window in picks])

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        sets = {"valid": self._evaluated(self.length)}
        return sets | {f"valid, {n} tokens": self._evaluated(n) for n in self.lengths}

    def _shift(self, epoch: int) -> int:
        """How far an epoch's windows are moved: a number that its permutation does not use."""
        return int(random(self.seed + 1, -1 - epoch).integers(self._windows.slack))

    def _window_of(self, length: int) -> Windows:
        if length not in self._held:
            part = self._valid
            self._held[length] = (
                PackedWindows(part, length, self.seed) if self.packed else ContiguousWindows(part, length, fixed=True)
            )
        return self._held[length]

    def _evaluated(self, length: int) -> Batches:
        windows = self._window_of(length)
        count = windows.count if self._most is None else min(windows.count, self._most)
        chosen = [i * windows.count // count for i in range(count)]
        return Batches(count, self._eval_batch, lambda rows: windows.batch([(chosen[i], 0) for i in rows]))


def _split(train: Shards, valid: Shards | float) -> tuple[TokenRange, TokenRange]:
    if isinstance(valid, Shards):
        if valid.index.vocabulary != train.index.vocabulary:
            raise BadInput(
                f"training and validation text have different vocabularies, of {train.vocab} and {valid.vocab} tokens: "
                "prepare the validation files with vocabulary=train.tokenizer"
            )
        return TokenRange(train, 0, len(train)), TokenRange(valid, 0, len(valid))
    if not 0 < valid < 1:
        raise BadInput(f"valid={valid}: give shards, or a share of the text between 0 and 1")
    cut = int(len(train) * (1 - valid))
    return TokenRange(train, 0, cut), TokenRange(train, cut, len(train))


@final
class Masked:
    """The same windows with ``share`` of their tokens hidden, to be found again (BERT, Devlin et al. 2018).

    Of the tokens that are asked for 80 % are masked, 10 % are others by chance, and 10 % are left as they are, so
    that a model cannot trust what it sees. Special tokens and empty places are never chosen.
    """

    def __init__(self, text: TextData, *, share: float = 0.15, seed: int = 0):
        if not 0 < share < 1:
            raise BadInput(f"share={share}: give the share of tokens to hide, between 0 and 1")
        self._text, self.share, self.seed = text, share, seed
        self.tokenizer = text.tokenizer
        self._mask, special = mask_token(text.tokenizer), special_tokens(text.tokenizer)
        self._special = torch.tensor(special)
        self._ordinary = np.setdiff1d(np.arange(text.vocab), special)

    @property
    def vocab(self) -> int:
        return self._text.vocab

    @property
    def epoch(self) -> int:
        return self._text.epoch

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._hide(self._text.batch(indices), list(indices))

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        return {name: self._hidden(batches) for name, batches in self._text.held_out().items()}

    def _hidden(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        def make(one: range) -> Batch:
            batch, rows = batches[one[0]], len(batches[0].tokens)
            first = HELD_OUT + one[0] * rows
            return self._hide(batch, range(first, first + len(batch.tokens)))

        return Batches(len(batches), 1, make)

    def _hide(self, batch: Batch, numbers: Sequence[int]) -> Batch:
        may = ~torch.isin(batch.tokens, self._special)
        if batch.positions is not None:
            may &= batch.positions.filled
        tokens, targets = batch.tokens.clone(), torch.full_like(batch.tokens, IGNORE)
        for row, number in enumerate(numbers):
            self._hide_row(tokens[row], targets[row], may[row], random(self.seed, number))
        return replace(batch, tokens=tokens, targets=targets)

    def _hide_row(self, tokens_T: Tensor, targets_T: Tensor, may_T: Tensor, rng: np.random.Generator) -> None:
        places = may_T.nonzero()[:, 0].numpy()
        if not len(places):
            return
        chosen = torch.from_numpy(rng.choice(places, max(1, round(len(places) * self.share)), replace=False))
        targets_T[chosen] = tokens_T[chosen]
        what = torch.from_numpy(rng.random(len(chosen)))
        others = torch.from_numpy(rng.choice(self._ordinary, len(chosen)))
        shown = torch.where(what < 0.9, others, tokens_T[chosen])
        tokens_T[chosen] = torch.where(what < 0.8, self._mask, shown)
