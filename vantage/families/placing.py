"""Loading a model layer by layer, each to where a plan has it: on the device, in host memory, or in a file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vantage.checkpoints.folder import Folder
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.pull import home
from vantage.errors import BadInput, Refused
from vantage.families.family import check_accounts, put_links
from vantage.families.memory_need import (
    CONTEXT,
    OpenedCheckpoint,
    free_bytes,
    layer_of,
    memory_need,
    resident_bytes,
    smaller_dtypes,
)
from vantage.families.packing import packer
from vantage.model import Model, parameter_names
from vantage.model.mapped import MappedLayers, whole_pages
from vantage.model.memory_plan import MemoryPlan, plan_memory
from vantage.model.packed import packed_weights
from vantage.model.placement import AllOnDevice, held_tensors, move, move_shared, replace_tensors
from vantage.model.streamed import StreamedLayers
from vantage.spec.memory_size import memory_size, readable


def planned(
    model: Model,
    checkpoint: OpenedCheckpoint,
    how: str | None,
    dtype: torch.dtype,
    device: torch.device,
    max_memory: int | str | None,
    context: int | None,
) -> MemoryPlan | None:
    """Where each layer goes; ``None``: all of them to the device, which has room. Refused before anything is read where
    there is none."""
    if max_memory is None:
        if isinstance(checkpoint.stored, (Folder, GGUFTensors)):
            _check_room(model, checkpoint, how, dtype, device)
        return None
    if not isinstance(checkpoint.stored, (Folder, GGUFTensors)):
        raise Refused("max_memory is for models in files that can be mapped: finish this run, and load its model")
    if isinstance(max_memory, str) and max_memory == "auto":
        limit = free_bytes(device)
        if limit is None:
            raise Refused(f'max_memory="auto": what is free on {device} is not known here; say how much')
        limit += resident_bytes() if device.type == "cpu" else 0
    else:
        limit = memory_size(max_memory)
    if context is not None and context < 1:
        raise BadInput(f"context={context}: give at least 1 token")
    tokens = context or min(model.context_length or CONTEXT, CONTEXT)
    need = memory_need(model, checkpoint, how, dtype, device)
    return plan_memory(need, limit, tokens, smaller=smaller_dtypes(how, dtype))


def _check_room(
    model: Model, checkpoint: OpenedCheckpoint, how: str | None, dtype: torch.dtype, device: torch.device
) -> None:
    """Refuse weights that the device cannot hold, with what would fit."""
    free = free_bytes(device)
    # a model that is small beside what is free need not be looked at
    if free is None or 2 * sum(p.numel() for p in model.parameters()) * dtype.itemsize < free:
        return
    need = memory_need(model, checkpoint, how, dtype, device)
    if need.weights <= free:
        return
    ways = [f"dtype={name!r}" for name, share in smaller_dtypes(how, dtype).items() if need.weights * share <= free]
    ways.append('max_memory="auto", which keeps layers off the device')
    raise Refused(
        f"the weights take {readable(need.weights)}, and {readable(free)} are free on {device}. What would fit: "
        f"{'; '.join(ways)}"
    )


def fill_by_layers(
    model: Model,
    checkpoint: OpenedCheckpoint,
    plan: MemoryPlan,
    how: str | None,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Fill one layer after the other and put each where the plan has it, so that no more than one is in between."""
    family, tensors = checkpoint.family, checkpoint.tensors
    assert isinstance(checkpoint.stored, (Folder, GGUFTensors)), "planned() asked"
    check_accounts(model, checkpoint.links, tensors, family, checkpoint.copies)
    groups: dict[int | None, list[Link]] = {None: [], **{i: [] for i in range(len(model.blocks))}}
    for link in checkpoint.links:
        groups[layer_of(link)].append(link)
    aliases, placement = parameter_names(model), _placement(plan, device)
    for index, group in groups.items():
        with packer(how, model, checkpoint.stored, tensors, family.prefix, device) as pack:
            put_links(model, group, tensors, dtype, family, pack, aliases)
        outside = [part for name, part in model.named_children() if name != "blocks"]
        parts = outside if index is None else [model.blocks[index]]
        for weight in (weight for part in parts for weight in packed_weights(part)):
            weight.to(dtype)
        if index is not None and index in plan.off:
            assert not isinstance(placement, AllOnDevice)
            placement.take(index, model.blocks[index], move_shared(model, device))
        else:
            _keep(parts, device)
        checkpoint.stored.release()
    if plan.off:
        model.requires_grad_(False)
    model.placement = placement


def _placement(plan: MemoryPlan, device: torch.device) -> AllOnDevice | StreamedLayers | MappedLayers:
    if not plan.off:
        return AllOnDevice(plan.context)
    if device.type != "cpu":
        return StreamedLayers(device, plan.off, plan.largest, plan.context)
    folder = home() / "offload"
    folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(whole_pages(plan.need.layers[i]) for i in plan.off)
    return MappedLayers(folder, plan.off, nbytes, plan.context)


def _keep(modules: Sequence[nn.Module], device: torch.device) -> None:
    """On the device from now on; on a CPU in memory of its own, not in the checkpoint's file."""
    if device.type != "cpu":
        move(modules, device)
        return
    own = [tensor for module in modules for _, _, tensor in held_tensors(module)]
    inside = {id(tensor): _copied(tensor) for tensor in own if tensor.untyped_storage().nbytes() > tensor.nbytes}
    for module in modules:
        replace_tensors(module, inside)


def _copied(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
