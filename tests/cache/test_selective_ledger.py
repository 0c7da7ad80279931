"""The ledger of caches that forget, without a model: what each row holds and shows, and what the host knows of it."""

from __future__ import annotations

import json

import pytest
import torch

from tests.cache.helpers import Oracle, check_view, model_cache, plain, run
from tests.spec.helpers import check_facts
from vantage.cache import facts, selective
from vantage.cache.dump import DumpReader, LedgerDump
from vantage.cache.policies import HeavyHitters, SinkWindow
from vantage.cache.selective import Selective
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.spec.positions import Positions

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["read", "unread"])
def _host(request, monkeypatch):
    """As in host memory, and as on a device from which nothing is read."""
    for module in (facts, selective):
        monkeypatch.setattr(module, "on_host", lambda device: request.param)


def orders(where: Positions) -> list[list[int]]:
    return [sorted(o for o in row if o >= 0) for row in where.order.tolist()]


def append(ledger: Selective, pos: Positions) -> list[list[int]]:
    """One pass: it shows what was held and what comes. What is held after it."""
    before = orders(ledger.look().view_pos) if ledger.holding else [[]] * ledger.batch
    step = ledger.place(pos)
    check_facts(step.view_pos)
    assert orders(step.view_pos) == [a + b for a, b in zip(before, orders(pos), strict=True)]
    assert step.deferred == (step.view_pos.shape[1] > ledger.places - 1)
    ledger.commit()
    check_facts(ledger.look().view_pos)
    return orders(ledger.look().view_pos)


@pytest.mark.usefixtures("_host")
def test_rows_hold_the_first_tokens_and_the_last():
    """Two sinks, a window of 3 and a draft of 1: what the next query sees, and one token more."""
    ledger = Selective(2, SinkWindow(2, 3), draft=1)
    assert (ledger.places, ledger.tokens, ledger.next_positions.host) == (5 + 1 + 1 + 1, (0, 0), 0)
    assert append(ledger, Positions.arange(2, 1)) == [[0]] * 2
    assert (ledger.tokens, ledger.next_positions.host) == ((1, 1), 1)
    assert append(ledger, Positions.arange(2, 1, 1)) == [[0, 1]] * 2
    assert (ledger.tokens, ledger.next_positions.host) == ((2, 2), 2)
    assert append(ledger, Positions.arange(2, 9, 2)) == [[0, 1, 8, 9, 10]] * 2
    assert append(ledger, Positions.arange(2, 1, 11)) == [[0, 1, 9, 10, 11]] * 2
    assert (ledger.tokens, ledger.next_positions.host) == ((12, 12), 12)
    assert append(ledger, Positions.rows([2, 0], [12, 12])) == [[0, 1, 11, 12, 13], [0, 1, 9, 10, 11]]
    assert ledger.next_positions.order.tolist() == [14, 12]
    assert ledger.next_positions.host is None
    assert ledger._evicted() == (9, 7)
    ledger.crop([13, 12])
    check_facts(ledger.look().view_pos)
    assert orders(ledger.look().view_pos) == [[0, 1, 11, 12], [0, 1, 9, 10, 11]]
    ledger.reorder([1, 0, 0])
    assert ledger.tokens == (12, 13, 13)
    assert append(ledger, Positions.rows([1, 1, 0], [12, 13, 13]))[:2] == [[0, 1, 10, 11, 12], [0, 1, 11, 12, 13]]
    ledger.crop([0, 14, 13])
    assert ledger.tokens == (0, 14, 13)
    assert append(ledger, Positions.rows([3, 0, 0], [30, 14, 13]))[0] == [30, 31, 32]  # begun anew, anywhere
    assert ledger.tokens == (3, 14, 13)


@pytest.mark.usefixtures("_host")
def test_many_narrow_passes_fill_no_more_than_its_places():
    ledger = Selective(1, SinkWindow(1, 2))
    held = [append(ledger, Positions.arange(1, 1, n))[0] for n in range(9)]
    assert held == [[0], *([0, n] for n in range(1, 9))]
    wide = Selective(1, SinkWindow(1, 2))
    assert append(wide, Positions.arange(1, 3)) == [[0, 2]]
    assert append(wide, Positions.arange(1, 7, 3)) == [[0, 9]]
    assert append(wide, Positions.arange(1, 2, 10)) == [[0, 11]]
    at_once = Selective(1, SinkWindow(1, 2))
    assert append(at_once, Positions.arange(1, 7)) == [[0, 6]]
    assert append(at_once, Positions.arange(1, 2, 7)) == [[0, 8]]


