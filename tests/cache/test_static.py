"""A static cache: one shape of view whatever is held, and a graph's step over its places."""

import json

import pytest
import torch

import vantage as vt
from tests.cache.helpers import (
    Oracle,
    check_facts,
    check_view,
    contiguous,
    model_cache,
    paged,
    plain,
    ragged,
    ring,
    run,
)
from vantage.cache import Static, facts
from vantage.cache.dump import DumpReader, LedgerDump
from vantage.cache.grouped import Grouped, Grouping
from vantage.cache.moves import Span
from vantage.cache.placed import PlacedCache, PlacedStep
from vantage.cache.policies import SinkWindow
from vantage.cache.selective import Selective
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.spec.positions import Known, Positions


def test_a_view_has_one_shape():
    ledger = Static(2, 8)
    for pos, held in ((Positions.arange(2, 3), 3), (Positions.rows([1, 2], [3, 3]), None)):
        step = ledger.place(pos)
        ledger.commit()
        assert step.view_pos.shape == (2, 8)
        assert held is None or (step.view_pos.order[:, held:] == -1).all()
    assert ledger.tokens == (4, 5)
    assert ledger.look().view_pos.pos.tolist() == [[0, 1, 2, 3, -1, -1, -1, -1], [0, 1, 2, 3, 4, -1, -1, -1]]


def test_what_does_not_fit_is_refused_and_changes_nothing():
    ledger = Static(1, 4)
    ledger.place(Positions.arange(1, 3))
    ledger.commit()
    with pytest.raises(CacheError, match="it has 4 places, holds 3 and 2 more are needed; create it with capacity=5"):
        ledger.place(Positions.arange(1, 2, 3))
    assert ledger.tokens == (3,)
    with pytest.raises(BadInput, match="a capacity of 0"):
        Static(1, 0)


def test_an_earlier_view_stays_what_it_was():
    ledger = Static(1, 4)
    first = ledger.place(Positions.arange(1, 1)).view_pos
    ledger.commit()
    ledger.place(Positions.arange(1, 1, 1))
    assert first.order.tolist() == [[0, -1, -1, -1]]


def test_a_placed_step_sees_what_the_step_sees():
    for kind in ("contiguous", "paged", "static", "ring"):
        model = vt.build(vt.decoder(vocab=9, width=16, layers=1, heads=2, window=5)).eval()
        with torch.inference_mode():
            cache = model.new_cache(2, kind=kind, capacity=20)
            model(torch.randint(9, (2, 7)), cache=cache)
            pos = Positions.arange(2, 1, 7)
            cache.begin(pos)
            step = cache.ledgers[0].place(pos)
            placed = PlacedStep.of(step)
            assert placed is not None
            seen = {int(n) for n in placed.order[0] if n >= 0}
            assert seen == {int(n) for n in step.view_pos.order[0] if n >= 0}
            store = cache.layers[0].store
            shown = placed.shown(step, store.enter(step, 2, "test"))
            write, read = placed.moves()
            x = torch.randn(2, 2, 1, 8)
            write.put(shown[0], x)
            at = placed.order[0].tolist().index(7)
            torch.testing.assert_close(read.get(shown[0], None)[:, :, at], x[:, :, 0])
            torch.testing.assert_close(step.read.get(store.tensors[0], None)[:, :, at], x[:, :, 0])
            cache.abandon()


PLACED = {
    "contiguous": lambda: contiguous(2),
    "contiguous, window": lambda: contiguous(2, window=3),
    "ring": lambda: ring(2, window=4),
    "paged": lambda: paged(2, block=2),
    "paged, window": lambda: paged(2, block=2, window=3, draft=0),
    "paged, fixed": lambda: paged(2, tokens=40, block=4),
    "static": lambda: model_cache(Static(2, 9)),
}


