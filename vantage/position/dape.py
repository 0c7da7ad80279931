"""DAPE (Zheng et al. 2024): a bias by distance, adapted to each pair by a network that sees the scores of all heads.

The score s of a query and a key becomes s + b + f(s, b): b is any bias by position, and f takes the scores and biases
of all heads of that pair to one number for each. So what a distance means hangs on what meets over it. The scores are
made here once more, for as many queries at once as a kernel asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.alibi import Alibi
from vantage.position.angles import wide
from vantage.position.cope import grouped_scores
from vantage.spec.abilities import MultipliesMatrices
from vantage.spec.kept import KeepsStreams, NeedsEveryKey
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import BiasInputs, Dense, Encoding, Parts, Shape, materialise
from vantage.spec.registry import Entry, parameter


@dataclass(frozen=True)
class DAPE:
    """``inner`` is the encoding whose bias b is; ``hidden`` the width of f."""

    inner: Encoding = Alibi()
    hidden: int = field(default=32, metadata=parameter("hidden width of the network over heads", 1, 256))

    shared = False  # no annotation: not a field, and so below
    every_key = True  # of all heads: none may keep keys of its own

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise BadInput(f"hidden={self.hidden}: use 1 or more")

    def describe(self) -> str:
        return f"DAPE over {type(self.inner).__name__}"

    def parts(self, *, causal: bool) -> Parts:
        inner: Any = self.inner.parts(causal=causal)
        if inner.bias is None or inner != Parts(bias=inner.bias) or not isinstance(inner.bias, Encoding):
            raise Refused(f"DAPE adapts a bias on the scores, and {type(self.inner).__name__} is not that alone")
        if isinstance(inner.bias, KeepsStreams | NeedsEveryKey):
            raise Refused(f"DAPE adapts a bias of positions, and {type(inner.bias).__name__} reads the tokens between")
        return Parts(bias=replace(self, inner=inner.bias))

    def build(self, shape: Shape) -> nn.Module:
        return AdaptedBias(self, shape)

    def of_heads(self, first: int, count: int, heads: int) -> NoReturn:
        raise Refused("DAPE's network sees the scores of all heads, which no process would have: use another encoding")

    def operations(self, work: AttentionWork) -> int:
        """Of the scores, which are made a second time, and of f; and of what makes b."""
        own = self.inner.operations(work) if isinstance(self.inner, MultipliesMatrices) else 0
        return own + 2 * work.pairs * work.score_width + 2 * work.pairs * 3 * self.hidden


class AdaptedBias(nn.Module):
    def __init__(self, config: DAPE, shape: Shape):
        super().__init__()
        bias: Any = config.inner
        self.inner, self.heads = bias.build(shape), shape.heads
        self.up = nn.Linear(2 * shape.heads, config.hidden)
        self.down = nn.Linear(config.hidden, shape.heads)

    def at(self, inputs: BiasInputs) -> Dense:
        return inputs.dense(self.whole, pairwise=True)

    def whole(self, inputs: BiasInputs) -> Tensor:
        dtype = wide(inputs.q.dtype)
        scores = inputs.scale * grouped_scores(inputs.q, inputs.k)
        scores = scores if inputs.softcap is None else inputs.softcap * torch.tanh(scores / inputs.softcap)
        bias = materialise(self.inner.at(inputs), inputs.q_pos.against(inputs.k_pos), self.heads, dtype)
        bias = torch.zeros_like(scores) if bias is None else bias.to(dtype).expand_as(scores)
        both = torch.cat((scores, bias), 1).permute(0, 2, 3, 1)
        change = F.linear(both, self.up.weight.to(dtype), self.up.bias.to(dtype))
        change = F.linear(F.leaky_relu(change), self.down.weight.to(dtype), self.down.bias.to(dtype))
        return bias + change.permute(0, 3, 1, 2)


ENTRY = Entry(
    "dape",
    DAPE,
    "DAPE",
    "A bias by distance (ALiBi's), adapted to each pair by a network over the scores of all heads (Zheng et al. 2024).",
    variants={"dape": lambda size: DAPE(hidden=6)},
)
