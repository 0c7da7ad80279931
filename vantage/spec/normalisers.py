"""How scores become weights: softmax, and what has been put in its place.

A normaliser is frozen data that is called with scores (B, H, T, S), -inf where a query does not see a key; with the
sinks, which broadcast against them, or ``None``; and with the pair of positions, for those that ask in which order the
keys stand. It returns the weights and the log of what they were divided by. A row that sees nothing has weights of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, Registry


@runtime_checkable
class Normaliser(Protocol):
    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]: ...


@runtime_checkable
class MadeForPass(Protocol):
    """A normaliser that was made for the queries of one pass, and looks at all heads together."""

    def of_queries(self, columns: Tensor) -> Normaliser:
        """For some of them."""
        ...


@dataclass(frozen=True)
class Softmax:
    """Weights = softmax(scores / temperature)."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise BadInput(f"temperature={self.temperature}: use a positive number, or Argmax() for the limit 0")

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        top = _highest(scores_BHTS, sinks)
        exps = torch.exp((scores_BHTS - top) / self.temperature)
        total = exps.sum(-1, keepdim=True)
        total = total if sinks is None else total + torch.exp((sinks - top) / self.temperature)
        lse = torch.where(total > 0, torch.log(total) + top / self.temperature, float("-inf"))
        # of a row that sees nothing 1 and not a tiny number: its gradient would be infinite, and that times 0 NaN
        return exps / torch.where(total > 0, total, 1), lse.squeeze(-1)


@dataclass(frozen=True)
class Argmax:
    """Hard attention: all weight on the highest score, shared equally among equals. Scores that differ by a rounding
    are equal: the same token at two places has the same score, however a pass was cut."""

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        top = _highest(scores_BHTS, sinks)
        rounding = torch.finfo(scores_BHTS.dtype).eps ** 0.75  # 1.8e-12 in float64, 6.4e-6 in float32
        largest = scores_BHTS.masked_fill(scores_BHTS == float("-inf"), 0).abs().amax(-1, keepdim=True)
        best = (top - scores_BHTS <= rounding * largest).to(scores_BHTS.dtype)
        return best / best.sum(-1, keepdim=True).clamp_min(1), top.squeeze(-1)


@dataclass(frozen=True)
class OffByOne:
    """exp(s) / (1 + Σ exp(s)) (Miller 2023): a softmax with a sink that is held at 0."""

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        zero = scores_BHTS.new_zeros(1, 1, 1, 1)
        return Softmax()(scores_BHTS, zero if sinks is None else torch.logaddexp(zero, sinks), pair)


@dataclass(frozen=True)
class Sparsemax:
    """The nearest point of the simplex: max(s - τ, 0) with a sum of 1; low scores get exactly 0 (Martins 2016)."""

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        _no_sinks(self, sinks)
        seen = scores_BHTS > float("-inf")
        ranked = scores_BHTS.sort(-1, descending=True).values
        below = ranked.masked_fill(ranked == float("-inf"), 0).cumsum(-1) - 1  # Σ of the n highest, less 1
        n = torch.arange(1, scores_BHTS.shape[-1] + 1, device=scores_BHTS.device, dtype=scores_BHTS.dtype)
        support = ((n * ranked > below) & (ranked > float("-inf"))).sum(-1, keepdim=True)
        tau = below.gather(-1, (support - 1).clamp_min(0)) / support.clamp_min(1)
        weights = torch.where(seen, scores_BHTS - tau, 0).clamp_min(0)
        return weights, torch.where(support[..., 0] > 0, tau[..., 0], float("-inf"))


@dataclass(frozen=True)
class Entmax15:
    """max(s/2 - τ, 0)² with a sum of 1: between softmax and sparsemax, with exact zeros (Peters et al. 2019)."""

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        _no_sinks(self, sinks)
        seen, top = scores_BHTS > float("-inf"), _highest(scores_BHTS, None)
        half = ((scores_BHTS - top) / 2).clamp_min(-2)  # what lies 1 below the highest gets nothing
        tau = _entmax_threshold(half.detach())
        above = torch.where(seen, half - tau, 0).clamp_min(0)
        # one step of Newton's: it changes τ by rounding alone, and is what τ's gradient comes from
        tau = tau + (above.square().sum(-1, keepdim=True) - 1) / (2 * above.sum(-1, keepdim=True).clamp_min(0.5))
        weights = torch.where(seen, half - tau, 0).clamp_min(0).square()
        return weights, torch.where(seen.any(-1), (tau + top / 2).squeeze(-1), float("-inf"))


