"""Transforms of queries and keys that are not position encodings: norms and temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.spec.abilities import Effect
from vantage.spec.model import NormConfig
from vantage.spec.native import HeadColumns, Program
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class QKNorm:
    """Normalise each query and key head (Qwen-3, Gemma 3): two norms of the head's width."""

    norm: NormConfig

    effect = Effect("q/k norm", positional=False)  # no annotation: not a field

    @property
    def shared(self) -> bool:
        return False

    def describe(self) -> str:
        return "q/k norm"

    def build(self, shape: Shape) -> nn.Module:
        return QKNormed(self.norm.build(shape.rotary_dim), self.norm.build(shape.rotary_dim))


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
        program.norm_heads(self.k_norm, keys)


@dataclass(frozen=True)
class LengthTemperature:
    """Sharpen late queries (LLaMA-4's NoPE layers): q · (1 + scale · log(1 + ⌊(pos + 1) / floor⌋))."""

    scale: float = 0.1
    floor: float = 8192.0

    effect = Effect("temperature", linear=True)  # no annotation: not a field

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
        steps = torch.floor((pos.pos + 1).to(torch.float32) / self.config.floor)
        factor = 1 + self.config.scale * torch.log1p(steps)
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
    "Late queries are sharpened (LLaMA-4's layers without positions).",
    components={"qk": (LengthTemperature,)},
    variants={},
)
