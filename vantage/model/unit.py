"""RMSNorm without weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class UnitRMS:
    """x / rms(x) and nothing else (LLaMA-4's queries and keys)."""

    eps: float = 1e-6

    def build(self, width: int) -> nn.Module:
        return _UnitRMS(self.eps)


class _UnitRMS(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), None, self.eps)
