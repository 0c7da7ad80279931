"""Which kernel runs: the first that does not refuse, or the one asked for by name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

from torch import Tensor

from vantage.errors import BadInput, Refused, unknown
from vantage.kernels.flex import Flex, cannot_compile
from vantage.kernels.reference import Reference
from vantage.kernels.sdpa import Sdpa
from vantage.spec.parts import Kernel, Need, View

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in (Reference(), Sdpa(), Flex(compiled=False), Flex(compiled=True))
}

# Fastest first. Compiling flex on a CPU takes half a minute, so there it runs only when named.
AUTO = {"cuda": ("sdpa", "flex-compiled", "reference")}
AUTO_ELSEWHERE = ("sdpa", "reference")

Choose = Callable[[Need, Tensor, View], Kernel]


def chooser(kernel: str | Kernel) -> Choose:
    """A function that picks the kernel for a need. A kernel that was named raises its reason."""
    if kernel == "auto":
        return _first_willing
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise BadInput(unknown("kernel", kernel, ["auto", *KERNELS]))
        kernel = KERNELS[kernel]
    named = kernel

    def choose(need: Need, q: Tensor, view: View) -> Kernel:
        if (why := named.refuses(need, q, view)) is not None:
            raise Refused(f"the kernel {named.name!r} was asked for, but {why}; use kernel='auto'")
        return named

    return choose


def _first_willing(need: Need, q: Tensor, view: View) -> Kernel:
    for name in AUTO.get(q.device.type, AUTO_ELSEWHERE):
        why = KERNELS[name].refuses(need, q, view)
        if why is None:
            return KERNELS[name]
        if why == cannot_compile(q.device.type):
            _say_once(why)
    raise AssertionError("the reference kernel never refuses")


@functools.cache
def _say_once(why: str) -> None:
    """A machine that lacks something gets the same results, only later, and is told why."""
    warnings.warn(f"{why}; attention that needs it runs on a slower kernel", stacklevel=2)
