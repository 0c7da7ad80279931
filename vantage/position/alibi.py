"""ALiBi (Press et al. 2021): a score loses m_h·|i - j|, the slopes m_h a geometric series over the heads."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import wide
from vantage.spec.forms import Slope, alibi_slopes
from vantage.spec.parts import BiasInputs, Parts, Shape, materialise
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, Fit, parameter


def _read_slopes(text: str, fit: Fit) -> tuple[float, ...] | None:
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        slopes = tuple(float(word) for word in words)
    except ValueError as e:
        raise BadInput(f"slopes are {text!r}; write numbers, as in 0.5, 0.25") from e
    if not all(0 <= slope <= 16 for slope in slopes):
        raise BadInput(f"slopes are {text!r}; each must lie between 0 and 16")
    return slopes or None


@dataclass(frozen=True)
class Alibi:
    """``slopes=None``: the paper's, for any number of heads."""

    slopes: tuple[float, ...] | None = field(
        default=None,
        metadata=parameter("one per head, as in 0.5, 0.25; empty: the paper's", default="", read=_read_slopes),
    )

    shared = True  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.slopes is not None:
            object.__setattr__(self, "slopes", tuple(self.slopes))  # a list from a config file: tuples can be hashed

    def describe(self) -> str:
        return "ALiBi"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(bias=self)

    def of_heads(self, first: int, count: int, heads: int) -> Alibi:
        slopes = alibi_slopes(heads) if self.slopes is None else self.slopes
        return Alibi(slopes[first : first + count])

    def build(self, shape: Shape) -> nn.Module:
        slopes = alibi_slopes(shape.heads) if self.slopes is None else self.slopes
        if len(slopes) != shape.heads:
            raise BadInput(f"{len(slopes)} ALiBi slopes for {shape.heads} heads: give one a head")
        return AlibiSlopes(slopes)


class AlibiSlopes(nn.Module):
    """Holds the slopes as numbers, so that no change of dtype rounds them."""

    def __init__(self, slopes: tuple[float, ...]):
        super().__init__()
        self.slopes = slopes

    def form(self) -> Slope:
        return Slope(torch.tensor(self.slopes, dtype=torch.float64), self.slopes)

    def at(self, inputs: BiasInputs) -> Slope:
        dtype = wide(inputs.q.dtype)

        def make() -> Slope:
            return Slope(torch.tensor(self.slopes, dtype=dtype, device=inputs.q.device), self.slopes)

        return inputs.q_pos.once(("alibi", self.slopes, dtype), make)  # the same object in all layers: it is built once


def alibi_bias(heads: int, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(H, T, T): the bias of a sequence that starts at 0, on both sides of the diagonal (P10)."""
    pos = Positions.arange(1, length)
    bias = Slope(torch.tensor(alibi_slopes(heads), dtype=dtype))
    value = materialise(bias, pos.against(pos), heads, dtype)
    assert value is not None
    return value[0]


ENTRY = Entry(
    "alibi",
    Alibi,
    "ALiBi",
    "A score loses a fixed slope times the distance, another slope in each head (Press et al. 2021).",
)
