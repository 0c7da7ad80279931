"""What competes: encodings by name, each as the ``[model]`` section that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vantage.attention import GroupedQuery
from vantage.errors import BadInput, unknown
from vantage.position import encoding
from vantage.position.learned import Learned
from vantage.position.randomised import Randomised
from vantage.training.models import Decoder

DEFAULT = ("none", "sinusoidal", "learned", "rope", "t5", "alibi", "none-bidirectional")
PLAIN = (*DEFAULT[:-1], "xpos", "shaw", "xl", "kerple", "fire", "cope")
RANDOMISED = tuple(f"randomised-{name}" for name in ("sinusoidal", "learned", "rope", "t5", "alibi", "fire", "shaw"))
ALL = (*PLAIN, *RANDOMISED, "none-bidirectional")
CONTROL = "none-bidirectional"  # a bag of tokens: must stay at chance where order matters

ATTENTION: dict[str, Callable[[int], int]] = {  # key/value heads, by query heads
    "multi-head": lambda heads: heads,
    "multi-query": lambda heads: 1,
    "grouped-query": lambda heads: max(1, heads // 2),
}


@dataclass(frozen=True)
class Shape:
    """The size of every model of an experiment."""

    width: int = 64
    layers: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)}: give at least 1")
        if self.width % (2 * self.heads):
            raise BadInput(f"width={self.width}: make it a multiple of twice the heads ({2 * self.heads}), for RoPE")


def section(position: str, attention: str, shape: Shape, longest: int) -> Decoder:
    """The model of an entry. ``longest`` is how many tokens any row will have, tests included."""
    check_entry(position, attention)
    bidirectional = position == CONTROL
    name = "none" if bidirectional else position
    return Decoder(
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        attention=GroupedQuery(shape.heads, ATTENTION[attention](shape.heads)),
        position=_encoding(name, longest),
        bidirectional=bidirectional,
    )


def _encoding(name: str, longest: int) -> Any:
    if name.startswith("randomised-"):
        high = 4 * longest  # positions are drawn from four times what any test needs
        return Randomised(_encoding(name.removeprefix("randomised-"), high), high=high)
    if name == "learned":
        return Learned(longest)  # rows beyond the training length exist, untrained (P6)
    return encoding(name, max_length=longest)


def check_entry(position: str, attention: str) -> None:
    _known("position", position, ALL)
    _known("attention", attention, tuple(ATTENTION))


def _known(what: str, name: str, there: tuple[str, ...]) -> None:
    if name not in there:
        raise BadInput(unknown(what, name, there))
