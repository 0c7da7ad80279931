"""The frequency rules against transformers, and P9."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.position.helpers import F64
from vantage.errors import BadInput
from vantage.position.scaling import Default, DynamicNTK, Linear, Llama3, LongRope, Proportional, YaRN
from vantage.spec.registry import Fit, parameters

DIM = 32
SHORT = tuple(1 + 0.05 * k for k in range(DIM // 2))
LONG = tuple(1 + 0.4 * k for k in range(DIM // 2))


def theirs(kind: str, length: int | None = None, *, theta=10000.0, positions=4096, dim=DIM, **options):
    """transformers' frequencies for a head of the same width."""
    given = {"rope_type": kind, "rope_theta": theta, **options}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=positions,
        rope_parameters=given,
    )
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)


def check(rule, oracle, *, length=None, base=10000.0, dim=DIM):
    freq, factor = rule.frequencies(dim, base, length)
    assert freq.dtype == F64
    torch.testing.assert_close(freq.float(), oracle[0], rtol=2e-6, atol=0)
    assert factor == pytest.approx(oracle[1], rel=1e-12)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_default(theta):
    check(Default(), theirs("default", theta=theta), base=theta)


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_linear(factor):
    check(Linear(factor), theirs("linear", factor=factor))


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("length", [None, 100, 4095, 4096, 4097, 5000, 16384])
def test_dynamic_ntk(factor, length):
    check(DynamicNTK(factor, 4096), theirs("dynamic", length, factor=factor), length=length)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"truncate": False},
        {"beta_fast": 8.0, "beta_slow": 2.0},
        {"attention_factor": 1.7},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"mscale": 0.7},
        {"mscale_all_dim": 1.3},
    ],
)
@pytest.mark.parametrize(("factor", "original", "theta", "dim"), [(4.0, 1024, 10000.0, 64), (40.0, 4096, 1e6, 32)])
def test_yarn(options, factor, original, theta, dim):
    oracle = theirs(
        "yarn", theta=theta, dim=dim, factor=factor, original_max_position_embeddings=original, positions=99, **options
    )
    check(YaRN(factor, original, **options), oracle, base=theta, dim=dim)


@pytest.mark.parametrize(
    ("original", "theta", "dim", "truncate"),
    [(4, 10000.0, 16, True), (10**7, 100.0, 8, True), (7, 10000.0, 16, False), (235, 5.0, 8, True)],
)
def test_yarn_at_the_ends_of_its_ramp(original, theta, dim, truncate):
    """Where the ramp would begin before the first pair, end after the last, or have no width."""
    options = {"factor": 8.0, "original_max_position_embeddings": original, "truncate": truncate}
    check(YaRN(8.0, original, truncate=truncate), theirs("yarn", theta=theta, dim=dim, **options), base=theta, dim=dim)


def test_yarn_by_its_meaning():
    """Fast pairs keep their frequency, slow ones are divided, and the factor is the paper's 0.1·ln s + 1."""
    freq, factor = YaRN(16.0, 4096).frequencies(128, 10000.0, None)
    plain = Default().frequencies(128, 10000.0, None)[0]
    turns = 4096 * plain / (2 * math.pi)
    torch.testing.assert_close(freq[turns > 40], plain[turns > 40])
    torch.testing.assert_close(freq[turns < 0.9], plain[turns < 0.9] / 16)
    between = (turns > 1.3) & (turns < 28)
    assert ((freq < plain) & (freq > plain / 16))[between].all()
    assert factor == pytest.approx(0.1 * math.log(16) + 1)
    assert YaRN(1.0, 4096).frequencies(128, 10000.0, None)[1] == 1.0


@pytest.mark.parametrize("length", [None, 4095, 4096, 4097, 9999])
@pytest.mark.parametrize(
    "options", [{"factor": 8.0}, {"factor": 1.5}, {"factor": 1.0}, {"factor": 0.5}, {"attention_factor": 1.3}]
)
def test_longrope(length, options):
    oracle = theirs(
        "longrope",
        length,
        short_factor=list(SHORT),
        long_factor=list(LONG),
        original_max_position_embeddings=4096,
        positions=8 * 4096,
        **options,
    )
    check(LongRope(SHORT, LONG, 4096, **options), oracle, length=length)


def test_longrope_takes_lists_and_stays_hashable():
    rule = LongRope(list(SHORT), list(LONG), 4096, factor=8.0)  # pyright: ignore[reportArgumentType]
    assert rule == LongRope(SHORT, LONG, 4096, factor=8.0)
    assert hash(rule) == hash(LongRope(SHORT, LONG, 4096, factor=8.0))


