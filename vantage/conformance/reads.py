"""What a part of one of our models reads: positions, as it should, or slots, or something else.

Each part is asked alone, with tokens arranged so that slots and positions differ. What it gives for a plain row, where
they agree, says what it should give anywhere; and which other number it goes by is found by trying them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.conformance.fault import Fault, layers_in_words
from vantage.conformance.probe import gap
from vantage.conformance.trace import declared_length
from vantage.model import Model
from vantage.model.part_errors import described
from vantage.spec.abilities import CountsTokens
from vantage.spec.attention import attentions, position_parts
from vantage.spec.kept import StreamSource
from vantage.spec.masks import Mask, dense, visible
from vantage.spec.parts import BiasInputs, Shape, materialise
from vantage.spec.positions import EMPTY, Positions

MAX_TOKENS = 24  # tokens of the plain row
WIDEST = 72  # and of one that is to show a window
CALLED = {"query": "queries", "key": "keys"}
POSITION_STRIDE = 2  # how far apart positions stand where they are not the order
READS_ORDER = "reads order, not positions, which restart in a document"
SLOTS = "counts slots, not positions"
Reading = Callable[[Tensor, Tensor, Tensor], Tensor]  # of positions, order and slots: the numbers that are read
RIGHT: Reading = lambda positions, order, slots: positions  # noqa: E731
READINGS: dict[str, Reading] = {  # what may be read instead
    SLOTS: lambda positions, order, slots: slots,
    READS_ORDER: lambda positions, order, slots: order,
    "reads positions one too low": lambda positions, order, slots: positions - 1,
    "reads positions one too high": lambda positions, order, slots: positions + 1,
    "takes every position for 0": lambda positions, order, slots: positions * 0,
}


@final
@dataclass(frozen=True, eq=False)
class Arrangement:
    """Queries and keys whose slots are not their positions."""

    name: str
    q: Tensor  # (T,): positions, -1 for padding
    k: Tensor  # (S,)
    stretched: bool = False  # positions are POSITION_STRIDE times the order

    def order(self, positions: Tensor) -> Tensor:
        return positions // POSITION_STRIDE if self.stretched else positions

    @staticmethod
    def all(n: int) -> list[Arrangement]:
        row, half = torch.arange(n), n // 2
        padded = torch.cat([torch.full((2,), EMPTY), row[:-2]])
        return [
            Arrangement(f"one token after {half} cached ones", row[half : half + 1], row[: half + 1]),
            Arrangement(f"three tokens after {half} cached ones", row[half : half + 3], row[: half + 3]),
            Arrangement("a row padded on the left by 2", padded, padded),
            Arrangement("keys that lie in another order", row[-1:], row.roll(half)),
            Arrangement(
                "positions that are not the order", row[::POSITION_STRIDE], row[::POSITION_STRIDE], stretched=True
            ),
        ]


Readings = list[tuple[Arrangement, Tensor]]  # what a part gives for each


@final
@dataclass(frozen=True, eq=False)
class ReadingPart:
    """A part that stands in these layers. ``score`` gives (T, S, …) for queries at q and keys at k."""

    role: str
    part: Any
    layers: tuple[int, ...]
    score: Callable[[Positions, Positions], Tensor]
    one_sided: bool  # it knows no keys
    look: str
    other: Callable[[Positions, Positions], Tensor] | None = None  # with other queries and keys


def parts_that_read(model: Model) -> Iterator[ReadingPart]:
    """All of a model's parts that are functions of positions, each once."""
    shape = model.spec.layers[0].attention.shape(model.spec.width)
    for part in model.embed.inputs:
        width = model.spec.embedding.width or model.spec.width
        yield _one_sided("the position added to the embeddings", part, (), (width,), part, model, "forward()")
    placed: dict[tuple[int, str], tuple[Any, Shape, list[int]]] = {}
    for i, block in enumerate(model.blocks):
        for attention in attentions(block):
            parts = None if attention.crosses else position_parts(attention)
            if parts is None:
                continue
            roles: list[tuple[Any, str]] = [(part, side) for part in parts.qk for side in ("query", "key")]
            if not isinstance(parts.bias, StreamSource):  # what it keeps of each token is no function of positions
                roles.append((parts.bias, "at"))
            for part, call in roles:
                placed.setdefault((id(part), call), (part, attention.shape, []))[2].append(i)
    for (_, call), (part, shape, layers) in placed.items():
        if call == "at":
            yield _bias(part, tuple(layers), shape, model)
        else:
            heads = shape.heads if call == "query" else shape.kv_heads
            act = _transform(part, call, heads)
            role = f"the rotation (q/k transform) of {CALLED[call]}"
            yield _one_sided(role, part, tuple(layers), (heads, shape.rotary_dim), act, model, f"{call}()")
    for mask in dict.fromkeys(layer.mask for layer in model.spec.layers):
        layers = tuple(i for i, layer in enumerate(model.spec.layers) if layer.mask == mask)
        yield ReadingPart("the mask", mask, layers, _shown(mask), False, "__call__(): compare q.order with k.order")


