"""Transforms of queries and keys that are not position encodings: norms and temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, unknown
from vantage.spec.abilities import Effect
from vantage.spec.fingerprint import LATER
from vantage.spec.model import NormConfig
from vantage.spec.native import HeadColumns, Program
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class QKNorm:
    """Normalise each query and key head (Qwen-3, Gemma 3): two norms of the head's width."""

    norm: NormConfig
    keys: bool = field(default=True, metadata=LATER)  # False where a layer reads another's, which are normed

    effect = Effect("q/k norm", positional=False)  # no annotation: not a field

    @property
    def shared(self) -> bool:
        return False

    def describe(self) -> str:
        return "q/k norm" if self.keys else "q norm"

    def build(self, shape: Shape) -> nn.Module:
        keys = self.norm.build(shape.rotary_dim) if self.keys else nn.Identity()
        return QKNormed(self.norm.build(shape.rotary_dim), keys)


class QKNormed(nn.Module):
    def __init__(self, q_norm: nn.Module, k_norm: nn.Module):
        super().__init__()
        self.q_norm, self.k_norm = q_norm, k_norm

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        return self.q_norm(q_BHTd)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return self.k_norm(k_BGTd)

    def native_transform(self, program: Program, queries: HeadColumns, keys: HeadColumns) -> None:
        program.norm_heads(self.q_norm, queries)
        if not isinstance(self.k_norm, nn.Identity):
            program.norm_heads(self.k_norm, keys)


# What late queries are multiplied by, a function of the position p and of scale a and floor L.
GROWTHS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "llama4": lambda p, a, L: 1 + a * torch.log1p(torch.floor((p + 1) / L)),
    "ministral3": lambda p, a, L: 1 + a * torch.log1p(torch.floor(p / L)),  # and Mistral 4
    "inkling": lambda p, a, L: 1 + a * torch.log(((p + 1) / L).clamp_min(1.0)),
    "self-extend": lambda p, a, L: (torch.log1p(p) / math.log(L)).clamp_min(1.0),  # a is not read
}


@dataclass(frozen=True)
class LengthTemperature:
    """Sharpen late queries, by a factor that grows with the logarithm of the position: 1 up to ``floor`` at least.

    ``kind`` is whose: LLaMA-4's layers without positions, 1 + scale · log(1 + ⌊(pos + 1) / floor⌋), or one of the
    others in ``GROWTHS``.
    """

    scale: float = 0.1
    floor: float = 8192.0
    kind: str = field(default="llama4", metadata=LATER)

    effect = Effect("temperature", linear=True)  # no annotation: not a field

    def __post_init__(self) -> None:
        if self.kind not in GROWTHS:
            raise BadInput(unknown("kind of temperature", self.kind, GROWTHS))
        if self.floor <= (1 if self.kind == "self-extend" else 0):  # whose logarithm is divided by
            raise BadInput(f"floor={self.floor}: give the length from which queries sharpen, above 1")

    @property
    def shared(self) -> bool:
        return True

    def describe(self) -> str:
        return f"temperature from {self.floor:,.0f}"

    def build(self, shape: Shape) -> nn.Module:
        return _LengthTemperature(self)


class _LengthTemperature(nn.Module):
    def __init__(self, config: LengthTemperature):
        super().__init__()
        self.config = config

    def query(self, q_BHTd: Tensor, pos: Positions) -> Tensor:
        growth, position = GROWTHS[self.config.kind], pos.pos.clamp_min(0).to(torch.float32)
        factor = growth(position, self.config.scale, self.config.floor)
        return q_BHTd * factor[:, None, :, None].to(q_BHTd.dtype)

    def key(self, k_BGTd: Tensor, pos: Positions) -> Tensor:
        return k_BGTd


NORM_ENTRY = Entry(
    "qk-norm",
    QKNorm,
    "q/k norm",
    "Each query and key head is normalised (Qwen-3, Gemma 3).",
    components={"qk": (QKNorm,)},
    variants={"qk-norm": lambda size: QKNorm(size.norm)},
)
TEMPERATURE_ENTRY = Entry(
    "length-temperature",
    LengthTemperature,
    "Length temperature",
    "Late queries are sharpened by the logarithm of their position (LLaMA-4, Ministral 3, Inkling, Self-Extend).",
    components={"qk": (LengthTemperature,)},
    variants={
        "length-temperature": lambda size: LengthTemperature(0.5, 4.0),
        "self-extend-temperature": lambda size: LengthTemperature(0.5, 4.0, "self-extend"),
    },
)
