"""Caches whose tokens lie over processes, against one pass of one process in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.context_cells import CUTS, EXCHANGES, NAMES, ROWS, WHERE, WIDTH, WITHOUT_LSE, Cell, reason
from vantage.cache import ModelCache
from vantage.conformance.covering import cover
from vantage.conformance.factors import LENGTH, NUMBER, VOCAB, allowed_by, attentions, encodings, masks, rules
from vantage.errors import VantageError
from vantage.model import Model
from vantage.parallel import ContextParallel, SpreadCache, TensorParallel
from vantage.spec.positions import Positions

PROMPT = 7  # columns that are read by all; those that follow come one by one, and then together
PIECES = (1, 1, 1, 3)

# What is refused besides what its exchange refuses while the prompt is read.
SPREAD_REASONS: tuple[tuple[dict[str, tuple[str, ...]], str], ...] = (
    ({"attention": WITHOUT_LSE}, "merges by the log-sum-exp"),
    ({"encoding": ("fox", "path", "selective-rope")}, "needs those of all tokens in one place"),
    (
        {"attention": ("indexer", "indexer-shared", "hca", "hca-turned", "csa", "csa-turned")},
        "needs those of all tokens in one place",
    ),
    ({"encoding": ("cope",)}, "depends on other keys as well"),
)


def spread_reason(cell: Mapping[str, str]) -> str | None:
    """Why a cell is refused; ``None``: it must be equal."""
    for where, because in SPREAD_REASONS:
        if all(cell.get(name, "") in values for name, values in where.items()):
            return because
    return reason(cell)


def covering(strength: int, *, refused: bool) -> list[tuple[str, ...]]:
    """Cells that hold every ``strength``-combination of those that must be equal, or else those that are refused."""
    parts_fit = allowed_by(rules())
    fixed = {NUMBER["cache"]: "contiguous", NUMBER["kernel"]: "reference", NUMBER["scenario"]: "steps"}

    def allowed(chosen: Mapping[int, str]) -> bool:
        named = {NAMES[i]: value for i, value in chosen.items()}
        parts = {i: value for i, value in chosen.items() if i < NUMBER["cache"]} | fixed
        return parts_fit(parts) and (refused or spread_reason(named) is None)

    values = (tuple(encodings()), tuple(attentions()), tuple(masks()), CUTS, EXCHANGES, tuple(WHERE))
    cells = cover(dict(zip(NAMES, values, strict=True)), strength, allowed)
    return [c for c in cells if (spread_reason(dict(zip(NAMES, c, strict=True))) is not None) == refused]


class Decoding:
    """A cell whose prompt is read by all processes, and whose other tokens follow in pieces."""

    def __init__(self, names: tuple[str, ...]):
        self.cell = Cell(names)
        self.parallel = ContextParallel(cut=names[3], exchange=names[4])

    @property
    def model(self) -> Model:
        return self.cell.model

    def narrowed(self, first: int, n: int) -> tuple[Tensor, Positions]:
        return self.cell.tokens[:, first : first + n], self.cell.pos.narrow(first, n)

    def prompt(self) -> tuple[SpreadCache, Tensor]:
        cache = self.parallel.new_cache(self.model, ROWS, length=LENGTH)
        tokens, pos = self.narrowed(0, PROMPT)
        share = self.parallel.hidden(self.model, tokens, positions=pos, cache=cache, source=self.cell.source)
        return cache, share.whole(self.model.head(share.hidden))

    def follow(self, run: Any, first: int = PROMPT) -> list[Tensor]:
        """What follows in pieces, through ``run(tokens, positions)``."""
        found = []
        for n in PIECES:
            found.append(run(*self.narrowed(first, n)))
            first += n
        return found

    def whole(self) -> Tensor:
        return self.model(self.cell.tokens, **self.cell.arguments())

    def off(self, logits: list[Tensor], first: int = 0) -> float:
        filled = self.cell.pos.filled[:, first:]
        return float((torch.cat(logits, 1) - self.whole()[:, first:])[filled].abs().max())

    def with_own_cache(self) -> str:
        """What one process says that goes the same way with a cache of its own: nothing, or why it cannot."""
        cache = self.model.new_cache(ROWS, length=LENGTH)
        tokens, pos = self.narrowed(0, PROMPT)
        try:
            self.model(tokens, positions=pos, cache=cache, source=self.cell.source)
            self.follow(lambda x, at: self.model(x, positions=at, cache=cache))
        except VantageError as e:
            return str(e)
        return ""


@torch.no_grad()
def decoded(cells: list[tuple[str, ...]]) -> list[tuple[float, float, str]]:
    """For each cell how far logits are off: decoded by all processes, and by one that has gathered the cache.

    Or the refusal, unless one process alone says the same (a document that a prefix mask does not let be cut).
    """
    found = []
    for names in cells:
        decoding = Decoding(names)
        try:
            found.append((*_both_ways(decoding), ""))
        except VantageError as e:
            found.append((0.0, 0.0, "" if str(e) == decoding.with_own_cache() else str(e)))
    return found


def _both_ways(decoding: Decoding) -> tuple[float, float]:
    model = decoding.model
    cache, first = decoding.prompt()
    alone = cache.gathered()
    assert isinstance(alone, ModelCache)
    by_all = decoding.follow(lambda x, at: cache.logits(model, x, positions=at))
    by_one = decoding.follow(lambda x, at: model(x, positions=at, cache=alone))
    assert max(cache.columns) - min(cache.columns) <= 1
    later = cache.gathered()
    assert later is not None
    assert cache.tokens == later.tokens == alone.tokens
    assert later.holds().layers == alone.holds().layers
    return decoding.off([first, *by_all]), decoding.off([first, *by_one])


# ---- other ways in


PLAIN = ("rope", "grouped", "causal", "zigzag", "ring", "plain")


@torch.no_grad()
def from_nothing() -> tuple[float, list[int]]:
    """No prompt: token by token from an empty cache, so that some processes have nothing to show at first."""
    decoding = Decoding(("alibi", "sinks", "window", "contiguous", "gather", "left-padded"))
    cache = decoding.parallel.new_cache(decoding.model, ROWS, length=LENGTH)
    logits = []
    for t in range(WIDTH):
        tokens, pos = decoding.narrowed(t, 1)
        logits.append(cache.logits(decoding.model, tokens, positions=pos))
    return decoding.off(logits), cache.columns


@torch.no_grad()
def taken_back() -> list[float]:
    """Tokens that were wrong are taken back and others follow; rows change places; and both are still gathered."""
    decoding = Decoding(PLAIN)
    model, (cache, _) = decoding.model, decoding.prompt()
    wrong = (decoding.cell.tokens[:, :4] + 1) % VOCAB
    cache.logits(model, wrong)
    cache.crop(PROMPT)
    assert cache.tokens == (PROMPT, PROMPT)
    by_all = decoding.follow(lambda x, at: cache.logits(model, x, positions=at))
    cache.crop(PROMPT + 1)
    cache.reorder([1, 1, 0])
    gathered = cache.gathered()
    assert gathered is not None
    rows = torch.tensor([1, 1, 0])
    tokens, wanted = decoding.cell.tokens[rows, PROMPT + 1 :], decoding.whole()[rows, PROMPT + 1 :]
    swapped = float((cache.logits(model, tokens) - wanted).abs().max())
    alone = float((model(tokens, cache=gathered) - wanted).abs().max())
    return [decoding.off(by_all, PROMPT), swapped, alone]


@torch.no_grad()
def on_one_process() -> tuple[bool, float, dict[str, int], dict[str, int], int]:
    """Gathered in the last process: whether it is here, how far that goes on off, and what a step and this send."""
    decoding = Decoding(PLAIN)
    model, wire = decoding.model, decoding.parallel.wire
    cache, _ = decoding.prompt()
    wire.bytes.clear()
    cache.logits(model, decoding.cell.tokens[:, PROMPT : PROMPT + 1])
    step = dict(wire.bytes)
    wire.bytes.clear()
    alone = cache.gathered(wire.size - 1)
    sent = dict(wire.bytes)
    off = 0.0
    if alone is not None:
        first = PROMPT + 1
        rest = model(decoding.cell.tokens[:, first:], cache=alone)
        off = decoding.off([rest], first)
    return alone is not None, off, step, sent, cache.columns[wire.rank]


@torch.no_grad()
def in_type(name: str) -> tuple[float, float]:
    """How far this type over processes, and in one process, is from float64; with whichever kernel it takes."""
    dtype, exact = getattr(torch, name), Decoding(PLAIN)
    rounded = Decoding(PLAIN)
    rounded.cell = Cell(PLAIN, dtype)
    rounded.model.kernel = "auto"
    cache, first = rounded.prompt()
    shared = [first, *rounded.follow(lambda x, at: cache.logits(rounded.model, x, positions=at))]
    alone = rounded.whole().double()
    return exact.off([x.double() for x in shared]), exact.off([alone])


@torch.no_grad()
def with_heads() -> float:
    """Heads over two processes and tokens over two: a share of the model, a part of its cache."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("context", "tensor"))
    decoding = Decoding(PLAIN)
    whole = decoding.whole()
    parallel = ContextParallel(mesh.get_group("context"), cut="zigzag", exchange="ring")
    share = TensorParallel(decoding.model.spec, mesh.get_group("tensor")).cut(decoding.model)
    cache = parallel.new_cache(share, ROWS, length=LENGTH)
    parallel.hidden(share, decoding.cell.tokens[:, :PROMPT], cache=cache)
    logits = decoding.follow(lambda x, at: cache.logits(share, x, positions=at))
    return float((torch.cat(logits, 1) - whole[:, PROMPT:]).abs().max())


