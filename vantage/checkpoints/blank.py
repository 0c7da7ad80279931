"""Building a model that is about to be filled, without drawing weights that nobody will see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from torch.overrides import TorchFunctionMode


class Blank(TorchFunctionMode):
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
