"""Dual chunk attention (An et al. 2024): longer texts without training, in chunks whose positions begin anew.

Chunks have c = ``chunk`` - ``local`` positions. A key stands at j mod c. A query stands at i mod c for keys of its own
chunk, at min(i mod c + c, chunk) for those of the chunk before, and at min(2c - 1, chunk) for all earlier ones: what is
near keeps its distance, and none is ever larger than ``chunk``. Distances are not monotone: a key of an earlier chunk
may look nearer than a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.remapped import Region, RemappedScores, chunk_of
from vantage.position.rope import Rope
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import Buildable, Parts, Shape
from vantage.spec.registry import Entry, Refusal, parameter


@dataclass(frozen=True)
class DualChunk:
    """``chunk`` is at most the length that the model was made for."""

    chunk: int = field(default=192, metadata=parameter("chunk size: the largest distance the model sees", 2, 1_000_000))
    local: int = field(default=16, metadata=parameter("distances kept exact across a chunk border", 0, 999_999))
    rope: Rope = Rope()

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        if not 0 <= self.local < self.chunk:
            raise BadInput(f"chunk={self.chunk}, local={self.local}: the local window is from 0 up to below the chunk")

    @property
    def turns_with(self) -> Buildable:
        return self.rope

    def turning_with(self, rope: Rope) -> DualChunk:
        return DualChunk(self.chunk, self.local, rope)

    @property
    def step(self) -> int:
        """c, the positions of a chunk."""
        return self.chunk - self.local

    @property
    def unchanged(self) -> int:
        return self.step

    def describe(self) -> str:
        return f"dual chunks of {self.chunk}"

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused("Dual chunk attention looks back over chunks and so needs causal attention: use RoPE here")
        return Parts(qk=(self.rope,), bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return RemappedScores(self, shape)

    def regions(self, q_RT: Tensor, k_RS: Tensor) -> Iterator[Region]:
        """A chunk's own keys keep their distance, and so do those of the one before as far as ``chunk`` allows."""
        c = self.step
        back = chunk_of(q_RT, c)[:, :, None] - chunk_of(k_RS, c)[:, None]
        keys = k_RS.remainder(c)
        yield Region((q_RT.remainder(c) + c).clamp_max(self.chunk), keys, back == 1)
        yield Region(torch.full_like(q_RT, min(2 * c - 1, self.chunk)), keys, back > 1)

    def operations(self, work: AttentionWork) -> int:
        """The scores once more as they are, and once for each of the two places of a query."""
        return 3 * 2 * work.pairs * work.score_width if work.size.keys > self.unchanged else 0


ENTRY = Entry(
    "dual-chunk",
    DualChunk,
    "Dual chunks",
    "RoPE in chunks whose positions restart, so that no distance grows large; needs no training (An et al. 2024).",
    variants={"dual-chunk": lambda size: DualChunk(6, 2)},
    refusals=(Refusal({"mask": ("prefix", "bidirectional")}, "Dual chunk attention looks back"),),
    compared=False,  # trained with it, nothing is extended: `vantage compare --extend` has it
    randomised=False,
)
