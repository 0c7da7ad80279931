"""The engine over processes: requests that come, go and are put back at random give what they give in one process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from tests.parallel.engine_cells import ROOMY, TIGHT, fails, gaps, pictures, told
from tests.parallel.processes import in_processes
from vantage.errors import Refused
from vantage.generation.peers import FirstProcess
from vantage.parallel.control import INLINE, LENGTH, ControlChannel

DIVISIBLE = ("plain", "window", "mixed", "latent", "ntk", "fox", "shared-keys", "encoder-decoder")


def equal(
    kind: str,
    dtype: torch.dtype,
    seeds: list[int],
    options: dict[str, Any],
    processes: int = 2,
    whole_experts: bool = False,
) -> dict[str, Any]:
    first, *others = in_processes(processes, gaps, kind, dtype, seeds, options, whole_experts)
    assert not first["wrong"], first["wrong"][:3]
    assert first["gap"] < (1e-9 if dtype == torch.float64 else 2e-3), first["gap"]
    for other in others:  # who runs, who waits and who holds which block was the same everywhere
        assert other["counted"] == first["counted"]
    return first


@pytest.mark.sampled
def test_random_arrivals_over_two_processes_give_the_answers_of_one() -> None:
    found = equal("chat", torch.float64, [1, 2, 3], TIGHT)
    assert found["preemptions"] > 0
    assert found["reused"] > 0
    assert found["failed"] > 0  # a constraint that fails costs its own request, and the group goes on


@pytest.mark.slow
@pytest.mark.parametrize("options", [TIGHT, ROOMY, {**TIGHT, "batch_invariant": True}, {**ROOMY, "cache": False}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_arrivals(dtype: torch.dtype, options: dict[str, Any]) -> None:
    equal("chat", dtype, list(range(10, 18)), options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIVISIBLE)
def test_every_kind_of_cache(kind: str) -> None:
    equal(kind, torch.float64, [4, 5], TIGHT)


@pytest.mark.slow
def test_four_processes_with_fewer_key_heads() -> None:
    equal("chat", torch.float64, [6, 7], TIGHT, processes=4)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "whole_experts"), [(2, True), (2, False), (4, True)])
def test_experts_lie_whole_on_a_process_or_by_columns(processes: int, whole_experts: bool) -> None:
    equal("experts", torch.float64, [8, 9], TIGHT, processes, whole_experts)


@pytest.mark.slow
def test_images_go_to_all() -> None:
    first, _ = in_processes(2, pictures, 3)
    assert first["got"] == first["wanted"]


@pytest.mark.slow
@pytest.mark.parametrize("where", [0, 1])
def test_a_pass_that_fails_in_one_process_is_the_end_of_the_group(where: int) -> None:
    with pytest.raises(AssertionError, match="Broken: the roof fell in"):
        in_processes(2, fails, where, limit=60)


@pytest.mark.sampled
def test_messages_of_any_length_arrive_and_are_counted() -> None:
    short, exact, long = "a step", b"x" * (INLINE - len(pickle.dumps(b""))), list(range(10**5))
    size = len(pickle.dumps(long))
    first, second = in_processes(2, told, [short, exact, long, short])
    assert first[0] == second[0] == [short, exact, long, short]
    assert first[1] == second[1] == [7, 1]
    over = max(0, len(pickle.dumps(exact)) - INLINE)  # a longer string has a longer head
    assert first[2] == 4 * (LENGTH + INLINE) + size - INLINE + over + 16
    assert second[2] == 0


def test_without_a_group_there_is_nobody_to_tell() -> None:
    with pytest.raises(Refused, match="start with torchrun"):
        FirstProcess(ControlChannel())
