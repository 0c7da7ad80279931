"""Which device is taken where nobody names one."""

from __future__ import annotations

import torch


def best_device() -> str:
    """A GPU that torch can use, NVIDIA's or AMD's ("cuda") or Apple's ("mps"), otherwise the processor."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
