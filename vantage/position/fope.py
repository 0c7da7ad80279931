"""FoPE (Hua et al. 2024): the cosine and sine of a pair become learned mixes of those of all frequencies.

C_m(t) = Σ_n cos(ω_n t)·c_nm and S_m(t) = Σ_n sin(ω_n t)·s_nm, with coefficients of their own for each key/value head;
x becomes x·C + turned(x)·S. Frequencies that make no whole turn within ``length`` positions are left out. Once the
coefficients leave the identity, a score depends on more than the distance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.position.angles import angles, frequencies, need_even, rows, wide
from vantage.position.rope import PAIRINGS, check_pairing, join, rotate_by
from vantage.spec.abilities import Effect
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameter

SLOW = {"still": 0.0, "doubled": 1.0}  # the sine of the pairs that are left out, their cosine being 1


@dataclass(frozen=True)
class FoPE:
    """``slow``: pairs that are left out stand still. The authors' code gave them a sine of 1 as well, so that their
    product counts twice: "doubled" is for weights that were trained with that."""

    length: int = field(default=512, metadata=parameter("pairs with a longer wavelength are not rotated", 7))
    spread: float = field(default=0.1, metadata=parameter("initial deviation from RoPE", 0.0, 4.0))
    base: float = field(default=10000.0, metadata=parameter("as in RoPE", 2.0, 1e9))
    pairing: str = field(default="halves", metadata=parameter("which dimensions form a pair", choices=PAIRINGS))
    slow: str = field(default="still", metadata=parameter("what happens to slow pairs", choices=tuple(SLOW)))

    shared = True  # no annotation: not a field, and so below
    effect = Effect("Fourier mix", linear=True)

    def __post_init__(self) -> None:
        check_pairing(self.pairing)
        if self.slow not in SLOW:
            raise BadInput(f"slow={self.slow!r}: use one of {', '.join(map(repr, SLOW))}")
        if self.length < 7:
            raise BadInput(f"length={self.length}: the fastest pair turns once in 2π positions, so give 7 or more")
        if not self.base > 0:
            raise BadInput(f"base={self.base}: use a positive number (RoPE's is 10000)")

    def describe(self) -> str:
        return "FoPE"

    def parts(self, *, causal: bool) -> Parts:
        return Parts(qk=(self,))

    def build(self, shape: Shape) -> nn.Module:
        return FourierMix(self, shape.rotary_dim, mixes(shape))

    def turning(self, dim: int) -> int:
        """How many pairs turn once within the length."""
        return int((frequencies(dim, self.base, "cpu") > 2 * pi / self.length).sum())

    def operations(self, work: AttentionWork) -> int:
        """Cosines and sines, for queries and for keys; one row, since all of a batch stand alike."""
        return 2 * 2 * 2 * mixes(work.shape) * work.size.queries * self.turning(work.shape.rotary_dim) ** 2


def mixes(shape: Shape) -> int:
    """One for each key/value head; MLA's rotary key is one for all heads."""
    return shape.kv_heads if shape.rotary_dim == shape.key_dim else 1


class FourierMix(nn.Module):
    """Queries are mixed as the keys of their group."""

    def __init__(self, config: FoPE, dim: int, heads: int):
        super().__init__()
        need_even(dim, "FoPE")
        self.config, self.dim = config, dim
        n = config.turning(dim)
        self.cos = nn.Parameter(torch.eye(n) + config.spread * n**-0.5 * torch.randn(heads, n, n))
        self.sin = nn.Parameter(torch.eye(n) + config.spread * n**-0.5 * torch.randn(heads, n, n))

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.mix(q_BHTd, pos)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.mix(k_BGTd, pos)

    def tables(self, pos: Positions, precise: torch.dtype) -> tuple[Tensor, Tensor]:
        """C and S of every pair, (R, G, T, d / 2)."""
        slow = self.dim // 2 - self.cos.shape[1]
        freq = frequencies(self.dim, self.config.base, pos.device)[: self.cos.shape[1]]
        angle = angles(rows(pos), freq)
        cos = F.pad(angle.cos().to(precise) @ self.cos.to(precise), (0, slow), value=1.0)
        sin = F.pad(angle.sin().to(precise) @ self.sin.to(precise), (0, slow), value=SLOW[self.config.slow])
        return cos, sin

    def mix(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        cos, sin = self.tables(pos, wide(x_BHTd.dtype))
        each = x_BHTd.shape[1] // cos.shape[1]
        cos, sin = (side.repeat_interleave(each, 1) for side in (cos, sin))
        pairing = self.config.pairing
        both = join(cos, cos, pairing).to(x_BHTd.dtype), join(-sin, sin, pairing).to(x_BHTd.dtype)
        return rotate_by(x_BHTd, *both, pairing)


ENTRY = Entry(
    "fope",
    FoPE,
    "FoPE",
    "RoPE whose cosines and sines are learned mixes over all frequencies; slow pairs are not rotated (Hua et al. "
    "2024).",
    variants={
        "fope": lambda size: FoPE(length=size.length),
    },
)
