"""Self-Extend (Jin et al. 2024): longer texts without training. Near keys stand where they are, far ones in groups.

A key less than ``window`` away meets the query at its distance. Beyond, positions are divided by ``group`` and rounded
down, and the query is moved so that distances go on from there: ⌊i/G⌋ + W - W/G - ⌊j/G⌋. A model made for L positions
then reads G·(L - W) + W of them. The rule goes by each query alone, so a prompt in pieces is the prompt in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.position.remapped import Region, RemappedScores, chunk_of
from vantage.position.rope import Rope
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import Buildable, Parts, Shape
from vantage.spec.registry import Entry, Refusal, parameter


@dataclass(frozen=True)
class SelfExtend:
    """``window`` is a multiple of ``group``, so that distances go on without a jump."""

    group: int = field(default=4, metadata=parameter("distant positions merged into one", 1, 64))
    window: int = field(default=128, metadata=parameter("keys nearer than this keep their positions", 1, 65_536))
    rope: Rope = Rope()

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.group < 1 or self.window < 1 or self.window % self.group:
            raise BadInput(
                f"group={self.group}, window={self.window}: the window is a multiple of the group, from 1 on"
            )

    @property
    def turns_with(self) -> Buildable:
        return self.rope

    def turning_with(self, rope: Rope) -> SelfExtend:
        return SelfExtend(self.group, self.window, rope)

    @property
    def unchanged(self) -> int:
        return self.window

    def describe(self) -> str:
        return f"Self-Extend by {self.group} from {self.window}"

    def parts(self, *, causal: bool) -> Parts:
        if not causal:
            raise Refused(
                "Self-Extend moves keys that came before the query and so needs causal attention: use RoPE here"
            )
        return Parts(qk=(self.rope,), bias=self)

    def build(self, shape: Shape) -> nn.Module:
        return RemappedScores(self, shape)

    def regions(self, q_RT: Tensor, k_RS: Tensor) -> Iterator[Region]:
        far = q_RT[:, :, None] - k_RS[:, None] >= self.window
        shift = self.window - self.window // self.group
        yield Region(chunk_of(q_RT, self.group) + shift, chunk_of(k_RS, self.group), far)

    def operations(self, work: AttentionWork) -> int:
        """The scores once more as they are, and once where the far keys are moved to."""
        return 2 * 2 * work.pairs * work.score_width if work.size.keys > self.window else 0


ENTRY = Entry(
    "self-extend",
    SelfExtend,
    "Self-Extend",
    "RoPE with near keys where they are and far ones in groups: longer texts without training (Jin et al. 2024).",
    variants={"self-extend": lambda size: SelfExtend(2, size.reach)},
    refusals=(Refusal({"mask": ("prefix", "bidirectional")}, "Self-Extend moves keys"),),
    compared=False,  # trained with it, nothing is extended: `vantage compare --extend` has it
    randomised=False,
)
