"""A score bias as one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Dense:
    """A score bias that exists as a whole, (B or 1, H, T, S).

    ``value``: the tensor, or how it is made, which is done when a kernel first asks for it. ``form``: how to work out
    what the bias is to a kernel that does not ask (spec/forms.py).
    """

    def __init__(self, value: Tensor | Callable[[], Tensor], form: Callable[[], Any] | None = None):
        self._value, self._make_form = value, form
        self._form: Any = None

    @property
    def value(self) -> Tensor:
        if not isinstance(self._value, Tensor):
            self._value = self._value()
        return self._value

    def form(self) -> Any:
        """What it is, worked out once; ``None``: nothing but a whole."""
        if self._form is None and self._make_form is not None:
            self._form = self._make_form()
        return self._form

    def numbers(self, otherwise: int) -> int:
        """How many there are; ``otherwise`` where none has been made yet."""
        return self._value.numel() if isinstance(self._value, Tensor) else otherwise
