"""What a cache takes, by kind of attention, and what a pass computes: ``vantage.inspect`` on real specs, as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from vantage.attention import GroupedQuery, Latent
from vantage.cache import LayerPlan, window_kinds
from vantage.errors import Refused
from vantage.figures import Bars, Figure, Line, Lines
from vantage.inspect import Cost, cost
from vantage.inspect.cache_bytes import CacheSettings, cache_bytes, token_bytes
from vantage.model import decoder
from vantage.model.norms import RMSNorm
from vantage.serve.studio.answers import PartCount
from vantage.serve.studio.cost.answers import CacheCost, CostAnswer, PartOperations
from vantage.spec.model import AttentionConfig, ModelSpec

VOCAB = 32_000  # where nobody says another: it counts for the head alone
WINDOW = 4096
MIB = 2**20
BATCHES = tuple(2**i for i in range(9))


@final
@dataclass(frozen=True)
class Sizes:
    """A decoder, as far as its cost goes."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    window: int | None = None
    latent: int | None = None
    vocab: int = VOCAB

    def spec(self, attention: AttentionConfig, window: int | None = None) -> ModelSpec:
        # no encoding: those that models of this kind have multiply no matrices, and keep nothing
        return decoder(
            vocab=self.vocab,
            width=self.width,
            layers=self.layers,
            attention=attention,
            window=window,
            position="none",
        )

    def grouped(self, kv_heads: int) -> GroupedQuery:
        return GroupedQuery(self.heads, kv_heads, self.head_width)

    @property
    def mla(self) -> Latent:
        """As in DeepSeek-V2 unless a latent is said: four heads' width, and a rotary key of half a head's."""
        rank = 4 * self.head_width if self.latent is None else self.latent
        rope = max(2, self.head_width // 2 // 2 * 2)
        return Latent(self.heads, rank, self.head_width, rope, self.head_width, norm=RMSNorm())

    def own(self) -> ModelSpec:
        attention = self.grouped(self.kv_heads) if self.latent is None else self.mla
        return self.spec(attention, self.window)


@final
@dataclass(frozen=True)
class CacheChoice:
    """One way to keep keys and values. What a window has left behind is given up, where that saves room."""

    name: str
    spec: ModelSpec
    own: bool = False

    def bytes(self, context: int, batch: int, dtype: torch.dtype) -> int:
        source = 0 if self.spec.encoder is None else context
        kinds = ("contiguous", *window_kinds([LayerPlan.of(shape, mask) for shape, mask in self.spec.caches]))
        return min(cache_bytes(self.spec, CacheSettings(context, batch, dtype, kind, source)) for kind in kinds)

    def a_token(self, dtype: torch.dtype) -> int:
        settings = CacheSettings(1, 1, dtype)
        return sum(token_bytes(shape, settings) for shape, _ in self.spec.caches)


def kinds(sizes: Sizes, own: ModelSpec | None = None) -> list[CacheChoice]:
    """What is asked about first, then the same heads kept in other ways."""
    first = sizes.own() if own is None else own
    ways = [CacheChoice("as it is" if own is not None else "this shape", first, own=True)]
    groups = sizes.kv_heads if 1 < sizes.kv_heads < sizes.heads else _quarter(sizes.heads)
    ways.append(CacheChoice("MHA", sizes.spec(sizes.grouped(sizes.heads))))
    if groups is not None:
        ways.append(CacheChoice(f"GQA ({groups})", sizes.spec(sizes.grouped(groups))))
    ways.append(CacheChoice("MQA", sizes.spec(sizes.grouped(1))))
    ways.append(CacheChoice(f"MLA ({sizes.mla.kv_rank} + {sizes.mla.rope_dim})", sizes.spec(sizes.mla)))
    window = sizes.window or WINDOW
    ways.append(CacheChoice(f"MHA, window {window:,}", sizes.spec(sizes.grouped(sizes.heads), window)))
    return ways


def _quarter(heads: int) -> int | None:
    """As near a quarter of the heads as divides them."""
    between = [n for n in range(2, heads) if heads % n == 0]
    return min(between, key=lambda n: abs(n - heads / 4), default=None)


def sizes_of(spec: ModelSpec) -> Sizes:
    """The sizes of a model that is there, by its first layer."""
    if not spec.generates:
        raise Refused("an encoder reads its text at once and keeps no cache: choose a model that generates")
    shape = spec.layers[0].attention.shape(spec.width)
    return Sizes(len(spec.layers), spec.width, shape.heads, shape.kv_heads, shape.value_dim, vocab=spec.vocab)


def calculate(
    sizes: Sizes, own: ModelSpec | None, contexts: Sequence[int], batch: int, dtype: torch.dtype
) -> CostAnswer:
    """The table, the figures and the operations."""
    ways = kinds(sizes, own)
    table = [
        CacheCost(
            kind=kind.name,
            own=kind.own,
            bytes_per_token=kind.a_token(dtype),
            bytes_at=[kind.bytes(n, batch, dtype) for n in contexts],
        )
        for kind in ways
    ]
    costs = cost(ways[0].spec, context=max(contexts), batch=batch, dtype=dtype)
    operations = _operations(costs)
    return CostAnswer(
        table=table,
        contexts=list(contexts),
        batch=batch,
        dtype=costs.dtype,
        parameters=costs.total,
        parameters_by_part=[PartCount(part=part, count=count) for part, count in costs.parameters.items()],
        operations=operations,
        figures=[_sizes_figure(ways, contexts, batch, dtype), _operations_figure(costs, operations)],
    )


def _operations(costs: Cost) -> list[PartOperations]:
    passes = {one.name: {part.name: part for part in one.parts} for one in costs.passes}
    whole, step = passes["prefill"], passes["decode"]
    return [
        PartOperations(part=name, flops=whole[name].operations, decode=step[name].operations, bytes=step[name].bytes)
        for name in whole
        if whole[name].operations or step[name].operations
    ]


def _sizes_figure(ways: Sequence[CacheChoice], contexts: Sequence[int], batch: int, dtype: torch.dtype) -> Figure:
    over = tuple(
        Line(k.name, list(contexts), [k.bytes(n, batch, dtype) / MIB for n in contexts], look=_look(k)) for k in ways
    )
    at = max(contexts)
    rows = [n for n in BATCHES if n <= max(64, batch)]
    wide = tuple(Line(k.name, rows, [k.bytes(at, n, dtype) / MIB for n in rows], look=_look(k)) for k in ways)
    caption = f"Size of the cache in MiB: by context length for a batch of {batch}, and by batch size at {at:,} tokens."
    return Figure(
        "cache",
        caption,
        (
            Lines("by context length", "tokens", "MiB", over, log_x=True, log_y=True),
            Lines("by batch size", "rows", "MiB", wide, log_x=True, log_y=True),
        ),
    )


def _look(kind: CacheChoice) -> Any:
    return "solid" if kind.own else "dashed"


def _operations_figure(costs: Cost, operations: Sequence[PartOperations]) -> Figure:
    names = tuple(one.part for one in operations)
    series = (
        ("read the context", [one.flops for one in operations]),
        ("one more token", [one.decode for one in operations]),
    )
    bars = Bars("operations", "FLOP", names, series, log_y=True)
    caption = f"Matrix-product operations by part, at {costs.context:,} tokens and a batch of {costs.batch}."
    return Figure("operations", caption, (bars,))
