"""A score bias as one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

WHOLE = slice(None)


class Dense:
    """A score bias that no kernel can work out pair by pair, (B or 1, H, T, S).

    ``value``: the tensor, or how that of some queries is made, which is done when a kernel asks for them. ``form``: how
    to work out what the bias is to a kernel that does not ask (spec/forms.py). ``chosen``: the keys that each query
    attends to, where the bias is -inf at all others (spec/chosen.py). ``pairwise``: each number is of its own query and
    key alone, whatever other keys there are, so that it may be made for some of them.
    """

    def __init__(
        self,
        value: Tensor | Callable[[slice], Tensor],
        form: Callable[[], Any] | None = None,
        chosen: Any = None,
        pairwise: bool = False,
    ):
        self._value, self._make_form, self.chosen, self.pairwise = value, form, chosen, pairwise
        self._form: Any = None

    @property
    def value(self) -> Tensor:
        """The whole of it, made once."""
        if not isinstance(self._value, Tensor):
            self._value = self._value(WHOLE)
        return self._value

    def of_queries(self, cut: slice) -> Tensor:
        """Of some queries; no more than these is made."""
        return self._value[:, :, cut] if isinstance(self._value, Tensor) else self._value(cut)

    def form(self) -> Any:
        """What it is, worked out once; ``None``: nothing but a whole."""
        if self._form is None and self._make_form is not None:
            self._form = self._make_form()
        return self._form

    def numbers(self, otherwise: int) -> int:
        """How many there are; ``otherwise`` where none has been made yet."""
        return self._value.numel() if isinstance(self._value, Tensor) else otherwise
