"""Learned absolute positions: P6."""

from dataclasses import replace

import pytest
import torch

from tests.position.helpers import F64, SHAPE, built, check_gradients, unread
from vantage.errors import BadInput
from vantage.position import Learned
from vantage.spec.parts import Parts
from vantage.spec.positions import Positions
from vantage.spec.registry import Fit, parameters


def test_P6_a_row_per_position():
    part = built(Learned(5))
    x = torch.randn(2, 3, SHAPE.width, dtype=F64)
    pos = Positions.of(torch.tensor([[0, 1, 2], [4, 3, -1]]))
    out = part(x, pos)
    torch.testing.assert_close(out[0], x[0] + part.table[:3])
    torch.testing.assert_close(out[1, :2], x[1, :2] + part.table[[4, 3]])
    assert out.isfinite().all()


def test_P6_past_the_table_is_refused_and_says_what_to_do():
    part = built(Learned(5))
    part(torch.zeros(1, 5, SHAPE.width), Positions.arange(1, 5))  # the last row is there
    with pytest.raises(
        BadInput, match=r"position 5 is past the end of a learned table of 5 rows \(0 to 4\).*max_length"
    ):
        part(torch.zeros(1, 6, SHAPE.width), Positions.arange(1, 6))


def test_P6_an_untrained_row_is_allowed():
    """The table is as long as the test, training was shorter: the row is there, only it never learned."""
    part = built(Learned(20))
    before = part.table.detach().clone()
    x = torch.zeros(1, 10, SHAPE.width, dtype=F64)
    part(x, Positions.arange(1, 10)).square().sum().backward()
    assert (part.table.grad[:10] != 0).all()
    assert (part.table.grad[10:] == 0).all()
    torch.testing.assert_close(part(x[:, :1], Positions.arange(1, 1, start=15))[0, 0], before[15])


def test_P6_a_table_can_be_told_how_to_extend():
    pos, x = Positions.arange(1, 8), torch.zeros(1, 8, SHAPE.width, dtype=F64)
    last, wrap = built(Learned(3, extend="last")), built(Learned(3, extend="wrap"))
    torch.testing.assert_close(last(x, pos)[0], last.table[[0, 1, 2, 2, 2, 2, 2, 2]])
    torch.testing.assert_close(wrap(x, pos)[0], wrap.table[[0, 1, 2, 0, 1, 2, 0, 1]])
    assert last(x, unread(pos.pos)).isfinite().all()  # no bound needed


def test_rows_in_front_are_skipped():  # OPT
    part = built(Learned(4, offset=2))
    assert part.table.shape == (6, SHAPE.width)
    out = part(torch.zeros(1, 4, SHAPE.width, dtype=F64), Positions.arange(1, 4))
    torch.testing.assert_close(out[0], part.table[2:])
    with pytest.raises(BadInput, match="position 4 is past"):
        part(torch.zeros(1, 1, SHAPE.width), Positions.arange(1, 1, start=4))


def limited(pos: torch.Tensor, limit: int) -> Positions:
    """Positions of which the host knows how wide their padding mask was."""
    blind = unread(pos)
    return replace(blind, known=replace(blind.known, limit=limit))


def test_bounds_are_known_declared_or_asked_for():
    part, x = built(Learned(5)), torch.zeros(1, 2, SHAPE.width, dtype=F64)
    pos = torch.tensor([[1, 2]])
    want = part(x, Positions.of(pos))
    torch.testing.assert_close(part(x, unread(pos).declare(5)), want)
    with pytest.raises(BadInput, match="position 5 is past"):
        part(x, unread(pos).declare(6))
    with pytest.raises(BadInput, match=r"a learned table must know the highest position.*bounds="):
        part(x, unread(pos))
    torch.testing.assert_close(part(x, limited(pos, 4)), want)
    torch.testing.assert_close(part(x, limited(pos, 5).declare(5)), want)  # perhaps none is as high
    torch.testing.assert_close(part(x, Positions.of(pos, bounds=(0, 4))), want)
    with pytest.raises(BadInput, match="position 5 is past"):
        part(x, Positions.of(pos, bounds=(0, 5)))


def test_positions_below_0_and_between_rows_are_refused():
    part, x, order = built(Learned(5)), torch.zeros(1, 2, SHAPE.width), torch.tensor([[0, 1]])
    part(x, Positions.of(torch.tensor([[0, 3]]), order=order))
    with pytest.raises(BadInput, match="position -1 has no row"):
        part(x, Positions.of(torch.tensor([[-1, 3]]), order=order))
    with pytest.raises(BadInput, match="a learned table has entries for whole positions"):
        part(x, Positions.of(torch.tensor([[0.5, 3]]), order=order))


def test_a_batch_of_nothing_but_padding_passes():
    part = built(Learned(5))
    assert part(torch.zeros(2, 3, SHAPE.width, dtype=F64), Positions.rows([0, 0], width=3)).isfinite().all()


def test_the_table_starts_small():
    torch.manual_seed(0)
    table = Learned(200).build(SHAPE).table
    assert table.std().item() == pytest.approx(0.02, rel=0.1)


def test_gradients():
    part, x = built(Learned(4)), torch.randn(1, 3, SHAPE.width, dtype=F64)
    check_gradients(part, lambda: part(x, Positions.of(torch.tensor([[3, 0, -1]]))))


def test_half_precision():
    part = built(Learned(5), dtype=torch.bfloat16)
    out = part(torch.ones(1, 5, SHAPE.width, dtype=torch.bfloat16), Positions.arange(1, 5))
    assert out.dtype == torch.bfloat16
    assert built(Learned(5))(torch.ones(1, 5, SHAPE.width), Positions.arange(1, 5)).dtype == torch.float32


def test_a_form_has_a_word_for_refusing():
    read, fit = parameters(Learned)["extend"].read, Fit(length=64, rotary_dim=8)
    assert [read(word, fit) for word in ("refuse", "last", "wrap")] == [None, "last", "wrap"]


def test_acts_on_the_input_alone():
    config = Learned(5)
    assert config.parts(causal=True) == config.parts(causal=False) == Parts(inputs=(config,))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_length": 0}, "max_length=0: a learned table needs at least 1 row"),
        ({"max_length": 1, "offset": -1}, "offset=-1"),
        ({"max_length": 1, "extend": "guess"}, "extend='guess': use one of None, 'last', 'wrap'"),
    ],
)
def test_bad_input(options, says):
    Learned(1)
    with pytest.raises(BadInput, match=says):
        Learned(**options)
