"""The ways tokens reach a model. Each scenario yields what came out and what should have.

What should have come out is always the same thing: the row alone, in one pass, without a cache,
through the reference kernel, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Self

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.cache import CacheKind, ModelCache, as_forgetting
from vantage.conformance.covering import Cell
from vantage.conformance.factors import FACTOR_NAMES, LAYERS, LENGTH, VOCAB, WIDTH, attentions, caches, encodings, masks
from vantage.model import Model, build, decoder, encoder
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.model import ModelSpec
from vantage.spec.parts import EncoderOutput, Kernel
from vantage.spec.positions import Positions

Outcome = tuple[Tensor, Tensor]  # (got, wanted), both (tokens, vocabulary)

ROWS = (11, 6, 9)
CHUNKS = (5, 3, 1, 1, 1)
CHECKED_DRAFT = 2  # tokens that ``vt.check`` takes back


def spec_for(cell: Cell, head_dim: int | None = None) -> ModelSpec:
    """A decoder of three layers with the cell's encoding, attention and mask.

    ``head_dim``: heads of another width, for kernels that want whole vectors of a processor.
    """
    part = dict(zip(FACTOR_NAMES, cell, strict=True))
    attention = attentions()[part["attention"]]
    if head_dim is not None and isinstance(attention.config, GroupedQuery):
        value_dim = None if attention.config.value_dim is None else 2 * head_dim
        attention = replace(attention, config=replace(attention.config, head_dim=head_dim, value_dim=value_dim))
    spec = decoder(
        vocab=VOCAB,
        width=WIDTH,
        layers=LAYERS,
        attention=attention.config,
        position=encodings()[part["encoding"]](),
        mask=masks()[part["mask"]],
        max_length=LENGTH,
    )
    layers = tuple(replace(layer, qk=(*attention.qk, *layer.qk), output=attention.output) for layer in spec.layers)
    if attention.between is not None:
        plain = replace(layers[0], attention=attention.between, mask=Causal() & SameSegment())
        plain = replace(plain, qk=(), bias=None, value_bias=None)
        layers = (plain, *layers[1:-1], plain)
    if attention.indexers is not None:
        first, others = attention.indexers
        layers = tuple(replace(layer, indexer=others if i else first) for i, layer in enumerate(layers))
    if attention.shared_keys:
        layers = (*layers[:-1], replace(layers[-1], source=0))
    if attention.cross:
        layers = tuple(replace(layer, cross=attention.config) for layer in layers)
        source = encoder(vocab=VOCAB, width=WIDTH, layers=1, heads=2, position="sinusoidal")
        return replace(spec, layers=layers, encoder=source)
    return replace(spec, layers=layers)


def masked(spec: ModelSpec, cache: CacheKind | None) -> ModelSpec:
    """The model that shows without a cache what this one shows with it: what the cache forgets is masked."""
    forgets = None if cache is None else as_forgetting(cache)
    if forgets is None or forgets.mask is None:
        return spec
    keyed = [layer.attention.cache_shape(spec.width).kv_heads > 0 for layer in spec.layers]
    layers = (
        replace(layer, mask=layer.mask & forgets.mask) if keys else layer
        for layer, keys in zip(spec.layers, keyed, strict=True)
    )
    return replace(spec, layers=tuple(layers))


def measured_by_itself(cache: CacheKind) -> bool:
    """Whether one pass through the same rounding, or the same forgetting, is the measure. No mask says what goes by
    weight or by place: ``tests/cache/test_selective.py`` has those written out."""
    forgets = as_forgetting(cache)
    return not cache.exact or (forgets is not None and forgets.mask is None)


def sharpen(model: Model, seed: int = 0) -> Model:
    """Weights under which attention is far from uniform, so that a wrong position shows."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=gen, dtype=torch.float64).to(p)
            p.copy_(noise * 1.5 * p.shape[-1] ** -0.5 if p.dim() > 1 else p + 0.2 * noise)
    return model.eval()


