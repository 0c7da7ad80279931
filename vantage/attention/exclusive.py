"""Exclusive self-attention: a head's output without a share of what the token itself already says.

o ← o - tanh(α) (o · v̂) v̂, v̂ the direction of the token's own value, α a number for each head that begins at 0 (NeoMME
2026). At tanh(α) = 1 what is left of o has nothing in that direction. The value is that of the same pass, so nothing
more is kept, and caches, masks, kernels and encodings know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.spec.parts import Shape
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class Exclusive:
    """A learned share of each head's output along the token's own value is taken away."""

    shared = False  # no annotation: not a field

    def describe(self) -> str:
        return "exclusive self-attention"

    def build(self, shape: Shape) -> nn.Module:
        return OwnValueRemoved(shape)


class OwnValueRemoved(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(shape.heads))

    def with_values(self, out_BHTe: Tensor, v_BGTe: Tensor) -> Tensor:
        heads = (v_BGTe.shape[1], -1)  # G groups of heads, which share a value
        wide = torch.promote_types(v_BGTe.dtype, torch.float32)
        own_BG1Te = F.normalize(v_BGTe.to(wide), dim=-1).to(out_BHTe.dtype)[:, :, None]
        out_BGNTe = out_BHTe.unflatten(1, heads)
        share = torch.tanh(self.alpha).to(out_BHTe.dtype).unflatten(0, heads)[..., None, None]
        along = (out_BGNTe * own_BG1Te).sum(-1, keepdim=True)
        return (out_BGNTe - share * along * own_BG1Te).flatten(1, 2)


ENTRY = Entry(
    "exclusive",
    Exclusive,
    "Exclusive self-attention",
    "Each head's output without a learned share of the direction of the token's own value (NeoMME 2026).",
    components={"output": (Exclusive,)},
)
