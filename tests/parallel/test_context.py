"""Context parallel: tokens over processes give what one process gives, forward and gradients, in float64."""

from __future__ import annotations

import pytest
import torch

from tests.parallel.context_cells import (
    NAMES,
    REASONS,
    bytes_sent,
    covering,
    gaps,
    in_type,
    prefilled,
    reason,
    undeclared,
)
from tests.parallel.processes import in_processes
from vantage.conformance.factors import HEAD_DIM, HEADS, LAYERS
from vantage.errors import BadInput, Refused
from vantage.parallel import Cut, Wire
from vantage.spec.positions import Positions

TOLERANCE = 1e-10


def equal(processes: int, cells: list[tuple[str, ...]], limit: float = 240.0) -> None:
    for found in in_processes(processes, gaps, cells, limit=limit):
        wrong = [(cell, gap) for cell, gap in zip(cells, found, strict=True) if max(gap[:2]) > TOLERANCE or gap[2]]
        assert not wrong, wrong[:5]


@pytest.mark.sampled
def test_every_part_is_equal_over_two_processes() -> None:
    equal(2, covering(1, refused=False))


@pytest.mark.slow
def test_every_pair_of_parts_is_equal_over_two_processes() -> None:
    equal(2, covering(2, refused=False), limit=1500)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [3, 4])
def test_every_part_is_equal_over_more_processes(processes: int) -> None:
    equal(processes, covering(1, refused=False), limit=600)


@pytest.mark.slow
def test_what_cannot_be_shared_is_refused_with_its_reason() -> None:
    cells = covering(2, refused=True)
    assert cells
    for found in in_processes(2, gaps, cells, limit=1500):
        for cell, (_, _, refusal) in zip(cells, found, strict=True):
            because = reason(dict(zip(NAMES, cell, strict=True)))
            assert because is not None
            # where two reasons hold, either is a good one
            assert because in refusal or any(words in refusal for _, words in REASONS), cell


@pytest.mark.sampled
def test_a_cache_that_all_have_filled_is_decoded_from_by_each() -> None:
    cases = [("grouped", "contiguous"), ("latent", "paged"), ("softcap", "paged"), ("gated-delta", "contiguous")]
    for worst in in_processes(2, prefilled, cases):
        assert max(worst) < TOLERANCE, worst


@pytest.mark.slow
def test_frequencies_that_depend_on_the_length_are_those_of_the_whole_row() -> None:
    assert max(in_processes(2, undeclared)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_rounded_types_are_as_near_as_one_process_is(name: str) -> None:
    for found in in_processes(2, in_type, name):
        for shared, alone in found:
            assert shared <= 2 * alone, (shared, alone)


@pytest.mark.slow
def test_what_is_sent_is_what_the_shapes_say() -> None:
    tokens, kv_heads, number = 2 * 6, HEADS // 2, 8  # a share of 6 columns in 2 rows, float64
    keys_and_values = LAYERS * tokens * kv_heads * 2 * HEAD_DIM * number
    positions = 2 * tokens * 8  # positions and orders, once for all layers
    (gathered, *_) = in_processes(2, bytes_sent, "gather")
    assert gathered == {"gather": keys_and_values + positions, "scatter": keys_and_values}
    (ring, *_) = in_processes(2, bytes_sent, "ring")
    # forwards once; backwards keys, values and their gradients, and the gradients home again
    assert ring == {"gather": positions, "shift": keys_and_values * (1 + 2 + 1)}


def test_every_column_is_somebodys_once() -> None:
    for kind in ("contiguous", "zigzag"):
        for width in (1, 7, 16):
            cut = Cut(width, 3, kind)
            held = [c for rank in range(3) for c in cut.columns(rank)]
            assert sorted(held) == list(range(cut.padded))
            x = torch.arange(width)[None]
            shares = torch.cat([cut.take(x, rank, fill=-1) for rank in range(3)], 1)
            sequence = cut.sequence()
            assert (shares if sequence is None else shares[:, sequence])[0, :width].tolist() == list(range(width))
    with pytest.raises(BadInput, match="'contiguous' or 'zigzag'"):
        Cut(4, 2, "striped")


def test_a_zigzag_gives_every_process_as_many_keys_to_see() -> None:
    pairs = [sum(c + 1 for c in Cut(16, 4, "zigzag").columns(rank)) for rank in range(4)]
    assert len(set(pairs)) == 1


def test_a_share_of_positions_knows_how_far_the_row_goes() -> None:
    whole = Positions.packed(((4, 3), (5,)))
    share = Cut(7, 2).positions(whole, 0)
    assert share.pos.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert share.segment is not None
    assert share.known.pos == whole.known.pos


def test_without_processes_it_says_how_to_start_some() -> None:
    with pytest.raises(Refused, match="torchrun"):
        Wire()
