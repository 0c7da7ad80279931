"""Ledgers as plain numbers and tables, and back: what ``saved`` writes to a file.

What comes from a file is believed only as far as it was checked: every place, block and position
stands inside its buffer, and what the host claims to know of the positions is so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from torch import Tensor

from vantage.cache import contiguous, paged, ring
from vantage.cache.blocks import Row
from vantage.cache.contiguous import Contiguous
from vantage.cache.facts import Tables
from vantage.cache.ledger import Ledger
from vantage.cache.paged import Paged
from vantage.cache.pool import Pool, Want
from vantage.cache.ring import Ring
from vantage.cache.stores import Store
from vantage.errors import BadInput, CheckpointError
from vantage.spec.positions import EMPTY, Known

MOST = 2**31  # of any number in such a file: more is no real cache
ROWS = 2**16  # at most: a ledger takes memory for each, before anything shows that they are there


@final
@dataclass(frozen=True)
class Written:
    """A ledger: numbers for a header, tables for the tensors beside it, and which places of the stores count."""

    numbers: dict[str, Any]
    tables: dict[str, Tensor]
    places: Tensor | int  # the places of a buffer to keep: so many from the front, or these


def written(ledger: Ledger) -> Written:
    """All that is needed to make this ledger again."""
    if isinstance(ledger, Contiguous):
        return _contiguous(ledger)
    if isinstance(ledger, Ring):
        return _ring(ledger)
    if isinstance(ledger, Paged):
        return _paged(ledger)
    raise BadInput(f"a cache of the arrangement {ledger.name!r} cannot be saved")


def restored(numbers: Mapping[str, Any], tables: Mapping[str, Tensor], device: torch.device) -> Ledger:
    """The ledger that was written so."""
    made = {"contiguous": _to_contiguous, "ring": _to_ring, "paged": _to_paged}
    saved = _Numbers(numbers)
    kind = saved.text("kind")
    if kind not in made:
        bad(f"it holds a ledger of kind {kind!r}, which this version does not know")
    if saved.count("batch") > ROWS:
        bad(f"it holds {saved.count('batch')} rows")
    try:
        return made[kind](saved, tables, device)
    except BadInput as e:
        bad(str(e))


def put(store: Store, ledger: Ledger, streams: Sequence[Tensor], places: Tensor | int) -> None:
    """Fill the buffers of a store that was made for a restored ledger."""
    for buffer, kept in zip(store.tensors, streams, strict=True):
        if isinstance(places, int):
            buffer.narrow(2, 0, places).copy_(kept)
        else:
            buffer.index_copy_(-2, places.to(buffer.device), kept.to(buffer.device))


def places_of(ledger: Ledger) -> Tensor | int:
    """The places that a restored ledger's stores are filled at."""
    if isinstance(ledger, Paged):
        used = len({block for row in ledger._state.rows for block in row.blocks})
        return torch.arange(ledger.pool.block, (used + 1) * ledger.pool.block)
    return ledger.used


def bad(why: str) -> NoReturn:
    raise CheckpointError(f"this is no saved cache, or a damaged one: {why}")


# ---- contiguous


def _contiguous(ledger: Contiguous) -> Written:
    state = ledger._state
    numbers = {"kind": "contiguous", "batch": ledger.batch, "capacity": ledger._capacity, "window": ledger._window}
    numbers |= {"n": state.n, "places": ledger.places, "known": _known(state.known)}
    return Written(numbers, _tables(state.tables, state.n), state.n)


def _to_contiguous(saved: _Numbers, tables: Mapping[str, Tensor], device: torch.device) -> Contiguous:
    ledger = Contiguous(
        saved.count("batch"), capacity=saved.maybe("capacity"), window=saved.maybe("window"), device=device
    )
    n, places = saved.count("n", 0), saved.count("places", 0)
    if n > places or (ledger._capacity is not None and places != ledger._capacity):
        bad(f"it holds {n} tokens in {places} places of {ledger._capacity}")
    ledger._places = places  # the buffers as they were: strides decide how products round
    known = saved.known("known", ledger.batch)
    held = _from_tables(tables, ledger.batch, n)
    if held is None:
        ledger._state = contiguous._State(n, _plain(known, ledger.batch, n))
    else:
        _believe(known, held, 0, n)
        next_B = (held.order[:, :n].amax(1) + 1).to(device)
        ledger._state = contiguous._State(n, known, _moved(held, device), next_B)
    ledger._before = ledger._state
    return ledger


# ---- ring


