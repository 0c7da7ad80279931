"""What fits a memory of stated size, and what is said where nothing does."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vantage.errors import BadInput, Refused
from vantage.model.memory_plan import MemoryNeed, plan_memory, spread
from vantage.spec.memory_size import memory_size, readable


def need(layers=(10,) * 8, others=5, a_token=1, workspace=3, taken=0):
    return MemoryNeed(tuple(layers), others, lambda context: a_token * context, lambda context: workspace, taken)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("6GiB", 6 * 2**30),
        ("6 gib", 6 * 2**30),
        ("800MB", 800_000_000),
        ("1.5G", 3 * 2**29),
        ("12000", 12000),
        (77, 77),
        ("3KiB", 3072),
    ],
)
def test_sizes_as_people_write_them(text, nbytes):
    assert memory_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "much", "-3GiB", "6 potatoes", 0, -1, True, 1.5, "0GiB", None])
def test_what_is_no_size(text):
    with pytest.raises(BadInput, match="max_memory"):
        memory_size(text)


def test_readable():
    assert readable(3 * 2**29) == "1.5 GiB"
    assert readable(17) == "17 bytes"


def test_everything_stays_where_it_fits():
    plan = plan_memory(need(), 5 + 80 + 20 + 3, 20)
    assert plan.off == ()
    assert sum(plan.parts.values()) == 108


def test_as_few_layers_go_as_must():
    # 5 + 3 + 20 beside the layers; one byte too little for all of them: two buffers, so three must go to gain one
    plan = plan_memory(need(), 107, 20)
    assert len(plan.off) == 3
    assert sum(plan.parts.values()) == 98
    assert len(plan_memory(need(), 97, 20).off) == 4
    assert len(plan_memory(need(), 48, 20).off) == 8
    assert plan.off_bytes == 30


def test_layers_of_different_size_need_buffers_for_the_largest():
    plan = plan_memory(need(layers=(1, 50, 1, 50, 1, 50, 1, 50)), 5 + 3 + 20 + 100 + 4, 20)
    assert plan.largest == 50
    assert sum(plan.parts.values()) <= 132


@given(st.integers(1, 60), st.data())
def test_layers_that_go_are_spread_and_different(layers, data):
    count = data.draw(st.integers(0, layers))
    off = spread(count, layers)
    assert len(set(off)) == count
    assert all(0 <= i < layers for i in off)
    gaps = [b - a for a, b in pairwise(off)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_refusal_says_what_would_fit():
    with pytest.raises(Refused) as refused:
        plan_memory(need(a_token=1), 60, 64, smaller={"int8": 0.5, "int4": 0.1})
    text = str(refused.value)
    assert "a context of 32 tokens" in text  # 5 + 3 + 20 + 32 = 60
    assert "max_memory of 92 bytes or more (152 bytes holds all layers)" in text
    assert "int8" not in text  # 64 + 3 + 2 + 10 is still too much
    with pytest.raises(Refused) as refused:
        plan_memory(need(a_token=0), 20, 64, smaller={"int8": 0.5, "int4": 0.1})
    assert "a context of" not in str(refused.value).split("What would fit")[1]  # no context is short enough
    assert "dtype='int8'; dtype='int4'" in str(refused.value)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 400), st.integers(1, 100))
def test_a_plan_is_never_more_than_its_limit(layers, limit, context):
    of = need(layers=layers)
    try:
        plan = plan_memory(of, limit, context)
    except Refused:
        assert of.with_layers_off((), context) > limit
        assert of.with_layers_off(tuple(range(len(layers))), context) > limit or len(layers) < 3
        return
    assert sum(plan.parts.values()) == of.with_layers_off(plan.off, context) <= limit
