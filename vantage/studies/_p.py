"""What the studies of position share: attention on its own, sharp weights, and a verdict that is computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.attention import NoBias
from vantage.cache import NoCache
from vantage.kernels import chooser
from vantage.model.linear import dense
from vantage.spec.masks import Mask
from vantage.spec.model import AttentionConfig, BuildContext
from vantage.spec.parts import Cache, Context
from vantage.spec.positions import Positions
from vantage.studies.study import Number

F64 = torch.float64
ROUNDING = 1e-12  # what float64 may lose in a small model
NOTHING = 1e-17  # stands for an exact 0 on a logarithmic axis


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """Normal numbers of a generator of their own."""
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sharpen(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights so large that every part shows in the output; a fresh model's are too small to tell anything."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            size = 1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else 0.5
            p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * size)
    return module.eval()


def attention(config: AttentionConfig, width: int, mask: Mask) -> nn.Module:
    """One attention module in float64, without a position encoding."""
    return config.build(width, BuildContext(0, mask, (), NoBias(), None, dense)).to(F64).eval()


@torch.no_grad()
def attend(module: nn.Module, x_BTD: Tensor, pos: Positions | None = None, cache: Cache | None = None) -> Tensor:
    """One pass through an attention module, from position 0 unless said."""
    at = Positions.arange(len(x_BTD), x_BTD.shape[1]) if pos is None else pos
    return module(x_BTD, Context(at, chooser("reference"), (NoCache() if cache is None else cache,)))


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference."""
    return float((a - b).abs().max())


def shown(error: float) -> float:
    """An error on a logarithmic axis."""
    return max(error, NOTHING)


def rows(matrix: Tensor) -> list[list[float]]:
    return matrix.tolist()


def checked(what: str, ours: int | float, wanted: int | float, *, within: float = 0.0) -> Number:
    """A finding beside what it must be by reasons that are not the document's."""
    return Number(what, ours, None, abs(ours - wanted) <= within)
