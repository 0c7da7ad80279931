"""Weights that stay quantised, or become so, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.tensor_names import Tensors
from vantage.errors import BadInput, CheckpointError
from vantage.kernels.native import native
from vantage.model import Model
from vantage.model.packed import BLOCK, Packed, fits, least_bits

Packing = Callable[[Link], Packed | None]  # None: this link's parameters stay plain
BITS = {"int8": 8, "int4": 4}
NAMES = ("auto", *BITS)


def dense(link: Link) -> None:
    """Nothing is packed."""
    return


def packer(name: str, model: Model, checkpoint: object, tensors: Tensors, prefix: str, device: torch.device) -> Packing:
    """ "auto": what the file holds in blocks stays in them, where the native kernels can run; "int8" and "int4":
    every linear map is quantised."""
    if name == "auto":
        if isinstance(checkpoint, GGUFTensors) and device.type == "cpu" and native() is not None:
            return _as_stored(model, checkpoint, prefix)
        return dense
    bits = BITS[name]

    def pack(link: Link) -> Packed | None:
        if not _one(model, link):
            return None
        (weight,) = link.to_ours([sound(tensors.get(their), their) for their in link.their_names])
        return Packed.quantise(weight, max(bits, least_bits(link.our_names[0])))

    return pack


def _as_stored(model: Model, checkpoint: GGUFTensors, prefix: str) -> Packing:
    """The links move whole rows, so they move rows of quantised blocks as well."""
    stored = set(checkpoint.names())

    def pack(link: Link) -> Packed | None:
        names = [name if name in stored else name.removeprefix(prefix) for name in link.their_names]
        if not _one(model, link) or not stored.issuperset(names):
            return None
        blocks = [checkpoint.blocks(name) for name in names]
        kinds = {kind for kind, _ in blocks}
        if len(kinds) != 1 or None in kinds:
            return None
        (rows,) = link.to_ours([raw for _, raw in blocks])
        outputs, inputs = model.get_parameter(link.our_names[0]).shape
        kind = kinds.pop()
        assert kind is not None
        packed = Packed.of_blocks(rows.reshape(outputs, inputs // BLOCK, -1), kind)
        if not packed.sound():
            raise CheckpointError(f"{link.their_names[0]!r} holds NaN or infinity: the file is damaged")
        return packed

    return pack


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


def check_dtype(dtype: torch.dtype | str | None) -> tuple[torch.dtype, str | None]:
    """What is computed in, and how weights are packed."""
    if isinstance(dtype, str):
        if dtype not in NAMES:
            raise BadInput(f"dtype={dtype!r}: give a torch dtype, or one of {', '.join(map(repr, NAMES))}")
        return torch.float32, dtype
    return dtype or torch.float32, None
