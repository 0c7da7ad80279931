"""What the trigonometric encodings share."""

import math

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.position.helpers import unread
from vantage.errors import BadInput
from vantage.position import angles
from vantage.spec.positions import Known, Positions


def test_angles_are_precise_wherever_the_device_can():
    assert angles.precise(torch.device("cpu")) == torch.float64
    assert angles.precise(torch.device("cuda")) == torch.float64
    assert angles.precise(torch.device("mps")) == torch.float32


def test_half_precision_is_widened_and_float64_kept():
    assert angles.wide(torch.bfloat16) == torch.float32
    assert angles.wide(torch.float16) == torch.float32
    assert angles.wide(torch.float64) == torch.float64


@pytest.mark.parametrize("dim", [2, 5, 8])
def test_frequencies(dim):
    got = angles.frequencies(dim, 100.0)
    want = [1 / 100.0 ** (2 * k / dim) for k in range(math.ceil(dim / 2))]
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx(want, rel=1e-14)
    assert angles.frequencies(dim, 100.0, "meta").device.type == "meta"


def test_one_row_stands_for_all_where_they_are_known_to_be_the_same():
    same, unequal = Positions.arange(3, 4), Positions.rows([4, 2, 3])
    assert angles.rows(same).shape == (1, 4)
    assert angles.rows(unequal).shape == (3, 4)


def test_highest_position():
    assert angles.highest(Positions.rows([2, 4], starts=[1, 5])) == 8
    assert angles.highest(unread(torch.tensor([[0, 1]]))) is None
    assert angles.highest(Positions.rows([0, 0], width=3)) == -1
    assert angles.highest(unread(torch.empty(1, 0))) == -1
    some = Positions(torch.zeros(2, 1), torch.zeros(2, 1), known=Known(counts=(0, 1)))
    assert angles.highest(some) is None


def test_bound_comes_from_what_is_known_then_from_the_declared_length():
    pos = Positions.arange(1, 4)
    assert angles.bound(pos, "x") == 3
    assert angles.bound(pos.declare(10), "x") == 3
    assert angles.bound(unread(pos.pos).declare(10), "x") == 9
    with pytest.raises(BadInput, match=r"flux must know the highest position.*bounds="):
        angles.bound(unread(pos.pos), "flux")
    assert angles.bound(Positions.rows([0], width=2), "x") == -1


def test_what_no_position_exceeds_is_enough_where_it_fits():
    masked = Positions.from_mask(torch.ones(2, 4, dtype=torch.bool, device="meta"))
    assert masked.known.limit == 3
    assert angles.at_most(masked, "x", 3) == 3
    with pytest.raises(BadInput, match="flux must know the highest position"):
        angles.at_most(masked, "flux", 2)
    assert angles.at_most(masked.declare(9), "x", 2) == 8
    read = Positions.from_mask(torch.tensor([[1, 1, 0, 0]]))
    assert (read.known.limit, angles.at_most(read, "x", 0)) == (None, 1)
    assert Positions.from_mask(masked.filled, torch.tensor([5, 6], device="meta")).known.limit is None


def test_pairs_need_an_even_width():
    angles.need_even(2, "x")
    for dim in (0, 1, 7):
        with pytest.raises(BadInput, match=f"flux works on pairs of dimensions, got {dim}"):
            angles.need_even(dim, "flux")


def test_fractions_are_refused_where_there_is_a_table():
    order = torch.arange(2)
    angles.need_whole(Positions.of(order), "x")
    with pytest.raises(BadInput, match="flux has entries for whole positions only"):
        angles.need_whole(Positions.of(order / 2, order=order), "flux")


@pytest.mark.parametrize("shape", [(3,), (1, 1, 2, 32), (1, 1, 16, 32), (2, 1, 5, 37), (1, 1, 64, 32), (1, 1, 65, 32)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_angles_have_the_bits_of_many(shape: tuple[int, ...], dtype: torch.dtype):
    angle = torch.rand(shape, dtype=dtype) * 5000
    cos, sin = angles.cos_sin(angle)
    assert torch.equal(cos, angle.cos())
    assert torch.equal(sin, angle.sin())
    assert cos.shape == sin.shape == angle.shape


@pytest.mark.parametrize(
    ("number", "pieces"),
    [(64, [64]), (65, [64, 1]), (512, [64] * 8), (2048, [64] * 32), (2049, [2049])],
)
def test_few_angles_are_not_shared_out(number: int, pieces: list[int]):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as record:
        angles.cos_sin(torch.rand(1, 1, number))
    events = record.events()
    for name in ("aten::cos", "aten::sin"):
        assert [torch.Size(event.input_shapes[0]).numel() for event in events if event.name == name] == pieces
    assert any(event.name == "aten::cat" for event in events) == (len(pieces) > 1)
