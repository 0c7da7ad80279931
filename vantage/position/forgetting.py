"""FoX (Lin et al. 2025): every token between key and query lets go of a share of the score.

A gate f = σ(w·x + b) for each head and token; the score of query i and key j gains Σ ln f over the tokens after j up to
i. What is kept for each token is the sum over its row so far, F: then the bias is F_i - F_j wherever keys are kept,
whatever left a window, and documents need no new start, since F cancels within one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.position.angles import wide
from vantage.spec.forms import GateSums, QueryAndKey
from vantage.spec.kept import KeptStream
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, BiasInputs, Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Refusal, parameter

NOT_CAUSAL = (
    "FoX forgets on the way from a key to a later query and so needs causal attention: use another encoding here"
)


@dataclass(frozen=True)
class Forgetting:
    """``bias`` is where the gates begin: at 4, a score loses 0.018 with every token."""

    bias: float = field(default=4.0, metadata=parameter("initial gate bias: 4 gives gates of 0.982", -8.0, 16.0))

    shared = False  # no annotation: not a field

    def describe(self) -> str:
        return "FoX"

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused(NOT_CAUSAL)
        return Parts(bias=self)

    def streams(self, shape: Shape) -> tuple[KeptStream, ...]:
        # a sum over the whole row, of which small differences are taken
        return (KeptStream(shape.kv_heads, shape.heads // shape.kv_heads, wide=True, running=True),)

    def build(self, shape: Shape) -> nn.Module:
        return ForgetGate(self, shape)

    def operations(self, work: AttentionWork) -> int:
        return 2 * work.rows * work.shape.width


class ForgetGate(nn.Module):
    def __init__(self, config: Forgetting, shape: Shape):
        super().__init__()
        self.kv_heads = shape.kv_heads
        self.gate = nn.Linear(shape.width, shape.heads)
        nn.init.normal_(self.gate.weight, std=INIT_STD)
        nn.init.constant_(self.gate.bias, config.bias)

    def keep(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """ln f of these tokens, (B, G, T, H / G)."""
        logs = F.logsigmoid(self.gate(x_BTD).to(wide(x_BTD.dtype)))
        return (logs.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2),)

    def gate_sums(self) -> GateSums:
        return GateSums(self.gate)

    def at(self, inputs: BiasInputs) -> QueryAndKey:
        """F of the query less F of the key."""
        query, key = (stream.transpose(2, 3).flatten(1, 2) for stream in (*inputs.own, *inputs.streams))
        return QueryAndKey(query, -key)


ENTRY = Entry(
    "fox",
    Forgetting,
    "FoX",
    "Every token between key and query lets go of a learned share of the score (Lin et al. 2025).",
    refusals=(
        Refusal({"mask": ("prefix", "bidirectional")}, "FoX forgets on the way"),
        Refusal({"attention": ("shared-keys",)}, "keeps nothing: its bias cannot either"),
    ),
    randomised=False,  # it does not read positions
)
