"""What every row of ``vt.check`` uses: tokens, passes, steps, differences and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import torch
from torch import Tensor

from vantage.conformance.fault import Fault
from vantage.conformance.report import Status
from vantage.conformance.subject import ModelFacts, NotApplicable, Subject
from vantage.errors import BadInput

# Of the largest logit. Ways to compute the same thing differ by some dozen roundings, and a deep model
# amplifies them: 16-bit numbers round at 1e-3 (float16) and 8e-3 (bfloat16).
RELATIVE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
ROWS, TOKENS, SHIFT, LEAST = 3, 16, 7, 4
NOT_FINITE = "some logits are not a number, or infinite on one side only"


@dataclass(frozen=True)
class Finding:
    """What a row found."""

    status: Status
    measured: float | None = None
    tolerance: float | None = None
    note: str = ""
    unit: str = "logits"
    fault: Fault | None = None


@dataclass
class Probe:
    """A model under test, with the tokens and the tolerance for it."""

    subject: Subject
    tokens: Tensor  # (ROWS, T)
    shift: int  # positions can be moved by this much
    scale: float
    relative: float
    dtype: torch.dtype
    was_training: bool = False
    failed: dict[str, Fault | None] = field(default_factory=dict)  # the rows that failed so far, and why
    not_finite: Callable[[Probe], Fault] = lambda p: Fault(NOT_FINITE)

    @staticmethod
    def of(subject: Subject, relative: float | None, seed: int, dtype: torch.dtype | None, was_training: bool) -> Probe:
        """``dtype``: the coarsest of the model's parameters, where there are any."""
        facts = subject.facts
        if _drawn(facts) < 2:
            raise BadInput(f"vocab={facts.vocab}: the rows change tokens, so there must be at least 2, padding apart")
        # a rule that depends on the length has a row of its own: the others stay where it does not change
        room = TOKENS + SHIFT if facts.room is None else facts.room
        if room < LEAST:
            raise BadInput(f"{facts.name} has {room} positions: the rows need at least {LEAST}")
        width = min(TOKENS, max(LEAST, room * 3 // 4))
        draw = torch.Generator().manual_seed(seed)
        tokens = _without_pad(torch.randint(_drawn(facts), (ROWS, width), generator=draw), facts).to(facts.device)
        logits = subject.run(tokens, _positions(tokens, 0))
        _check_logits(logits, tokens)
        coarse = max((d for d in (dtype, logits.dtype) if d is not None), key=lambda d: torch.finfo(d).eps)
        relative = RELATIVE.get(coarse, RELATIVE[torch.bfloat16]) if relative is None else relative
        scale = float(logits[logits.isfinite()].abs().max()) if bool(logits.isfinite().any()) else 0.0
        shift = max(0, min(SHIFT, room - width))
        return Probe(subject, tokens, shift, scale, relative, coarse, was_training)

    # ---- what to feed

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def tolerance(self) -> float:
        return self.relative * self.scale

    @property
    def floor(self) -> float:
        """A smaller difference may be rounding."""
        return 16 * torch.finfo(self.dtype).eps * self.scale

    @property
    def prefill(self) -> int:
        return self.width // 2

    def changed(self, tokens: Tensor, by: int = 1) -> Tensor:
        """Other tokens, every one of them."""
        facts = self.subject.facts
        known = tokens if facts.pad is None else tokens - (tokens > facts.pad).long()
        return _without_pad((known + by) % _drawn(facts), facts)

    def positions(self, tokens: Tensor, start: int = 0) -> Tensor:
        return _positions(tokens, start)

    # ---- running

    def full(self, tokens: Tensor, start: int = 0) -> Tensor:
        """One pass without a cache."""
        return self.subject.run(tokens, self.positions(tokens, start))

    def feed(self, tokens: Tensor, sizes: Sequence[int], start: int = 0, length: int | None = None) -> Tensor:
        """The same through a cache, in pieces of these sizes."""
        self.settled(sizes)
        cache = self.subject.new_cache(len(tokens), length=length)
        places = self.positions(tokens, start).split(list(sizes), 1)
        pieces = zip(tokens.split(list(sizes), 1), places, strict=True)
        return torch.cat([self.subject.run(piece, place, cache) for piece, place in pieces], 1)

    def steps(self, tokens: Tensor, start: int = 0) -> Tensor:
        """A prefill, then one token at a time."""
        return self.feed(tokens, self.step_sizes(tokens.shape[1]), start)

    def step_sizes(self, width: int) -> list[int]:
        return [self.prefill, *[1] * (width - self.prefill)]

    def chunk_sizes(self) -> list[int]:
        """A prefill, and then chunks of several sizes."""
        quarter = max(1, self.width // 4)
        sizes = [quarter + 1, quarter - 1, 1, self.width - 2 * quarter - 1]
        return [n for n in sizes if n]

    def settled(self, sizes: Sequence[int]) -> None:
        """Raises unless tokens may arrive in such pieces."""
        cuts = [sum(sizes[:i]) for i in range(1, len(sizes))]
        if not all(self.subject.settled(cut) for cut in cuts):
            raise NotApplicable("its tokens see later ones, so they cannot arrive one after another")

    # ---- judging

    def earlier(self, *rows: str) -> Fault | None:
        """The fault of the first of these rows that failed: what comes after it may fail for the same reason."""
        return next((fault for row in rows if (fault := self.failed.get(row)) is not None), None)

    def judge(self, measured: float, cause: Callable[[], Fault], note: str = "") -> Finding:
        """``cause`` is asked only if the row fails."""
        if measured <= self.tolerance:
            return Finding("ok", measured, self.tolerance, note)
        if not isfinite(measured):
            return failure(self.not_finite(self), inf, self.tolerance)
        return failure(cause(), measured, self.tolerance)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference; infinite if anything is not a number."""
    if a.numel() == 0:
        return 0.0
    a, b = a.cpu().double(), b.cpu().double()
    worst = float(torch.where(a == b, 0.0, (a - b).abs()).max())  # a token that is never allowed is -inf twice
    return worst if isfinite(worst) else inf


def gaps(a_BTV: Tensor, b_BTV: Tensor) -> list[float]:
    """The largest difference at each of the T places."""
    return [gap(a_BTV[:, t], b_BTV[:, t]) for t in range(a_BTV.shape[1])]


def failure(fault: Fault, measured: float | None, tolerance: float | None, unit: str = "logits") -> Finding:
    return Finding("failed", measured, tolerance, str(fault), unit, fault)


def _drawn(facts: ModelFacts) -> int:
    """How many tokens there are besides the padding."""
    return facts.vocab - (facts.pad is not None)


def _without_pad(tokens: Tensor, facts: ModelFacts) -> Tensor:
    """The padding token is passed over."""
    return tokens if facts.pad is None else tokens + (tokens >= facts.pad).long()


def _positions(tokens: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + tokens.shape[1], device=tokens.device).expand(tokens.shape)


def _check_logits(logits: object, tokens: Tensor) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.shape[:-1] != tokens.shape:
        returned = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        wanted = f"a floating-point tensor ({tokens.shape[0]}, {tokens.shape[1]}, vocabulary)"
        raise BadInput(f"the model returned {returned} for tokens {tuple(tokens.shape)}: return {wanted}")