@pytest.mark.usefixtures("_host")
def test_what_fits_is_written_at_once():
    """Five places: one token, and four more."""
    ledger = Selective(1, SinkWindow(1, 4))
    step = ledger.place(Positions.arange(1, 1, 10))
    assert not step.deferred
    assert step.view_pos.known.order == (10, 10)
    ledger.commit()
    assert ledger.next_positions.host == 11
    assert not ledger.place(Positions.arange(1, 4, 11)).deferred


def test_a_new_document_makes_room_at_once():
    """Three heavy hitters at most: after the first token of a new document there is room for two more."""
    ledger = Selective(1, HeavyHitters(2, 1))
    packed = Positions.packed([[3, 4]])
    append(ledger, packed.narrow(0, 3))
    assert ledger.widest(packed.narrow(3, 4)) == 1
    assert append(ledger, packed.narrow(3, 1)) == [[3]]
    assert ledger.widest(packed.narrow(4, 3)) == 2


@pytest.mark.usefixtures("_host")
def test_what_is_known_of_rows_that_were_taken_back():
    ledger = Selective(2, SinkWindow(2, 3), draft=2)
    append(ledger, Positions.arange(2, 9))
    ledger.crop(8)
    assert ledger.look().view_pos.known.same_rows
    check_facts(ledger.look().view_pos)
    ledger.crop([7, 8])
    assert not ledger.look().view_pos.known.same_rows
    check_facts(ledger.look().view_pos)
    ledger.crop(7)
    check_facts(ledger.look().view_pos)
    assert orders(ledger.look().view_pos) == [[0, 1, 5, 6]] * 2


def test_keys_are_shown_without_a_pass_too():
    cache, chunk = model_cache(Selective(1, SinkWindow(2, 3))), plain(1, 0, 4)
    run(cache, chunk)
    check_view(cache.layers[1].view(), Oracle([list(chunk.rows[0])]), 1, [2])


def test_a_row_that_is_one_document_goes_back_as_one_that_is_none():
    for pos in (Positions.arange(1, 4), Positions.packed([[4]])):
        ledger = Selective(1, SinkWindow(2, 3))
        append(ledger, pos)
        ledger.crop(1)
        assert ledger.tokens == (1,)


def test_heads_keep_their_own_in_whatever_order_rows_are():
    ledger = Selective(2, HeavyHitters(1, 1), heads=2)
    assert ledger.holds().rows[3].evicted == 0
    for n in range(3):
        step = ledger.place(Positions.arange(2, 1, n))
        heavy = torch.zeros(2, 2, 1, step.view_pos.shape[1])
        at = step.view_pos.order.view(2, 2, -1)
        # the first head of row 0 and the second of row 1 look at token 0, the others at token 1
        for row, head, token in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
            heavy[row, head, 0, at[row, head] == token] = 1.0
        assert step.selected is not None
        assert step.selected.observe is not None
        step.selected.observe(heavy)
        ledger.commit()
    assert orders(ledger.look().view_pos) == [[0, 2], [1, 2], [1, 2], [0, 2]]
    ledger.reorder([1, 0])
    assert orders(ledger.look().view_pos) == [[1, 2], [0, 2], [0, 2], [1, 2]]


def test_a_row_that_does_not_begin_at_0_has_no_sinks():
    ledger = Selective(1, SinkWindow(2, 3))
    assert append(ledger, Positions.arange(1, 1, 10)) == [[10]]
    assert append(ledger, Positions.arange(1, 4, 11)) == [[13, 14]]
    assert ledger.tokens == (5,)
    with pytest.raises(BadInput, match="expects 15"):
        ledger.place(Positions.arange(1, 1, 16))
    with pytest.raises(CacheError, match="cannot take row 0 back from 15 to 14"):
        ledger.crop(14)
    ledger.crop(10)
    assert ledger.tokens == (0,)
    assert not ledger.holding
    assert append(ledger, Positions.arange(1, 2, 3)) == [[3, 4]]


