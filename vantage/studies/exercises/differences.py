"""Comparing what came back with what it should be, and saying what the difference looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from vantage.studies.sandbox import UnknownValue

Mistake = tuple[Any, str]  # what a typical mistake gives, and what to say to whoever made it


def describe_value(value: Any) -> str:
    """What kind of thing it is, for a sentence."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, numpy.ndarray):
        return f"a NumPy array of shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, UnknownValue):
        return f"an object of type {value.kind}"
    return f"{value!r}"[:60]


def check_tensor(got: Any, shape: Sequence[int], what: str) -> str | None:
    """What is wrong with its type, shape or numbers, before its values are looked at."""
    wanted = tuple(shape)
    if got is None:
        return f"{what} is None. Does the function end with a return?"
    if isinstance(got, numpy.ndarray):
        return f"{what} is a NumPy array; return a torch tensor (torch.from_numpy makes one of it)"
    if isinstance(got, list | tuple | int | float) and not isinstance(got, bool):
        return f"{what} is {describe_value(got)}; return a torch tensor of shape {wanted}"
    if not isinstance(got, Tensor):
        return f"{what} is {describe_value(got)}; return a torch tensor of shape {wanted}"
    if tuple(got.shape) != wanted:
        same = sorted(got.shape) == sorted(wanted)
        more = " The sizes are right but in another order: look at the transposes and views." if same else ""
        return f"{what} has shape {tuple(got.shape)}, it should be {wanted}.{more}"
    if got.is_complex():
        return f"{what} is complex ({_dtype(got)}); return real numbers (torch.view_as_real goes back)"
    return None


def compare_tensors(
    got: Any,
    wanted: Tensor,
    what: str,
    mistakes: Iterable[Mistake | tuple[Callable[[], Any], str]] = (),
    *,
    tolerance: float = 1e-4,
    floats: bool = True,
) -> str | None:
    """None where ``got`` is ``wanted``; else the mistake that gives ``got``, or where the two differ most."""
    wrong = check_tensor(got, wanted.shape, what)
    if wrong is not None:
        return wrong
    if floats and not got.is_floating_point():
        return f"{what} holds {_dtype(got)}; it should hold floating point numbers"
    if close(got, wanted, tolerance):
        return None
    for mistaken, words in mistakes:
        value = mistaken() if callable(mistaken) else mistaken
        if not isinstance(value, Tensor) or value.shape != wanted.shape or close(value, wanted, tolerance):
            continue  # here it makes no difference, or cannot be made
        if close(got, value, tolerance):
            return words
    return _difference(got.double(), wanted.double(), what)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return torch.allclose(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def _difference(got: Tensor, wanted: Tensor, what: str) -> str:
    bad = got.isnan() & ~wanted.isnan()
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        return (
            f"{what} has NaN at {_place(at)}, it should be {float(wanted[at]):.6g}. NaN comes from inf − inf, 0 · inf "
            "or 0 / 0: an exponential that overflows, or a row in which everything is masked"
        )
    gap = torch.where(got == wanted, 0.0, (got - wanted).abs()).nan_to_num(nan=float("inf"))
    at = tuple(torch.unravel_index(gap.argmax(), gap.shape)) if gap.dim() else ()
    place = tuple(int(i) for i in at)
    share = float((gap > 1e-6).double().mean())
    return (
        f"{what} is {float(got[place]):.6g}{f' at {_place(place)}' if place else ''}, it should be "
        f"{float(wanted[place]):.6g} ({share:.0%} of the numbers are off)"
    )


def _place(at: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, at))}]"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def compare_whole_number(got: Any, wanted: int, what: str, mistakes: Iterable[tuple[int, str]] = ()) -> str | None:
    """The same for one whole number. A float that is whole is let pass."""
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, int | float):
        return f"{what} is {describe_value(got)}; it should be a whole number"
    if got == wanted:
        return None
    words = next((words for value, words in mistakes if value == got and value != wanted), None)
    return words or f"{what} is {got:,}; it should be {wanted:,}"


def compare_numbers(
    got: Any, wanted: Sequence[Any], what: str, mistakes: Iterable[Mistake] = (), *, tolerance: float = 6e-5
) -> str | None:
    """Numbers that were filled in, as (lists of) lists. The tolerance is that of four decimals."""
    target = torch.tensor(wanted, dtype=torch.float64)
    if isinstance(got, Tensor | numpy.ndarray):
        got = got.tolist()
    if _unfilled(got):
        return f"{what} still has a ? or None in it: fill in a number for each"
    try:
        numbers = torch.tensor(got, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return f"{what} is not made of numbers alone: write it as {_shape(target)}"
    if numbers.shape != target.shape:
        return f"{what} has the shape {tuple(numbers.shape)}; write it as {_shape(target)}"
    if (numbers - target).abs().nan_to_num(nan=1.0).max() <= tolerance:
        return None
    for value, words in mistakes:
        if (numbers - torch.tensor(value, dtype=torch.float64)).abs().max() <= tolerance:
            return words
    first = (numbers - target).abs().nan_to_num(nan=1.0).gt(tolerance).nonzero()[0].tolist()
    return f"{what}: the number at {_place(tuple(first))}, {float(numbers[tuple(first)]):.6g}, is not right"


def _unfilled(got: Any) -> bool:
    if isinstance(got, list | tuple):
        return any(_unfilled(item) for item in got)
    return got is None or got in ("?", Ellipsis)


def _shape(target: Tensor) -> str:
    return " of ".join(["a list", *[f"{n} lists" for n in target.shape[:-1]]]) + f" of {target.shape[-1]} numbers"
