"""Where kernels in Gluon run, a language of Triton's that changes from version to version."""

from __future__ import annotations

import functools
import importlib.util

import torch


def has_gluon(device: torch.device) -> bool:
    """Whether this is a Hopper GPU, and Triton of the version that the kernels were measured with."""
    return device.type == "cuda" and _has_gluon(device.index or 0)


@functools.cache
def _has_gluon(device: int) -> bool:
    if torch.version.hip or not torch.cuda.is_available():  # one may be supposed
        return False
    if torch.cuda.get_device_capability(device) != (9, 0):
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return triton.__version__.startswith("3.6.")
