"""States of constant size (a delta rule's matrix, a convolution's last inputs), handed from process to process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from torch import Tensor
from torch.autograd import Function

from vantage.errors import Refused
from vantage.parallel.cut import Cut
from vantage.parallel.wire import Wire
from vantage.spec.parts import Cache
from vantage.spec.positions import Positions


@final
class HandedStates:
    """A layer's states: what the process before left is what this one begins with.

    So a layer with states runs in one process after the other, which costs no memory and as many times its own time as
    there are processes; its gradient goes back the same way. ``everybody`` is where all tokens stand, for a cache.
    """

    def __init__(self, inner: Cache, wire: Wire, cut: Cut, everybody: Callable[[Positions], Positions] | None):
        self._inner, self._wire, self._cut, self._everybody = inner, wire, cut, everybody
        self._left: Tensor | None = None  # what ties the states that were sent to this process's loss

    def read(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        if self._cut.kind != "contiguous":
            raise Refused(
                "a state goes through the tokens in their order, and these are cut to a zigzag: use cut='contiguous'"
            )
        before = self._inner.states.read(x_BTD)
        if self._wire.rank == 0:
            return before
        return tuple(_Receive.apply(x_BTD, state, self._wire) for state in before)

    def wanted(self, pos: Positions) -> tuple[int, ...]:
        return (pos.shape[1] - 1,)

    def write(self, pos: Positions, columns: Sequence[int], states: Sequence[tuple[Tensor, ...]]) -> None:
        (last,) = states
        if self._wire.rank + 1 < self._wire.size:
            for state in last:
                sent = _Send.apply(state, self._wire)
                self._left = sent if self._left is None else self._left + sent
        if self._everybody is not None:
            whole = self._everybody(pos)
            final_states = tuple(self._wire.from_last(state.contiguous().clone()) for state in last)
            self._inner.states.write(whole, (whole.shape[1] - 1,), [final_states])

    def attach(self, hidden: Tensor) -> Tensor:
        """The same hidden states; a gradient of theirs makes this process wait for that of what it sent on."""
        if self._left is None or not self._left.requires_grad:
            return hidden
        return hidden + self._left.to(hidden.dtype)


class _Receive(Function):
    """``x`` is here for the graph alone: what was received has a gradient, which goes back to the sender."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, like: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return wire.receive(like, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.wire.send(grads[0], -1)
        return None, None, None


class _Send(Function):
    """A zero that depends on what was sent."""

    @staticmethod
    def forward(ctx: Any, state: Tensor, wire: Wire) -> Tensor:
        wire.send(state, 1)
        ctx.wire, ctx.like = wire, state.detach()
        return state.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.wire.receive(ctx.like, 1), None
