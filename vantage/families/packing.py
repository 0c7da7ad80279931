"""Weights that stay quantised or in 16 bits, or become quantised, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from vantage.checkpoints.folder import Folder
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import BadInput, CheckpointError
from vantage.kernels.native import Format, WeightMemory, native
from vantage.model import Model
from vantage.model.packed import Packed, fits, gpu_reads, least_bits

Packing = Callable[[Link], list[Packed] | None]  # None: this link's parameters stay plain
BITS = {"int8": 8, "int4": 4}
NAMES = ("auto", *BITS)
HALF_TYPES = {torch.float16: "F16", torch.bfloat16: "BF16"}


def dense(link: Link) -> None:
    """Nothing is packed."""
    return


@contextmanager
def packer(
    name: str | None,
    model: Model,
    checkpoint: object,
    tensors: Tensors,
    prefix: str,
    device: torch.device,
    memory: WeightMemory | None = None,
) -> Iterator[Packing]:
    """``None``: nothing is packed. "auto": what the file holds in blocks or 16 bits stays so, where the native kernels
    can run. "int8" and "int4": every linear map is quantised. What was packed is there at the end.

    ``memory``: for blocks, if it was made before."""
    if name in BITS:
        yield _quantising(model, tensors, BITS[name])
    elif not keeps_blocks(name, device):
        yield dense
    elif isinstance(checkpoint, GGUFTensors):
        sixteen = device.type == "cpu"
        with _as_stored(model, checkpoint, prefix, memory or WeightMemory(), sixteen=sixteen) as pack:
            yield pack
    elif isinstance(checkpoint, Folder) and device.type == "cpu":
        yield _sixteen_bits(model, tensors)
    else:
        yield dense


def _quantising(model: Model, tensors: Tensors, bits: int) -> Packing:
    def pack(link: Link) -> list[Packed] | None:
        if not holds_one_weight(model, link):
            return None
        (weight,) = link.to_ours([sound(tensors.get(their), their) for their in link.their_names])
        return [Packed.quantise(weight, max(bits, least_bits(link.our_names[0])))]

    return pack


def memory_for_blocks(name: str | None, checkpoint: object, device: torch.device) -> WeightMemory:
    """What ``packer`` will fill, of which the system provides a part while the model is built."""
    memory = WeightMemory()
    if name not in BITS and isinstance(checkpoint, GGUFTensors) and keeps_blocks(name, device):
        memory.reserve(sum(stored.nbytes for stored in checkpoint.file.tensors.values()))
    return memory


def keeps_blocks(name: str | None, device: torch.device) -> bool:
    """Whether weights stay as a file has them."""
    reads = device.type == "cpu" or (device.type == "cuda" and gpu_reads(()))
    return name is not None and native() is not None and reads


@contextmanager
def _as_stored(
    model: Model, checkpoint: GGUFTensors, prefix: str, memory: WeightMemory, *, sixteen: bool
) -> Iterator[Packing]:
    """The links move whole rows, so they move the addresses of rows of quantised blocks. ``sixteen``: and of 16 bits.

    Native code fills the matrices while the rest of the model is made.
    """
    stored = set(checkpoint.names())
    backend = native()
    assert backend is not None, "packer() asked"
    repacking, packed_names = backend.repacking(), list[str]()

    def pack(link: Link) -> list[Packed] | None:
        names = [name if name in stored else name.removeprefix(prefix) for name in link.their_names]
        if not holds_one_weight(model, link) or not stored.issuperset(names):
            return None
        kinds = [kind for name in names if (kind := checkpoint.packed_kind(name)) is not None]
        if len(kinds) < len(names) or (not sixteen and not set(kinds).isdisjoint(HALF_TYPES.values())):
            return None
        rows = [checkpoint.row_addresses(name) for name in names]
        starts = [int(addresses.min()) for addresses in rows] if len(set(kinds)) > 1 else [0]
        (ours,) = link.to_ours(rows)
        if ours.shape[1] != 1:
            return None  # not whole rows
        addresses = ours[:, 0].contiguous()
        inputs, parts = checkpoint.row_length(names[0]), []
        for kind, run in _runs(addresses, starts, kinds):
            parts.append(Packed.empty(Format[kind], len(run), inputs, memory))
            done = sum(part.outputs for part in parts) == len(addresses)
            pages = [checkpoint.pages(name) for name in names] if done else []
            repacking.add(parts[-1].data, parts[-1].matrix(), run, pages, checkpoint.file)
            packed_names.append(link.their_names[0])
        return parts

    try:
        yield pack
        failed = repacking.finish()
    finally:
        repacking.close()
    if failed is not None:
        raise CheckpointError(f"{packed_names[failed]!r} holds NaN or infinity: the file is damaged")


def _runs(addresses: Tensor, starts: Sequence[int], kinds: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The addresses of rows of one type in a run, and the type. ``starts``: where the rows of each type begin, if there
    are several."""
    if len(starts) == 1:
        yield kinds[0], addresses
        return
    order = sorted(range(len(starts)), key=starts.__getitem__)
    among = torch.bucketize(addresses, torch.tensor([starts[i] for i in order]), right=True) - 1
    named = [kinds[order[int(i)]] for i in among.tolist()]
    ends = [i for i in range(1, len(named)) if named[i] != named[i - 1]]
    for begin, end in pairwise([0, *ends, len(named)]):
        yield named[begin], addresses[begin:end]


