"""``vt.capture``: the attention weights of a model as it runs, at bounded memory, whatever kernel runs.

with capturing(model, keep="top8") as seen:      # anything that runs the model: generate, a conversation, your loop
    vt.generate(model, "Once upon a time", max_tokens=20)
seen.weights(layer=3, head=1)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.files import GIB
from vantage.generation.cached_sequence import CachedSequence
from vantage.inspect.captured import Capture, CapturedPass, TokensRead
from vantage.inspect.reductions import Reduction, parse
from vantage.inspect.select import (
    Numbers,
    check_length,
    choose_sites,
    labels,
    need_model,
    numbers,
    read_source,
    read_tokens,
)
from vantage.inspect.sites import KernelCall, observing, sites_of
from vantage.inspect.tiles import output, tiles
from vantage.model import Model
from vantage.spec.parts import EncoderOutput

LIMIT = GIB  # bytes kept, unless more are allowed
Progress = Callable[[int, int], None]


@torch.inference_mode()
def capture(
    model: Model,
    text: Any,
    *,
    source: Any = None,
    kinds: Iterable[str] | str | None = None,
    layers: Numbers = None,
    heads: Numbers = None,
    queries: Numbers = None,
    keep: str | Reduction = "weights",
    steps: int = 0,
    beyond: bool = False,
    verify: bool = False,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Capture:
    """Run a model on a text (or tokens, or images) and record its attention weights.

    ``layers``, ``heads`` and ``queries`` choose by number (an int, several, a slice; ``None``: all), ``kinds`` among
    "self", "cross" and "encoder". ``keep``: "weights", "stats", or "top" and a number: the largest of each row.
    ``steps``: generate so many tokens greedily with a cache, and record those too. ``source``: what an
    encoder-decoder reads. ``verify``: compare weights times values with the output the model used. ``limit``: the
    bytes that may be kept.
    """
    tokens = read_tokens(model, text, beyond=beyond)
    if not isinstance(steps, int) or steps < 0:
        raise BadInput(f"steps={steps!r}: give the number of tokens to generate, 0 or more")
    if steps and len(tokens) != 1:
        raise BadInput(f"{len(tokens)} rows and steps={steps}: generating works for one row at a time")
    total = _width(model, tokens) + steps
    if model.spec.embedding.source is None:
        check_length(model, total, beyond=beyond)
    rows = None if queries is None else numbers(queries, total, "query")
    read = read_source(model, source)
    many = {"kinds": kinds, "layers": layers, "heads": heads, "queries": rows, "verify": verify, "limit": limit}
    with capturing(model, keep=keep, passes=1, progress=progress, **many) as captured:
        memory = None if read is None else model.encode(read)
        if steps:
            _go_on(model, tokens[0].tolist(), steps, memory)
        else:
            model.hidden(tokens, source=memory)
    if not captured.parts:
        raise BadInput(f"queries={queries!r}: no chosen attention read so many tokens, and nothing was captured")
    return captured


@contextlib.contextmanager
def capturing(
    model: Model,
    *,
    kinds: Iterable[str] | str | None = None,
    layers: Numbers = None,
    heads: Numbers = None,
    queries: Iterable[int] | None = None,
    keep: str | Reduction = "top32",
    verify: bool = False,
    limit: int = LIMIT,
    passes: int = 1,
    progress: Progress | None = None,
) -> Iterator[Capture]:
    """Inside, every pass of this model is captured, whoever runs it. ``queries``: by their order, from 0.

    Run one sequence (or one batch that stays together) inside: those of several are kept, but only pass by pass.
    """
    need_model(model)
    if type(limit) is not int or limit < 1:
        raise BadInput(f"limit={limit!r}: give the bytes that may be kept, as a whole number")
    if model.training:
        raise BadInput("the model is in training mode, where dropout changes the weights: call model.eval() first")
    sites = choose_sites(sites_of(model), kinds, layers)
    chosen = {id(site): numbers(heads, site.heads, "head", f" in {site.name} attention") for site in sites}
    orders = None if queries is None else _orders(queries)
    kept = Capture(parse(keep).name, model.spec, {})
    collector = _Collector(kept, parse(keep), chosen, orders, verify, limit, len(sites) * passes, progress)
    with observing(sites, collector), _reading(model, kept):
        yield kept


@final
@dataclass
class _Collector:
    """Turns what it sees into what is kept."""

    into: Capture
    keep: Reduction
    heads: dict[int, list[int]]
    queries: frozenset[int] | None
    verify: bool
    limit: int
    expected: int
    progress: Progress | None
    passes_seen: int = field(default=0)

    def __call__(self, call: KernelCall) -> None:
        heads = self.heads[id(call.site)]
        order = call.pair.q.order
        columns = self._columns(order)
        if not columns:
            return
        bounds = call.pair.k.known.order
        width = 1 + (int(call.pair.k.order.max()) if bounds is None else bounds[1])
        itemsize = torch.promote_types(call.q.dtype, torch.float32).itemsize  # as tiles have it
        self._check(len(order) * len(heads) * len(columns), width, itemsize)
        kept_tiles: list[dict[str, Tensor]] = []
        error = 0.0
        for tile in tiles(call, heads, columns):
            kept_tiles.append(self.keep.of(tile, width))
            if self.verify:
                ours, theirs = output(call, heads, tile), call.out[:, heads][:, :, tile.columns]
                error = max(error, float((ours - theirs).abs().max()))
        data = {name: torch.cat([one[name] for one in kept_tiles], 2) for name in kept_tiles[0]}
        part = CapturedPass(
            tuple(heads), order[:, columns].clone(), data, width, call.kernel, error if self.verify else None
        )
        self.into.parts.setdefault((call.site.kind, call.site.layer), []).append(part)
        self.passes_seen += 1
        if self.progress is not None:
            self.progress(self.passes_seen, max(self.passes_seen, self.expected))

    def _columns(self, order: Tensor) -> list[int]:
        """Which columns of the pass are wanted: the same in every row, since a tile is cut out of all of them."""
        if self.queries is None:
            return list(range(order.shape[1]))
        first, *others = ([c for c, o in enumerate(row) if o in self.queries] for row in order.tolist())
        for b, columns in enumerate(others, 1):
            if columns != first:
                raise Refused(
                    f"queries= stand in columns {first} of row 0 and {columns} of row {b}, since the rows start at "
                    "different places: capture one row at a time, or leave queries= out"
                )
        return first

    def _check(self, cells: int, width: int, itemsize: int) -> None:
        """Refuse at the first layer what all of them together could not keep."""
        more = max(1, self.expected - self.passes_seen)
        total = self.into.bytes + more * self.keep.bytes(cells, width, itemsize)
        if total > self.limit:
            raise Refused(
                f"keep={self.keep.name!r} of {cells:,} rows over {width:,} keys in {more} layers would take "
                f"{total / 2**20:,.0f} MiB, and limit= allows {self.limit / 2**20:,.0f}: choose fewer layers=, heads= "
                'or queries=, keep="top32" or "stats", or raise limit='
            )


@contextlib.contextmanager
def _reading(model: Model, kept: Capture) -> Iterator[None]:
    """Remember which tokens stood where, in the decoder and in the encoder."""

    def listen(kind: str, of: Model) -> Any:
        def hear(module: nn.Module, args: tuple[Any, ...]) -> None:
            tokens, pos = args[0], args[1]
            # one row of positions may stand for all
            order = pos.order.expand(len(tokens), -1).cpu().clone()
            kept.read.setdefault(kind, []).append(
                TokensRead(tokens.cpu().clone() if tokens.dim() == 2 else None, order)
            )

        return of.embed.register_forward_pre_hook(hear)

    handles = [listen("self", model)]
    if model.encoder is not None:
        handles.append(listen("encoder", model.encoder))
    kept.label = lambda tokens: labels(model, tokens)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _orders(queries: Iterable[int] | int) -> frozenset[int]:
    orders = [queries] if isinstance(queries, int) else list(queries) if isinstance(queries, Iterable) else []
    if not orders or not all(type(n) is int and n >= 0 for n in orders):
        raise BadInput(f"queries={queries!r}: give the orders of queries, whole numbers from 0 on, at least one")
    return frozenset(orders)


def _width(model: Model, tokens: Tensor) -> int:
    return model.embed.tokens.size(tokens)[1] if model.spec.embedding.source is not None else tokens.shape[1]


def _go_on(model: Model, tokens: list[int], steps: int, memory: EncoderOutput | None) -> None:
    """Greedily, as ``vt.generate`` would, every token through the cache; the last is read, so that it is seen too."""
    row = CachedSequence(model, model.new_cache(capacity=len(tokens) + steps), source=memory)
    for _ in range(steps):
        logits = row.feed(tokens)
        tokens = [int(logits[-1].argmax())]
    row.feed(tokens)
