"""Random calls of a kernel, and attention said again with loops over single numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.spec.helpers import EVERYTHING, Meant, masks, pairs, token
from vantage.spec.normalisers import Argmax, Normaliser, Softmax
from vantage.spec.parts import Attended, Dense, Kernel, Need, Pointwise, View
from vantage.spec.positions import Place, Positions

F64 = torch.float64


@dataclass(frozen=True, eq=False)
class ByRow(Pointwise):
    """A pointwise bias that reads everything it is given: row, head, query, both places."""

    by_query: Tensor  # (B, H, T)
    slopes: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return self.by_query[b, h, i] - self.slopes[h] * (q.pos - k.pos)


@dataclass(frozen=True, eq=False)
class ByDistance(Pointwise):
    """A pointwise bias that is the same for every row."""

    slopes: Tensor  # (H,)

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        return -self.slopes[h] * (q.pos - k.pos).abs()


@dataclass
class Call:
    """Everything a kernel is called with, and what its mask means."""

    q: Tensor
    view: View
    pos: Positions
    need: Need
    meant: Meant

    def run(self, kernel: Kernel, **changes) -> Attended:
        need = replace(self.need, **changes)
        return kernel(self.q, self.view, self.pos.against(self.view.pos), need)

    def to(self, dtype: torch.dtype) -> Call:
        view = View(self.view.k.to(dtype), self.view.v.to(dtype), self.view.pos)
        sinks = None if self.need.sinks is None else self.need.sinks.to(dtype)
        bias = self.need.bias
        bias = Dense(bias.value.to(dtype)) if isinstance(bias, Dense) else bias
        return Call(self.q.to(dtype), view, self.pos, replace(self.need, sinks=sinks, bias=bias), self.meant)


def normal(*shape: int, seed: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def call(
    B: int = 2,
    G: int = 2,
    share: int = 2,
    T: int = 3,
    S: int = 5,
    d: int = 4,
    d_v: int = 6,
    *,
    meant: Meant = EVERYTHING,
    q_pos: Positions | None = None,
    k_pos: Positions | None = None,
    seed: int = 0,
    **need,
) -> Call:
    """A call with sharp random vectors."""
    H = G * share
    q_pos = Positions.arange(B, T, S - T) if q_pos is None else q_pos
    k_pos = Positions.arange(B, S) if k_pos is None else k_pos
    q = 1.5 * normal(B, H, T, d, seed=seed)
    view = View(1.5 * normal(B, G, S, d, seed=seed + 1), normal(B, G, S, d_v, seed=seed + 2), k_pos)
    return Call(q, view, q_pos, Need(meant.mask, need.pop("scale", 0.6), **need), meant)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any call: groups, widths, masks, biases, softcap, sinks, temperature, empty places, documents."""
    q_pos, k_pos = draw(pairs(high=9))
    (B, T), S = q_pos.shape, k_pos.shape[1]
    G, share = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    H, seed = G * share, draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["none", "by row", "by distance", "dense", "dense for all rows"]))
    slopes = normal(H, seed=seed + 3).abs() / 4
    bias = {
        "none": None,
        "by row": ByRow(normal(B, H, T, seed=seed + 4), slopes),
        "by distance": ByDistance(slopes),
        "dense": Dense(normal(B, H, T, S, seed=seed + 5)),
        "dense for all rows": Dense(normal(1, H, T, S, seed=seed + 5)),
    }[kind]
    normaliser = draw(st.sampled_from([Softmax(), Softmax(), Softmax(0.5), Softmax(3.0), Argmax()]))
    return call(
        B,
        G,
        share,
        T,
        S,
        draw(st.sampled_from([2, 4])),
        draw(st.sampled_from([1, 3, 4])),
        meant=draw(masks()),
        q_pos=q_pos,
        k_pos=k_pos,
        seed=seed,
        scale=draw(st.sampled_from([0.3, 1.0])),
        softcap=draw(st.sampled_from([None, None, 1.5])),
        bias=bias,
        sinks=normal(H, seed=seed + 6) if draw(st.booleans()) else None,
        normalise=normaliser,
    )


def by_hand(c: Call) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, d_v) and weights (B, H, T, S), one number at a time, in the order that ``Need`` fixes."""
    (B, H, T), (G, S) = c.q.shape[:3], c.view.k.shape[1:3]
    weights = torch.zeros(B, H, T, S, dtype=F64)
    out = torch.zeros(B, H, T, c.view.v.shape[-1], dtype=F64)
    for b in range(B):
        for h in range(H):
            g = h * G // H
            for i in range(T):
                seen = [j for j in range(S) if _sees(c, b, i, j)]
                scores = {j: _score(c, b, h, g, i, j) for j in seen}
                sink = None if c.need.sinks is None else float(c.need.sinks[h])
                for j, w in _normalise(scores, sink, c.need.normalise).items():
                    weights[b, h, i, j] = w
                    out[b, h, i] += w * c.view.v[b, g, j]
    return out, weights


def _sees(c: Call, b: int, i: int, j: int) -> bool:
    q, k = token(c.pos, b, i), token(c.view.pos, b, j)
    return q is not None and k is not None and c.meant.sees(q, k)


def _score(c: Call, b: int, h: int, g: int, i: int, j: int) -> float:
    score = sum(float(x) * float(y) for x, y in zip(c.q[b, h, i], c.view.k[b, g, j], strict=True)) * c.need.scale
    if c.need.softcap is not None:
        score = c.need.softcap * math.tanh(score / c.need.softcap)
    bias, distance = c.need.bias, float(c.pos.pos[b, i] - c.view.pos.pos[b, j])
    if isinstance(bias, Dense):
        score += float(bias.value[min(b, len(bias.value) - 1), h, i, j])
    elif isinstance(bias, ByRow):
        score += float(bias.by_query[b, h, i]) - float(bias.slopes[h]) * distance
    elif isinstance(bias, ByDistance):
        score -= float(bias.slopes[h]) * abs(distance)
    return score


def _normalise(scores: dict[int, float], sink: float | None, how: Normaliser) -> dict[int, float]:
    if isinstance(how, Argmax):
        top = max([*scores.values(), *([] if sink is None else [sink])], default=0.0)
        best = [j for j, s in scores.items() if s == top]
        return {j: 1 / len(best) for j in best}
    total = sum(math.exp(s / how.temperature) for s in scores.values())
    total += 0.0 if sink is None else math.exp(sink / how.temperature)
    return {j: math.exp(s / how.temperature) / total for j, s in scores.items()}
