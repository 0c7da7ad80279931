"""What the first process of a group tells the others to do next.

It goes through a group of its own over gloo, whatever the model's tensors go through: no device waits for it, and
nothing need be said for any length of time. That a process has died is the business of ``vantage.parallel.group``.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch import Tensor

from vantage.errors import Refused
from vantage.parallel.wire import Wire

FOREVER = timedelta(days=365)
INLINE = 4096  # bytes of a message that go with its length, in one broadcast
LENGTH = 8  # bytes that say how long a message is


@final
class ControlChannel:
    """From the first process to all others. Every process makes one, at the same point of its work."""

    def __init__(self) -> None:
        if not dist.is_initialized():
            raise Refused("there are no other processes: start with torchrun, or torch.distributed.init_process_group")
        self.wire = Wire(cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=FOREVER)))

    @property
    def rank(self) -> int:
        return self.wire.rank

    @property
    def first(self) -> bool:
        return self.rank == 0

    def tell(self, message: Any) -> None:
        """From the first process. What is told must be what its own group made: it is unpickled as it is."""
        encoded = pickle.dumps(message)
        head = bytearray(LENGTH + INLINE)
        head[:LENGTH] = len(encoded).to_bytes(LENGTH, "little")
        head[LENGTH : LENGTH + min(len(encoded), INLINE)] = encoded[:INLINE]
        self._broadcast(torch.frombuffer(head, dtype=torch.uint8))
        if len(encoded) > INLINE:
            self._broadcast(torch.frombuffer(bytearray(encoded[INLINE:]), dtype=torch.uint8))

    def hear(self) -> Any:
        """In all other processes: waits for what the first one tells."""
        head = bytes(self._broadcast(torch.empty(LENGTH + INLINE, dtype=torch.uint8)).tolist())
        length, encoded = int.from_bytes(head[:LENGTH], "little"), head[LENGTH:]
        if length > INLINE:
            rest = self._broadcast(torch.empty(length - INLINE, dtype=torch.uint8))
            encoded += rest.numpy().tobytes()
        return pickle.loads(encoded[:length])

    def numbers(self, x: Tensor) -> Tensor:
        """Numbers of the first process in all of them; the others give something of the same shape."""
        return self._broadcast(x)

    def _broadcast(self, x: Tensor) -> Tensor:
        dist.broadcast(x, 0, group=self.wire.group)
        self.wire.count("control", x.nbytes * (self.wire.size - 1) if self.first else 0)
        return x
