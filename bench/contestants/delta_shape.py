"""The one layer that both run: the gated delta rule of Qwen3-Next, 8 heads of 128."""

from collections.abc import Callable
from time import perf_counter

import torch

WIDTH, HEADS, HEAD, TAPS = 1024, 8, 128, 4
PARAMETERS = 5_271_696


def inputs(tokens: int) -> torch.Tensor:
    return torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(0))


def check(layer: torch.nn.Module) -> None:
    if (count := sum(p.numel() for p in layer.parameters())) != PARAMETERS:
        raise ValueError(f"this layer has {count:,} parameters; the others have {PARAMETERS:,}")


def timed(forward: Callable[[], torch.Tensor], training: bool) -> dict[str, list[float]]:
    """A round: the seconds of one pass, with its way back where it trains."""
    with torch.set_grad_enabled(training):
        start = perf_counter()
        out = forward()
        if training:
            out.square().mean().backward()
        return {"seconds": [perf_counter() - start]}
