"""Weights that stay quantised, or become so, while a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.checkpoints.links import Link
from vantage.checkpoints.spelling import Tensors
from vantage.errors import BadInput, CheckpointError
from vantage.model import Model
from vantage.model.ends import Table
from vantage.model.packed import BLOCK, Packed, PackedLinear, PackedTable, PackedWeight

Packing = Callable[[Link], Packed | None]  # None: this link's parameters stay plain
BITS = {"int8": 8, "int4": 4}
NAMES = ("auto", *BITS)


def dense(link: Link) -> None:
    """Nothing is packed."""
    return


def packing(name: str, model: Model, there: object, tensors: Tensors, prefix: str) -> Packing:
    """ "auto": what the file holds in blocks stays in them; "int8" and "int4": every linear map is quantised."""
    if name == "auto":
        return _as_stored(model, there, prefix) if isinstance(there, GGUFTensors) else dense
    bits = BITS[name]

    def pack(link: Link) -> Packed | None:
        if not _fits(model, link.our_names):
            return None
        weights = [tensors.get(their) for their in link.their_names]
        (weight,) = link.to_ours(weights)
        return Packed.quantise(weight, max(bits, bits_for(link.our_names[0])))

    return pack


def bits_for(name: str) -> int:
    """The least for a parameter: embeddings and heads lose most by 4 bits, and get 8, as in GGUF files."""
    return 8 if name.startswith(("embed.", "head.")) else 4


def _as_stored(model: Model, there: GGUFTensors, prefix: str) -> Packing:
    """The links move whole rows, so they move rows of quantised blocks as well."""
    stored = set(there.names())

    def pack(link: Link) -> Packed | None:
        names = [name if name in stored else name.removeprefix(prefix) for name in link.their_names]
        if not _fits(model, link.our_names) or not stored.issuperset(names):
            return None
        found = [there.blocks(name) for name in names]
        kinds = {kind for kind, _ in found}
        if len(kinds) != 1 or None in kinds:
            return None
        (rows,) = link.to_ours([raw for _, raw in found])
        outputs, inputs = model.get_parameter(link.our_names[0]).shape
        kind = kinds.pop()
        assert kind is not None
        packed = Packed.of_blocks(rows.reshape(outputs, inputs // BLOCK, -1), kind)
        if not packed.sound():
            raise CheckpointError(f"{link.their_names[0]!r} holds NaN or infinity: the file is damaged")
        return packed

    return pack


def _fits(model: Model, names: Sequence[str]) -> bool:
    """One weight of a linear map or an embedding, in whole blocks."""
    owner, _, last = names[0].rpartition(".")
    module = model.get_submodule(owner)
    wide = module.in_features if isinstance(module, nn.Linear) else getattr(module, "embedding_dim", 1)
    return len(names) == 1 and last == "weight" and isinstance(module, (nn.Linear, Table)) and wide % BLOCK == 0


def put(model: Model, names: Sequence[str], packed: Packed) -> None:
    """In the place of every module that held this weight: a tied head shares the embedding's."""
    weight = PackedWeight(packed)
    for name in names:
        outer, _, last = name.removesuffix(".weight").rpartition(".")
        parent = model.get_submodule(outer)
        old = getattr(parent, last)
        setattr(parent, last, PackedLinear(weight, old.bias) if isinstance(old, nn.Linear) else PackedTable(weight))


def check_dtype(dtype: torch.dtype | str | None) -> tuple[torch.dtype, str | None]:
    """What is computed in, and how weights are packed."""
    if isinstance(dtype, str):
        if dtype not in NAMES:
            raise BadInput(f"dtype={dtype!r}: give a torch dtype, or one of {', '.join(map(repr, NAMES))}")
        return torch.float32, dtype
    return dtype or torch.float32, None