def _ring(ledger: Ring) -> Written:
    state = ledger._state
    numbers = {"kind": "ring", "batch": ledger.batch, "window": ledger._window, "draft": ledger._draft}
    if isinstance(state, ring._Run):
        return Written(numbers | {"start": state.start, "low": state.low, "next": state.next}, {}, ledger.places)
    limits = {"start": state.start, "low": state.low, "next": state.next}
    tables = _tables(state.tables, ledger.places) | {name: t.cpu() for name, t in limits.items()}
    return Written(numbers | {"known": _known(state.known)}, tables, ledger.places)


def _to_ring(saved: _Numbers, tables: Mapping[str, Tensor], device: torch.device) -> Ring:
    ledger = Ring(saved.count("batch"), window=saved.count("window"), draft=saved.count("draft", 0), device=device)
    size, held = ledger._size, _from_tables(tables, ledger.batch, ledger.places)
    if held is None:
        start, low, end = (saved.count(name, 0) for name in ("start", "low", "next"))
        if not (start <= low <= end <= low + size):
            bad(f"a ring of {size} places cannot hold {low} … {end - 1} of a row that began at {start}")
        ledger._state = ledger._before = ring._Run(start, low, end)
        return ledger
    known = saved.known("known", ledger.batch)
    _believe(known, held, 0, size)
    start, low, end = (_column(tables, name, ledger.batch) for name in ("start", "low", "next"))
    kept, place = held.order[:, :size], torch.arange(size)
    filled = kept >= 0
    right = (kept % size == place) & (kept >= low[:, None]) & (kept < end[:, None])
    if not bool((right | ~filled).all()) or not bool((filled.sum(1) == end - low).all()):
        bad("its ring does not hold what it says")
    if not bool(((start >= 0) & (start <= low)).all()):
        bad("a row of its ring holds what came before its beginning")
    state = ring._Mixed(start.to(device), low.to(device), end.to(device), _moved(held, device), known)
    ledger._state = ledger._before = state
    return ledger


# ---- paged


def _paged(ledger: Paged) -> Written:
    state, size = ledger._state, ledger.pool.block
    used = sorted({block for row in state.rows for block in row.blocks})
    anew = {block: i + 1 for i, block in enumerate(used)}  # block 0 is the bin
    rows = [[[anew[b] for b in row.blocks], row.tokens, row.gone] for row in state.rows]
    numbers = {"kind": "paged", "batch": ledger.batch, "block": size, "rows": rows, "known": _known(state.known)}
    numbers |= {"pool": None if ledger.pool.grows else ledger.pool.blocks}
    numbers |= {"window": ledger._window, "draft": ledger._draft}
    places = torch.tensor(used, dtype=torch.int64)[:, None] * size + torch.arange(size)
    return Written(numbers, _tables(state.tables, 1 + state.longest), places.flatten())


def _to_paged(saved: _Numbers, tables: Mapping[str, Tensor], device: torch.device) -> Paged:
    batch, size, blocks = saved.count("batch"), saved.count("block"), saved.maybe("pool")
    rows = tuple(_row(row, size) for row in saved.list("rows", batch))
    uses = Counter(block for row in rows for block in row.blocks)
    if sorted(uses) != list(range(1, len(uses) + 1)) or (blocks is not None and len(uses) > blocks):
        bad(f"its rows stand in the blocks {sorted(uses)} of {blocks}")
    pool = Pool(None if blocks is None else blocks * size, size)
    ledger = Paged(batch, pool, window=saved.maybe("window"), draft=saved.maybe("draft", 0), device=device)
    if uses:
        pool.take([Want(len(uses))])  # of a fresh pool: the blocks 1, 2, …
        pool.share(block for block, n in uses.items() for _ in range(n - 1))
    longest = max(row.tokens for row in rows)
    known = saved.known("known", batch)
    held = _from_tables(tables, batch, 1 + longest)
    if held is None:
        if any(row.tokens != longest for row in rows):
            bad("its rows differ and it does not say how")
        ledger._state = paged.State(rows, _plain(known, batch, longest))
    else:
        counts = (held.order[:, 1:] >= 0).sum(1).tolist()
        if counts != [row.tokens for row in rows]:
            bad(f"its rows hold {counts} positions for {[row.tokens for row in rows]} tokens")
        _believe(known, held, 1, longest)
        held.order[:, 0] = held.pos[:, 0] = EMPTY
        next_B = (held.order.amax(1) + 1).to(device)
        ledger._state = paged.State(rows, known, _moved(held, device), next_B)
    ledger._before = ledger._state
    ledger._plan = paged.Plan(rows)
    return ledger


