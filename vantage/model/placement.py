"""Where the weights of each layer lie, and how a layer that is not on the device runs there.

A model keeps all of them on its device unless loading put some elsewhere: ``StreamedLayers`` (``streamed.py``) has
layers in host memory and copies each to the device one layer ahead of its use; ``MappedLayers`` (``mapped.py``) has
them in a file. Either way the same kernels compute with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.spec.abilities import HasExperts

ALIGNMENT = 256  # bytes, at which every tensor of a layer begins


class Placement(Protocol):
    """Of a model's weights."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Those that are not on the device."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of them: what a pass brings to the device."""
        ...

    @property
    def capacity(self) -> int | None:
        """Tokens that memory was planned for; ``None``: it was not."""
        ...

    def run(self, index: int, block: nn.Module, x: Tensor, ctx: Any) -> Tensor:
        """A layer."""
        ...

    def bound(self, index: int, block: nn.Module) -> AbstractContextManager[None]:
        """Inside, the layer's tensors are those that it runs with, whatever they hold."""
        ...

    def begin(self, index: int) -> None:
        """Before the kernels of a layer: they wait for its weights."""
        ...

    def end(self, index: int) -> None:
        """After them: the weights of a later layer may take their place."""
        ...

    def ready(self) -> None:
        """Before a graph runs."""
        ...

    def captured(self) -> AbstractContextManager[None]:
        """Around the steps of a graph."""
        ...

    def adopt(self, model: nn.Module) -> None:
        """Tensors that came to a layer later (an adapter's) go where the layer runs."""
        ...


@final
class AllOnDevice:
    """Nothing is anywhere else."""

    layers: tuple[int, ...] = ()
    nbytes: int = 0

    def __init__(self, capacity: int | None = None):
        self.capacity = capacity

    def run(self, index: int, block: nn.Module, x: Tensor, ctx: Any) -> Tensor:
        return block(x, ctx)

    def bound(self, index: int, block: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, index: int) -> None:
        pass

    def end(self, index: int) -> None:
        pass

    def ready(self) -> None:
        pass

    def captured(self) -> AbstractContextManager[None]:
        return nullcontext()

    def adopt(self, model: nn.Module) -> None:
        pass


class LaidTensor(NamedTuple):
    """Where a tensor lies among the bytes of its layer."""

    tensor: Tensor  # the layer's own
    start: int

    def view(self, data: Tensor) -> Tensor:
        """Its like in these bytes: a parameter if it is one."""
        size = self.tensor.dtype.itemsize * math.prod(self.tensor.shape)
        view = data[self.start : self.start + size].view(self.tensor.dtype).view(self.tensor.shape)
        return nn.Parameter(view, requires_grad=False) if isinstance(self.tensor, nn.Parameter) else view


class LayerLayout(NamedTuple):
    """The tensors of a layer one after the other, those of each of its experts last."""

    tensors: tuple[LaidTensor, ...]
    nbytes: int
    before_experts: int  # bytes that every token needs


def layout_of(block: nn.Module, shared: frozenset[int]) -> LayerLayout:
    """Of all tensors of a layer but those that other parts of the model have as well, by their ids."""
    own = {id(tensor): tensor for _, _, tensor in held_tensors(block) if id(tensor) not in shared and tensor.numel()}
    chosen = {id(tensor) for expert in experts_of(block) for _, _, tensor in held_tensors(expert)}
    laid, at, before = list[LaidTensor](), 0, 0
    for tensor in sorted(own.values(), key=lambda tensor: id(tensor) in chosen):
        laid.append(LaidTensor(tensor, at))
        at += aligned(tensor.nbytes)
        before = before if id(tensor) in chosen else at
    return LayerLayout(tuple(laid), at, before)


def experts_of(block: nn.Module) -> list[nn.Module]:
    """Those parts of a layer that run for some tokens alone."""
    return [
        expert for module in block.modules() if isinstance(module, HasExperts) for expert in module.routed_experts()
    ]


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def held_tensors(block: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Every tensor of its modules, with the dictionary and the name under which a module has it."""
    for module in block.modules():
        for holder in (module._parameters, module._buffers):
            for name, tensor in list(holder.items()):
                if tensor is not None:
                    yield holder, name, tensor


def shared_tensors(model: nn.Module) -> frozenset[int]:
    """Ids of tensors that more than one layer has, or a layer and another part of the model."""
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        steps = name.split(".")
        owner = steps[1] if steps[0] == "blocks" and len(steps) > 1 else ""
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                owners.setdefault(id(tensor), set()).add(owner)
    return frozenset(key for key, names in owners.items() if len(names) > 1)


def replace_tensors(block: nn.Module, new: dict[int, Tensor]) -> None:
    """Put other tensors in the place of those with these ids."""
    for holder, name, tensor in held_tensors(block):
        if id(tensor) in new:
            holder[name] = new[id(tensor)]


def move(modules: Sequence[nn.Module], device: torch.device) -> None:
    """Every tensor of these modules to the device; what they share stays shared."""
    own = [tensor for module in modules for _, _, tensor in held_tensors(module)]
    moved = {id(tensor): on_device(tensor, device) for tensor in {id(one): one for one in own}.values()}
    for module in modules:
        replace_tensors(module, moved)


def move_shared(model: nn.Module, device: torch.device) -> frozenset[int]:
    """What layers share goes to the device, and stays shared. Returns the ids of these tensors."""
    shared = shared_tensors(model)
    own = {id(tensor): tensor for _, _, tensor in held_tensors(model) if id(tensor) in shared}
    moved = {key: tensor if tensor.is_meta else on_device(tensor, device) for key, tensor in own.items()}
    replace_tensors(model, moved)
    return frozenset(map(id, moved.values()))


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The same there: a parameter if it is one."""
    copy = tensor.detach().to(device)
    if copy.device == tensor.device:  # "cuda" and "cuda:0" may be the same
        return tensor
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


def check_no_gradient(x: Tensor, block: nn.Module, layers: tuple[int, ...]) -> None:
    """A backward pass would need weights that are no longer there."""
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in block.parameters())):
        raise Refused(
            f"{len(layers)} layers of this model are kept off the device (max_memory), and a gradient would need "
            "their weights again: run it under torch.no_grad(), or load it where all of it fits"
        )


def no_copy() -> Refused:
    return Refused(
        "a model whose layers are kept off the device (max_memory) would be there twice: copy_sharing_weights makes "
        "one that shares them"
    )


def check_not_compiled() -> None:
    if torch.compiler.is_compiling():
        raise Refused("layers that come to the device while a pass runs (max_memory) cannot be compiled")