def _sixteen_bits(model: Model, tensors: Tensors) -> Packing:
    """Half precision and bfloat16 of a folder stay what they are, where one weight is made of one of them."""
    memory = WeightMemory()

    def pack(link: Link) -> list[Packed] | None:
        if not holds_one_weight(model, link):
            return None
        theirs = [tensors.get(name) for name in link.their_names]
        kinds = {theirs.dtype for theirs in theirs}
        if len(kinds) > 1 or not kinds <= HALF_TYPES.keys():
            return None
        (weight,) = link.to_ours(theirs)
        rows = weight.contiguous().view(torch.uint8)
        return [_packed(rows, HALF_TYPES[weight.dtype], link.their_names[0], memory)]

    return pack


def _packed(rows: Tensor, kind: str, name: str, memory: WeightMemory) -> Packed:
    packed = Packed.of_blocks(rows, kind, memory)
    if packed is None:
        raise CheckpointError(f"{name!r} holds NaN or infinity: the file is damaged")
    return packed


def holds_one_weight(model: Model, link: Link) -> bool:
    """Whether a link fills one weight that can be packed."""
    return len(link.our_names) == 1 and fits(model, link.our_names)


def sound(tensor: Tensor, name: str) -> Tensor:
    """The tensor, if it holds numbers and no NaN or infinity."""
    if not tensor.is_floating_point():
        raise CheckpointError(f"{name!r} holds {tensor.dtype}, not numbers with a fraction")
    low, high = torch.aminmax(tensor)  # NaN passes through; isfinite() would make a copy as large as the tensor
    if not (isfinite(low) and isfinite(high)):
        raise CheckpointError(f"{name!r} holds NaN or infinity: the file is damaged")
    return tensor


def check_dtype(dtype: torch.dtype | str | None, device: torch.device) -> tuple[torch.dtype, str | None]:
    """What is computed in, and how weights are packed."""
    if isinstance(dtype, str):
        if dtype not in NAMES:
            raise BadInput(f"dtype={dtype!r}: give a torch dtype, or one of {', '.join(map(repr, NAMES))}")
        return torch.bfloat16 if device.type == "cuda" else torch.float32, dtype
    return dtype or torch.float32, None


def own_dtype(config: Mapping[str, Any], otherwise: torch.dtype) -> torch.dtype:
    """What a folder's config says that its weights are."""
    name = config.get("dtype") or config.get("torch_dtype")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(str(name), otherwise)