def _row(saved: Any, size: int) -> Row:
    if not (isinstance(saved, list) and len(saved) == 3 and isinstance(saved[0], list)):
        bad(f"a row is {str(saved)[:80]!r}")
    blocks, (tokens, gone) = [_whole(b, "block", 1) for b in saved[0]], (_whole(n, "row", 0) for n in saved[1:])
    if len(blocks) != -(-tokens // size) - gone:
        bad(f"a row of {tokens} tokens, {gone} blocks of which are gone, stands in {len(blocks)} blocks of {size}")
    return Row((), tokens, gone).with_blocks(blocks)


# ---- tables and facts


def _tables(tables: Tables | None, n: int) -> dict[str, Tensor]:
    if tables is None:
        return {}
    held = {"pos": tables.pos, "order": tables.order, "segment": tables.segment}
    return {name: t[:, :n].cpu().contiguous() for name, t in held.items() if t is not None}


def _from_tables(tables: Mapping[str, Tensor], batch: int, n: int) -> Tables | None:
    if "order" not in tables:
        return None
    for name in ("pos", "order", "segment"):
        t = tables.get(name)
        if t is None and name == "segment":
            continue
        if t is None or tuple(t.shape) != (batch, n):
            bad(f"its table {name!r} has the shape {None if t is None else tuple(t.shape)}, not {(batch, n)}")
        whole = t.dtype == torch.int64 or (name == "pos" and t.is_floating_point())
        if not whole or not bool(torch.isfinite(t.double()).all()) or bool((t.abs() >= MOST).any()):
            bad(f"its table {name!r} does not hold positions")
    return Tables(tables["pos"].clone(), tables["order"].clone(), tables.get("segment"))


def _moved(tables: Tables, device: torch.device) -> Tables:
    segment = None if tables.segment is None else tables.segment.to(device)
    return Tables(tables.pos.to(device), tables.order.to(device), segment)


def _known(known: Known) -> dict[str, Any]:
    return {
        "first": known.first,
        "order": known.order,
        "pos": known.pos,
        "counts": known.counts,
        "empty": known.empty,
        "same_rows": known.same_rows,
    }


def _plain(known: Known, batch: int, n: int) -> Known:
    """The facts of a plain run."""
    if known.first is None:
        bad("it has no positions")
    return Known.run(known.first, batch, n)


def _believe(claim: Known, tables: Tables, at: int, n: int) -> None:
    """Raises unless everything that is claimed of these columns is so."""
    if n == 0:
        bad("it has tables of no tokens")
    true = tables.facts(at, n)
    for said, bounds in ((claim.order, true.order), (claim.pos, true.pos)):
        if said is not None and bounds is not None and not (said[0] <= bounds[0] and bounds[1] <= said[1]):
            bad(f"positions {bounds} lie outside {said}")
    first = claim.first is not None and claim.first != true.first
    counts = claim.counts is not None and claim.counts != true.counts
    if first or counts or (true.empty and not claim.empty) or (claim.same_rows and not true.same_rows):
        bad("what it claims of its positions is not so")


def _column(tables: Mapping[str, Tensor], name: str, batch: int) -> Tensor:
    t = tables.get(name)
    if t is None or t.dtype != torch.int64 or tuple(t.shape) != (batch,) or bool((t.abs() >= MOST).any()):
        bad(f"it has no {name!r} of its rows")
    return t


# ---- numbers from a file


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
        bad(f"{name} is {str(value)[:40]!r}")
    return value


@final
class _Numbers:
    """A header's numbers, read with their kind checked."""

    def __init__(self, numbers: Mapping[str, Any]):
        self._of = numbers

    def text(self, name: str) -> str:
        value = self._of.get(name)
        return value if isinstance(value, str) else bad(f"{name} is {str(value)[:40]!r}")

    def count(self, name: str, least: int = 1) -> int:
        return _whole(self._of.get(name), name, least)

    def maybe(self, name: str, least: int = 1) -> int | None:
        return None if self._of.get(name) is None else self.count(name, least)

    def list(self, name: str, length: int) -> list[Any]:
        value = self._of.get(name)
        return value if isinstance(value, list) and len(value) == length else bad(f"{name} is not {length} rows")

    def known(self, name: str, batch: int) -> Known:
        value = self._of.get(name)
        if not isinstance(value, dict):
            bad(f"{name} is missing")
        inner = _Numbers(value)

        def bounds(of: str) -> tuple[int, int] | None:
            if value.get(of) is None:
                return None
            low, high = (_whole(n, of, -MOST) for n in inner.list(of, 2))
            return low, high

        counts = value.get("counts")
        if counts is not None:
            counts = tuple(_whole(n, "counts", 0) for n in inner.list("counts", batch))
        flags = [value.get(of) for of in ("empty", "same_rows")]
        if not all(isinstance(flag, bool) for flag in flags):
            bad(f"{name} is incomplete")
        return Known(inner.maybe("first", 0), bounds("order"), bounds("pos"), counts, *map(bool, flags))
