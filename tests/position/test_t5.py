"""T5 buckets against transformers."""

import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from tests.position.helpers import F64, SHAPE, bias_of, built, check_gradients, only_bias, pointwise_of
from vantage.errors import BadInput
from vantage.position import T5, t5_bucket
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

CAUSAL, BOTH_WAYS = only_bias(T5().parts(causal=True)), only_bias(T5().parts(causal=False))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (64, 256), (8, 20), (4, 9), (6, 50), (128, 1000)])
def test_buckets_are_transformers(bidirectional, buckets, max_distance):
    distance = torch.arange(-3000, 3001)
    want = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    got = t5_bucket(distance, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    assert torch.equal(got, want)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_default_buckets(bidirectional):
    distance = torch.arange(-500, 501)
    want = T5Attention._relative_position_bucket(distance, bidirectional)
    assert torch.equal(t5_bucket(distance, bidirectional=bidirectional), want)


@pytest.mark.parametrize("decoder", [True, False])
def test_the_part_is_transformers_bias(decoder):
    config = T5Config(d_model=16, num_heads=4, d_kv=4, is_decoder=decoder)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    part = built(CAUSAL if decoder else BOTH_WAYS)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(part.table)
    want = theirs.compute_bias(7, 207, past_seen_tokens=200)
    got = bias_of(part, Positions.arange(1, 7, start=200), Positions.arange(1, 207))
    torch.testing.assert_close(got, want)


def test_any_number_of_buckets_and_any_reach():
    config = T5(buckets=8, max_distance=20, bidirectional=True)
    part = built(config)
    assert part.table.shape == (8, 4)
    i, j = torch.tensor([[50, 3]]), torch.tensor([[0, 70, 52, 3, -1]])
    want = part.table[t5_bucket(j[:, None] - i[..., None], bidirectional=True, buckets=8, max_distance=20)]
    got = bias_of(part, Positions.of(i), Positions.of(j))
    torch.testing.assert_close(got, want.permute(0, 3, 1, 2))


def test_direction_follows_the_attention_unless_said():
    assert CAUSAL.bidirectional is False
    assert BOTH_WAYS.bidirectional is True
    assert only_bias(T5(bidirectional=True).parts(causal=True)).bidirectional is True
    assert only_bias(T5(bidirectional=False).parts(causal=False)).bidirectional is False
    with pytest.raises(BadInput, match="T5 does not know if attention is bidirectional"):
        T5().build(SHAPE)


def test_one_table_for_all_layers_or_one_each():
    assert CAUSAL.shared is True
    assert only_bias(T5(shared=False).parts(causal=True)).shared is False
    pos, part = Positions.arange(1, 3), built(CAUSAL)
    first, second = pointwise_of(part, pos, pos), pointwise_of(part, pos, pos)
    assert first.key() == second.key()  # so that layers which share the table build the bias once
    assert first.key() != pointwise_of(built(CAUSAL), pos, pos).key()
    assert first.key() != pointwise_of(built(BOTH_WAYS), pos, pos).key()


def test_the_two_directions_do_not_share_a_lookup():
    pos, causal, both = Positions.arange(1, 5), built(CAUSAL), built(BOTH_WAYS)
    first = bias_of(both, pos, pos)
    bias_of(causal, pos, pos)
    torch.testing.assert_close(bias_of(both, pos, pos), first)
    torch.testing.assert_close(
        bias_of(causal, pos, pos), bias_of(causal, Positions.arange(1, 5), Positions.arange(1, 5))
    )


def test_gradients():
    part = built(T5(buckets=8, max_distance=20, bidirectional=True))

    def call():
        return bias_of(part, Positions.arange(1, 3, start=30), Positions.of(torch.tensor([[0, 29, 31, 60]])))

    check_gradients(part, call)


def test_the_table_starts_as_in_T5():
    torch.manual_seed(0)
    shape = Shape(width=64, heads=256, kv_heads=1, key_dim=4, value_dim=4, rotary_dim=4)
    assert CAUSAL.build(shape).table.std().item() == pytest.approx(64**-0.5, rel=0.1)


def test_half_precision():
    part = built(CAUSAL, dtype=torch.bfloat16)
    q = torch.zeros(1, 4, 3, 6, dtype=torch.bfloat16)
    pos = Positions.arange(1, 3)
    torch.testing.assert_close(bias_of(part, pos, pos, q=q, k=q)[0, :, 0, 0], part.table[0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: T5(buckets=2), "buckets=2: use an even number, 4 or more"),
        (lambda: T5(buckets=7), "buckets=7"),
        (lambda: T5(max_distance=16, bidirectional=False), "max_distance=16 leaves nothing to grow.*more than 16"),
        (lambda: T5(max_distance=8, bidirectional=True), "max_distance=8 leaves nothing to grow.*more than 8"),
        (lambda: T5(max_distance=16).parts(causal=True), "max_distance=16"),
    ],
)
def test_bad_input(make, says):
    T5(buckets=4, max_distance=9)
    T5(max_distance=17, bidirectional=False)
    T5(max_distance=9, bidirectional=True)
    with pytest.raises(BadInput, match=says):
        make()


def test_a_table_for_all_layers_is_called_so():
    assert T5().describe() == "T5 buckets, 32, one table"
    assert T5(shared=False).describe() == "T5 buckets, 32"


def test_fractions_are_refused():
    part, whole = built(CAUSAL), Positions.arange(1, 1)
    half = Positions.of(torch.tensor([[0.5]], dtype=F64), order=torch.tensor([[0]]))
    for q_pos, k_pos in ((half, whole), (whole, half)):
        with pytest.raises(BadInput, match="T5's table has entries for whole positions"):
            bias_of(part, q_pos, k_pos)
