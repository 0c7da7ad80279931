"""Experts over processes: tokens go where their experts are and come back, with gradients, as in one process."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.parallel.expert_cells import KINDS, gaps, with_experts, with_others
from tests.parallel.processes import in_processes
from vantage.errors import Refused
from vantage.model import empty_model
from vantage.parallel.experts import spread

TOLERANCE = 1e-10
QUICK = ["top", "last alone"]


def equal(processes: int, kinds: list[str]) -> None:
    answers = in_processes(processes, gaps, kinds)
    for found in answers:
        for kind, (logits, gradients, _) in zip(kinds, found, strict=True):
            assert logits < TOLERANCE, (kind, logits)
            assert gradients < TOLERANCE, (kind, gradients)
    for i, kind in enumerate(kinds):
        held = [name for found in answers for name in found[i][2]]
        every = {n for n, _ in empty_model(with_experts(kind)).named_parameters() if ".experts." in n}
        assert len(held) == len(set(held))  # nobody has what another has
        assert set(held) == every


@pytest.mark.sampled
def test_logits_and_gradients_are_those_of_one_process() -> None:
    equal(2, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_kind_of_experts_is_equal_over_processes(processes: int) -> None:
    equal(processes, list(KINDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "experts", "context", "tensor"),
    [("top", 2, 2, 1), ("grouped", 2, 1, 2), ("clamped", 2, 1, 2), ("first alone", 2, 2, 1), ("weighed", 4, 1, 1)],
)
def test_experts_go_with_tokens_and_heads_over_processes(kind: str, experts: int, context: int, tensor: int) -> None:
    for logits, gradients in in_processes(experts * context * tensor, with_others, kind, experts, context, tensor):
        assert logits < TOLERANCE
        assert gradients < TOLERANCE


def test_what_has_no_experts_or_too_few_is_refused() -> None:
    with pytest.raises(Refused, match="no layer of this model has experts"):
        spread(vt.decoder(vocab=9, width=16, layers=1, heads=2), 0, 2)
    with pytest.raises(Refused, match="layer 1: 4 experts do not divide among 3 processes"):
        spread(with_experts("top"), 0, 3)


def test_some_of_the_experts_alone_are_refused() -> None:
    own = vt.build(spread(with_experts("top"), 0, 2))
    with pytest.raises(Refused, match="nothing leads to the others"):
        own(torch.zeros(1, 3, dtype=torch.long))
