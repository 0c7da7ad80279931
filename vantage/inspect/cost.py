"""What a model costs at a context and batch (A16, K5): parameters, operations, cache, and time on a machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import nn

from vantage.errors import BadInput
from vantage.figures.html import page_table
from vantage.inspect import operations as ops
from vantage.inspect.cache_bytes import CacheSettings, alternatives, cache_bytes, state_bytes, token_bytes
from vantage.inspect.machine import Machine, floating
from vantage.inspect.operations import PARTS
from vantage.inspect.visible import visible
from vantage.model import Model, empty_model
from vantage.model.altup import AltUpBlock
from vantage.spec.attention import TokenMixer, attentions
from vantage.spec.masks import Mask
from vantage.spec.model import ModelSpec
from vantage.spec.operations import PassSize, module_operations, weights_read

WINDOW = 4096  # of the alternative with a window
PAIRED = ("scores", "position", "weighted sum")  # what is done for pairs of a query and a key
LARGEST = 2**40  # of any size: products of two still fit whole numbers of 64 bits where they are added up


@final
@dataclass(frozen=True)
class PartCost:
    """One part of a pass. ``bytes``: weights, and keys and values, each read once; activations are left out.

    ``needed``: the operations of pairs that a mask lets through. Kernels may leave out the others, and times do.
    """

    name: str
    operations: int
    bytes: int
    needed: int
    seconds: float | None

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes if self.bytes else 0.0


@final
@dataclass(frozen=True)
class PassCost:
    """A whole pass: "prefill" reads the context at once, "decode" is one more token after it."""

    name: str
    queries: int
    keys: int
    parts: tuple[PartCost, ...]
    visible: float  # of the pairs of query and key that are counted, the share that a mask lets through

    @property
    def operations(self) -> int:
        return sum(part.operations for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes if self.bytes else 0.0

    def _repr_html_(self) -> str:
        rows = [[p.name, p.operations, p.bytes, p.intensity] for p in self.parts if p.operations]
        title = f"{self.name}: {self.queries:,} queries, {self.keys:,} keys"
        return page_table(title, ["part", "operations", "bytes", "per byte"], rows)

    @property
    def seconds(self) -> float | None:
        times = [part.seconds for part in self.parts]
        return None if None in times else sum(t for t in times if t is not None)


@final
@dataclass(frozen=True, repr=False)
class Cost:
    """A model's cost. Bytes are those of ``dtype``."""

    context: int
    batch: int
    dtype: str
    kind: str
    parameters: dict[str, int]
    passes: tuple[PassCost, ...]
    cache: int  # bytes
    cache_a_token: int  # bytes that one more token of one row takes
    instead: dict[str, int]  # cache bytes if attention were of another kind
    machine: Machine | None
    uncounted: tuple[str, ...]  # parts that are not ours: their products are not in the numbers

    @property
    def total(self) -> int:
        return sum(self.parameters.values())

    def to_dict(self) -> dict[str, Any]:
        passes = [
            asdict(one)
            | {"operations": one.operations, "bytes": one.bytes, "intensity": one.intensity, "seconds": one.seconds}
            | {"parts": [asdict(part) | {"intensity": part.intensity} for part in one.parts]}
            for one in self.passes
        ]
        facts = {n: getattr(self, n) for n in ("context", "batch", "dtype", "kind", "parameters", "total", "cache")}
        facts |= {"cache_a_token": self.cache_a_token, "instead": self.instead, "uncounted": list(self.uncounted)}
        return facts | {"machine": None if self.machine is None else asdict(self.machine), "passes": passes}

    @property
    def header(self) -> list[str]:
        return ["part", *(f"{one.name}: {what}" for one in self.passes for what in ("operations", "bytes", "per byte"))]

    def rows(self) -> list[list[Any]]:
        def cells(parts: Any) -> list[Any]:
            return [cell for part in parts for cell in (part.operations, part.bytes, part.intensity)]

        by_name = [[one.parts[i] for one in self.passes] for i in range(len(PARTS))]
        rows = [[parts[0].name, *cells(parts)] for parts in by_name if any(part.operations for part in parts)]
        return [*rows, ["all", *cells(self.passes)]]

    def __repr__(self) -> str:
        times = ", ".join(f"{one.name} {one.seconds:.3g} s" for one in self.passes if one.seconds is not None)
        where = "" if self.machine is None else f"; on {self.machine.name}: {times}"
        return (
            f"Cost({self.total:,} parameters; {self.batch} x {self.context:,} tokens in {self.dtype}: "
            f"cache {self.cache / 2**20:,.1f} MiB{where})"
        )

    def _repr_html_(self) -> str:
        from vantage.inspect.plots import plot_cost

        return page_table(repr(self), self.header, self.rows(), plot_cost(self))


