"""Which kernel runs: the first that does not refuse, or the one asked for by name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vantage.errors import BadInput, KernelRefused, Refused, unknown
from vantage.kernels import blocks, flex
from vantage.kernels.documents import gradients_on_hopper
from vantage.kernels.flex import cannot_compile
from vantage.kernels.sdpa import CHEAP_MASK_SIZE
from vantage.spec.parts import AutoKernel, Kernel, Need, View
from vantage.spec.registry import Entry, Registry, entries_of

# Fastest first: "auto" takes the first that says it runs by itself on a device, and does not refuse.
KERNELS: Registry[Kernel] = Registry(
    "kernel",
    (
        *entries_of("vantage.kernels", "sdpa", "cudnn", "fused", "tiles", "chosen"),
        flex.COMPILED,
        flex.UNFUSED,
        *entries_of("vantage.kernels", "reference"),
        blocks.ENTRY,
        blocks.SMALL,
    ),
    needs=("name", "refuses", "__call__"),
    frozen=False,
)

IN_BLOCKS = "blocks"  # what runs where another kernel would form too many pairs
# why a kernel yields
PLANS_PAY_LATER = "its plan pays off only for long rows, from the third pass of a shape on"
GRADIENTS_COST_LESS = "the fused kernel makes these gradients in less time or memory"
LARGEST = 2**32  # pairs that a kernel may form at once on a GPU without being asked: 16 GiB in float32


@runtime_checkable
class FormsPairs(Protocol):
    """A kernel that may form something with a number for each query and key."""

    def forms(self, need: Need, q: Tensor, view: View) -> int:
        """How many such numbers, a mask's or a bias's or the scores themselves."""
        ...


@runtime_checkable
class FormsGladly(Protocol):
    """One that may form more of them than others before blocks of queries run in its place."""

    def most(self, need: Need) -> int: ...


@runtime_checkable
class Yields(Protocol):
    """A kernel that stands back where one that forms nothing is faster, or needs no plan for a new shape."""

    def yields(self, need: Need, q: Tensor, view: View) -> bool: ...


class Candidate(NamedTuple):
    """A kernel that may run by itself, and the abilities above, looked up once."""

    kernel: AutoKernel
    forms: Callable[[Need, Tensor, View], int] | None
    yields: Callable[[Need, Tensor, View], bool] | None
    most: Callable[[Need], int] | None

    @staticmethod
    def of(kernel: AutoKernel) -> Candidate:
        forms = kernel.forms if isinstance(kernel, FormsPairs) else None
        yields = kernel.yields if isinstance(kernel, Yields) else None
        return Candidate(kernel, forms, yields, kernel.most if isinstance(kernel, FormsGladly) else None)

    def forms_too_much(self, need: Need, q: Tensor, view: View) -> int:
        """How many numbers, where they are more than it should form; 0: they are not."""
        if self.forms is None:
            return 0
        formed = self.forms(need, q, view)
        return formed if formed > (CHEAP_MASK_SIZE if self.most is None else self.most(need)) else 0


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
            raise KernelRefused(named.name, why)
        return named

    return choose


def kernel_named(name: str) -> Kernel:
    """The one kernel of this name: what it has compiled, everybody shares."""
    entry = KERNELS[name]
    if name not in _kernels or _kernels[name][0] is not entry:
        _kernels[name] = entry, entry.make()
    return _kernels[name][1]


_kernels: dict[str, tuple[Entry[Kernel], Kernel]] = {}
_automatic: list[Candidate] = []  # filled anew whenever a model is to choose by itself


def _all_automatic() -> list[Candidate]:
    """Kernels from outside first: who adds one wants it used."""
    outside = [entry.name for entry in KERNELS.from_outside()]
    kernels = [kernel_named(name) for name in (*outside, *(name for name in KERNELS if name not in outside))]
    return [Candidate.of(kernel) for kernel in kernels if isinstance(kernel, AutoKernel)]


def _first_willing(need: Need, q: Tensor, view: View) -> Kernel:
    """The kernel that runs. On a GPU layers that ask for the same are answered once in a pass: asking every kernel
    takes longer there than some rows take."""
    kept, key = view.pos.memo, _kept_by(need, q, view)
    if key is not None and key in kept:
        return kept[key]
    candidate = _willing(need, q, view)
    kernel = _within_bounds(candidate, need, q, view)
    if key is not None and candidate.yields is not None:  # one that does not yield now has its plan, and keeps it
        kept[key] = kernel
    return kernel


def _kept_by(need: Need, q: Tensor, view: View) -> Hashable | None:
    """All that a kernel looks at; ``None``: what it looks at may change within a pass."""
    if q.device.type != "cuda" or torch.compiler.is_compiling():
        return None
    if need.bias is not None or need.value_bias is not None or need.sinks is not None or view.selected is not None:
        return None
    asked = (need.mask, need.scale, need.softcap, need.normalise, need.dropout, need.weights, need.lse)
    modes = torch.is_grad_enabled(), torch._C._are_functorch_transforms_active()
    tensors = ((x.shape, x.dtype, x.requires_grad) for x in (q, view.k, view.v))
    return ("kernel", asked, modes, *tensors)


def _willing(need: Need, q: Tensor, view: View) -> Candidate:
    """The first that does not refuse; where it yields, the first willing one of those that form nothing."""
    device, yielding = q.device.type, None
    for candidate in _automatic or _all_automatic():
        kernel = candidate.kernel
        if not kernel.auto(device) or (yielding is not None and candidate.forms is not None):
            continue
        why = kernel.refuses(need, q, view)
        if why is not None:
            if why == cannot_compile(device):
                _say_once(why)
        elif candidate.yields is not None and candidate.yields(need, q, view):
            yielding = yielding or candidate
        else:
            return candidate
    assert yielding is not None, "the reference kernel never refuses"
    return yielding


def _within_bounds(candidate: Candidate, need: Need, q: Tensor, view: View) -> Kernel:
    """Blocks of queries in the place of what would form too many pairs at once. Where they refuse, nothing runs unasked
    on a GPU that would end in the middle."""
    formed, name = candidate.forms_too_much(need, q, view), candidate.kernel.name
    if not formed:
        return candidate.kernel
    in_blocks = kernel_named(IN_BLOCKS)
    if in_blocks.refuses(need, q, view) is None:
        return in_blocks
    if q.device.type != "cuda" or formed <= LARGEST:
        return candidate.kernel
    why = "; ".join(refusals(need, q, view).values())
    raise Refused(
        f"{q.shape[2]:,} queries over {view.k.shape[2]:,} keys would form {formed:,} numbers at once with the kernel "
        f"{name!r}, more than {LARGEST:,}, and those that form nothing cannot do it: {why}. Use shorter or fewer rows, "
        f"feed them in chunks through a cache, or say kernel={name!r} to do it all the same"
    )


def refusals(need: Need, q: Tensor, view: View) -> dict[str, str]:
    """Why the kernels that run by themselves on this device cannot do this, by name."""
    asked: list[Kernel] = [kernel for kernel, *_ in _all_automatic() if kernel.auto(q.device.type)]
    asked.append(kernel_named(IN_BLOCKS))
    return {kernel.name: why for kernel in asked if (why := kernel.refuses(need, q, view)) is not None}


def explain(need: Need, q: Tensor, view: View) -> dict[str, str]:
    """What each kernel that may run by itself on this device would do, by name: "runs", or why not."""
    chosen, reasons = _first_willing(need, q, view).name, {}
    for candidate in _all_automatic():
        kernel, forms, yields, _ = candidate
        if not kernel.auto(q.device.type):
            continue
        formed = 0 if forms is None else forms(need, q, view)
        if kernel.name == chosen:
            why = "runs"
        elif (refused := kernel.refuses(need, q, view)) is not None:
            why = refused
        elif yields is not None and yields(need, q, view):
            slower = "slower than tiles here" if q.device.type == "cpu" else PLANS_PAY_LATER
            if gradients_on_hopper(need, q, view) and (need.sinks is not None or q.shape[1] != view.k.shape[1]):
                slower = GRADIENTS_COST_LESS
            why = f"it would form {formed:,} numbers" if formed else slower
        elif chosen == IN_BLOCKS and candidate.forms_too_much(need, q, view):
            why = f"it would form {formed:,} numbers"
        else:
            why = "not needed: an earlier one accepts"
        reasons[kernel.name] = why
    in_blocks = kernel_named(IN_BLOCKS)
    refused = in_blocks.refuses(need, q, view)
    reasons[IN_BLOCKS] = "runs" if chosen == IN_BLOCKS else refused or "not needed: nothing large is formed"
    return reasons


@functools.cache
def _say_once(why: str) -> None:
    """A machine that lacks something gets the same results, only later, and is told why."""
    warnings.warn(f"{why}; attention that needs it runs on a slower kernel", stacklevel=2)
