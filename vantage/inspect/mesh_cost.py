"""What a model over several devices takes of each: memory, and bytes on the wire, from the spec alone.

What is counted is what ``vantage.parallel`` sends, as its ``Wire`` counts it; ``tests/parallel`` hold the two together.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from vantage.errors import BadInput
from vantage.figures.html import page_table
from vantage.inspect.cache_bytes import CacheSettings, cache_bytes, state_bytes
from vantage.inspect.machine import floating
from vantage.model import empty_model
from vantage.parallel.cut import Cut
from vantage.parallel.parameter_cut import ParameterCut, parameter_cuts, sublayers
from vantage.parallel.tensor import divided
from vantage.spec.mesh import MeshShape
from vantage.spec.model import ModelSpec

AXES = ("tensor", "context")
PLACE = 2 * 8  # bytes of a position and an order, which travel with a key once for all layers
MOMENTS = 2 * 4  # bytes that AdamW keeps of a parameter, in float32


@final
@dataclass(frozen=True)
class MeshCost:
    """Bytes of one device. ``memory`` by what it holds; ``sent`` by what is computed, and by why."""

    mesh: MeshShape
    context: int
    batch: int
    dtype: str
    memory: dict[str, int]
    sent: dict[str, dict[str, int]]

    @property
    def header(self) -> list[str]:
        return ["what", "bytes", "MiB"]

    def rows(self) -> list[list[Any]]:
        sent = {f"sent, {name}: {why}": n for name, parts in self.sent.items() for why, n in parts.items()}
        return [[name, n, n / 2**20] for name, n in (self.memory | sent).items()]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"devices": self.mesh.devices}

    def _repr_html_(self) -> str:
        return page_table(f"each of {self.mesh.devices} devices", self.header, self.rows())


def mesh_cost(
    spec: ModelSpec, mesh: MeshShape, *, context: int, batch: int = 1, dtype: torch.dtype | str = "bfloat16"
) -> MeshCost:
    """What each device holds and sends; keys and values are gathered, and every size of a share is the largest."""
    if context < 1 or batch < 1:
        raise BadInput(f"context={context}, batch={batch}: give at least 1")
    kind = floating(dtype)
    own = divided(spec, 0, mesh.tensor)
    whole, share = empty_model(spec), empty_model(own)
    cuts = parameter_cuts(whole, share)
    weights = sum(p.numel() for p in share.parameters())
    columns = Cut(context, mesh.context).padded // mesh.context
    tokens = batch * columns
    exchanged = [_exchanged(own, index, tokens, kind) for index in range(len(own.layers))]
    gathered = (mesh.context - 1) * sum(exchanged)
    handed = sum(state_bytes(shape, kind) for shape, _ in own.caches) * batch if mesh.context > 1 else 0
    memory = {
        "weights": weights * kind.itemsize,
        "gradients and AdamW's moments, in training": weights * (kind.itemsize + MOMENTS),
        "cache of the whole context": cache_bytes(own, CacheSettings(context, batch, kind)) if spec.generates else 0,
        "keys and values of a layer, gathered": mesh.context * max(exchanged) if mesh.context > 1 else 0,
    }
    per_token = len(sublayers(share)) * spec.width * kind.itemsize
    places = (mesh.context - 1) * tokens * PLACE
    forward = {
        "sums of sublayers": summed_bytes(tokens * per_token, mesh.tensor),
        "keys and values": gathered + places,
        "states": handed,
    }
    own_gradients = sum(_gradient_bytes(cut, mesh.tensor, kind) for cut in cuts.values())
    step = {
        "sums of sublayers": 2 * forward["sums of sublayers"],
        "keys and values": 2 * gathered + places,
        "states": 2 * handed,
        "gradients over tensor": own_gradients,
        "gradients over context": sum(
            summed_bytes(p.numel() * kind.itemsize, mesh.context) for p in share.parameters()
        ),
    }
    decode = {"sums of sublayers": summed_bytes(batch * per_token, mesh.tensor)}
    sent = {"prefill": forward, "decode": decode, "training step": step}
    if not spec.generates:
        del sent["decode"]
    named = str(kind).removeprefix("torch.")
    return MeshCost(mesh, context, batch, named, _some(memory), {name: _some(parts) for name, parts in sent.items()})


def summed_bytes(size: int, ranks: int) -> int:
    """What a device sends of a sum of so many bytes over so many devices, in a ring."""
    return 2 * (ranks - 1) * size // ranks


def _exchanged(spec: ModelSpec, index: int, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of the keys, values and streams that a layer makes of these tokens."""
    kept = spec.layers[index].cache_shape(spec.width)
    if kept is None or not kept.kv_heads:
        return 0
    numbers = kept.kv_heads * (kept.key_dim + kept.value_dim) * dtype.itemsize
    return tokens * (numbers + sum(s.heads * s.width * s.dtype(dtype).itemsize for s in kept.streams))


def _gradient_bytes(cut: ParameterCut, ranks: int, dtype: torch.dtype) -> int:
    """What is sent to bring a gradient together inside a sublayer."""
    if not cut.inside:
        return 0
    if not cut.maps:
        return summed_bytes(math.prod(cut.shape) * dtype.itemsize, ranks)
    rest = math.prod(cut.shape) // cut.shape[cut.dim]
    return sum(summed_bytes(m.whole * rest * dtype.itemsize, ranks) for m in cut.maps if m.shards < ranks)


def _some(numbers: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in numbers.items() if n}
