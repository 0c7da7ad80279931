"""A static cache: one shape of view whatever is held, and a graph's step over its places."""

import pytest
import torch

import vantage as vt
from vantage.cache import Static
from vantage.cache.placed import PlacedStep
from vantage.errors import BadInput, CacheError
from vantage.spec.positions import Positions


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
    with pytest.raises(CacheError, match="it has 4 places, holds 3 and 2 more were wanted; make it with capacity=5"):
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
