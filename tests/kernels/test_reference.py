"""The reference kernel's pieces: the grouped product, the normaliser, and its gradients."""

import pytest
import torch
from torch.autograd import gradcheck

from tests.kernels.helpers import F64, call, normal
from tests.kernels.test_equal import SEES, blind
from vantage.kernels import kernel_named
from vantage.kernels.reference import grouped_matmul, normalise
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import Dense

INF = float("inf")


def scores(*rows):
    return torch.tensor(rows, dtype=F64)[None, None]


def test_grouped_matmul_is_a_product_per_head():
    a, b = normal(2, 6, 3, 4, seed=0), normal(2, 2, 4, 5, seed=1)
    torch.testing.assert_close(grouped_matmul(a, b), a @ b.repeat_interleave(3, 1))


def test_softmax_and_its_lse():
    weights, lse = normalise(scores([0.0, 1.0, 3.0], [5.0, -INF, 5.0]), None, Softmax())
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([0.0, 1.0, 3.0], dtype=F64).softmax(0))
    assert weights[0, 0, 1].tolist() == [0.5, 0.0, 0.5]
    torch.testing.assert_close(lse[0, 0, 0], torch.tensor([0.0, 1.0, 3.0], dtype=F64).logsumexp(0))
    assert lse.shape == (1, 1, 2)


def test_large_scores_do_not_overflow():
    weights, lse = normalise(scores([1e30, 1e30 - 1e20, -1e30]).float(), None, Softmax())
    assert weights.isfinite().all()
    assert float(weights.sum()) == 1
    assert lse.isfinite().all()


def test_a_sink_takes_weight_and_gives_nothing():
    weights, lse = normalise(scores([1.0, 2.0]), torch.tensor([3.0], dtype=F64), Softmax())
    with_sink = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    torch.testing.assert_close(weights[0, 0, 0], with_sink.softmax(0)[:2])
    torch.testing.assert_close(lse[0, 0, 0], with_sink.logsumexp(0))


def test_a_sink_far_above_or_below_the_scores():
    weights, _ = normalise(scores([1.0, 2.0]).float(), torch.tensor([500.0]), Softmax())
    assert (weights == 0).all()
    weights, _ = normalise(scores([1.0, 1.0]).float(), torch.tensor([-500.0]), Softmax())
    assert weights.flatten().tolist() == [0.5, 0.5]


def test_temperature_divides_scores_and_sinks():
    weights, lse = normalise(scores([1.0, 2.0]), torch.tensor([3.0], dtype=F64), Softmax(0.5))
    with_sink = torch.tensor([2.0, 4.0, 6.0], dtype=F64)
    torch.testing.assert_close(weights[0, 0, 0], with_sink.softmax(0)[:2])
    torch.testing.assert_close(lse[0, 0, 0], with_sink.logsumexp(0))


def test_each_head_has_its_own_sink():
    both_heads = torch.zeros(1, 2, 1, 1, dtype=F64)
    weights, _ = normalise(both_heads, torch.tensor([0.0, 1.0], dtype=F64).log(), Softmax())
    assert weights.flatten().tolist() == pytest.approx([1.0, 0.5])


def test_argmax_shares_among_equals():
    weights, lse = normalise(scores([1.0, 4.0, 4.0], [4.0, 1.0, -INF], [-INF, -INF, -INF]), None, Argmax())
    assert weights[0, 0].tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert lse[0, 0, :2].tolist() == [4.0, 4.0]


def test_argmax_and_a_higher_sink_see_nothing():
    weights, _ = normalise(scores([1.0, 4.0]), torch.tensor([5.0], dtype=F64), Argmax())
    assert weights.flatten().tolist() == [0.0, 0.0]
    weights, _ = normalise(scores([1.0, 4.0]), torch.tensor([3.0], dtype=F64), Argmax())
    assert weights.flatten().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "need",
    [
        {},
        {"softcap": 1.5},
        {"normalise": Softmax(0.5)},
        {"softcap": 1.5, "normalise": Softmax(2.0), "sinks": True, "bias": True},
    ],
)
def test_gradcheck(masked, need):
    c = blind() if masked else call(1, 1, 2, 2, 3, 2, 2)
    B, H, T, S = c.q.shape[0], c.q.shape[1], c.q.shape[2], c.view.k.shape[2]
    fixed = {k: v for k, v in need.items() if k not in ("sinks", "bias")}
    leaves = [c.q, c.view.k, c.view.v, normal(H, seed=4), normal(B, H, T, S, seed=5)]
    leaves = [t.clone().requires_grad_() for t in leaves]

    def run(q, k, v, sinks, bias):
        extra = {"sinks": sinks} if need.get("sinks") else {}
        extra |= {"bias": Dense(bias)} if need.get("bias") else {}
        c.q, c.view = q, c.view._replace(k=k, v=v)
        got = c.run(kernel_named("reference"), weights=True, lse=True, **fixed, **extra)
        lse = got.lse.transpose(1, 2)[SEES] if masked else got.lse
        return got.out, got.weights, lse

    used = leaves if need.get("sinks") else leaves[:3]
    rest = [] if need.get("sinks") else [t.detach() for t in leaves[3:]]
    assert gradcheck(lambda *xs: run(*xs, *rest), used)


def test_hard_attention_has_gradients_for_values_alone():
    c = call(1, 1, 1, 2, 3, 2, 2)
    leaves = [t.requires_grad_() for t in (c.q, c.view.k, c.view.v)]
    c.run(kernel_named("reference"), normalise=Argmax()).out.sum().backward()
    assert c.view.v.grad is not None
    assert (c.view.v.grad != 0).any()
    assert all(t.grad is None or (t.grad == 0).all() for t in leaves[:2])