@pytest.mark.parametrize(("factor", "low", "high", "original"), [(8.0, 1.0, 4.0, 8192), (32.0, 1.5, 6.0, 1024)])
def test_llama3(factor, low, high, original):
    oracle = theirs(
        "llama3",
        theta=500000.0,
        dim=128,
        positions=131072,
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )
    check(Llama3(factor, low, high, original), oracle, base=500000.0, dim=128)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_proportional(share, factor):
    oracle = theirs("proportional", theta=1e6, partial_rotary_factor=share, factor=factor)
    check(Proportional(share, factor), oracle, base=1e6)
    assert (oracle[0] != 0).sum() == int(share * DIM // 2)


def test_P9_interpolation_brings_far_positions_back_into_range():
    near, far = torch.arange(8, dtype=F64), torch.arange(0, 32, 4, dtype=F64)
    plain, scaled = (rule.frequencies(16, 10000.0, None)[0] for rule in (Default(), Linear(4.0)))
    torch.testing.assert_close(near[:, None] * plain, far[:, None] * scaled)


def test_P9_dynamic_ntk_slows_the_slow_pairs_and_hardly_the_fast_ones():
    plain = Default().frequencies(64, 10000.0, None)[0]
    ratio = DynamicNTK(1.0, 1000).frequencies(64, 10000.0, 4000)[0] / plain
    assert ratio[0].item() == pytest.approx(1.0)
    assert ratio[-1].item() == pytest.approx(1 / 4)  # the slowest pair is interpolated by just the growth


@pytest.mark.parametrize(
    ("rule", "original"),
    [
        (Default(), None),
        (Linear(2.0), None),
        (Proportional(0.5), None),
        (YaRN(2.0, 100), None),
        (Llama3(8.0, 1.0, 4.0, 100), None),
        (DynamicNTK(2.0, 100), 100),
        (LongRope((1.0,), (2.0,), 100, factor=2.0), 100),
    ],
)
def test_who_depends_on_the_length(rule, original):
    assert rule.depends_on_length is (original is not None)
    assert rule.original_length == original
    dim = 2 if isinstance(rule, LongRope) else 8
    freq = [rule.frequencies(dim, 10000.0, n)[0] for n in (50, 100, 101, 400)]
    assert torch.equal(freq[0], freq[1])
    assert torch.equal(freq[0], freq[2]) is (original is None)


def test_what_a_form_says_of_longrope():
    """One divisor is asked for, of the slowest pair: the others rise to it from 1. A sharpening of 0 is the rule's."""
    fields, of_4, of_1 = parameters(LongRope), Fit(length=64, rotary_dim=8), Fit(length=64, rotary_dim=2)
    for name in ("short", "long"):
        assert fields[name].read(4.0, of_4) == (1.0, 2.0, 3.0, 4.0)
        assert fields[name].read(7.0, Fit(length=64, rotary_dim=4)) == (1.0, 7.0)
        assert fields[name].read(4.0, of_1) == (1.0,)
    assert fields["attention_factor"].read(0.0, of_4) is None
    assert fields["attention_factor"].read(1.5, of_4) == 1.5


def test_frequencies_are_made_where_they_are_wanted():
    for rule in (
        Default(),
        Linear(2.0),
        Proportional(0.5),
        YaRN(2.0, 100),
        Llama3(8.0, 1.0, 4.0, 100),
        DynamicNTK(2, 9),
    ):
        assert rule.frequencies(8, 10000.0, 5, "meta")[0].device.type == "meta"
    assert LongRope((1.0,), (2.0,), 9, factor=2.0).frequencies(2, 10000.0, 5, "meta")[0].device.type == "meta"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Linear(0.0), "factor=0.0: use a positive number"),
        (lambda: Linear(math.inf), "factor=inf: use a positive number"),
        (lambda: Proportional(0.5, 0.0), "factor=0.0: use a positive number"),
        (lambda: Proportional(1.1), "share=1.1"),
        (lambda: Proportional(-0.1), "share=-0.1"),
        (lambda: DynamicNTK(0.5, 10), "factor=0.5: use 1 or more"),
        (lambda: DynamicNTK(2.0, 0), "original=0: use 1 or more"),
        (lambda: DynamicNTK(math.inf, 10), "factor=inf: use 1 or more"),
        (lambda: YaRN(0.5, 10), "factor=0.5"),
        (lambda: YaRN(2.0, 0), "original=0"),
        (lambda: YaRN(2.0, 10, beta_fast=1, beta_slow=1), "beta_fast=1, beta_slow=1: the first must be the larger"),
        (lambda: YaRN(2.0, 10, beta_fast=1, beta_slow=0), "beta_slow=0"),
        (lambda: LongRope((1.0,), (1.0,), 10), "needs factor=.*or attention_factor="),
        (lambda: LongRope((1.0,), (1.0,), 10, factor=0.0), "factor=0.0"),
        (lambda: LongRope((1.0,), (1.0,), 0, factor=2.0), "original=0"),
        (lambda: LongRope((1.0,), (1.0,), 1, factor=2.0), "original=1: the attention factor is divided by"),
        (lambda: Llama3(0.5, 1.0, 4.0, 10), "factor=0.5"),
        (lambda: Llama3(8.0, 1.0, 4.0, 0), "original=0"),
        (lambda: Llama3(8.0, 4.0, 4.0, 10), "low_freq_factor=4.0, high_freq_factor=4.0"),
        (lambda: Llama3(8.0, 0.0, 4.0, 10), "low_freq_factor=0.0"),
        (lambda: DynamicNTK(2.0, 10).frequencies(2, 10000.0, 20), "more than one pair of dimensions"),
        (lambda: LongRope((1.0,), (1.0, 2.0), 9, factor=2.0).frequencies(4, 1e4, 5), "1 short factors for 2 pairs"),
        (lambda: LongRope((1.0, 2.0), (1.0,), 9, factor=2.0).frequencies(4, 1e4, 5), "1 long factors for 2 pairs"),
    ],
)
def test_bad_input(make, says):
    """And what lies just within is taken."""
    Linear(0.5), Proportional(1.0, 0.5), Proportional(0.0), DynamicNTK(1.0, 1), YaRN(1.0, 1, beta_fast=2, beta_slow=0.5)
    LongRope((1.0,), (1.0,), 2, factor=0.5), LongRope((1.0,), (1.0,), 1, attention_factor=1.0), Llama3(1.0, 0.5, 0.6, 1)
    with pytest.raises(BadInput, match=says):
        make()
