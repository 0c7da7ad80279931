"""Randomised positions."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.position.helpers import SHAPE, positions, unread
from vantage.errors import BadInput
from vantage.position import Alibi, CoPE, Learned, NoPE, Randomised, Rope
from vantage.spec.parts import Encoding, Parts, Sampler
from vantage.spec.positions import EMPTY, Positions


@settings(deadline=None, max_examples=40)
@given(positions(max_width=8, high=30), st.integers(8, 40), st.integers(0, 99))
def test_rows_ascend_with_order_below_high_and_empty_places_stay(pos, high, seed):
    torch.manual_seed(seed)
    drawn = Randomised(Rope(), high).draw(pos)
    assert torch.equal(drawn.order, pos.order)
    assert torch.equal(drawn.pos == EMPTY, ~pos.filled)
    for b in range(2):
        row = [(int(o), int(p)) for o, p in zip(pos.order[b], drawn.pos[b], strict=True) if o >= 0]
        row.sort()
        assert all(a[1] < c[1] for a, c in pairwise(row))
        assert all(0 <= p < high for _, p in row)


def test_every_position_is_as_likely_as_any_other():
    torch.manual_seed(0)
    drawn = Randomised(Rope(), 10).draw(Positions.arange(4000, 3))
    share = torch.bincount(drawn.pos.flatten(), minlength=10) / 4000
    torch.testing.assert_close(share, torch.full((10,), 0.3), atol=0.03, rtol=0)
    assert drawn.pos.unique(dim=0).shape[0] == 120  # every subset of 3 out of 10


def test_a_single_row_is_drawn_as_freely():
    torch.manual_seed(0)
    draws = {tuple(Randomised(Rope(), 5).draw(Positions.arange(1, 3)).pos[0].tolist()) for _ in range(200)}
    assert len(draws) == 10  # every subset of 3 out of 5


def test_a_row_as_long_as_high_is_the_only_choice():
    pos = Randomised(Rope(), 5).draw(Positions.rows([5, 5, 0], width=7, pad="left"))
    assert pos.pos.tolist() == [[-1, -1, 0, 1, 2, 3, 4]] * 2 + [[-1] * 7]


def test_every_packed_document_is_drawn_for_itself():
    torch.manual_seed(0)
    packed = Positions.packed([[2, 3, 1], [3]], width=7)
    seen = set()
    for _ in range(60):
        drawn = Randomised(Rope(), 3).draw(packed)
        assert drawn.pos[0, 2:5].tolist() == [0, 1, 2]
        assert drawn.pos[1].tolist() == [0, 1, 2, -1, -1, -1, -1]
        seen |= {tuple(drawn.pos[0, :2].tolist()), tuple(drawn.pos[0, 5:].tolist())}
    assert seen == {(0, 1), (0, 2), (1, 2), (0, -1), (1, -1), (2, -1)}
    assert drawn.segment is packed.segment
    with pytest.raises(BadInput, match="3 tokens cannot have distinct positions below 2"):
        Randomised(Rope(), 2).draw(packed)


def test_what_the_host_knows_stays_true():
    pos = Positions.rows([4, 2], starts=[3, 9]).declare(77)
    pos.once("x", lambda: 1)
    drawn = Randomised(Rope(), 50).draw(pos)
    assert drawn.known.pos == (0, 49)
    assert drawn.known.first is None
    assert drawn.known.same_rows is False
    assert (drawn.known.order, drawn.known.counts, drawn.known.empty) == ((3, 10), (4, 2), True)
    assert drawn.length == 77
    assert drawn.memo == {}
    even = Randomised(Rope(), 50).draw(Positions.arange(2, 4))
    assert even.known.first is None
    assert even.known.same_rows is False
    assert even.known.empty is False
    assert even.known.runs is False


def test_where_random_numbers_come_from_is_no_part_of_the_encoding():
    """A spec is the same after it was written down, which a generator cannot be."""
    one = Randomised(Rope(), generator=torch.Generator())
    assert one == Randomised(Rope())
    assert repr(one) == repr(Randomised(Rope()))


def test_random_numbers_come_from_torch_or_from_a_generator():
    pos = Positions.arange(2, 6)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(Randomised(Rope()).draw(pos).pos)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0][0], draws[0][1])  # rows differ
    own = [Randomised(Rope(), generator=torch.Generator().manual_seed(5)).draw(pos).pos for _ in range(2)]
    assert torch.equal(own[0], own[1])
    state = torch.get_rng_state()
    Randomised(Rope(), generator=torch.Generator()).draw(pos)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("inner", [NoPE(), Rope(), Alibi(), CoPE(), Learned(2048)])
def test_wraps_any_encoding(inner):
    config = Randomised(inner)
    parts, plain = config.parts(causal=True), inner.parts(causal=True)
    assert parts.sampler is config
    assert (parts.inputs, parts.qk, parts.bias, parts.value_bias) == (
        plain.inputs,
        plain.qk,
        plain.bias,
        plain.value_bias,
    )
    assert isinstance(config, Encoding)
    sampler: Sampler = config
    assert sampler.draw(Positions.arange(1, 3)).shape == (1, 3)


def test_causal_reaches_the_inner_encoding():
    class Spy:
        def parts(self, *, causal: bool) -> Parts:
            return Parts(inputs=(causal,))  # pyright: ignore[reportArgumentType]

    assert Randomised(Spy()).parts(causal=True).inputs == (True,)
    assert Randomised(Spy()).parts(causal=False).inputs == (False,)


def test_configs_with_equal_settings_are_equal():
    assert Randomised(Rope(), 9, torch.Generator()) == Randomised(Rope(), 9)
    assert hash(Randomised(Rope(), 9)) == hash(Randomised(Rope(), 9, torch.Generator()))


def test_bad_input():
    Randomised(Rope(), 1)
    with pytest.raises(BadInput, match="high=0"):
        Randomised(Rope(), 0)
    with pytest.raises(BadInput, match="6 tokens cannot have distinct positions below 5: raise high"):
        Randomised(Rope(), 5).draw(Positions.rows([6, 2]))
    with pytest.raises(BadInput, match="6 tokens cannot"):
        Randomised(Rope(), 5).draw(unread(torch.arange(6)[None]))
    assert Randomised(Rope(), 6).draw(unread(torch.arange(6)[None])).pos.tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(BadInput, match="randomised already: wrap the encoding once"):
        Randomised(Randomised(Rope())).parts(causal=True)


def test_a_learned_table_must_reach_as_far():
    part = Learned(10).build(SHAPE)
    drawn = Randomised(Learned(10), 11).draw(Positions.arange(1, 3))
    with pytest.raises(BadInput, match="position 10 is past"):
        part(torch.zeros(1, 3, 12), drawn)
