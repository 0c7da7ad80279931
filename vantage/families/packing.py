"""Weights that stay quantised or in 16 bits, or become quantised, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, groupby, pairwise
from math import isfinite
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from vantage.checkpoints.folder import Folder
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import BadInput, CheckpointError
from vantage.kernels.native import WeightMemory, native
from vantage.model import Model
from vantage.model.packed import Packed, fits, gpu_reads, least_bits

Packing = Callable[[Link], list[Packed] | None]  # None: this link's parameters stay plain
BITS = {"int8": 8, "int4": 4}
NAMES = ("auto", *BITS)
SIXTEEN = {torch.float16: "F16", torch.bfloat16: "BF16"}


def dense(link: Link) -> None:
    """Nothing is packed."""
    return


def packer(name: str, model: Model, checkpoint: object, tensors: Tensors, prefix: str, device: torch.device) -> Packing:
    """ "auto": what the file holds in blocks or 16 bits stays so, where the native kernels can run; "int8" and "int4":
    every linear map is quantised."""
    if name == "auto":
        if native() is None or not _reads_blocks(device):
            return dense
        if isinstance(checkpoint, GGUFTensors):
            return _as_stored(model, checkpoint, prefix, sixteen=device.type == "cpu")
        return _sixteen_bits(model, tensors) if isinstance(checkpoint, Folder) and device.type == "cpu" else dense
    bits = BITS[name]

    def pack(link: Link) -> list[Packed] | None:
        if not _one(model, link):
            return None
        (weight,) = link.to_ours([sound(tensors.get(their), their) for their in link.their_names])
        return [Packed.quantise(weight, max(bits, least_bits(link.our_names[0])))]

    return pack


def _reads_blocks(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and gpu_reads(()))


def _as_stored(model: Model, checkpoint: GGUFTensors, prefix: str, *, sixteen: bool) -> Packing:
    """The links move whole rows, so they move rows of quantised blocks as well. ``sixteen``: and rows of 16 bits."""
    stored, memory = set(checkpoint.names()), WeightMemory()

    def pack(link: Link) -> list[Packed] | None:
        names = [name if name in stored else name.removeprefix(prefix) for name in link.their_names]
        if not _one(model, link) or not stored.issuperset(names):
            return None
        blocks = [checkpoint.blocks(name) for name in names]
        known = [(kind, raw) for kind, raw in blocks if kind is not None]
        if len(known) < len(blocks) or (not sixteen and any(kind in SIXTEEN.values() for kind, _ in known)):
            return None
        packed = [_packed(raw, kind, link.their_names[0], memory) for kind, raw in _in_our_order(link, known)]
        for name in names:
            checkpoint.forget(name)
        return packed

    return pack


def _sixteen_bits(model: Model, tensors: Tensors) -> Packing:
    """Half precision and bfloat16 of a folder stay what they are, where one weight is made of one of them."""
    memory = WeightMemory()

    def pack(link: Link) -> list[Packed] | None:
        if not _one(model, link):
            return None
        theirs = [tensors.get(name) for name in link.their_names]
        kinds = {theirs.dtype for theirs in theirs}
        if len(kinds) > 1 or not kinds <= SIXTEEN.keys():
            return None
        (weight,) = link.to_ours(theirs)
        rows = weight.contiguous().view(torch.uint8)
        return [_packed(rows, SIXTEEN[weight.dtype], link.their_names[0], memory)]

    return pack


def _in_our_order(link: Link, blocks: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """The rows of several tensors as the link orders them; those of one kind in a run stay together."""
    kinds = {kind for kind, _ in blocks}
    if len(kinds) == 1:
        (rows,) = link.to_ours([raw for _, raw in blocks])
        return [(kinds.pop(), rows)]
    # rows of two kinds are of two lengths: the link is asked where each row goes, by its number
    starts = [0, *accumulate(len(raw) for _, raw in blocks)]
    (order,) = link.to_ours([torch.arange(a, b)[:, None] for a, b in pairwise(starts)])
    numbers = order[:, 0]
    sources = torch.bucketize(numbers, torch.tensor(starts[1:]), right=True)
    ends = [*((sources[1:] != sources[:-1]).nonzero()[:, 0] + 1).tolist(), len(numbers)]
    pieces = []
    for begin, end in pairwise([0, *ends]):
        at = int(sources[begin])
        pieces.append((blocks[at][0], blocks[at][1][numbers[begin:end] - starts[at]]))
    return [(kind, torch.cat([rows for _, rows in run])) for kind, run in groupby(pieces, key=itemgetter(0))]


def _packed(rows: Tensor, kind: str, name: str, memory: WeightMemory) -> Packed:
    packed = Packed.of_blocks(rows, kind, memory)
    if packed is None:
        raise CheckpointError(f"{name!r} holds NaN or infinity: the file is damaged")
    return packed


def _one(model: Model, link: Link) -> bool:
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