def _one_sided(
    role: str, part: Any, layers: tuple[int, ...], size: tuple[int, ...], act: Any, model: Model, call: str
) -> ReadingPart:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(model.device, model.dtype)

    def score(q: Positions, k: Positions) -> Tensor:
        T = q.shape[1]
        return act(x.expand(1, T, *size), q)[0].flatten(1)[:, None]

    look = f"{call}: it must go by pos.pos, never by pos.order or an arange over the tokens of a call"
    return ReadingPart(role, part, layers, score, True, look)


def _transform(part: Any, call: str, heads: int) -> Callable[[Tensor, Positions], Tensor]:
    def act(x_BTHd: Tensor, pos: Positions) -> Tensor:
        x = x_BTHd.transpose(1, 2)
        return (part.query(x, pos) if call == "query" else part.key(x, pos)).transpose(1, 2)

    return act


def _bias(part: Any, layers: tuple[int, ...], shape: Shape, model: Model) -> ReadingPart:
    def scores(seed: int) -> Callable[[Positions, Positions], Tensor]:
        draw = torch.Generator().manual_seed(seed)
        q, k = (torch.randn((heads, shape.key_dim), generator=draw) for heads in (shape.heads, shape.kv_heads))
        x = torch.randn(model.spec.width, generator=draw)
        q, k, x = (tensor.to(model.device, model.dtype) for tensor in (q, k, x))

        def score(q_pos: Positions, k_pos: Positions) -> Tensor:
            T, S = q_pos.shape[1], k_pos.shape[1]
            queries, keys = q[None, :, None].expand(1, -1, T, -1), k[None, :, None].expand(1, -1, S, -1)
            seen = BiasInputs(queries, queries, keys, q_pos, k_pos, shape.key_dim**-0.5, x.expand(1, T, -1))
            bias = part.at(seen)
            value = materialise(bias, q_pos.against(k_pos), shape.heads, model.dtype)
            return torch.zeros(T, S, 1) if value is None else value[0].expand(-1, T, S).permute(1, 2, 0)

        return score

    look = "at(), and the function it returns: they must go by q.pos and k.pos, never by i or an arange"
    return ReadingPart("the score bias", part, layers, scores(0), False, look, scores(1))


def _shown(mask: Mask) -> Callable[[Positions, Positions], Tensor]:
    def score(q: Positions, k: Positions) -> Tensor:
        pair = q.against(k)
        return dense(visible(mask, pair), pair)[0, 0].expand(q.shape[1], k.shape[1])[..., None].double()

    return score


# ---- the experiment


def wrong_reading(model: Model, part: ReadingPart) -> Fault | None:
    """What is wrong with the part, if anything."""
    limit = model.max_positions
    n = MAX_TOKENS if limit is None else min(MAX_TOKENS, limit)
    if n < 6:
        return None
    if isinstance(part.part, Mask) and limit is None:
        n = max(n, min((part.part.reach() or 0) + 4, WIDEST))
    plain = torch.arange(n)
    base = part.score(_at(plain, model), _at(plain, model))
    if isinstance(part.part, Mask) and (fault := _wrong_mask(part, part.part, base[..., 0] > 0, model)) is not None:
        return fault
    readings: Readings = []
    for arrangement in Arrangement.all(n):
        if arrangement.stretched and _may_count(part, base, plain, model):
            continue
        readings.append(
            (arrangement, part.score(*(_at(x, model, arrangement) for x in (arrangement.q, arrangement.k))))
        )
    misread = [(a, got) for a, got in readings if _off(part, a, got, base, RIGHT, RIGHT) > _tolerance(base)]
    return None if not misread else _named(model, part, base, readings, misread)


def _named(model: Model, part: ReadingPart, base: Tensor, readings: Readings, misread: Readings) -> Fault:
    arrangement, got = misread[0]
    off, where = _off(part, arrangement, got, base, RIGHT, RIGHT), where_it_stands(model, part)
    pairs = [(word, how, how) for word, how in READINGS.items()]
    if not part.one_sided:
        pairs += [(word, how, RIGHT) for word, how in READINGS.items()]
        pairs += [(f"{word}, of keys", RIGHT, how) for word, how in READINGS.items()]
    for explained in (readings, misread):  # best is what explains everything, what is right included
        for word, q_reads, k_reads in pairs:
            if all(_off(part, a, got, base, q_reads, k_reads) <= _tolerance(base) for a, got in explained):
                shows = f"for {arrangement.name} it is {off:.1e} off, and right if {_instead(word)}"
                return Fault(f"{part.role} {word}", where, shows, part.look)
    places = " and ".join(a.name for a, _ in misread)
    shows = f"for {places} it gives something else than for the same positions in a plain row, {off:.1e} off"
    return Fault(f"{part.role} is no function of positions", where, shows, part.look)


