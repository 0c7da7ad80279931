"""Which kernel runs: the first that does not refuse, or the one asked for by name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from torch import Tensor

from vantage.errors import BadInput, Refused, unknown
from vantage.kernels import flex
from vantage.kernels.flex import cannot_compile
from vantage.spec.parts import AutoKernel, Kernel, Need, View
from vantage.spec.registry import Entry, Registry, entries_of

# Fastest first: "auto" takes the first that says it runs by itself on a device, and does not refuse.
KERNELS: Registry[Kernel] = Registry(
    "kernel",
    (
        *entries_of("vantage.kernels", "sdpa"),
        flex.COMPILED,
        flex.UNFUSED,
        *entries_of("vantage.kernels", "reference"),
    ),
    needs=("name", "refuses", "__call__"),
    frozen=False,
)

Choose = Callable[[Need, Tensor, View], Kernel]


def chooser(kernel: str | Kernel) -> Choose:
    """A function that picks the kernel for a need. A kernel that was named raises its reason."""
    if kernel == "auto":
        _automatic[:] = _all_automatic()
        return _first_willing
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise BadInput(unknown("kernel", kernel, ["auto", *KERNELS]))
        kernel = kernel_named(kernel)
    named = kernel

    def choose(need: Need, q: Tensor, view: View) -> Kernel:
        if (why := named.refuses(need, q, view)) is not None:
            raise Refused(f"the kernel {named.name!r} was asked for, but {why}; use kernel='auto'")
        return named

    return choose


def kernel_named(name: str) -> Kernel:
    """The one kernel of this name: what it has compiled, everybody shares."""
    entry = KERNELS[name]
    if name not in _kernels or _kernels[name][0] is not entry:
        _kernels[name] = entry, entry.make()
    return _kernels[name][1]


_kernels: dict[str, tuple[Entry[Kernel], Kernel]] = {}
_automatic: list[AutoKernel] = []  # filled anew whenever a model is to choose by itself


def _all_automatic() -> list[AutoKernel]:
    """Kernels from outside first: who adds one wants it used."""
    outside = [entry.name for entry in KERNELS.from_outside()]
    kernels = [kernel_named(name) for name in (*outside, *(name for name in KERNELS if name not in outside))]
    return [kernel for kernel in kernels if isinstance(kernel, AutoKernel)]


def _first_willing(need: Need, q: Tensor, view: View) -> Kernel:
    for kernel in _automatic or _all_automatic():
        if not kernel.auto(q.device.type):
            continue
        why = kernel.refuses(need, q, view)
        if why is None:
            return kernel
        if why == cannot_compile(q.device.type):
            _say_once(why)
    raise AssertionError("the reference kernel never refuses")


@functools.cache
def _say_once(why: str) -> None:
    """A machine that lacks something gets the same results, only later, and is told why."""
    warnings.warn(f"{why}; attention that needs it runs on a slower kernel", stacklevel=2)
