"""Layers in host memory that are copied to the device one layer ahead of their use.

There are two buffers on the device, and each takes every second of these layers in turn. While the kernels of one layer
run, the next is on its way on a stream of its own; when they are done, their buffer takes the layer after that. After
the last come the first ones again, so that the next pass finds them there and the link need not wait for Python.
Of a mixture of experts those come that tokens are sent to, once that is known.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, final

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.model.placement import (
    LayerLayout,
    aligned,
    check_no_gradient,
    check_not_compiled,
    experts_of,
    held_tensors,
    layout_of,
    move,
    move_shared,
    no_copy,
    on_device,
    replace_tensors,
)
from vantage.model.transformer import Model

BUFFERS = 2


class Copies(Protocol):
    """How bytes come to the device, in the order of what computes with them."""

    def host(self, nbytes: int) -> Tensor:
        """Host memory that can be copied from."""
        ...

    def copy(self, buffer: int, into: Tensor, data: Tensor) -> None:
        """Begin to fill a buffer, after the kernels that were launched before."""
        ...

    def wait(self, buffer: int) -> None:
        """Kernels from now on begin when the buffer is filled."""
        ...

    def join(self) -> None:
        """At the end of a graph: it is over when its copies are."""
        ...


@final
class CopiesAtOnce:
    """Where the device has no streams: a copy is done when it returns."""

    def host(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def copy(self, buffer: int, into: Tensor, data: Tensor) -> None:
        into.copy_(data)

    def wait(self, buffer: int) -> None:
        pass

    def join(self) -> None:
        pass


@final
class CopiesOnStream:
    """A CUDA stream of its own, and pinned memory."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)
        # when a buffer was filled last; inside a graph only what was launched there may be waited for
        self._filled: dict[tuple[bool, int], torch.cuda.Event] = {}
        with torch.inference_mode(False):  # a tensor made in that mode could not be counted up outside of it
            self._ticks = torch.zeros(1, dtype=torch.int32, device=device)
        self._pinned: list[Tensor] = []
        weakref.finalize(self, _unpin, self._pinned).atexit = False

    def host(self, nbytes: int) -> Tensor:
        memory = torch.empty(nbytes, dtype=torch.uint8)
        # torch's own pinned memory is rounded up to a power of two
        error = _cudart().cudaHostRegister(memory.data_ptr(), nbytes, 0)
        if int(error):
            raise Refused(f"{nbytes:,} bytes of host memory could not be pinned (CUDA error {int(error)})")
        self._pinned.append(memory)
        return memory

    def copy(self, buffer: int, into: Tensor, data: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            into.copy_(data, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._filled[_capturing(), buffer] = event

    def wait(self, buffer: int) -> None:
        event = self._filled.get((_capturing(), buffer))
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)
            # A kernel that may begin before the one launched before it has ended looks at that one alone, not at
            # copies: this one cannot.
            self._ticks.add_(1)

    def join(self) -> None:
        if _capturing():
            for buffer in [buffer for inside, buffer in self._filled if inside]:
                self.wait(buffer)
                del self._filled[True, buffer]


def _capturing() -> bool:
    """Whether what is launched goes into a graph, and does not run."""
    return torch.cuda.is_current_stream_capturing()


def _unpin(memory: Sequence[Tensor]) -> None:
    for one in memory:
        _cudart().cudaHostUnregister(one.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()


class Binding(NamedTuple):
    """A place in a module, and what stands there while the layer rests and while it runs."""

    holder: dict[str, Any]
    name: str
    on_host: Tensor
    on_device: Tensor


class Streamed(NamedTuple):
    """A layer in host memory."""

    layout: LayerLayout
    data: Tensor  # on the host
    buffer: int
    own: tuple[Tensor, ...]  # views of ``data``: the layer's tensors while it rests
    on_device: dict[int, Tensor]  # views of the buffer, by the ids of those


@final
class StreamedLayers:
    """The weights of some layers, which run on ``device``. A layer's own tensors are those on the host, so that whoever
    reads them reads what is true; while it runs they are the buffer's."""

    def __init__(self, device: torch.device, layers: tuple[int, ...], nbytes: int, capacity: int | None = None):
        """``nbytes``: of the largest of these layers."""
        self.device, self.layers, self.capacity = device, layers, capacity
        self._copies: Copies = CopiesOnStream(device) if device.type == "cuda" else CopiesAtOnce()
        with torch.inference_mode(False):
            self._buffers = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(BUFFERS)]
        self._units: dict[int, Streamed] = {}
        # which layer is in a buffer, or on its way there, and which of its states: somebody may write into weights
        self._held: list[tuple[int, int] | None] = [None] * BUFFERS
        self._order = {layer: i for i, layer in enumerate(layers)}
        self._experts: list[set[int]] = [set() for _ in range(BUFFERS)]  # where those begin that are in a buffer
        self._asked: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # blocks whose experts say that they run
        self.copied = 0  # bytes so far, but for those that graphs copy
        self._bindings: weakref.WeakKeyDictionary[nn.Module, list[Binding]] = weakref.WeakKeyDictionary()
        # one layer at a time has the buffers: copies of a model may run in other threads
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        return sum(len(unit.data) for unit in self._units.values())

    def take(self, index: int, block: nn.Module, shared: frozenset[int]) -> None:
        """Have a layer from now on; where it was before it is let go of. ``shared``: tensors that others have too."""
        with torch.inference_mode(False), torch.no_grad():
            layout, buffer = layout_of(block, shared), self._order[index] % BUFFERS
            data = self._copies.host(layout.nbytes)
            on_host = {id(laid.tensor): laid.view(data) for laid in layout.tensors}
            views = {id(on_host[id(laid.tensor)]): laid.view(self._buffers[buffer]) for laid in layout.tensors}
            for laid in layout.tensors:
                on_host[id(laid.tensor)].copy_(laid.tensor)
            replace_tensors(block, on_host)
            self._units[index] = Streamed(layout, data, buffer, tuple(on_host.values()), views)
            self._rest_to_device(index, block)

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise no_copy()

    def run(self, index: int, block: nn.Module, x: Tensor, ctx: Any) -> Tensor:
        if index not in self._units:
            return block(x, ctx)
        check_not_compiled()
        check_no_gradient(x, block, self.layers)
        with self._lock:
            self._ask_experts(index, block)
            self.begin(index)
            try:
                with self.bound(index, block):
                    return block(x, ctx)
            finally:
                self.end(index)

    @contextmanager
    def bound(self, index: int, block: nn.Module) -> Iterator[None]:
        bindings = self._bound_to(index, block)
        for binding in bindings:
            binding.holder[binding.name] = binding.on_device
        try:
            yield
        finally:
            for binding in bindings:
                binding.holder[binding.name] = binding.on_host

    def begin(self, index: int) -> None:
        unit = self._units.get(index)
        if unit is None:
            return
        if self._held[unit.buffer] != (index, unit.data._version):  # or the last pass did not go through all layers
            self._fill(index)
        self._copies.wait(unit.buffer)

    def end(self, index: int) -> None:
        if index in self._units and (following := self._after(index)) != index:
            self._fill(following)

    def ready(self) -> None:
        for layer in self.layers[:BUFFERS]:
            self.begin(layer)

    @contextmanager
    def captured(self) -> Iterator[None]:
        """The buffers hold the first layers before a graph runs, and after it: it ends when its copies are done."""
        yield
        self._copies.join()

    def adopt(self, model: nn.Module) -> None:
        for index in self._units:
            self._rest_to_device(index, model.get_submodule(f"blocks.{index}"))

    # ---- what is where

    def _after(self, index: int) -> int:
        """The layer that this one's buffer takes next."""
        place = self._order[index] + BUFFERS
        return self.layers[place if place < len(self.layers) else self._order[index] % BUFFERS]

    def _fill(self, index: int) -> None:
        unit = self._units[index]
        self._copy(unit, slice(0, unit.layout.before_experts))
        self._held[unit.buffer] = index, unit.data._version
        self._experts[unit.buffer].clear()

    def _copy(self, unit: Streamed, where: slice) -> None:
        self._copies.copy(unit.buffer, self._buffers[unit.buffer][where], unit.data[where])
        self.copied += where.stop - where.start

    def _ask_experts(self, index: int, block: nn.Module) -> None:
        """Have each expert of this block bring its weights when tokens come to it."""
        if block in self._asked:
            return
        self._asked.add(block)
        unit = self._units[index]
        starts = {id(tensor): laid.start for tensor, laid in zip(unit.own, unit.layout.tensors, strict=True)}
        for expert in experts_of(block):
            spans = [(starts[id(t)], aligned(t.nbytes)) for _, _, t in held_tensors(expert) if id(t) in starts]
            where = slice(min(start for start, _ in spans), max(start + nbytes for start, nbytes in spans))
            expert.register_forward_pre_hook(partial(self._bring_expert, index, where))

    def _bring_expert(self, index: int, where: slice, expert: nn.Module, args: tuple[Tensor, ...]) -> None:
        unit = self._units[index]
        if not args[0].numel() or where.start in self._experts[unit.buffer]:
            return
        self._copy(unit, where)
        self._copies.wait(unit.buffer)
        self._experts[unit.buffer].add(where.start)

    def _bound_to(self, index: int, block: nn.Module) -> list[Binding]:
        """Where the modules of this block have the layer's tensors: a model's copy has modules of its own."""
        if block not in self._bindings:
            unit = self._units.get(index)
            views = {} if unit is None else unit.on_device
            self._bindings[block] = [
                Binding(holder, name, tensor, views[id(tensor)])
                for holder, name, tensor in held_tensors(block)
                if id(tensor) in views
            ]
        return self._bindings[block]

    def _rest_to_device(self, index: int, block: nn.Module) -> None:
        """What the layer has besides: empty tensors, those that others share, an adapter's."""
        self._bindings.pop(block, None)
        for holder, name, tensor in held_tensors(block):
            if id(tensor) not in self._units[index].on_device:
                holder[name] = on_device(tensor, self.device)


def stream_layers(model: Model, device: torch.device | str, layers: Sequence[int]) -> None:
    """Have a model in memory run on the device with these layers kept on the host."""
    device = torch.device(device)
    shared = move_shared(model, device)
    off = tuple(sorted({*layers}))
    blocks: list[nn.Module] = list(model.blocks)
    placement = StreamedLayers(device, off, max(layout_of(blocks[i], shared).nbytes for i in off))
    move([part for name, part in model.named_children() if name != "blocks"], device)
    for i, block in enumerate(blocks):
        if i in off:
            placement.take(i, block, shared)
        else:
            move([block], device)
    model.requires_grad_(False)
    model.placement = placement
    model.kernel = model.kernel  # what was lowered before holds no longer