@pytest.mark.parametrize("starts", [(0, 0), (0, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("name", PLACED)
def test_a_placed_step_writes_and_reads_what_a_step_does(name, starts):
    """Rows of seven tokens and of fewer, in every arrangement: the next token of each, and all that it looks at."""
    cache, lengths = PLACED[name](), [7 - n for n in starts]
    chunk = plain(2, 0, 7) if starts == (0, 0) else ragged([0, 0], lengths)
    oracle = Oracle([[t for t in row if t is not None] for row in chunk.rows])
    run(cache, chunk)
    token = ragged(lengths, [1, 1], uid=50)
    step = cache.ledgers[0].place(plain(2, 7, 1, uid=50).pos if starts == (0, 0) else token.pos)
    placed = PlacedStep.of(step)
    assert placed is not None
    oracle.append(token)
    store, (write, read) = cache.layers[1].store, placed.moves()
    shown = placed.shown(step, store.enter(step, 2, "test"))
    once = PlacedCache(shown, store.codec, (), write, read, placed.view_pos(8, None))
    assert not once.late  # keys are turned before they come
    view = once.append(token.pos, token.keys(1), token.values(1))
    check_view(view, oracle, 1, [n - 2 for n in lengths])
    assert view.pos.known.pos == (0, 8)


def test_what_is_more_than_a_place_is_not_placed():
    documents, forgetting = Static(1, 9), Selective(1, SinkWindow(1, 2))
    assert PlacedStep.of(documents.place(Positions.packed([[1]]))) is None
    assert PlacedStep.of(forgetting.place(Positions.arange(1, 1))) is None
    assert PlacedStep.of(Grouped(1, Grouping(3, 4)).place(Positions.arange(1, 1))) is None


# ---- what the host knows, and what is read back


@pytest.fixture(params=[True, False], ids=["read", "unread"])
def _host(request, monkeypatch):
    """As in host memory, and as on a device from which nothing is read."""
    monkeypatch.setattr(facts, "on_host", lambda device: request.param)


def append(ledger: Static, pos: Positions) -> Positions:
    """What a pass with these is shown."""
    shown = ledger.place(pos).view_pos
    check_facts(shown)
    ledger.commit()
    assert torch.equal(ledger.look().view_pos.order, shown.order)
    return shown


@pytest.mark.usefixtures("_host")
def test_a_plain_run_is_known_to_be_one():
    ledger = Static(2, 6)
    assert (ledger.next_positions.host, ledger.holding, ledger.extensible) == (0, False, False)
    shown = append(ledger, Positions.arange(2, 3, 10))
    assert (shown.known.empty, shown.known.same_rows, shown.known.counts) == (True, True, (3, 3))
    assert shown.known.order == (10, 12)
    assert (ledger.next_positions.host, ledger.extensible, ledger.tokens) == (13, True, (3, 3))
    extension = ledger.extend(2)
    assert (extension.layout.held, extension.layout.run, extension.first) == ((3, 3), True, 10)
    assert ledger.tokens == (5, 5)
    shown = append(ledger, Positions.arange(2, 1, 15))  # the last place
    assert not shown.known.empty
    assert shown.order.tolist() == [list(range(10, 16))] * 2
    ledger.crop(14)
    assert (ledger.tokens, ledger.next_positions.host, ledger.extensible) == ((4, 4), 14, True)
    check_facts(ledger.look().view_pos)
    assert ledger.look().view_pos.known.same_rows
    assert ledger.look().read == Span(0, 6)
    ledger.crop([12, 14])
    check_facts(ledger.look().view_pos)
    assert not ledger.look().view_pos.known.same_rows
    assert (ledger.tokens, ledger.next_positions.host, ledger.extensible) == ((2, 4), None, False)
    append(ledger, Positions.rows([1, 0], [12, 14]))
    assert ledger.look().view_pos.order.tolist() == [[10, 11, 12, -1, -1, -1], [10, 11, 12, 13, -1, -1]]
    ledger.crop([10, 13])
    assert ledger.tokens == (0, 3)
    append(ledger, Positions.rows([2, 0], [30, 13]))
    assert ledger.next_positions.order.tolist() == [32, 13]
    ledger.reorder([1, 1])
    assert (ledger.tokens, ledger.extensible) == ((3, 3), False)
    ledger.crop(0)
    assert (ledger.tokens, ledger.next_positions.host, ledger.holding) == ((0, 0), 0, False)
    assert append(ledger, Positions.arange(2, 1, 7)).order[:, 0].tolist() == [7, 7]
    assert ledger.extensible


def test_a_row_by_itself_is_extended():
    ledger = Static(1, 6)
    append(ledger, Positions.arange(1, 3, 10))
    ledger.extend(2)
    assert ledger.look().view_pos.order.tolist() == [[10, 11, 12, 13, 14, -1]]
    append(ledger, Positions.arange(1, 1, 15))
    ledger.crop(99)
    assert not ledger.look().view_pos.known.empty  # it is full
    assert str(ledger.holds()) == "static, 6 places\n  row 0: 10..15 (6 tokens)"


def test_a_row_that_is_taken_back_before_its_beginning_holds_nothing():
    ledger = Static(2, 6)
    append(ledger, Positions.arange(2, 3, 10))
    ledger.crop([3, 12])
    assert ledger.tokens == (0, 2)


def test_where_an_open_pass_stands():
    ledger = Static(2, 6)
    assert ledger.layout() is None
    append(ledger, Positions.arange(2, 3))
    for pos, plain_run in ((Positions.arange(2, 1, 3), True), (Positions.rows([1, 0], [4, 4]), False)):
        held = ledger.tokens
        ledger.place(pos)
        layout = ledger.layout()
        assert layout is not None
        assert (layout.held, layout.run) == (held, plain_run)
        ledger.commit()
    documents = Static(2, 6)
    documents.place(Positions.packed([[2, 1], [3]]))
    assert documents.layout() is None


def test_rows_of_documents_are_no_plain_run():
    ledger = Static(2, 6)
    shown = append(ledger, Positions.packed([[2, 1], [2, 1]]))
    assert not shown.known.same_rows
    assert shown.segment is not None
    assert not ledger.extensible
    with pytest.raises(BadInput, match="with segments and got some without"):
        ledger.place(Positions.arange(2, 1, 3))
    ledger.crop([0, 0])
    append(ledger, Positions.arange(2, 1))
    assert ledger.extensible


def test_one_place_is_enough_for_one_token():
    ledger = Static(1, 1)
    append(ledger, Positions.arange(1, 1))
    assert (ledger.places, ledger.kept_places, ledger.tokens) == (2, 2, (1,))
    with pytest.raises(BadInput, match="expects 1"):
        Static(1, 9).place(Positions.of(torch.tensor([[0, 2]])))


def test_what_comes_must_be_counted():
    pos = Positions.arange(1, 1)
    with pytest.raises(BadInput, match="must know how many tokens each row gets"):
        Static(1, 4).place(Positions(pos.pos, pos.order, None, Known()))


def through_a_file(dump: LedgerDump) -> Static:
    numbers = json.loads(json.dumps(dump.numbers))
    return Static.from_dump(DumpReader(LedgerDump(numbers, dump.tables)), torch.device("cpu"))


@pytest.mark.parametrize(
    "pos", [Positions.arange(2, 3), Positions.arange(2, 3, 4), Positions.rows([3, 1]), Positions.packed([[2, 1], [3]])]
)
def test_saved_and_read_it_goes_on(pos):
    ledger = Static(2, 5)
    assert not through_a_file(ledger.dump()).holding
    append(ledger, pos)
    again = through_a_file(ledger.dump())
    assert (again.tokens, again.extensible) == (ledger.tokens, ledger.extensible)
    assert torch.equal(again.look().view_pos.order, ledger.look().view_pos.order)
    assert again.next_positions.order.tolist() == ledger.next_positions.order.tolist()


@pytest.mark.parametrize(
    "pos",
    [
        Positions.rows([1, 3]),  # rows of unequal length
        Positions.packed([[3], [3]]),  # documents
        Positions.of(torch.tensor([[0, 2], [0, 2]]), order=torch.tensor([[0, 1], [0, 1]])),  # positions with gaps
    ],
)
def test_what_is_no_plain_run_cannot_be_said_to_be_one(pos):
    ledger = Static(2, 5)
    append(ledger, pos)
    dump = ledger.dump()
    assert not through_a_file(dump).extensible
    with pytest.raises(CheckpointError, match="its rows are no plain run from 0"):
        through_a_file(LedgerDump(dump.numbers | {"first": 0}, dump.tables))


@pytest.mark.parametrize(
    ("row", "first"),
    [
        ([4, 5, 6, -1, -1, -1], 5),
        ([4, 5, -1, 6, -1, -1], None),  # a hole
        ([4, 6, 5, -1, -1, -1], None),  # not rising
        ([4, 4, 5, -1, -1, -1], None),
        ([4, 0, 5, -1, -1, -1], None),
        ([4, 5, 7, -1, -1, -1], 4),  # no run
    ],
)
def test_a_damaged_file(row, first):
    ledger = Static(1, 5)
    append(ledger, Positions.arange(1, 3, 4))
    dump = ledger.dump()
    order = torch.tensor([row])
    loose = {"first": None, "order": None, "pos": None, "counts": None, "empty": True, "same_rows": False}
    numbers = dump.numbers | {"first": first, "known": loose}
    with pytest.raises(CheckpointError):
        through_a_file(LedgerDump(numbers, dump.tables | {"order": order, "pos": order.clone()}))
    through_a_file(LedgerDump(dump.numbers | {"known": loose}, dump.tables))
