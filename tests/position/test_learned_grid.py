"""A learned grid: torch's own interpolation, one image a row, gradients, and what is refused."""

import pytest
import torch
import torch.nn.functional as F

from tests.position.helpers import built
from vantage.errors import BadInput, Refused
from vantage.position import LearnedGrid
from vantage.spec.images import ImageGrid
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

SHAPE = Shape(width=3, heads=1, kv_heads=1, key_dim=4, value_dim=4, rotary_dim=4)


def stretched(table, rows, columns):
    square = table.T.unflatten(1, (5, 5))[None]
    return F.interpolate(square, (rows, columns), mode="bilinear", align_corners=True)[0].flatten(1).T


@pytest.mark.parametrize("size", [(5, 5), (2, 7), (9, 1), (1, 1), (12, 11)])
def test_it_is_torchs_interpolation(size):
    module, grid = built(LearnedGrid(5), SHAPE), ImageGrid(*size)
    x = torch.zeros(1, grid.rows * grid.columns, 3, dtype=torch.float64)
    got = module(x, Positions.of_axes(grid.axes()[:, None]))[0]
    torch.testing.assert_close(got, stretched(module.table, *size), atol=1e-12, rtol=0)


def test_each_row_is_an_image_of_its_own_size():
    module, wide, high = built(LearnedGrid(5), SHAPE), ImageGrid(2, 3), ImageGrid(3, 1)
    padded = F.pad(high.axes(), (0, 3), value=-1)
    out = module(torch.zeros(2, 6, 3, dtype=torch.float64), Positions.of_axes(torch.stack([wide.axes(), padded], 1)))
    torch.testing.assert_close(out[0], stretched(module.table, 2, 3))
    torch.testing.assert_close(out[1, :3], stretched(module.table, 3, 1))


def test_patches_that_are_merged_follow_one_another():
    rows, columns = ImageGrid(2, 4).axes(2)
    assert rows.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert columns.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_gradients_reach_every_place():
    module = built(LearnedGrid(3), SHAPE)
    module(
        torch.zeros(1, 25, 3, dtype=torch.float64), Positions.of_axes(ImageGrid(5, 5).axes()[:, None])
    ).sum().backward()
    assert bool((module.table.grad > 0).all())


def test_one_place_is_the_same_for_every_patch():
    module = built(LearnedGrid(1), SHAPE)
    got = module(torch.zeros(1, 6, 3, dtype=torch.float64), Positions.of_axes(ImageGrid(2, 3).axes()[:, None]))
    torch.testing.assert_close(got[0], module.table.expand(6, 3))


def test_each_layer_has_its_own():
    assert not LearnedGrid(3).shared


def test_refused():
    module, x = built(LearnedGrid(3), SHAPE), torch.zeros(1, 2, 3, dtype=torch.float64)
    with pytest.raises(BadInput, match="side=0"):
        LearnedGrid(0)
    with pytest.raises(BadInput, match="reads the row and the column"):
        module(x, Positions.arange(1, 2))
    zero = torch.zeros(2, 1, 2, dtype=torch.long)
    with pytest.raises(Refused, match="one image a row"):
        module(x, Positions.of_axes(zero, segment=zero[0]))
