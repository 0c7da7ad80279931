"""Transformer-XL (Dai et al. 2019): scale · [(q_i + u)·k_j + (q_i + v)·W_r R(i - j)], R sinusoidal, u, v, W_r learned.

The first term is a q/k transform (u is added to the query), the second a score bias.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.position.angles import need_even, wide
from vantage.position.relative import distance_waves, runs, sinusoid_scores, waves
from vantage.spec.abilities import Effect
from vantage.spec.forms import DistanceKeys, QueryDistances
from vantage.spec.native import HeadColumns, Program
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, BiasInputs, Dense, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

AT_ONCE = 8192  # distances whose sinusoids are in memory together


@dataclass(frozen=True)
class TransformerXL:
    """``base`` is that of the sinusoids R, as wide as the model: sines first, then cosines."""

    base: float = field(default=10000.0, metadata=parameter("the longest wavelength is 2π times this", 2.0, 1e9))

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(ContentBias(),), bias=DistanceTerm(self.base))


@dataclass(frozen=True)
class ContentBias:
    """u: what a query looks for whatever it is."""

    shared = False  # no annotation: not a field, and so below
    effect = Effect("query bias u · key", positional=False, linear=True, own_term=True)

    def describe(self) -> str:
        return "content bias u"

    def build(self, shape: Shape) -> nn.Module:
        return QueryBias(shape.heads, shape.rotary_dim)


class QueryBias(nn.Module):
    """q + u."""

    def __init__(self, heads: int, dim: int):
        super().__init__()
        self.u = nn.Parameter(torch.empty(heads, dim))
        nn.init.normal_(self.u, std=INIT_STD)

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return q_BHTd + self.u[:, None]

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return k_BGTd

    def query_shift(self) -> Tensor:
        return self.u

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        program.shift(self.u, queries)


@dataclass(frozen=True)
class DistanceTerm:
    """(q_i + v)·W_r R(i - j)."""

    base: float

    shared = False  # no annotation: not a field

    def describe(self) -> str:
        return "Transformer-XL's relative term"

    def build(self, shape: Shape) -> nn.Module:
        need_even(shape.width, "Transformer-XL's sinusoid")
        return DistanceBias(self, shape)

    def operations(self, work: AttentionWork) -> int:
        return 2 * (work.rows * work.shape.key_dim * work.shape.width + work.pairs * work.shape.width)


class DistanceBias(nn.Module):
    """As a whole: the query is taken through W_r once, and what is left is a sum of sinusoids of the distance.
    As a form: W_r R(δ) once for every distance."""

    def __init__(self, config: DistanceTerm, shape: Shape):
        super().__init__()
        self.config = config
        self.v = nn.Parameter(torch.empty(shape.heads, shape.key_dim))
        self.w_r = nn.Parameter(torch.empty(shape.heads, shape.key_dim, shape.width))
        nn.init.normal_(self.v, std=INIT_STD)
        nn.init.normal_(self.w_r, std=INIT_STD)

    def at(self, inputs: BiasInputs) -> Dense:
        v, w_r, base = self.v, self.w_r, self.config.base

        def whole(some: BiasInputs) -> Tensor:
            sines, cosines = ((some.q_raw + v[:, None]) @ w_r).chunk(2, dim=-1)
            return some.scale * sinusoid_scores(sines, cosines, some.q_pos, some.k_pos, base)

        def keys(highest: int, n: int) -> Tensor:
            return _projected(distance_waves(inputs.q_pos, highest, n, w_r.shape[-1], base, w_r.dtype), w_r)

        if not runs(inputs.q_pos, inputs.k_pos):
            return inputs.dense(whole, pairwise=True)
        shift = inputs.shift
        if shift is None:
            return inputs.dense(
                whole, lambda: DistanceKeys(inputs.q_raw + v[:, None], keys, inputs.scale), pairwise=True
            )
        return inputs.dense(whole, lambda: DistanceKeys(None, keys, inputs.scale, v - shift), pairwise=True)

    def query_form(self) -> QueryDistances:
        return QueryDistances(self.distance_keys, self.v)

    def distance_keys(self, n: int) -> Tensor:
        """(H, n, d): W_r R(δ) of so many distances from 0 on, rounded once; some at a time, since R is as wide as the
        model."""
        w_r, base = self.w_r.detach(), self.config.base
        exact = w_r.to(wide(w_r.dtype))
        keys = torch.empty(len(w_r), n, w_r.shape[1], dtype=w_r.dtype, device=w_r.device)
        for first in range(0, n, AT_ONCE):
            distances = torch.arange(first, min(first + AT_ONCE, n), device=w_r.device)
            some = _projected(waves(distances, w_r.shape[-1], base, exact.dtype), exact)
            keys[:, first : first + AT_ONCE] = some
        return keys


def _projected(waves_nD: Tensor, w_r: Tensor) -> Tensor:
    """(H, n, d)"""
    return (waves_nD @ w_r.flatten(0, 1).T).unflatten(-1, w_r.shape[:2]).transpose(0, 1)


ENTRY = Entry(
    "xl",
    TransformerXL,
    "Transformer-XL",
    "The query's product with a projected sinusoid of the distance (Dai et al. 2019).",
    randomised=False,
)
