"""The cells that `make test` runs: bounded, the same for the same seed, and never without those that always run."""

from __future__ import annotations

import itertools

from tests.conformance.test_matrix import ALWAYS, CORE, DRAWN, FACTORS, PAIRS, allowed
from tests.sampling import EVERY, draw, holding, marks
from vantage.conformance.covering import reachable

CELLS = [(a, b, c) for a in "abcdefgh" for b in "stuvwx" for c in "xy"]
FIRST = [cell for cell in CELLS if cell[0] == "a"]


def test_a_seed_draws_so_many_and_the_same_again():
    drawn = draw(CELLS, FIRST, 10, "1")
    assert drawn == draw(CELLS, FIRST, 10, "1")
    assert drawn != draw(CELLS, FIRST, 10, "2")
    assert len(drawn) == len(FIRST) + 10
    assert set(FIRST) < drawn < set(CELLS)


def test_many_seeds_draw_every_cell():
    assert set().union(*(draw(CELLS, FIRST, 10, str(seed)) for seed in range(100))) == set(CELLS)


def test_nothing_is_left_out_where_there_is_room_or_all_are_asked_for():
    assert draw(CELLS, FIRST, len(CELLS), "1") == set(CELLS)
    assert draw(CELLS, FIRST, 10, EVERY) == set(CELLS)


def test_what_is_not_drawn_is_slow():
    assert marks(True) == ()
    assert [mark.name for mark in marks(False)] == ["slow"]


def test_few_cells_hold_every_wanted_pair():
    chosen = holding(CELLS, lambda pair: pair[1][0] == 2)
    assert {(cell[0], cell[2]) for cell in chosen} == {(cell[0], cell[2]) for cell in CELLS}
    assert {(cell[1], cell[2]) for cell in chosen} == {(cell[1], cell[2]) for cell in CELLS}
    assert len(chosen) == 16


def test_every_part_always_runs_with_every_kernel_and_every_cache():
    wanted = {pair for pair in reachable(FACTORS, 2, allowed) if any(number in CORE for number, _ in pair)}
    held = {pair for cell in ALWAYS for pair in itertools.combinations(enumerate(cell), 2)}
    assert wanted <= held
    assert set(PAIRS) >= DRAWN >= ALWAYS
