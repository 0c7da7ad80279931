"""Models without weights: to be filled from a checkpoint, or only to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vantage.model.transformer import Model
from vantage.spec.model import ModelSpec
from vantage.spec.parts import Kernel


class _NoInit(TorchFunctionMode):
    """Inside, ``torch.nn.init`` leaves tensors as they are.

    On tensors without memory there is nothing to draw; but the first draw would import torch's whole compiler,
    which takes longer than reading a small model.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, FunctionType) and func.__module__ == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def no_weights() -> Iterator[None]:
    """Modules that are built inside have shapes, but no memory and no drawn weights."""
    with _NoInit(), torch.device("meta"):
        yield


def empty_model(spec: ModelSpec, kernel: str | Kernel = "auto") -> Model:
    """The model's modules, with shapes but no memory."""
    with no_weights():
        return Model(spec, kernel=kernel)