def _entmax_threshold(half: Tensor) -> Tensor:
    """τ with Σ max(half - τ, 0)² = 1: for each number n of highest scores the τ that would fit, and the last n whose
    own scores all lie above it."""
    ranked = half.sort(-1, descending=True).values
    n = torch.arange(1, half.shape[-1] + 1, device=half.device, dtype=half.dtype)
    mean, square = ranked.cumsum(-1) / n, ranked.square().cumsum(-1) / n
    tau = mean - ((1 / n - (square - mean.square())).clamp_min(0)).sqrt()
    support = (tau <= ranked).sum(-1, keepdim=True)
    return tau.gather(-1, support - 1)


@dataclass(frozen=True)
class Sigmoid:
    """σ(s - ln n): every key by itself, with no sum to 1 (Ramapuram et al. 2024).

    n is how many keys the query sees, so that a cache changes nothing, or ``length``, the one of training.
    """

    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise BadInput(f"length={self.length}: its logarithm is taken, so give 1 or more, or None for what is seen")

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        _no_sinks(self, sinks)
        seen = (scores_BHTS > float("-inf")).sum(-1, keepdim=True)
        n = seen.clamp_min(1) if self.length is None else torch.full_like(seen, self.length)
        return torch.sigmoid(scores_BHTS - n.to(scores_BHTS.dtype).log()), torch.zeros_like(scores_BHTS[..., 0])


@dataclass(frozen=True)
class StickBreaking:
    """Each key, the nearest first, takes the share σ(s) of what the nearer ones left (Tan et al. 2024).

    A query does not see its own key. What is left over goes nowhere. It needs the order of the keys and no position
    encoding; as a softmax it is one over ln w with a sink of ln(rest) for every query.
    """

    causal = True  # no annotation: not a field. Nearest first has no meaning among keys that come later

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        _no_sinks(self, sinks)
        assert pair is not None, "it asks in which order the keys stand"
        q, k = pair.places()
        scores = scores_BHTS.masked_fill(k.order == q.order, float("-inf"))
        newest_first = pair.once("newest key first", lambda: pair.k.order.argsort(-1, descending=True))
        index = newest_first[: k.order.shape[0], None, None].expand(*scores.shape[:-1], -1)
        stick = scores.gather(-1, index)
        left = F.logsigmoid(-stick)  # of a key that is not seen: ln(1 - 0) = 0
        taken = F.logsigmoid(stick) + left.cumsum(-1) - left
        weights = torch.zeros_like(scores).scatter(-1, index, taken.exp())
        return weights, torch.zeros_like(scores[..., 0])


# Forms of attention in the conformance matrix whose weights are no softmax: kernels that are made for one refuse them.
NOT_SOFTMAX = ("hard", "off-by-one", "sparsemax", "entmax", "sigmoid", "stick-breaking")


def needs_causal(normaliser: object) -> bool:
    """Whether it can only be used where no query sees a later key."""
    return getattr(normaliser, "causal", False)


def _highest(scores_BHTS: Tensor, sinks: Tensor | None) -> Tensor:
    top = scores_BHTS.amax(-1, keepdim=True)
    top = top if sinks is None else torch.maximum(top, sinks)
    return top.detach().clamp_min(torch.finfo(scores_BHTS.dtype).min)  # -inf - -inf would be nan


def _no_sinks(who: object, sinks: Tensor | None) -> None:
    if sinks is not None:
        raise Refused(f"{type(who).__name__} has no sinks: what it leaves over needs none")


NORMALISERS: Registry[Normaliser] = Registry(
    "normaliser",
    (
        Entry("softmax", Softmax, "Softmax", "exp(s) over the sum of them.", compared=False),
        Entry("argmax", Argmax, "Argmax", "Hard attention: all weight on the highest score.", compared=False),
        Entry("off-by-one", OffByOne, "Off by one", "A softmax that may attend to nothing: 1 is added to the sum."),
        Entry("sparsemax", Sparsemax, "Sparsemax", "The nearest point of the simplex: low scores get exactly 0."),
        Entry("entmax", Entmax15, "Entmax 1.5", "Between softmax and sparsemax: a smooth curve with exact zeros."),
        Entry("sigmoid", Sigmoid, "Sigmoid", "A sigmoid per key, σ(s - ln n); weights do not sum to 1."),
        Entry(
            "stick-breaking",
            StickBreaking,
            "Stick-breaking",
            "Stick-breaking: nearest key first, each takes a share of the remaining weight.",
        ),
    ),
    needs=("__call__",),
)
