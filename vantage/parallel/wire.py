"""What goes between processes: collectives of torch.distributed that gradients flow through, and the bytes they take.

Every message of this package goes through a ``Wire``, so that what is counted is what was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from vantage.errors import Refused

SENT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Wire:
    """The processes of one group, and what this one sends to the others.

    ``bytes`` counts what this process sends, by kind, as the ring algorithms of collectives do: a gather sends a share
    to all others, a sum sends everything twice but for a share.
    """

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_initialized():
            raise Refused("there are no other processes: start with torchrun, or torch.distributed.init_process_group")
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def count(self, kind: str, sent: int) -> None:
        self.bytes[kind] += sent
        self.messages[kind] += 1

    def wait(self) -> None:
        """Until all have come this far."""
        dist.barrier(self.group)

    def peer(self, offset: int) -> int:
        """The global rank of who is so many places further on in the group."""
        rank = (self.rank + offset) % self.size
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    # ---- without gradients

    def gather_parts(self, x: Tensor) -> list[Tensor]:
        """What every process has, in the order of their ranks; all of one shape."""
        if self.size == 1:
            return [x]
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        self.count("gather", (self.size - 1) * x.nbytes)
        return parts

    def gather_at(self, x: Tensor, rank: int) -> list[Tensor] | None:
        """The same in the process of this rank in the group alone; ``None`` in the others."""
        here = rank == self.rank
        if self.size == 1:
            return [x]
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)] if here else None
        dist.gather(x, parts, self.peer(rank - self.rank), group=self.group)
        self.count("gather", 0 if here else x.nbytes)
        return parts

    def scatter_sum(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over all processes of the part that is this process's."""
        if self.size == 1:
            return parts[0]
        parts = [part.contiguous() for part in parts]
        own = torch.empty_like(parts[self.rank])
        dist.reduce_scatter(own, parts, group=self.group)
        self.count("scatter", (self.size - 1) * own.nbytes)
        return own

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
            self.count("sum", 2 * (self.size - 1) * x.nbytes // self.size)
        return x

    def shift(self, tensors: Sequence[Tensor], offset: int = 1) -> list[Tensor]:
        """Give these to the process ``offset`` places on; what the one as far back gave."""
        if self.size == 1:
            return list(tensors)
        sent = [x.contiguous() for x in tensors]
        received = [torch.empty_like(x) for x in sent]
        work = [dist.P2POp(dist.isend, x, self.peer(offset), self.group) for x in sent]
        work += [dist.P2POp(dist.irecv, x, self.peer(-offset), self.group) for x in received]
        for request in dist.batch_isend_irecv(work):
            request.wait()
        self.count("shift", sum(x.nbytes for x in sent))
        return received

    def exchange_parts(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows for each process, one after the other, ``sent`` of them each; those that the others had for this one."""
        x = x.contiguous()
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x, list(received), list(sent), group=self.group)
        own = x[: sent[self.rank]].nbytes  # of as many rows, which stay here
        self.count("exchange", x.nbytes - own)
        return out

    def broadcast(self, x: Tensor, rank: int) -> Tensor:
        """What the process of this rank in the group has, in place."""
        if self.size > 1:
            dist.broadcast(x, self.peer(rank - self.rank), group=self.group)
            self.count("broadcast", x.nbytes if rank == self.rank else 0)
        return x

    def from_owner(self, x: Tensor | None, shape: tuple[int, ...], owner: int) -> Tensor:
        """A tensor of this shape that the process of rank ``owner`` has, in all of them."""
        device = "cpu" if dist.get_backend(self.group) == "gloo" else torch.device("cuda", torch.cuda.current_device())
        kind = torch.zeros((), dtype=torch.int64, device=device)
        if owner == self.rank:
            assert x is not None, "the owner has nothing"
            kind.fill_(SENT_TYPES.index(x.dtype))
        dtype = SENT_TYPES[int(self.broadcast(kind, owner))]
        return self.broadcast(torch.empty(shape, dtype=dtype, device=device) if x is None else x.clone(), owner)

    def send(self, x: Tensor, offset: int) -> None:
        dist.send(x.contiguous(), self.peer(offset), group=self.group)
        self.count("state", x.nbytes)

    def receive(self, like: Tensor, offset: int) -> Tensor:
        received = torch.empty_like(like, memory_format=torch.contiguous_format)
        dist.recv(received, self.peer(offset), group=self.group)
        return received

    def from_last(self, x: Tensor) -> Tensor:
        """What the last process has."""
        if self.size > 1:
            dist.broadcast(x, self.peer(self.size - 1 - self.rank), group=self.group)
            self.count("state", x.nbytes if self.rank == self.size - 1 else 0)
        return x

    # ---- with gradients

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """What every process has, one after the other along ``dim``."""
        return x if self.size == 1 else _Gather.apply(x, dim, self)

    def exchange(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """``exchange_parts``; gradients go back the way that the rows came."""
        return _Exchange.apply(x, sent, received, self)

    def summed(self, x: Tensor) -> Tensor:
        """The sum of what every process has; each passes its gradient on as it is (Megatron's g)."""
        return x if self.size == 1 else _Sum.apply(x, self)

    def entered(self, x: Tensor) -> Tensor:
        """What all have alike, on its way to where each does a share: the gradients are summed (Megatron's f)."""
        return x if self.size == 1 else _Enter.apply(x, self)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, wire: Wire) -> Tensor:
        ctx.dim, ctx.wire = dim, wire
        return torch.cat(wire.gather_parts(x), dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.wire.scatter_sum(grads[0].chunk(ctx.wire.size, ctx.dim)), None, None


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: Sequence[int], received: Sequence[int], wire: Wire) -> Tensor:
        ctx.sent, ctx.received, ctx.wire = sent, received, wire
        return wire.exchange_parts(x, sent, received)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.wire.exchange_parts(grads[0], ctx.received, ctx.sent), None, None, None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        return wire.sum(x.contiguous().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire) -> Tensor:
        ctx.wire = wire
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.wire.sum(grads[0].contiguous().clone()), None
