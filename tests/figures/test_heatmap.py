"""Large matrices made small enough to be seen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vantage.figures.heatmap import SIDE, reduced


@given(st.integers(1, 300), st.integers(1, 300), st.integers(2, 64), st.integers(0, 10**6))
def test_no_bright_cell_is_lost(rows: int, columns: int, side: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    matrix = torch.rand(rows, columns, generator=random) * 0.1
    at = (seed % rows, seed % columns)
    matrix[at] = 1.0
    small, note = reduced(matrix, side)
    assert small.shape == (min(rows, side), min(columns, side))
    assert bool(note) == (max(rows, columns) > side)
    assert small.max() == 1.0
    where = (small == 1.0).nonzero().tolist()
    for r, c in where:  # and it is where it was
        assert abs((r + 0.5) / small.shape[0] - (at[0] + 0.5) / rows) <= 1.01 / small.shape[0]
        assert abs((c + 0.5) / small.shape[1] - (at[1] + 0.5) / columns) <= 1.01 / small.shape[1]


def test_scores_keep_what_is_furthest_from_zero_and_what_is_hidden() -> None:
    matrix = torch.zeros(8, 8)
    matrix[0, 0], matrix[5, 5], matrix[0:2, 6:8] = -3.0, 2.0, float("-inf")
    small = reduced(matrix, 4).cells
    assert small[0, 0] == -3.0
    assert small[2, 2] == 2.0
    assert small[0, 3] == float("-inf")


@pytest.mark.slow
def test_a_hundred_million_cells_are_reduced_and_said_to_be() -> None:
    matrix = torch.zeros(10_000, 10_000)
    matrix[7777, 1234] = 1
    small, note = reduced(matrix)
    assert small.shape == (SIDE, SIDE)
    assert small.max() == 1
    assert note == "10,000 x 10,000 cells reduced by maximum over tiles of 20 x 20"
