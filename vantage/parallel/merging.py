"""Attention over keys in parts: what each part gives alone, with its log-sum-exp, makes the whole."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vantage.spec.normalisers import OffByOne, Softmax
from vantage.spec.parts import Need


def no_parts(need: Need) -> str | None:
    """Why what parts of the keys give cannot be merged; ``None``: it can."""
    if need.temperature is None and not isinstance(need.normalise, OffByOne):
        return f"merges by the log-sum-exp, which {type(need.normalise).__name__} does not have"
    return None


def need_of_part(need: Need) -> Need:
    """What is asked of a kernel for some of the keys: sinks, which are nobody's keys, come last (``with_sinks``)."""
    return replace(need, sinks=None, normalise=Softmax(_temperature(need)), lse=True)


def share_of(part: Tensor, total: Tensor) -> Tensor:
    """exp(part - total) of two log-sum-exps, and 0 where nothing was seen at all."""
    return torch.where(part == float("-inf"), 0.0, (part - total.masked_fill(total == float("-inf"), 0.0)).exp())


def merged(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """What two parts give together, (B, H, T, e) and (B, H, T)."""
    total = torch.logaddexp(lse, other_lse)
    return out * share_of(lse, total)[..., None] + other * share_of(other_lse, total)[..., None], total


def with_sinks(need: Need, out: Tensor, lse_BHT: Tensor) -> tuple[Tensor, Tensor]:
    """All parts together, beside what takes weight and gives nothing."""
    sinks = need.sinks
    if sinks is not None:
        sinks = (sinks[None, :, None] if sinks.dim() == 1 else sinks).to(lse_BHT.dtype) / _temperature(need)
    if isinstance(need.normalise, OffByOne):
        zero = torch.zeros((), dtype=lse_BHT.dtype, device=lse_BHT.device)
        sinks = zero if sinks is None else torch.logaddexp(zero, sinks)
    if sinks is None:
        return out, lse_BHT
    total = torch.logaddexp(lse_BHT, sinks)
    return out * (lse_BHT - total).exp()[..., None], total


def _temperature(need: Need) -> float:
    return 1.0 if need.temperature is None else need.temperature
