"""SSMax (Nakanishi 2025): the temperature of a query falls as the keys that it sees become more.

The more keys there are, the less weight a softmax leaves to one that stands out. Here a query is multiplied by
s·ln n + b, s and b learned for each head, so that a key whose score lies far enough above the others keeps its weight
at any length. n is the rank of the query in its document, from 1, and no more than ``window`` where a layer sees no
further. Mistral Large 4 has it in this form; without b it is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.angles import wide
from vantage.position.rope import Rope
from vantage.spec.abilities import Effect
from vantage.spec.parts import Encoding, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal, parameter

START = 0.168  # a factor of 1 after some 400 tokens


@dataclass(frozen=True)
class LogTemperature:
    """q · (s·ln n + b): ``scale`` is where s begins, b begins at 0."""

    scale: float = START
    biased: bool = True
    window: int | None = None

    shared = False  # no annotation: not a field, and so below
    effect = Effect("temperature", positional=False, linear=True)  # it goes by a count, the same wherever tokens stand

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 2:
            raise BadInput(f"window={self.window}: ln n would be 0 for every query, so give 2 or more, or None")

    def describe(self) -> str:
        return "log n temperature"

    def build(self, shape: Shape) -> nn.Module:
        return CountedTemperature(self, shape.heads)


class CountedTemperature(nn.Module):
    counts_tokens = True

    def __init__(self, config: LogTemperature, heads: int):
        super().__init__()
        self.window = config.window
        self.scale = nn.Parameter(torch.full((heads,), float(config.scale)))
        self.bias = nn.Parameter(torch.zeros(heads)) if config.biased else None

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        factor = self.scale[:, None] * self.log_count(pos, wide(q_BHTd.dtype))
        factor = factor if self.bias is None else factor + self.bias[:, None]
        return q_BHTd * factor[..., None].to(q_BHTd.dtype)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return k_BGTd

    def log_count(self, pos: Positions, dtype: torch.dtype) -> Tensor:
        """ln n of every query, (B, 1, T); 0 at an empty place."""

        def make() -> Tensor:
            return (pos.place.rank + 1).clamp(1, self.window).to(dtype).log()[:, None]

        return pos.once((LogTemperature, self.window, dtype), make)


@dataclass(frozen=True)
class SSMax:
    """Another encoding, with the temperature of ``LogTemperature`` on its queries."""

    inner: Encoding = Rope()
    scale: float = field(default=START, metadata=parameter("initial factor of ln n", 0.0, 8.0))
    biased: bool = field(default=True, metadata=parameter("also learn an offset, initially 0"))
    window: int | None = None  # what the layers see: n stops there

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused("SSMax counts what came before the query and so needs causal attention: leave it out here")
        inner = self.inner.parts(causal=causal)
        return replace(inner, qk=(*inner.qk, LogTemperature(self.scale, self.biased, self.window)))


ENTRY = Entry(
    "ssmax",
    SSMax,
    "SSMax",
    "RoPE, with queries that sharpen as the logarithm of the keys they see: s·ln n + b, learned (Nakanishi 2025).",
    variants={"ssmax": lambda size: SSMax(window=2 * size.reach)},
    refusals=(Refusal({"mask": ("prefix", "bidirectional")}, "SSMax counts what came before"),),
    randomised=False,  # it counts, wherever tokens stand
)