def test_rows_of_documents_are_never_said_to_be_the_same():
    ledger = Selective(2, SinkWindow(1, 2))
    step = ledger.place(Positions.packed([[2, 2], [2, 2]]))
    assert not step.view_pos.known.same_rows
    ledger.commit()
    assert orders(ledger.look().view_pos) == [[2, 3]] * 2  # of the last document the first token, and the last one
    plain = Selective(2, SinkWindow(1, 2)).place(Positions.arange(2, 4))
    assert plain.view_pos.known.same_rows
    assert not Selective(2, HeavyHitters(3, 1)).place(Positions.arange(2, 4)).view_pos.known.same_rows


def test_an_entry_has_the_weights_that_it_got():
    ledger = Selective(1, HeavyHitters(1, 1), heads=2)
    for n, weights in enumerate(([[1.0]], [[0.75, 0.25]], [[0.5, 0.25, 0.25]])):
        step = ledger.place(Positions.arange(1, 1, n))
        at = [row.index(o) for row in step.view_pos.order[:1].tolist() for o in sorted(o for o in row if o >= 0)]
        given = torch.zeros(1, 4, 1, step.view_pos.shape[1])
        given[..., at] = torch.tensor(weights)
        assert step.selected is not None
        assert step.selected.observe is not None
        step.selected.observe(given)
        ledger.commit()
    scores, order = ledger.dump().tables["scores"], ledger.dump().tables["order"]
    kept = [
        {o: s for o, s in zip(*row, strict=True) if o >= 0} for row in zip(order.tolist(), scores.tolist(), strict=True)
    ]
    assert kept == [{0: 4.5, 2: 0.5}] * 2  # of two query heads each


def test_sizes_that_cannot_be():
    for wrong in ({"heads": 0}, {"draft": -1}):
        with pytest.raises(BadInput, match="give 1 or more, and 0 or more"):
            Selective(1, SinkWindow(2, 3), **wrong)
    assert Selective(1, SinkWindow(2, 3)).places == 4 + 1 + 1  # what is kept, what comes, and what nobody reads


# ---- as plain data


def dumped(ledger: Selective) -> LedgerDump:
    """As it comes back from a file."""
    dump = ledger.dump()
    return LedgerDump(json.loads(json.dumps(dump.numbers)), {name: t.clone() for name, t in dump.tables.items()})


def saved() -> LedgerDump:
    ledger = Selective(2, SinkWindow(2, 3), draft=1)
    append(ledger, Positions.arange(2, 9))
    append(ledger, Positions.rows([1, 0], [9, 9]))
    return dumped(ledger)


def read(dump: LedgerDump) -> Selective:
    return Selective.from_dump(DumpReader(dump), CPU)


def test_saved_and_read_it_goes_on(monkeypatch):
    again = read(saved())
    assert (again.tokens, again.next_positions.host) == ((10, 9), None)
    assert orders(again.look().view_pos) == [[0, 1, 7, 8, 9], [0, 1, 6, 7, 8]]
    assert append(again, Positions.rows([1, 1], [10, 9])) == [[0, 1, 8, 9, 10], [0, 1, 7, 8, 9]]
    assert again.name == "SinkWindow(sinks=2, window=3, by_place=False), draft 1"
    empty = Selective(2, SinkWindow(2, 3))
    assert not read(dumped(empty)).holding
    append(empty, Positions.arange(2, 1))
    with monkeypatch.context() as unread:
        again = read(dumped(empty))
        unread.setattr(facts, "on_host", lambda device: False)
        assert again.next_positions.host == 1
    assert read(dumped(Selective(1, SinkWindow(0, 3)))).name == "SinkWindow(sinks=0, window=3, by_place=False)"
    nothing_came = Selective(2, SinkWindow(2, 3))
    nothing_came.place(Positions.rows([0, 0], width=1))
    nothing_came.commit()
    assert read(dumped(nothing_came)).tokens == (0, 0)


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_file_is_told_by_what_it_says_of_itself(place):
    for wrong in (9, 10):  # row 1 holds no token from 9 on
        dump = saved()
        dump.tables["order"][1, place] = dump.tables["pos"][1, place] = wrong
        with pytest.raises(CheckpointError):
            read(dump)
    dump = saved()
    for table in (dump.tables["order"], dump.tables["pos"]):
        table[0, table[0] == 1] = 0
    with pytest.raises(CheckpointError, match="it holds a token twice"):
        read(dump)
    dump = saved()
    dump.numbers["most"] = 4
    with pytest.raises(CheckpointError, match="does not hold what it says"):
        read(dump)
