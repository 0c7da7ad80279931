"""Sentences and their translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.files import Files, expand
from vantage.training.batch import IGNORE, Batch
from vantage.training.text.files import lines
from vantage.training.text.rows import Batches, EpochOrder, padded
from vantage.training.text.vocabulary import Vocabulary, pad_token
from vantage.training.translate.vocabulary import JointBPE

Pair = tuple[str, str]
POOL = 100  # batches whose sentences are sorted by length among themselves


def read_pairs(source: Files, target: Files) -> list[Pair]:
    """Line n of the one and line n of the other are a pair. Plain text, or .gz."""
    a, b = ([line for path in expand(files) for line in lines(path)] for files in (source, target))
    if len(a) != len(b):
        raise BadInput(f"{source} has {len(a)} lines and {target} {len(b)}: they must be translations line by line")
    return list(zip(a, b, strict=True))


def ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """The start token that a translation begins with, and the end token that it stops at."""
    bos, eos = tokenizer.bos, tokenizer.eos
    if bos is None or eos is None:
        raise BadInput("translation needs a vocabulary with a start and an end token: JointBPE(...) has them")
    return bos, eos


def sources_of(rows: Sequence[Sequence[int]], tokenizer: Tokenizer) -> tuple[Tensor, Tensor | None]:
    """Source sentences as an encoder reads them, each with its end token, and the mask of what is no padding."""
    _, eos = ends(tokenizer)
    ended = [[*row, eos] for row in rows]
    lengths = torch.tensor([len(row) for row in ended])
    source = padded(ended, pad_token(tokenizer))
    mask = torch.arange(source.shape[1]) < lengths[:, None]
    return source, None if bool(mask.all()) else mask


@final
class PairData:
    """Parallel files, line by line. The decoder reads ``<s> y`` and is asked for ``y </s>``; the source is ``x </s>``.

    ``together`` is the batch size: so many examples in a row, starting at a multiple of it, have similar lengths.
    For that sentences are shuffled, sorted within pools of many batches, and the batches shuffled again; what does
    not fill a batch waits for another epoch. Training pairs with an empty side or with more than ``length`` tokens
    on one are left out, and counted in ``left_out``; validation pairs never are.
    """

    def __init__(
        self,
        source: Files,
        target: Files,
        valid: tuple[Files, Files],
        *,
        vocabulary: Vocabulary | Tokenizer = JointBPE(),
        length: int | None = None,
        together: int = 64,
        seed: int = 0,
        eval_batch: int = 64,
    ):
        if together < 1:
            raise BadInput(f"together={together}: give the batch size, at least 1")
        if isinstance(vocabulary, Tokenizer):
            self.tokenizer = vocabulary
        else:
            self.tokenizer = vocabulary.build([*expand(source), *expand(target)])
        ends(self.tokenizer)
        self._pad, self._eval_batch = pad_token(self.tokenizer), eval_batch
        pairs = self._encode(read_pairs(source, target))
        longest = max((max(map(len, pair)) for pair in pairs), default=0) if length is None else length
        self._train = [(x, y) for x, y in pairs if 0 < len(x) <= longest and 0 < len(y) <= longest]
        self.left_out = len(pairs) - len(self._train)
        if not self._train:
            raise BadInput(f"none of {len(pairs)} pairs has two sentences of at most {longest} tokens")
        self.valid = read_pairs(*valid)
        held = self._encode(self.valid)
        self._held = sorted(held, key=lambda pair: (len(pair[0]), len(pair[1])))
        together = min(together, len(self._train))
        shuffle = by_length([(len(x), len(y)) for x, y in self._train], together)
        self._order = EpochOrder(seed, len(self._train) // together * together, shuffle)

    @property
    def vocab(self) -> int:
        return len(self.tokenizer)

    @property
    def epoch(self) -> int:
        """How many examples an epoch has."""
        return self._order.count

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._batch([self._train[self._order(index)[1]] for index in indices])

    def held_out(self) -> Mapping[str, Sequence[Batch]]:
        def make(rows: range) -> Batch:
            return self._batch([self._held[i] for i in rows])

        return {"valid": Batches(len(self._held), self._eval_batch, make)}

    def _batch(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
        bos, eos = ends(self.tokenizer)
        source, mask = sources_of([x for x, _ in pairs], self.tokenizer)
        tokens = padded([[bos, *y] for _, y in pairs], self._pad)
        return Batch(tokens, padded([[*y, eos] for _, y in pairs], IGNORE), source=source, source_mask=mask)

    def _encode(self, pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
        backend = self.tokenizer.backend
        both = [backend.encode_batch_fast(list(side), add_special_tokens=False) for side in zip(*pairs, strict=True)]
        return [(x.ids, y.ids) for x, y in zip(*both, strict=True)]


def by_length(lengths: Sequence[tuple[int, int]], together: int) -> Callable[[np.random.Generator], NDArray[np.int64]]:
    """A way to shuffle in which each ``together`` pairs have similar lengths. Some may be left over.

    By the longer side, then by both: tried on Multi30k with the sum alone, 15 % of a batch was padding instead of 7.
    """
    keys = np.array([max(pair) * 2**32 + sum(pair) for pair in lengths])
    count = len(keys) // together * together

    def shuffle(rng: np.random.Generator) -> NDArray[np.int64]:
        mixed = rng.permutation(len(keys))[:count]
        pools = [mixed[low : low + POOL * together] for low in range(0, count, POOL * together)]
        rows = np.concatenate([pool[np.argsort(keys[pool], kind="stable")] for pool in pools])
        return rng.permutation(rows.reshape(-1, together)).reshape(-1)

    return shuffle
