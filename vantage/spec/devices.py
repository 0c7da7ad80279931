"""Which device is taken: the one that is named, or the best that is here."""

from __future__ import annotations

import os

import torch

from vantage.errors import BadInput

DEFAULT = "VANTAGE_DEVICE"  # of the environment: taken where no device is named


def best_device() -> str:
    """What the environment names; otherwise a GPU that torch can use, NVIDIA's or AMD's ("cuda") or Apple's ("mps"); in
    the end the processor."""
    if named := os.environ.get(DEFAULT):
        return named
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def chosen_device(device: torch.device | str | None = None) -> torch.device:
    """The device of this name, if it is here; the best one where none is named."""
    if device is None:
        device = best_device()
    try:
        chosen = torch.device(device)
    except RuntimeError as e:
        raise BadInput(f"device={device!r}: torch has no such device; use cpu, cuda or mps") from e
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device={device!r}: there is no GPU here that torch can use; leave it out, or use cpu")
    return chosen


def generation_device(device: str = "auto") -> torch.device:
    """Where a model generates: "auto" is what the environment names, a CUDA GPU or the processor. Apple's GPUs have no
    float64, which drawing tokens needs, and are taken only when they are named."""
    if device == "auto":
        device = os.environ.get(DEFAULT) or ("cuda" if torch.cuda.is_available() else "cpu")
    return chosen_device(device)
