"""MPT's clip: queries, keys and values are cut off at a size."""

import pytest
import torch

from tests.attention.helpers import Listing, attention, check_gradients, run, vectors
from vantage.attention import GroupedQuery
from vantage.errors import Refused
from vantage.spec.positions import Positions

CLIPPED = GroupedQuery(2, 1, head_dim=3, bias=True, clip=0.4)


@torch.no_grad()
def test_what_is_projected_is_cut_off():
    clipped, plain = attention(CLIPPED, 4), attention(GroupedQuery(2, 1, head_dim=3, bias=True), 4)
    x = vectors(2, 5, 4)
    for got, free in zip(clipped.project(x), plain.project(x), strict=True):
        assert float(free.abs().max()) > 0.4
        torch.testing.assert_close(got, free.clamp(-0.4, 0.4))


@torch.no_grad()
def test_cached_is_uncached():
    module, x, cache = attention(CLIPPED, 4), vectors(2, 6, 4), Listing()
    pieces = [
        run(module, x[:, a:b], pos=Positions.arange(2, b - a, a), caches=[cache]) for a, b in ((0, 3), (3, 4), (4, 6))
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), run(module, x))


def test_gradcheck():
    check_gradients(attention(CLIPPED, 4), lambda m, x: run(m, x), vectors(1, 4, 4))


def test_cross_attention_refuses_it():
    with pytest.raises(Refused, match="clip is for self-attention only"):
        attention(CLIPPED, 4, cross=True)