def round_anew(model: Model, seed: int) -> None:
    """Move one weight in twelve to its neighbour in the model's precision: what that changes in all has the variance of
    rounding them all."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            by = torch.tensor([-1.0, 1.0] + [0.0] * 22)[torch.randint(24, p.shape, generator=gen)]
            p.mul_((1 + torch.finfo(p.dtype).eps * by).to(p))


@dataclass
class Bench:
    """One cell, set up: the model under test, and the reference with the same weights."""

    model: Model
    reference: Model
    cache: CacheKind | None
    stepwise: bool  # whether the mask lets tokens arrive later at all
    tokens: Tensor  # (3, LENGTH)
    source: Tensor | None  # (3, 5), padded on the right
    source_mask: Tensor | None
    device: torch.device | str

    @classmethod
    def of(
        cls,
        cell: Cell,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        head_dim: int | None = None,
        kernel: Kernel | None = None,
    ) -> Self:
        """``kernel``: another than the one that the cell names."""
        part = dict(zip(FACTOR_NAMES, cell, strict=True))
        spec = spec_for(cell, head_dim)
        model = sharpen(build(spec, kernel=kernel or part["kernel"])).to(device, dtype)
        cache = caches().get(part["cache"])
        reference = sharpen(build(masked(spec, cache), kernel="reference")).double()
        gen = torch.Generator().manual_seed(1)
        tokens = torch.randint(VOCAB, (len(ROWS), LENGTH), generator=gen)
        source = source_mask = None
        if spec.encoder is not None:
            source = torch.randint(VOCAB, (len(ROWS), 5), generator=gen)
            source_mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
        stepwise = masks()[part["mask"]].causal
        return cls(model, reference, cache, stepwise, tokens, source, source_mask, device)

    # ---- both sides

    def memory(self, model: Model, rows: Sequence[int]) -> EncoderOutput | None:
        if self.source is None or self.source_mask is None:
            return None
        device = model.device
        return model.encode(self.source[list(rows)].to(device), mask=self.source_mask[list(rows)])

    def new_cache(self, batch: int, draft: int | None = None) -> ModelCache | None:
        if self.cache is None:
            return None
        return self.model.new_cache(batch, kind=self.cache, length=LENGTH, draft=draft)

    def make_cache(self, batch: int) -> ModelCache:
        """The cell's cache for a check, which also takes tokens back."""
        cache = self.new_cache(batch, draft=CHECKED_DRAFT)
        assert cache is not None
        return cache

    def alone(self, row: int, tokens: Tensor, pos: Tensor | None = None) -> Tensor:
        """What row ``row`` should give for these tokens (T,): (T, V)."""
        T = len(tokens)
        order = torch.arange(T)[None]
        where = Positions.of(order if pos is None else pos[None], order=order)
        memory = self.memory(self.reference, [row])
        cache = None
        if self.cache is not None and measured_by_itself(self.cache):
            cache = self.reference.new_cache(1, kind=self.cache, length=LENGTH)
        length = LENGTH if cache is None else None
        return self.reference(tokens[None], positions=where, length=length, cache=cache, source=memory)[0]

    def run(
        self,
        tokens: Tensor,
        cache: ModelCache | None,
        positions: Positions | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The model under test, on whatever arrives now; the source goes in with the first tokens."""
        first = cache is None or not cache.has_memory
        memory = self.memory(self.model, range(len(tokens))) if first else None
        length = LENGTH if cache is None else None
        tokens = tokens.to(self.device)
        return self.model(tokens, positions=positions, mask=mask, cache=cache, length=length, source=memory).cpu()


def full(bench: Bench) -> Iterator[Outcome]:
    """One pass over rows of equal length."""
    tokens = bench.tokens[:2, :11]
    got = bench.run(tokens, bench.new_cache(2))
    yield from ((got[b], bench.alone(b, tokens[b])) for b in range(2))


def steps(bench: Bench) -> Iterator[Outcome]:
    """Prefill, a chunk, then one token at a time; positions are left to the cache."""
    tokens, cache = bench.tokens[:2, :11], bench.new_cache(2)
    got = torch.cat([bench.run(part, cache) for part in tokens.split(CHUNKS, dim=1)], 1)
    yield from ((got[b], bench.alone(b, tokens[b])) for b in range(2))


def ragged(bench: Bench) -> Iterator[Outcome]:
    """The same with rows of unequal length: a row that has ended is padding from then on."""
    cache, start = bench.new_cache(len(ROWS)), 0
    got: list[list[Tensor]] = [[] for _ in ROWS]
    for width in CHUNKS:
        sizes = [max(0, min(width, n - start)) for n in ROWS]
        where = Positions.rows(sizes, [min(start, n) for n in ROWS], width=width)
        out = bench.run(bench.tokens[:, start : start + width], cache, where)
        for b, n in enumerate(sizes):
            got[b].append(out[b, :n])
        start += width
    yield from ((torch.cat(got[b]), bench.alone(b, bench.tokens[b, :n])) for b, n in enumerate(ROWS))


def left_padded(bench: Bench) -> Iterator[Outcome]:
    return _padded(bench, left=True)


def right_padded(bench: Bench) -> Iterator[Outcome]:
    return _padded(bench, left=False)


def _padded(bench: Bench, *, left: bool) -> Iterator[Outcome]:
    """A padded batch under a mask; then, where there is a cache, two more tokens for every row."""
    cache, width = bench.new_cache(len(ROWS)), max(ROWS)
    column, size = torch.arange(width), torch.tensor(ROWS)[:, None]
    mask = column >= width - size if left else column < size
    padded = torch.zeros(len(ROWS), width, dtype=torch.long)
    padded[mask] = torch.cat([bench.tokens[b, :n] for b, n in enumerate(ROWS)])
    out = bench.run(padded, cache, mask=mask)
    got = [[out[b][mask[b]]] for b in range(len(ROWS))]
    more = 2 if cache is not None and bench.stepwise else 0
    for i in range(more):
        out = bench.run(torch.stack([bench.tokens[b, n + i] for b, n in enumerate(ROWS)])[:, None], cache)
        for b in range(len(ROWS)):
            got[b].append(out[b])
    yield from ((torch.cat(got[b]), bench.alone(b, bench.tokens[b, : n + more])) for b, n in enumerate(ROWS))


def packed(bench: Bench) -> Iterator[Outcome]:
    """Documents side by side in a row, positions restarting; then the last of each row goes on."""
    documents = ((4, 6), (7,), (3, 2, 5))
    cache, where = bench.new_cache(len(ROWS)), Positions.packed(documents)
    out = bench.run(bench.tokens[:, : where.shape[1]], cache, where)
    got = {(b, d): [part] for b, row in enumerate(documents) for d, part in enumerate(out[b, : sum(row)].split(row))}
    more = 2 if cache is not None and bench.stepwise else 0
    ends = torch.tensor([sum(row) for row in documents])
    for i in range(more):
        pos, order = torch.tensor([[row[-1] + i] for row in documents]), ends[:, None] + i
        where = Positions.of(pos, order=order, segment=order - pos)
        out = bench.run(bench.tokens.gather(1, order), cache, where)
        for b, row in enumerate(documents):
            got[b, len(row) - 1].append(out[b])
    for b, row in enumerate(documents):
        start = 0
        for d, n in enumerate(row):
            size = n + more if d == len(row) - 1 else n
            yield torch.cat(got[b, d]), bench.alone(b, bench.tokens[b, start : start + size])
            start += n


def randomised(bench: Bench) -> Iterator[Outcome]:
    """Positions drawn at random, in order; masks still count tokens."""
    cache, T = bench.new_cache(2), 11
    gen = torch.Generator().manual_seed(2)
    pos = torch.stack([torch.randperm(LENGTH, generator=gen)[:T].sort().values for _ in range(2)])
    order = torch.arange(T).expand(2, T)
    sizes = CHUNKS if cache is not None and bench.stepwise else (T,)
    parts = zip(bench.tokens[:2, :T].split(sizes, 1), pos.split(sizes, 1), order.split(sizes, 1), strict=True)
    got = torch.cat([bench.run(t, cache, Positions.of(p, order=o)) for t, p, o in parts], 1)
    yield from ((got[b], bench.alone(b, bench.tokens[b, :T], pos[b])) for b in range(2))


def rollback(bench: Bench) -> Iterator[Outcome]:
    """Drafts that are rejected leave no trace."""
    tokens, cache = bench.tokens[:2, :11], bench.new_cache(2, draft=3)
    assert cache is not None
    wrong = (tokens + 1) % VOCAB
    got = [bench.run(tokens[:, :6], cache)]
    bench.run(wrong[:, 6:9], cache)
    cache.crop(6)
    got.append(bench.run(tokens[:, 6:8], cache))
    bench.run(wrong[:, 8:9], cache)
    cache.crop(8)
    got += [bench.run(tokens[:, t : t + 1], cache) for t in range(8, 11)]
    out = torch.cat(got, 1)
    yield from ((out[b], bench.alone(b, tokens[b])) for b in range(2))


def fork(bench: Bench) -> Iterator[Outcome]:
    """One cache becomes two that go their own ways; in the second the rows are reordered, as beams are."""
    starts, beams = (5, 3, 4), (2, 0, 0)
    first = bench.new_cache(len(ROWS))
    assert first is not None
    bench.run(bench.tokens[:, : max(starts)], first, Positions.rows(starts))
    second = first.fork()
    second.reorder(torch.tensor(beams))
    other = (bench.tokens + 5) % VOCAB
    got_first, got_second = [], []
    for i in range(4):
        at = torch.tensor(starts)[:, None] + i
        got_first.append(bench.run(bench.tokens.gather(1, at), first))
        got_second.append(bench.run(other.gather(1, at), second))
    for b, n in enumerate(starts):
        yield torch.cat(got_first, 1)[b], bench.alone(b, bench.tokens[b, : n + 4])[n:]
    for b, beam in enumerate(beams):
        n = starts[beam]
        row = torch.cat([bench.tokens[beam, :n], other[b, starts[b] : starts[b] + 4]])
        yield torch.cat(got_second, 1)[b], bench.alone(beam, row)[n:]


SCENARIO: dict[str, Callable[[Bench], Iterator[Outcome]]] = {
    "full": full,
    "steps": steps,
    "ragged": ragged,
    "left-padded": left_padded,
    "right-padded": right_padded,
    "packed": packed,
    "randomised": randomised,
    "rollback": rollback,
    "fork": fork,
}


@torch.no_grad()
def run_cell(
    cell: Cell,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    head_dim: int | None = None,
    rounded: int | None = None,
) -> float:
    """The largest difference of any logit from what it should be. The reference runs on the host. ``rounded``: a seed
    with which the weights under test are rounded otherwise."""
    bench = Bench.of(cell, dtype, device, head_dim)
    if rounded is not None:
        round_anew(bench.model, rounded)
    errors = [float((got.double() - wanted).abs().max()) for got, wanted in outcomes(cell, bench)]
    return max(e if isfinite(e) else inf for e in errors)


def outcomes(cell: Cell, bench: Bench) -> Iterator[Outcome]:
    """What the cell's scenario yields."""
    return SCENARIO[dict(zip(FACTOR_NAMES, cell, strict=True))["scenario"]](bench)