def cost(
    model: Model | ModelSpec,
    *,
    context: int,
    batch: int = 1,
    source: int | None = None,
    dtype: torch.dtype | str | None = None,
    kind: str = "contiguous",
    machine: Machine | None = None,
    window: int = WINDOW,
) -> Cost:
    """What a model, or only its spec, costs. Nothing is computed and no weight is made.

    ``source``: tokens an encoder-decoder reads (the context, if not said). ``dtype``: that of weights and cache;
    the model's own if not said, bfloat16 for a spec.
    """
    if not isinstance(model, (Model, ModelSpec)):
        raise BadInput(f"{model!r:.80} is neither a model nor a spec: give what vt.load, vt.build or vt.decoder made")
    if machine is not None and not isinstance(machine, Machine):
        raise BadInput(
            f"machine={machine!r}: give a Machine, as vantage.inspect.machine({str(machine)[:40]!r}) makes it"
        )
    spec = model if isinstance(model, ModelSpec) else model.spec
    if source is not None and spec.encoder is None:
        raise BadInput(f"source={source!r}, and this model has no encoder that reads one: leave source out")
    sizes = {"context": context, "batch": batch, "window": window, **({} if source is None else {"source": source})}
    for name, n in sizes.items():
        if type(n) is not int or not 1 <= n <= LARGEST:
            raise BadInput(f"{name}={n!r}: give a whole number, 1 or more and at most {LARGEST:,}")
    empty = empty_model(spec)
    dtype = dtype_for(model, dtype)
    read = 0 if spec.encoder is None else context if source is None else source
    cached = CacheSettings(context, batch, dtype, kind, read)
    named = str(dtype).removeprefix("torch.")
    todo = [("prefill" if spec.generates else "pass", PassSize(batch, context, context, read))]
    if spec.generates:
        todo.append(("decode", PassSize(batch, 1, context, read, fresh=False)))
    passes = tuple(_pass(name, empty, size, cached, machine, named) for name, size in todo)
    a_token = sum(token_bytes(shape, cached) for shape, _ in spec.caches)
    layers = zip(empty.blocks, spec.layers, strict=True)
    odd = tuple(dict.fromkeys(name for block, layer in layers for name in ops.uncounted(block, layer)))
    kept = cache_bytes(spec, cached) if spec.generates else 0
    instead = alternatives(spec, cached, window) if spec.generates else {}
    return Cost(context, batch, named, kind, parameters(empty), passes, kept, a_token, instead, machine, odd)


def dtype_for(model: Model | ModelSpec, dtype: torch.dtype | str | None) -> torch.dtype:
    """That of weights and cache which a cost is told in."""
    if dtype is None:
        return torch.bfloat16 if isinstance(model, ModelSpec) else model.dtype
    return floating(dtype)


# ---- parameters


def parameters(model: nn.Module) -> dict[str, int]:
    """By part; what is shared is counted once, where it comes first."""
    assert isinstance(model, Model)
    counted: set[int] = set()
    counts = {"embedding": _count(model.embed, counted), "attention": 0, "feed-forward": 0, "norms": 0}
    if model.encoder is not None:
        counts = {"encoder": sum(parameters(model.encoder).values()), **counts}
        if model.spec.embedding.shared:
            counts["encoder"] -= model.embed.tokens.weight.numel()  # one table, counted with the decoder's
    if model.vision is not None:
        counts["vision tower"] = _count(model.vision, counted)
    for block in model.blocks:
        counts["attention"] += sum(_count(m, counted) for m in attentions(block))
        counts["feed-forward"] += _count(_ffn(block), counted)
        counts["norms"] += _count(block, counted)
    counts["norms"] += _count(model.norm, counted)
    counts["head"] = _count(model.head, counted)
    counts["pooler"] = _count(model.pooler, counted)
    return {name: n for name, n in counts.items() if n}


