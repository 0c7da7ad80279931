"""Models without weights: to be filled from a checkpoint, or only to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
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


@contextmanager
def _only_buffers() -> Iterator[None]:
    """Modules that are built inside in this thread have buffers with their values, and parameters without memory."""
    thread = get_ident()

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if get_ident() != thread or parameter.is_meta:  # the hook is torch's, for all threads
            return None
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    hook = register_module_parameter_registration_hook(without_memory)  # pyright: ignore[reportArgumentType] (it may return one)
    try:
        with _NoInit(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        hook.remove()


def empty_model(spec: ModelSpec, kernel: str | Kernel = "auto") -> Model:
    """The model's modules, with shapes but no memory. Buffers have values: constructors compute them, no file does."""
    with no_weights():
        model = Model(spec, kernel=kernel)
    if next(model.buffers(), None) is None:
        return model
    with _only_buffers():  # slower: each parameter has memory, though untouched, until it is registered
        return Model(spec, kernel=kernel)


def fit_buffers(model: nn.Module, dtype: torch.dtype, device: torch.device | str | None = None) -> None:
    """Put buffers where the weights are, and floating ones in their dtype, as ``model.to`` does."""
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device=device, dtype=dtype if buffer.is_floating_point() else None)


def parameter_names(model: nn.Module) -> dict[str, list[str]]:
    """For every parameter all its names, by the first: a tied head is the embedding under another one."""
    by_id: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        by_id.setdefault(id(p), []).append(name)
    return {names[0]: names for names in by_id.values()}
