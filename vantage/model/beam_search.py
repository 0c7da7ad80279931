"""Beam search: the best of several texts kept side by side, their caches exchanged as they overtake each other.

The rules are those of transformers' ``generate(num_beams=…)``, so results can be compared: candidates
are ranked by summed log-probability, finished texts by that sum over length ** length_penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from vantage.errors import BadInput


@final
@dataclass(frozen=True)
class Beams:
    """How to search. ``early_stopping``: True ends as soon as ``beams`` texts are finished; False when the best
    running text, at its present length, is behind the worst of those; "never" when it would be at any length."""

    beams: int = 4
    n_best: int = 1
    length_penalty: float = 1.0  # above 0 favours long texts, below 0 short ones
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beams:
            raise BadInput(f"the {self.n_best} best of {self.beams} beams: give 1 ≤ n_best ≤ beams")
        if self.early_stopping not in (True, False, "never"):
            raise BadInput(f"early_stopping={self.early_stopping!r}: give True, False or 'never'")
        if not abs(self.length_penalty) < 100:
            raise BadInput(f"length_penalty={self.length_penalty!r}: give a number near 1")


@final
@dataclass(frozen=True)
class Hypothesis:
    """A finished text."""

    tokens: tuple[int, ...]
    logprob: float  # summed
    score: float  # by which it is ranked
    finish: str  # "stop" or "length"


@final
@dataclass(frozen=True)
class _RunningText:
    tokens: tuple[int, ...]
    logprob: float
    row: int  # of the cache, whose keys these tokens continue


@final
class BeamSearch:
    """The texts that go on from one prompt: which run and which are finished; knows nothing of models."""

    def __init__(self, beams: Beams, ends: frozenset[int], max_tokens: int):
        self._beams, self._ends, self._most = beams, ends, max_tokens
        # so many that enough are left to go on when some end here; no more can win in one row
        self.width = max(2, 1 + len(ends)) * beams.beams
        self.running = [_RunningText((), 0.0, 0)]
        self.finished: list[Hypothesis] = []  # best first
        self.over = False

    def step(self, logprobs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], first_row: int) -> None:
        """One token more for every running text, given the best tokens after each; their rows begin at this one."""
        going: list[_RunningText] = []
        candidates = self._candidates(logprobs, tokens, first_row)
        for rank, text in enumerate(candidates):
            if not self._ends_with(text):
                going.append(text)
            elif rank < self._beams.beams:  # the others were only there in case too few go on
                self._finish(text)
        self.running = going[: self._beams.beams]
        length = len(candidates[0].tokens)
        self.over = not going or self._full_early() or not self._can_improve(going[0].logprob, length)

    def _candidates(
        self, logprobs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], first_row: int
    ) -> list[_RunningText]:
        options = [
            (text.logprob + logprob, i, token)
            for i, text in enumerate(self.running)
            for logprob, token in zip(logprobs[i], tokens[i], strict=True)
            if logprob > -math.inf
        ]
        options.sort(key=lambda option: -option[0])
        return [
            _RunningText((*self.running[i].tokens, token), total, first_row + i)
            for total, i, token in options[: self.width]
        ]

    def _ends_with(self, text: _RunningText) -> bool:
        return text.tokens[-1] in self._ends or len(text.tokens) == self._most

    def _finish(self, text: _RunningText) -> None:
        why = "stop" if text.tokens[-1] in self._ends else "length"
        score = text.logprob / len(text.tokens) ** self._beams.length_penalty
        self.finished.append(Hypothesis(text.tokens, text.logprob, score, why))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self._beams.beams :]

    def _full(self) -> bool:
        return len(self.finished) == self._beams.beams

    def _full_early(self) -> bool:
        return self._beams.early_stopping is True and self._full()

    def _can_improve(self, best: float, length: int) -> bool:
        """Whether the best running text may still come before the worst finished text."""
        if not self._full():
            return True
        beams = self._beams
        if beams.early_stopping == "never" and beams.length_penalty > 0:
            length = self._most
        return best / length**beams.length_penalty > self.finished[-1].score


def search(
    searches: Sequence[BeamSearch],
    logprobs: Callable[[list[int]], Tensor],
    reorder: Callable[[list[int]], None],
) -> None:
    """Run searches side by side until all are over.

    ``logprobs``: the log-probabilities (rows, V) after these tokens, one for each row; at first, with none given,
    after the prompts, which have a row each. ``reorder``: keep these rows of the cache, in this order.
    """
    active, new = list(searches), list[int]()
    while active:
        best = logprobs(new)
        best = best.topk(min(active[0].width, best.shape[1]))
        values, tokens = best.values.tolist(), best.indices.tolist()
        row = 0
        for one in active:
            end = row + len(one.running)
            one.step(values[row:end], tokens[row:end], row)
            row = end
        active = [one for one in active if not one.over]
        keep = [text.row for one in active for text in one.running]
        new = [text.tokens[-1] for one in active for text in one.running]
        if keep and keep != list(range(row)):
            reorder(keep)
