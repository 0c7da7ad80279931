"""The module of somebody else's model through which earlier tokens reach later ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


def mixing_module(
    model: nn.Module, run: Callable[[], Any], other: Callable[[], Any], places: slice, relative: float
) -> str:
    """The first module whose output at ``places`` differs between two passes of one row though its inputs there do
    not. Modules are seen where they take and give (1, ``places.stop``, …); empty: none of them."""
    calls = []
    for once in (run, other):
        with _recorded(model, places) as recorded:
            once()
        calls.append(recorded)
    for (name, before, after), (_, other_before, other_after) in zip(*calls, strict=False):
        if before and _alike(before, other_before, relative) and not _alike(after, other_after, relative):
            return name
    return ""


@contextlib.contextmanager
def _recorded(model: nn.Module, places: slice) -> Iterator[list[tuple[str, list[Tensor], list[Tensor]]]]:
    """The name of each module that is called, its inputs and its outputs at ``places``, in the order of return."""
    calls: list[tuple[str, list[Tensor], list[Tensor]]] = []

    def at_places(values: tuple[Any, ...]) -> list[Tensor]:
        tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
        return [t[:, places].clone() for t in tensors if t.dim() >= 3 and tuple(t.shape[:2]) == (1, places.stop)]

    def keep(name: str, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        calls.append((name, at_places((*args, *named.values())), at_places(outputs)))

    hooks = [
        module.register_forward_hook(
            lambda m, args, named, out, n=f"{name}, {type(module).__name__}": keep(n, args, named, out),
            with_kwargs=True,
        )
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _alike(a: list[Tensor], b: list[Tensor], relative: float) -> bool:
    return len(a) == len(b) and all(
        bool((x - y).abs().max() <= relative * x.abs().max()) for x, y in zip(a, b, strict=True)
    )