def _count(module: nn.Module, counted: set[int]) -> int:
    new = {id(p): p.numel() for p in module.parameters() if id(p) not in counted}
    counted.update(new)
    return sum(new.values())


def _ffn(block: Any) -> nn.Module:
    """The last sublayer of a block, whichever way it is wired."""
    return block.sublayers[-1]


# ---- operations


def _pass(name: str, model: Model, size: PassSize, cached: CacheSettings, on: Machine | None, dtype: str) -> PassCost:
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    sizes: dict[str, int] = dict.fromkeys(PARTS, 0)
    spared: dict[str, int] = dict.fromkeys(PARTS, 0)
    pairs = visible_pairs = 0
    if model.encoder is not None and size.fresh:
        inside = _pass(name, model.encoder, PassSize(size.batch, size.source, size.source), cached, None, dtype)
        for part in inside.parts:
            counts[part.name] += part.operations
            sizes[part.name] += part.bytes
            spared[part.name] += part.operations - part.needed
    width, itemsize = model.spec.width, cached.dtype.itemsize
    for block, layer in zip(model.blocks, model.spec.layers, strict=True):
        for module in attentions(block):
            config = layer.cross if module.crosses and layer.cross is not None else layer.attention
            shape = (None if module.crosses else layer.cache_shape(width)) or config.cache_shape(width)
            keys = size.source if module.crosses else _shown(layer.mask, shape.before, size)
            shown = size.queries * keys if module.crosses else visible(layer.mask, size, keys)
            for part, n in ops.attention(module, layer, config.shape(width), size, keys).items():
                counts[part] += n
                if part in PAIRED:
                    spared[part] += n - n * shown // (size.queries * keys)
            kept = size.batch * keys * token_bytes(shape, cached)
            value = 0 if shape.single else shape.value_dim
            share = value / (shape.key_dim + value)
            sizes["scores"] += kept - int(kept * share)
            sizes["weighted sum"] += int(kept * share)
            weights = {name: p.numel() for name, p in module.named_parameters()}
            out = sum(n for name, n in weights.items() if name.startswith("out."))
            sizes["output"] += out * itemsize
            sizes["projections"] += (sum(weights.values()) - out) * itemsize
            pairs += size.queries * keys
            visible_pairs += shown
        for module in (m for m in block.modules() if isinstance(m, TokenMixer)):
            for part, n in module.mixing_operations(size).items():
                counts[part] += n
            sizes["projections"] += sum(p.numel() for p in module.parameters()) * itemsize
            sizes["scores"] += size.batch * state_bytes(layer.attention.cache_shape(width), cached.dtype)
        if isinstance(block, AltUpBlock):
            counts["projections"] += block.operations_beside(size.tokens)
            sizes["projections"] += sum(p.numel() for part in block.beside() for p in part.parameters()) * itemsize
        ffn = _ffn(block)
        counts["feed-forward"] += module_operations(ffn, size.tokens)
        sizes["feed-forward"] += weights_read(ffn, size.tokens) * itemsize
    counts["head"] += ops.head(model, size)
    if model.spec.head is not None:
        sizes["head"] += sum(p.numel() for p in model.head.parameters()) * itemsize
    counts["embedding"] += ops.embedding(model, size)
    sizes["embedding"] += size.tokens * width * itemsize

    def cost_of(part: str) -> PartCost:
        needed = counts[part] - spared[part]
        seconds = None if on is None else on.seconds(needed, sizes[part], dtype)
        return PartCost(part, counts[part], sizes[part], needed, seconds)

    parts = tuple(cost_of(part) for part in PARTS)
    return PassCost(name, size.queries, size.keys, parts, visible_pairs / max(1, pairs))


def _shown(mask: Mask, before: int, size: PassSize) -> int:
    """Keys that a cache shows to a step: of a window what it reaches, and so many before. A whole pass shows all."""
    reach = mask.reach()
    if reach is None or size.queries == size.keys:
        return size.keys
    return min(size.keys, size.queries + reach + before - 1)
