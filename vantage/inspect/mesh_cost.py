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
from vantage.inspect.shard_cost import shard_cost
from vantage.model import Model, empty_model
from vantage.parallel.cut import Cut
from vantage.parallel.experts import spread
from vantage.parallel.parameter_cut import ParameterCut, parameter_cuts, sublayers
from vantage.parallel.tensor import divided
from vantage.spec.abilities import SpreadsExperts
from vantage.spec.mesh import MeshShape
from vantage.spec.model import ModelSpec
from vantage.training.distributed import expert_units

PLACE = 2 * 8  # bytes of a position and an order, which travel with a key once for all layers
MOMENTS = 2 * 4  # bytes that AdamW keeps of a parameter, in float32
COUNT = 8  # bytes of the number of rows for an expert


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
    """What each device holds and sends; keys and values are gathered, and every size of a share is the largest.

    ``batch`` counts the rows of each device. Of experts it is said what is sent where each gets as many tokens.
    """
    if context < 1 or batch < 1:
        raise BadInput(f"context={context}, batch={batch}: give at least 1")
    kind = floating(dtype)
    spread_spec = spread(spec, 0, mesh.experts)
    own = divided(spread_spec, 0, mesh.tensor)
    whole, share = empty_model(spread_spec), empty_model(own)
    cuts = parameter_cuts(whole, share)
    columns = Cut(context, mesh.context).padded // mesh.context
    tokens = batch * columns
    exchanged = [_exchanged(own, index, tokens, kind) for index in range(len(own.layers))]
    gathered = (mesh.context - 1) * sum(exchanged)
    handed = sum(state_bytes(shape, kind) for shape, _ in own.caches) * batch if mesh.context > 1 else 0
    weights, serves = shard_cost(share, mesh, kind), spec.generates and not mesh.trains
    memory = {
        "weights": weights.held,
        "weights of the largest block, gathered": weights.largest,
        "gradients and AdamW's moments, in training": weights.held + weights.numbers * MOMENTS,
        "cache of the whole context": cache_bytes(own, CacheSettings(context, batch, kind)) if serves else 0,
        "keys and values of a layer, gathered": mesh.context * max(exchanged) if mesh.context > 1 else 0,
    }
    per_token = len(sublayers(share)) * spec.width * kind.itemsize
    places = (mesh.context - 1) * tokens * PLACE
    forward = {
        "sums of sublayers": summed_bytes(tokens * per_token, mesh.tensor),
        "keys and values": gathered + places,
        "states": handed,
        "tokens to their experts": exchanged_bytes(spec, mesh.experts, tokens, kind),
        "weights": weights.forward,
    }
    step = {
        "sums of sublayers": 2 * forward["sums of sublayers"],
        "keys and values": 2 * gathered + places,
        "states": 2 * handed,
        "tokens to their experts": exchanged_bytes(spec, mesh.experts, tokens, kind, backward=True),
        "gradients over tensor": _over_tensor(cuts, share, mesh, kind),
        "gradients over context": 0 if mesh.trains else _over_context(share, mesh, kind),
        "weights and their gradients": weights.forward + weights.backward,
    }
    decode = {"sums of sublayers": summed_bytes(batch * per_token, mesh.tensor)}
    sent = {"prefill": forward, "decode": decode, "training step": step}
    if not serves:
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


def exchanged_bytes(spec: ModelSpec, ranks: int, tokens: int, dtype: torch.dtype, *, backward: bool = False) -> int:
    """What a device sends of its tokens to the experts of others, and back to others of theirs."""
    if ranks == 1:
        return 0
    total = 0
    for own in (spec, spec.encoder):
        for layer in () if own is None else own.layers:
            if isinstance(layer.ffn, SpreadsExperts):
                rows = 2 * tokens * layer.ffn.chosen * spec.width * dtype.itemsize
                numbers = layer.ffn.count * COUNT
                total += (rows * (2 if backward else 1) + numbers) * (ranks - 1) // ranks
    return total


def _gradient_bytes(cut: ParameterCut, ranks: int, dtype: torch.dtype, shards: int) -> int:
    """What is sent to bring a gradient together inside a sublayer, of which each of ``shards`` devices has a part."""
    if not cut.inside or ranks == 1:
        return 0
    if not cut.maps:
        return summed_bytes(-(-cut.shape[0] // shards) * (math.prod(cut.shape) // cut.shape[0]) * dtype.itemsize, ranks)
    twice = [m for m in cut.maps if m.shards < ranks]
    rest = math.prod(cut.shape) // cut.shape[cut.dim]
    sums = sum(summed_bytes(m.whole * rest * dtype.itemsize, ranks) for m in twice)
    own = [sum(m.own for m in cut.maps) if dim == cut.dim else n for dim, n in enumerate(cut.shape)]
    gathered = (shards - 1) * -(-own[0] // shards) * (math.prod(own) // own[0]) * dtype.itemsize
    return sums + (gathered if twice else 0)


def _over_tensor(cuts: dict[str, ParameterCut], share: Model, mesh: MeshShape, dtype: torch.dtype) -> int:
    """What is sent of gradients among those who share heads and columns."""
    experts = {p for unit in expert_units(share) for p in unit.parameters()}
    total = 0
    for name, p in share.named_parameters():
        shards = mesh.expert_shards if p in experts else mesh.shards
        total += _gradient_bytes(cuts[name], mesh.tensor, dtype, shards)
    return total


def _over_context(share: Model, mesh: MeshShape, dtype: torch.dtype) -> int:
    """The same among those who share tokens, where FSDP2 does not do it."""
    return sum(summed_bytes(p.numel() * dtype.itemsize, mesh.context) for p in share.parameters())


def _some(numbers: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in numbers.items() if n}
