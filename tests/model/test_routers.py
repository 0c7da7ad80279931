"""Group-limited routing, against one token at a time and against DeepSeek's in transformers."""

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from tests.attention.helpers import F64, check_gradients, sharpen, vectors
from vantage.errors import BadInput
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.routers import GroupLimited
from vantage.model.unit import UnitRMS

WIDTH, COUNT = 6, 12


def built(config, experts=COUNT):
    return sharpen(config.build(WIDTH, experts).to(F64))


def by_hand(part, x):
    """The weights of one token as {expert: weight}."""
    c = part.config
    logits = [float(row @ x) for row in part.weight]
    scores = torch.tensor(logits, dtype=F64)
    scores = (scores.softmax(0) if c.score == "softmax" else 1 / (1 + (-scores).exp())).tolist()
    merit = [s + (0.0 if part.bias is None else float(part.bias[e])) for e, s in enumerate(scores)]
    each = len(merit) // c.groups
    groups = [range(g * each, (g + 1) * each) for g in range(c.groups)]
    groups.sort(key=lambda g: -sum(sorted((merit[e] for e in g), reverse=True)[: c.best]))
    chosen = sorted((e for g in groups[: c.kept] for e in g), key=lambda e: -merit[e])[: c.k]
    total = sum(scores[e] for e in chosen) if c.renormalise else 1.0
    return {e: scores[e] / total * c.scale for e in chosen}


ROUTERS = [
    GroupLimited(1),
    GroupLimited(5, scale=2.5),
    GroupLimited(3, 4, 2),
    GroupLimited(3, 4, 1, renormalise=True),
    GroupLimited(2, 12, 4, "sigmoid"),
    GroupLimited(4, 3, 2, "sigmoid", best=2, bias=True, renormalise=True, scale=1.7),
    GroupLimited(6, 2, 1, "sigmoid", best=3, bias=True),
]


@pytest.mark.parametrize("config", ROUTERS, ids=str)
@torch.no_grad()
def test_one_token_at_a_time(config):
    part, x = built(config), vectors(9, WIDTH)
    weights, chosen = part(x)
    assert weights.shape == chosen.shape == (9, config.k)
    for n in range(9):
        wanted = by_hand(part, x[n])
        got = dict(zip(chosen[n].tolist(), weights[n].tolist(), strict=True))
        assert got.keys() == wanted.keys()
        assert got == pytest.approx(wanted)


