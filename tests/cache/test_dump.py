"""Ledgers as numbers and tables: what is restored goes on as the old one would, and what is forged is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.cache.helpers import Token, chunk_of, contiguous, device_like, paged, plain, ragged, ring, run
from tests.cache.saving import again, story
from vantage.cache import ModelCache, saved
from vantage.cache.dump import DumpReader, LedgerDump
from vantage.errors import CheckpointError

MOST = 2**31  # of a number in such a file


def after(cache: ModelCache, *chunks, crop=None, reorder=None) -> ModelCache:
    for chunk in chunks:
        run(cache, chunk)
    if crop is not None:
        cache.crop(crop)
    if reorder is not None:
        cache.reorder(reorder)
    return cache


def between(rows: int = 1, n: int = 5, start: int = 0):
    """Positions between whole numbers, the same in every row."""
    return chunk_of([[Token(start + i, 1.5 * i, None, 10 * b + i) for i in range(n)] for b in range(rows)])


def documents():
    """Two rows, one of two documents."""
    first = [Token(i, i % 3, 3 * (i // 3), i) for i in range(6)]
    return chunk_of([first, [Token(i, i, 0, 10 + i) for i in range(6)]], segmented=True)


def untold(facts: str):
    """A plain run that nobody has told the host of."""
    return chunk_of([[Token(i, i, None, i) for i in range(4)]] * 2, known=facts)


def unread(cache: ModelCache, *chunks, **options) -> ModelCache:
    """As it would be on a device: nothing is read back."""
    with device_like():
        return after(cache, *chunks, **options)


UNEQUAL = ragged([0, 0, 0], [5, 0, 2])
CASES: dict[str, Callable[[], ModelCache]] = {
    "contiguous, empty": lambda: contiguous(2),
    "contiguous, plain": lambda: after(contiguous(1), plain(1, 0, 4), plain(1, 4, 1, uid=9)),
    "contiguous, not from 0": lambda: after(contiguous(2, window=3), plain(2, 3, 4)),
    "contiguous, full": lambda: after(contiguous(1, capacity=5), plain(1, 0, 5)),
    "contiguous, one place": lambda: after(contiguous(1, capacity=1, window=1), plain(1, 0, 1)),
    "contiguous, unequal": lambda: after(contiguous(3, window=2), UNEQUAL, ragged([5, 0, 2], [1, 3, 1], uid=40)),
    "contiguous, an empty row": lambda: after(contiguous(3, capacity=9), UNEQUAL),
    "contiguous, taken back": lambda: after(contiguous(2), plain(2, 0, 6), crop=[5, 3], reorder=[1, 0, 1]),
    "contiguous, between": lambda: after(contiguous(2), between(2)),
    "contiguous, documents": lambda: after(contiguous(2), documents()),
    "contiguous, counts alone": lambda: after(contiguous(2), untold("counts")),
    "contiguous, no facts": lambda: after(contiguous(2), untold("nothing")),
    "contiguous, unread": lambda: unread(contiguous(3), UNEQUAL, crop=0),
    "ring, empty": lambda: ring(2, window=3),
    "ring, short": lambda: after(ring(1, window=5, draft=2), plain(1, 2, 3)),
    "ring, wrapped": lambda: after(ring(2, window=3), plain(2, 0, 8)),
    "ring, wrapped with a draft": lambda: after(ring(1, window=3, draft=2), plain(1, 1, 9), crop=9),
    "ring, unequal": lambda: after(ring(3, window=4), UNEQUAL),
    "ring, unequal and long": lambda: after(ring(2, window=3, draft=1), ragged([0, 2], [9, 2]), ragged([9, 4], [1, 1])),
    "ring, taken back": lambda: after(ring(2, window=3, draft=2), plain(2, 0, 4), crop=[3, 4], reorder=[1, 0]),
    "ring, between": lambda: after(ring(2, window=6), between(2)),
    "ring, documents": lambda: after(ring(2, window=4), documents()),
    "ring, unread": lambda: unread(ring(3, window=6), UNEQUAL, crop=0),
    "paged, empty": lambda: paged(2),
    "paged, plain": lambda: after(paged(2), plain(2, 0, 6)),
    "paged, not from 0": lambda: after(paged(1, window=3), plain(1, 4, 6)),
    "paged, full": lambda: after(paged(2, tokens=16), plain(2, 0, 8)),
    "paged, room left": lambda: after(paged(2, tokens=40), plain(2, 0, 5)),
    "paged, unequal": lambda: after(paged(3, tokens=80), UNEQUAL),
    "paged, taken back": lambda: after(paged(2, block=2), ragged([0, 0], [6, 4]), crop=[3, 4], reorder=[1, 0, 1]),
    "paged, shared": lambda: after(paged(1), plain(1, 0, 6), reorder=[0, 0, 0]),
    "paged, let go": lambda: after(paged(1, block=2, window=1, draft=0), plain(1, 0, 7)),
    "paged, let go unequally": lambda: after(paged(2, block=2, window=2, draft=1), ragged([0, 0], [9, 2])),
    "paged, between": lambda: after(paged(2), between(2)),
    "paged, documents": lambda: after(paged(2), documents()),
    "paged, an empty row alone": lambda: unread(paged(3), UNEQUAL, reorder=[1]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_restored_goes_on_as_the_old_one_does(tmp_path: Path, name: str) -> None:
    cache = CASES[name]()
    for old, new in zip(story(again(cache, tmp_path)), story(cache), strict=True):
        assert old == new


def test_the_largest_numbers(tmp_path: Path) -> None:
    cache = CASES["contiguous, plain"]()
    again(cache, tmp_path, lambda h, t: h["ledgers"][0].update(window=MOST - 1))
    with pytest.raises(CheckpointError):
        again(cache, tmp_path, lambda h, t: h["ledgers"][0].update(window=MOST))
    far = after(contiguous(1), chunk_of([[Token(MOST - 2, 0.5, None, 0), Token(MOST - 1, 1.5, None, 1)]]))
    assert again(far, tmp_path).next_positions.host == MOST
    far = after(ring(1, window=2), between(1, 2, start=MOST - 3))
    assert again(far, tmp_path).next_positions.host == MOST - 1
    with pytest.raises(CheckpointError):
        again(after(ring(1, window=2), between(1, 2, start=MOST - 2)), tmp_path)
    with pytest.raises(CheckpointError):
        again(CASES["contiguous, between"](), tmp_path, far_away)


def test_no_memory_is_taken_for_rows_that_are_not_there(tmp_path: Path) -> None:
    rows = 2**16
    assert again(contiguous(rows), tmp_path).batch == rows
    for batch in (rows + 1, MOST - 1):
        with pytest.raises(CheckpointError, match=f"it holds {batch} rows"):
            again(contiguous(1), tmp_path, numbers(batch=batch))


def far_away(h, t):
    h["ledgers"][0]["known"].update(pos=None)
    t["ledger.0.pos"][:, 1] = MOST


# ---- what a forger might write


def numbers(**changes):
    return lambda h, t: h["ledgers"][0].update(changes)


def facts(**changes):
    return lambda h, t: h["ledgers"][0]["known"].update(changes)


def table(name: str, change):
    """Another table; what the header says of it agrees as far as that can be left open."""

    def forge(h, t):
        h["ledgers"][0]["known"].update(order=None, pos=None, counts=None)
        made = change(t[f"ledger.0.{name}"])
        t[f"ledger.0.{name}"] = made.contiguous()

    return forge


def without(name: str):
    return lambda h, t: t.pop(f"ledger.0.{name}")


def at(row: int, column: int, value: float):
    def change(t: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t[row, column] = value
        return t

    return change


def no_tokens(h, t):
    h["ledgers"][0].update(n=0)
    facts(counts=None, order=None, pos=None)(h, t)
    for name in list(t):
        t[name] = t[name][:, :0].clone() if name.startswith("ledger") else t[name][:, :, :0].clone()


def nothing_in_blocks(h, t):
    h["ledgers"][0].update(rows=[[[], 0, 0]] * 3)
    facts(counts=None, order=None, pos=None)(h, t)
    for name in list(t):
        t[name] = t[name][:, :1].clone() if name.startswith("ledger") else t[name][:, :0].clone()


ANY = {  # of a cache with tables
    "batch": numbers(batch=1),
    "batch as text": numbers(batch="3"),
    "batch as truth": numbers(batch=True),
    "no batch": numbers(batch=None),
    "kind": numbers(kind="tree"),
    "kind as a number": numbers(kind=3),
    "window": numbers(window=0),
    "window as a fraction": numbers(window=2.5),
    "no facts": numbers(known=None),
    "facts as a list": numbers(known=[]),
    "a plain run": facts(first=0),
    "before 0": facts(first=-1),
    "no flag": facts(empty=None),
    "a flag as a number": facts(same_rows=0),
    "no place empty": facts(empty=False),
    "equal rows": facts(same_rows=True),
    "counts": facts(counts=[5, 1, 2]),
    "too few counts": facts(counts=[5, 0]),
    "too low": facts(order=[0, 3]),
    "too high": facts(order=[1, 9]),
    "positions too low": facts(pos=[0, 3]),
    "positions too high": facts(pos=[1, 9]),
    "three bounds": facts(order=[0, 4, 9]),
    "bounds as text": facts(order="04"),
    "no positions": without("pos"),
    "another shape": table("order", lambda t: torch.cat([t, t[:, :1]], 1)),
    "another shape of positions": table("pos", lambda t: torch.cat([t, t[:, -1:]], 1)),
    "order as fractions": table("order", lambda t: t.double()),
    "positions as short numbers": table("pos", lambda t: t.int()),
    "no number": table("pos", lambda t: at(0, 0, float("nan"))(t.double())),
}
SOME = {
    "contiguous, full": {
        "more than there is room for": numbers(n=6),
        "other places than the capacity": numbers(places=6),
        "no first": facts(first=None),
    },
    "contiguous, plain": {"more than its places": numbers(places=4)},
    "contiguous, between": {"tables of nothing": no_tokens},
    "contiguous, documents": {
        "documents as fractions": table("segment", lambda t: t.double()),
        "documents of another shape": table("segment", lambda t: t[:, :-1]),
        "equal rows": facts(same_rows=True),
    },
    "ring, wrapped": {
        "low": numbers(low=-1),
        "below its beginning": numbers(start=6),
        "an end before its beginning": numbers(low=9, next=8),
        "more than its window": numbers(low=4),
    },
    "ring, unequal": {
        "a wrong place": table("order", lambda t: t[:, [1, 0, *range(2, t.shape[1])]]),
        "a token less": table("order", at(0, 2, -1)),
        "what is still to come": table("order", at(0, 1, 5)),
        "what has left": table("order", at(0, 0, 0)),
        "before 0": table("start", lambda t: t - 1),
        "a beginning above what it holds": table("start", lambda t: t + 2),
        "no end": without("next"),
        "an end as a fraction": table("next", lambda t: t.double()),
        "ends of another shape": table("next", lambda t: t[:, None]),
        "draft": numbers(draft=-1),
    },
    "paged, full": {
        "a small pool": numbers(pool=3),
        "no such block": numbers(rows=[[[1, 2], 8, 0], [[3, 99], 8, 0]]),
        "the bin": numbers(rows=[[[0, 1], 8, 0], [[2, 3], 8, 0]]),
        "too few blocks": numbers(rows=[[[1, 2], 8, 0], [[3], 8, 0]]),
        "rows that differ": numbers(rows=[[[1, 2], 8, 0], [[3, 4], 7, 0]]),
        "too many rows": numbers(rows=[[[1, 2], 8, 0], [[3, 4], 8, 0], [[3, 4], 8, 0]]),
        "rows as a number": numbers(rows=7),
        "a row as a number": numbers(rows=[7, [[3, 4], 8, 0]]),
        "a row of two": numbers(rows=[[[1, 2], 8], [[3, 4], 8, 0]]),
        "blocks as a number": numbers(rows=[[1, 8, 0], [[3, 4], 8, 0]]),
        "gone": numbers(rows=[[[1, 2], 8, 1], [[3, 4], 8, 0]]),
        "no first": facts(first=None),
    },
    "paged, unequal": {
        "a token less": table("order", at(0, 3, -1)),
        "draft without a window": numbers(draft=0, window=None),
        "tables of nothing": nothing_in_blocks,
    },
}
FORGERIES = {
    **{f"{case}: {name}": (case, f) for case, forgeries in SOME.items() for name, f in forgeries.items()},
    **{
        f"{case}: {name}": (case, f)
        for case in ("contiguous, an empty row", "ring, unequal", "paged, unequal")
        for name, f in ANY.items()
    },
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_forged_is_refused(tmp_path: Path, name: str) -> None:
    case, change = FORGERIES[name]
    with pytest.raises(CheckpointError):
        again(CASES[case](), tmp_path, change)


@pytest.mark.parametrize("case", ["contiguous, an empty row", "ring, unequal", "paged, unequal"])
def test_fewer_facts_are_no_forgery(tmp_path: Path, case: str) -> None:
    """The host need not know anything: it only chooses a quicker way by it."""
    cache = CASES[case]()
    for name in ("order", "pos", "counts"):
        if case.startswith("paged") and name == "counts":
            continue  # nothing can be appended to such rows
        found = again(cache, tmp_path, facts(**{name: None}))
        assert found.holds().layers == cache.holds().layers
    wider = again(cache, tmp_path, facts(order=[-7, 99], pos=[0, 99]))
    assert wider.layers[0].view().pos.known.order == (-7, 99)
    assert wider.holds().layers == cache.holds().layers


def test_what_stands_in_the_bin_means_nothing(tmp_path: Path) -> None:
    cache = CASES["paged, unequal"]()
    found = again(cache, tmp_path, lambda h, t: t["ledger.0.order"][:, 0].fill_(99))
    assert found.next_positions.order.tolist() == cache.next_positions.order.tolist() == [5, 0, 2]


# ---- numbers, one by one


def reader(**numbers) -> DumpReader:
    return DumpReader(LedgerDump(numbers, {}))


def test_a_number_is_whole_and_no_larger_than_a_real_cache_has():
    assert reader(n=MOST - 1).count("n") == MOST - 1
    assert reader(n=1).count("n") == 1
    assert reader(n=0).count("n", 0) == 0
    assert reader(n=1).maybe("n") == 1
    assert reader().maybe("n") is None
    for wrong in (0, -1, MOST, True, 1.0, "1", None):
        with pytest.raises(CheckpointError):
            reader(n=wrong).count("n")
    with pytest.raises(CheckpointError):
        reader(n=0).maybe("n")
    assert reader(batch=2**16).batch == 2**16
    with pytest.raises(CheckpointError, match="65537 rows"):
        _ = reader(batch=2**16 + 1).batch


def test_tables_of_a_row_and_of_a_place():
    scores, column = torch.ones(2, 3), torch.tensor([5, MOST - 1])

    def of(**tables) -> DumpReader:
        return DumpReader(LedgerDump({"batch": 2}, tables))

    assert torch.equal(of(scores=scores).scores(3), scores)
    assert torch.equal(of(next=column).column("next"), column)
    for wrong in ({}, {"scores": scores.long()}, {"scores": scores[:1]}, {"scores": scores / 0}):
        with pytest.raises(CheckpointError):
            of(**wrong).scores(3)
    for wrong in ({}, {"next": column.int()}, {"next": column[:1]}, {"next": column + 1}):
        with pytest.raises(CheckpointError):
            of(**wrong).column("next")


def test_a_header_of_any_length_is_not_parsed(tmp_path, monkeypatch):
    cache = after(contiguous(), plain(1, 0, 2))
    again(cache, tmp_path)
    with safe_open(tmp_path / "cache", framework="pt") as file:
        length = len(file.metadata()["header"])
    monkeypatch.setattr(saved, "LONGEST", length)
    again(cache, tmp_path)
    monkeypatch.setattr(saved, "LONGEST", length - 1)
    with pytest.raises(CheckpointError, match="its header has"):
        again(cache, tmp_path)
