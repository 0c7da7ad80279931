"""What attention modules ask of a kernel."""

import pytest
import torch

from tests.attention.helpers import attention, build_context, check_gradients, run, vectors
from vantage.attention import GroupedQuery, NoBias
from vantage.attention.scorer import Scorer, merge_heads
from vantage.errors import BadInput
from vantage.position import encoding
from vantage.spec.forms import GateSums, LogDistance, QueryDistances, ValueTable
from vantage.spec.masks import Causal, Window
from vantage.spec.model import Scores
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import BiasInputs, Shape, View
from vantage.spec.positions import Positions


def test_heads_are_put_side_by_side():
    x = torch.arange(8.0).view(1, 2, 2, 2)  # (B, H, T, d)
    assert merge_heads(x).tolist() == [[[0, 1, 4, 5], [2, 3, 6, 7]]]


@pytest.mark.parametrize(
    ("name", "bias", "values"),
    [("kerple", LogDistance, type(None)), ("shaw", QueryDistances, ValueTable), ("fox", GateSums, type(None))],
)
def test_what_native_kernels_are_told_of_an_encoding(name, bias, values):
    """What its biases were made of, since they are made beforehand; but a gate is multiplied as other weights are."""
    module = attention(GroupedQuery(4, 2), 16, Causal(), parts=encoding(name).parts(causal=True))
    form = module.scorer.score_form()
    assert isinstance(form.bias, bias)
    assert isinstance(form.values, values)
    learned = [] if name == "fox" else [p for part, p in module.scorer.named_parameters() if "bias" in part]
    assert [id(p) for p in form.learned] == [id(p) for p in learned]
    assert len(learned) == {"kerple": 2, "shaw": 2, "fox": 0}[name]


def watched(config, x, **options):
    module = attention(config, x.shape[-1], **options)
    seen = []
    run(module, x, watch=lambda site, index, view, need, done: seen.append((site, index, need, done)))
    (one,) = seen
    return module, *one


def test_the_scale_is_one_over_the_root_of_the_head_width():
    _, site, index, need, _ = watched(GroupedQuery(4, head_dim=9), vectors(1, 2, 8))
    assert need.scale == 1 / 3
    assert (site, index) == ("self", 0)
    assert watched(GroupedQuery(4, scores=Scores(scale=0.5)), vectors(1, 2, 8))[3].scale == 0.5


def test_softcap_sinks_and_normaliser_reach_the_kernel():
    scores = Scores(softcap=2.0, sinks=True, normalise=Softmax(0.5))
    module, _, _, need, done = watched(GroupedQuery(4, 2, scores=scores), vectors(1, 3, 8))
    assert need.softcap == 2.0
    assert need.normalise == Softmax(0.5)
    assert need.sinks is module.scorer.sinks
    assert module.scorer.sinks.shape == (4,)
    assert need.weights  # whoever watches sees them
    assert (done.weights.sum(-1) < 1).all()
    assert watched(GroupedQuery(4), vectors(1, 3, 8))[0].scorer.sinks is None


def test_sinks_start_at_0():
    module = GroupedQuery(4, scores=Scores(sinks=True)).build(8, build_context())
    assert module.scorer.sinks.tolist() == [0.0] * 4


def test_hard_attention_copies_one_value():
    module, _, _, _, done = watched(GroupedQuery(2, scores=Scores(normalise=Argmax())), vectors(1, 5, 8))
    assert set(done.weights.unique().tolist()) == {0.0, 1.0}
    assert (done.weights.sum(-1) == 1).all()
    assert isinstance(module.scorer.bias, NoBias)


def test_dropout_acts_in_training_only():
    module, x = attention(GroupedQuery(2, scores=Scores(dropout=0.5)), 8), vectors(1, 6, 8)
    with torch.no_grad():
        assert torch.equal(run(module, x), run(module, x))
        module.train()
        torch.manual_seed(0)
        assert not torch.allclose(run(module, x), run(module, x))
    still = attention(GroupedQuery(2), 8).train()
    assert torch.equal(run(still, x), run(still, x))


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ({"softcap": 0.0}, "softcap=0.0: use a positive number, or None"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"dropout": 1.0}, "dropout=1.0: use a share from 0 up to, not including, 1"),
        ({"dropout": -0.1}, "dropout=-0.1"),
    ],
)
def test_scores_that_cannot_be(scores, says):
    with pytest.raises(BadInput, match=says):
        Scores(**scores)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_cannot_be(temperature):
    with pytest.raises(BadInput, match=rf"temperature={temperature}: use a positive number, or Argmax\(\)"):
        Softmax(temperature)


def test_a_need_carries_everything_a_layer_was_built_with():
    class Bias:
        def at(self, inputs):
            self.inputs = inputs
            return "a bias"

    given = build_context(Causal() & Window(3))
    given.bias = bias = Bias()
    given.value_bias = "a value bias"
    scorer = Scorer(Scores(softcap=2.0), Shape(8, 4, 2, 4, 3, 4), given)
    q_pos, k_pos = Positions.arange(1, 2), Positions.arange(1, 5)
    q_raw, q, k = vectors(1, 4, 2, 4), vectors(1, 4, 2, 4, seed=1), vectors(1, 2, 5, 4)
    x, own, kept = vectors(1, 2, 8), (vectors(1, 1, 2, 1),), (vectors(1, 1, 5, 1),)
    need = scorer.need(q_raw, q, View(k, k, k_pos, kept, own), q_pos, x)
    assert bias.inputs == BiasInputs(q_raw, q, k, q_pos, k_pos, 0.5, x, kept, own, 2.0)
    assert need.bias == "a bias"
    assert need.value_bias == "a value bias"
    assert need.mask == Causal() & Window(3)
    assert need.scale == 0.5
    assert not need.weights
    assert not need.lse
    assert NoBias().at(BiasInputs(q_raw, q, k, q_pos, k_pos, 0.5)) is None


@pytest.mark.parametrize(
    "scores", [Scores(sinks=True), Scores(softcap=1.5), Scores(normalise=Softmax(0.5)), Scores(sinks=True, softcap=2.0)]
)
def test_gradcheck_of_scores(scores):
    module = attention(GroupedQuery(2, 1, scores=scores), 4)
    check_gradients(module, run, vectors(1, 3, 4))