def _may_count(part: ReadingPart, base: Tensor, plain: Tensor, model: Model) -> bool:
    """Masks read order, and so may what counts the keys: a bias that looks at them (CoPE), or a part that says so."""
    if isinstance(part.part, CountsTokens) and part.part.counts_tokens:
        return True
    if part.other is None:
        return isinstance(part.part, Mask)
    return gap(part.other(_at(plain, model), _at(plain, model)), base) > _tolerance(base)


def _instead(word: str) -> str:
    if word.startswith((SLOTS, READS_ORDER)):
        return f"{'slots are' if word.startswith(SLOTS) else 'order is'} put for positions"
    return word.replace("reads positions", "positions are").replace("takes every position for", "every position is")


def where_it_stands(model: Model, part: ReadingPart) -> str:
    name = described(model, part.part) or type(part.part).__name__
    name = name.removeprefix(f"{part.role} ").removeprefix("the ")
    return f"{layers_in_words(part.layers)}: {name}" if part.layers else name


def _off(part: ReadingPart, a: Arrangement, got: Tensor, base: Tensor, q_reads: Any, k_reads: Any) -> float:
    """How far the part is from a plain row read at the numbers that these readings give."""
    n = len(base)
    q, q_ok = _read(a, a.q, q_reads, n)
    if part.one_sided:
        return gap(got[q_ok], base[q[q_ok]])
    k, k_ok = _read(a, a.k, k_reads, n)
    # what lies behind a query has no meaning for a causal bias, unless the part itself is the mask
    seen = q_ok[:, None] & k_ok[None]
    if not isinstance(part.part, Mask):
        seen &= a.k[None] <= a.q[:, None]
    seen = seen.to(got.device)
    wanted = base[q.clamp(0, n - 1)[:, None], k.clamp(0, n - 1)[None]]
    return gap(got[seen], wanted[seen]) if bool(seen.any()) else float("inf")


def _read(a: Arrangement, positions: Tensor, reads: Reading, n: int) -> tuple[Tensor, Tensor]:
    numbers = reads(positions, a.order(positions), torch.arange(len(positions)))
    return numbers, (positions >= 0) & (numbers >= 0) & (numbers < n)


def _at(positions: Tensor, model: Model, arrangement: Arrangement | None = None) -> Positions:
    order = positions if arrangement is None else arrangement.order(positions)
    return Positions.of(positions, order=order).to(model.device).declare(declared_length(model))


def _tolerance(base: Tensor) -> float:
    finite = base[base.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return 64 * torch.finfo(base.dtype).eps * max(scale, 1e-6)


# ---- masks


def _wrong_mask(part: ReadingPart, mask: Mask, shown: Tensor, model: Model) -> Fault | None:
    """What a mask says of itself, against what it shows: its reach, and that nobody sees what comes later."""
    n, where = len(shown), where_it_stands(model, part)
    behind = torch.arange(n)[:, None] - torch.arange(n)
    shown = shown.cpu()
    plain = _at(torch.arange(n), model)
    written_out = mask(*plain.against(plain).places())[0, 0].expand(n, n).cpu()
    if not torch.equal(written_out, shown):
        differ = int((written_out != shown).sum())
        shows = f"it says something else than __call__() for {differ} of {n * n} pairs of a plain row"
        return Fault("the mask's simplified() is another mask", where, shows, "simplified()")
    ahead = int(-behind[shown].min())
    if mask.causal and ahead > 0:
        shows = f"settled() says that no token sees a later one, and __call__() shows it the next {ahead}"
        name = "the causal mask is off by one" if ahead == 1 else "the causal mask is missing"
        return Fault(f"{name}: a token sees later ones", where, shows, "__call__(): k.order <= q.order")
    if not bool(shown.diagonal().any()):
        shows = "no token of a plain row is shown to itself"
        return Fault("the causal mask is off by one: no token sees itself", where, shows, "< where <= is meant")
    reach, seen = mask.reach(), int(behind[shown].max()) + 1
    if reach is not None and seen > reach:
        shows = f"reach() says {reach} keys, itself included, and __call__() shows {seen}"
        wide = "one" if seen == reach + 1 else str(seen - reach)
        return Fault(f"the window is {wide} too wide", where, shows, "the comparison in __call__(), or reach()")
    return None
