"""A cache whose tokens lie over processes is decoded from by all of them, or by one, as one process would."""

from __future__ import annotations

import pytest

from tests.parallel.context_cells import NAMES, REASONS, ROWS
from tests.parallel.processes import in_processes
from tests.parallel.spread_cells import (
    PROMPT,
    SPREAD_REASONS,
    covering,
    decoded,
    from_nothing,
    in_two_prompts,
    in_type,
    on_one_process,
    refusals,
    spread_reason,
    taken_back,
    with_heads,
)
from vantage.conformance.factors import HEAD_DIM, HEADS, LAYERS
from vantage.parallel.spread_cache import even_shares

TOLERANCE = 1e-10


def equal(processes: int, cells: list[tuple[str, ...]], limit: float = 240.0) -> None:
    for found in in_processes(processes, decoded, cells, limit=limit):
        wrong = [(cell, gap) for cell, gap in zip(cells, found, strict=True) if max(gap[:2]) > TOLERANCE or gap[2]]
        assert not wrong, wrong[:5]


@pytest.mark.sampled
def test_every_part_is_decoded_by_all_processes_and_by_one_that_gathers() -> None:
    equal(2, covering(1, refused=False))


@pytest.mark.slow
def test_every_pair_of_parts_is_decoded_by_all_processes_and_by_one_that_gathers() -> None:
    equal(2, covering(2, refused=False), limit=1500)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [3, 4])
def test_every_part_is_decoded_by_more_processes(processes: int) -> None:
    equal(processes, covering(1, refused=False), limit=600)


@pytest.mark.slow
def test_what_cannot_lie_over_processes_is_refused_with_its_reason() -> None:
    cells = covering(2, refused=True)
    assert {spread_reason(dict(zip(NAMES, cell, strict=True))) for cell in cells} >= {r for _, r in SPREAD_REASONS}
    for found in in_processes(2, decoded, cells, limit=1500):
        for cell, (_, _, refusal) in zip(cells, found, strict=True):
            # where two reasons hold, either is a good one
            assert any(words in refusal for _, words in (*SPREAD_REASONS, *REASONS)), (cell, refusal)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_it_begins_with_nothing_and_tokens_go_in_turn(processes: int) -> None:
    for off, columns in in_processes(processes, from_nothing):
        assert off < TOLERANCE
        assert columns == ([7, 6] if processes == 2 else [5, 4, 4])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_tokens_are_taken_back_and_rows_change_places(processes: int) -> None:
    for gaps in in_processes(processes, taken_back):
        assert max(gaps) < TOLERANCE, gaps


@pytest.mark.slow
def test_one_process_gathers_it_and_a_step_sends_no_keys() -> None:
    processes = 3
    number, heads = 8, HEADS
    share = -(-PROMPT // (2 * processes)) * 2  # a zigzag of 7 columns over 3: two pieces of 2 each
    for rank, (here, off, step, sent, columns) in enumerate(in_processes(processes, on_one_process)):
        assert here == (rank == processes - 1)
        assert off < TOLERANCE
        # of each layer and query head what it gave and its log-sum-exp, to all others
        assert step == {"gather": (processes - 1) * LAYERS * ROWS * heads * (HEAD_DIM + 1) * number}
        assert columns == share + (rank == 0)
        widest = share + 1
        keys_and_values = LAYERS * ROWS * (HEADS // 2) * 2 * HEAD_DIM * widest * number
        numbers = (processes - 1) * widest * 8
        assert sent == {"gather": numbers + (0 if here else keys_and_values)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_rounded_types_are_as_near_as_one_process_is(name: str) -> None:
    for shared, alone in in_processes(2, in_type, name):
        assert shared <= 2 * alone, (shared, alone)


@pytest.mark.slow
def test_heads_and_tokens_over_processes_at_once() -> None:
    assert max(in_processes(4, with_heads)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_a_second_prompt_is_read_by_all_as_well(processes: int) -> None:
    cells = [
        ("rope", "grouped", "causal", "zigzag", "ring", "plain"),
        ("alibi", "latent", "causal", "contiguous", "ring", "left-padded"),
        ("fire", "sinks", "window", "zigzag", "gather", "right-padded"),
        ("t5", "grouped", "causal", "zigzag", "gather", "packed"),
        ("rope", "gated-delta", "causal", "contiguous", "ring", "plain"),
        ("shaw", "cross", "causal", "zigzag", "ring", "plain"),
    ]
    for worst in in_processes(processes, in_two_prompts, cells):
        assert max(worst) < TOLERANCE, worst


@pytest.mark.slow
def test_a_whole_cache_in_a_ring_and_a_bias_of_all_keys_are_refused_and_change_nothing() -> None:
    for ring, bias, directly in in_processes(2, refusals):
        assert "a ring never holds all keys" in ring
        assert "parallel.new_cache" in ring
        assert "depends on other keys as well" in bias
        assert "use cache.logits" in directly


def test_new_columns_go_to_who_has_fewest() -> None:
    assert even_shares([0, 0, 0], 1) == [1, 0, 0]
    assert even_shares([4, 3, 4], 1) == [0, 1, 0]
    assert even_shares([5, 2, 4], 6) == [1, 4, 1]
    assert even_shares([3, 3], 4) == [2, 2]
