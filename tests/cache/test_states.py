"""States of constant size beside keys and values: where each row stands."""

import pytest
import torch

import vantage as vt
from tests.generation import zoo
from vantage.spec.positions import Positions


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "kivi"])
def test_a_row_without_a_token_in_a_pass_stands_where_it_stood(kind: str) -> None:
    """Its states were said to be those of no token, and were lost when the cache was saved or taken back."""
    model: vt.Model = zoo.model("states", dtype=torch.float32)
    cache = zoo.cache(model, kind, 2, length=64)
    model(zoo.tokens(4, 2), cache=cache)
    empty = torch.tensor([[4, 5], [-1, -1]])
    model(zoo.tokens(2, 2, seed=1), positions=Positions.of(empty), cache=cache)
    states = [layer.own_states for layer in cache.layers if layer.own_states is not None]
    ends = [[row[-1].end for row in kept.rows] for kept in states]
    assert ends
    assert all(end == [6, 4] for end in ends)