@torch.no_grad()
def in_two_prompts(cells: list[tuple[str, ...]]) -> list[float]:
    """Two prompts, each read by all processes, a token between them and some after; how far all of it is off."""
    worst = []
    for names in cells:
        decoding = Decoding(names)
        model, (cache, first) = decoding.model, decoding.prompt()
        tokens, pos = decoding.narrowed(PROMPT, 1)
        between = cache.logits(model, tokens, positions=pos)
        tokens, pos = decoding.narrowed(PROMPT + 1, 3)
        share = decoding.parallel.hidden(model, tokens, positions=pos, cache=cache)
        second = share.whole(model.head(share.hidden))
        tokens, pos = decoding.narrowed(PROMPT + 4, WIDTH - PROMPT - 4)
        last = cache.logits(model, tokens, positions=pos)
        assert cache.tokens == tuple(decoding.cell.pos.filled.sum(1).tolist())
        gathered = cache.gathered()
        assert gathered is not None
        assert gathered.tokens == cache.tokens
        worst.append(decoding.off([first, between, second, last]))
    return worst


@torch.no_grad()
def refusals() -> list[str]:
    """What is said where something cannot be: a whole cache in a ring, a bias that must see all keys."""
    said = []
    ring = Decoding(PLAIN)
    own = ring.model.new_cache(ROWS, length=LENGTH)
    gated = Decoding(("cope", "grouped", "causal", "contiguous", "gather", "plain"))
    spread = gated.parallel.new_cache(gated.model, ROWS, length=LENGTH)
    for decoding, cache in ((ring, own), (gated, spread)):
        try:
            decoding.parallel.hidden(decoding.model, decoding.cell.tokens, cache=cache)
        except VantageError as e:
            said.append(str(e))
        assert cache.tokens == (0, 0)  # a refused pass has changed nothing
    try:
        gated.model(gated.cell.tokens, cache=cast(Any, spread))
    except VantageError as e:
        said.append(str(e))
    return said