def test_groups_do_limit():
    """Left alone, some tokens go to more than two groups."""
    x = vectors(50, WIDTH)
    _, free = built(GroupLimited(4))(x)
    _, limited = built(GroupLimited(4, 4, 2))(x)
    groups = [len(set((row // 3).tolist())) for row in limited]
    assert max(groups) <= 2
    assert max(len(set((row // 3).tolist())) for row in free) > 2


@torch.no_grad()
def test_the_bias_steers_the_choice_and_not_the_weights():
    part, x = built(GroupLimited(2, score="sigmoid", bias=True)), vectors(7, WIDTH)
    part.bias.zero_()
    part.bias[5] = 10.0
    weights, chosen = part(x)
    assert (chosen[:, 0] == 5).all()
    torch.testing.assert_close(weights[:, 0], (x @ part.weight[5]).sigmoid())


@pytest.mark.parametrize("config", ROUTERS, ids=str)
def test_gradcheck(config):
    part = built(config)
    if part.bias is not None:
        part.bias.requires_grad_(False)
    check_gradients(part, lambda m, x: m(x)[0], vectors(3, WIDTH))


def test_no_gradient_reaches_the_bias():
    part = built(GroupLimited(4, 3, 2, "sigmoid", best=2, bias=True))
    part(vectors(3, WIDTH))[0].sum().backward()
    assert part.bias.grad is None
    assert part.weight.grad is not None


def test_half_precision_routes_in_float32():
    part, x = built(GroupLimited(2, 4, 2)).to(torch.bfloat16), vectors(20, WIDTH).to(torch.bfloat16)
    weights, chosen = part(x)
    wide, same = part.to(torch.float32)(x.float())
    assert weights.dtype == torch.bfloat16
    assert torch.equal(chosen, same)
    torch.testing.assert_close(weights, wide.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2)])
@torch.no_grad()
def test_it_is_deepseek_v2s(groups, kept):
    config = DeepseekV2Config(
        hidden_size=WIDTH,
        num_attention_heads=1,
        n_routed_experts=COUNT,
        num_experts_per_tok=3,
        n_group=groups,
        topk_group=kept,
        topk_method="greedy" if groups == 1 else "group_limited_greedy",
        routed_scaling_factor=1.7,
    )
    compare(built(GroupLimited(3, groups, kept, scale=1.7)), DeepseekV2TopkRouter(config).double())


@pytest.mark.parametrize("renormalise", [True, False])
@torch.no_grad()
def test_it_is_deepseek_v3s(renormalise):
    config = DeepseekV3Config(
        hidden_size=WIDTH,
        n_routed_experts=COUNT,
        num_local_experts=COUNT,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        norm_topk_prob=renormalise,
        routed_scaling_factor=2.5,
    )
    ours = built(GroupLimited(3, 4, 2, "sigmoid", best=2, bias=True, renormalise=renormalise, scale=2.5))
    theirs = DeepseekV3TopkRouter(config).double()
    theirs.e_score_correction_bias.copy_(ours.bias)
    compare(ours, theirs)


def compare(ours, theirs):
    theirs.weight.copy_(ours.weight)
    x = vectors(40, WIDTH)
    weights, chosen = ours(x)
    _, their_weights, their_chosen = theirs(x)
    spread = torch.zeros(40, COUNT, dtype=F64)
    wanted = spread.scatter(1, their_chosen, their_weights.double())
    torch.testing.assert_close(spread.scatter(1, chosen, weights), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: GroupLimited(1, score="tanh"), "score='tanh': use one of 'softmax', 'sigmoid'"),
        (lambda: GroupLimited(1, 2, 3), "3 of 2 groups: keep from 1 to 2"),
        (lambda: GroupLimited(1, 2, 0), "0 of 2 groups"),
        (lambda: built(GroupLimited(1, 5)), "12 experts do not divide into 5 groups"),
        (lambda: built(GroupLimited(7, 4, 2)), "k=7: 2 groups of 3 experts leave 1 to 6 to choose"),
        (lambda: built(GroupLimited(0)), "k=0"),
        (lambda: built(GroupLimited(1, 12, 2, best=2)), "best=2: a group has 1 experts"),
    ],
)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(BadInput, match=says):
        call()


# ---- what LLaMA-4 adds


def test_sigmoids_that_are_all_one_do_not_hide_the_best():
    part = Experts(FeedForward(4), 3, TopK(1, "sigmoid", renormalise=False)).build(2)
    with torch.no_grad():
        part.router.linear.weight.copy_(torch.tensor([[40.0, 0.0], [50.0, 0.0], [45.0, 0.0]]))
    weights, chosen = part.router(torch.tensor([[1.0, 0.0]]))
    assert chosen.tolist() == [[1]]
    assert weights.tolist() == [[1.0]]


def test_weights_on_the_input():
    part = sharpen(Experts(FeedForward(4), 3, TopK(1, "sigmoid", False), weigh_input=True).build(WIDTH).to(F64))
    x = vectors(1, 5, WIDTH)
    with torch.no_grad():
        weights, chosen = part.router(x[0])
        wanted = torch.stack([part.experts[int(chosen[n])](x[0, n] * weights[n]) for n in range(5)])
        torch.testing.assert_close(part(x)[0], wanted)


def test_unit_rms():
    part, x = UnitRMS(1e-3).build(WIDTH), vectors(2, 3, WIDTH)
    assert not list(part.parameters())
    torch.testing.assert_close(part(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt())
    check_gradients(part, lambda m, x: m(x), vectors(1, WIDTH))
