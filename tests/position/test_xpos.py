"""xPos against the paper's formula, and its limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.position.helpers import F64, moved, positions, unread, vectors
from vantage.errors import BadInput
from vantage.position import Rope, XPos
from vantage.position.xpos import HEADROOM
from vantage.spec.parts import Parts, Shape
from vantage.spec.positions import Positions

BOTH = pytest.mark.parametrize("pairing", ["halves", "adjacent"])


def build(dim: int, **options):
    return XPos(**options).build(Shape(32, 2, 1, dim, dim, dim))


def brute_force(q, k, n, m, *, base=10000.0, gamma=0.4, s=512, pairing="adjacent"):
    """One score from the paper: sum over pairs of ζ^((n-m)/s) · Re(q · conj(k) · e^(j (n-m) θ))."""
    d, total = len(q), 0.0
    for pair in range(d // 2):
        a, b = (2 * pair, 2 * pair + 1) if pairing == "adjacent" else (pair, pair + d // 2)
        zeta = (2 * pair / d + gamma) / (1 + gamma)
        turned = complex(q[a], q[b]) * complex(k[a], -k[b])
        angle = (n - m) * base ** (-2 * pair / d)
        total += zeta ** ((n - m) / s) * (turned * complex(math.cos(angle), math.sin(angle))).real
    return total


@BOTH
def test_scores_are_the_papers(pairing):
    q, k = vectors(1, 1, 4, 8, 1), vectors(1, 1, 5, 8, 2)
    n, m = [0, 7, 900, 2000], [0, 3, 7, 400, 1999]
    for options in ({}, {"base": 50.0}, {"gamma": 1.5}, {"scale_base": 100}):
        part = build(8, pairing=pairing, **options)
        got = part.query(q, Positions.of(torch.tensor(n))) @ part.key(k, Positions.of(torch.tensor(m))).transpose(
            -1, -2
        )
        names = {"base": "base", "gamma": "gamma", "scale_base": "s"}
        for i in range(4):
            for j in range(5):
                given_options = {names[name]: value for name, value in options.items()}
                want = brute_force(
                    q[0, 0, i].tolist(), k[0, 0, j].tolist(), n[i], m[j], pairing=pairing, **given_options
                )
                assert got[0, 0, i, j].item() == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_factors_are_torchscales():
    """scale = (arange(0, d, 2) + 0.4 d) / 1.4 d, to the power of n / 512, on the query; its inverse on the key."""
    d, n = 8, 700
    x = torch.ones(1, 1, 1, d, dtype=F64)
    pos = Positions.of(torch.tensor([[n]]))
    scale = ((torch.arange(0, d, 2, dtype=F64) + 0.4 * d) / (1.4 * d)) ** (n / 512)
    plain = Rope(pairing="adjacent").build(Shape(32, 2, 1, d, d, d)).query(x, pos)
    twice = scale.repeat_interleave(2)
    torch.testing.assert_close(build(d).query(x, pos), plain * twice)
    torch.testing.assert_close(build(d).key(x, pos), plain / twice)


@BOTH
@settings(deadline=None, max_examples=20)
@given(positions(high=2000), positions(high=2000), st.integers(0, 3000))
def test_the_score_depends_on_the_distance_alone(pairing, q_pos, k_pos, by):
    part = build(8, pairing=pairing)
    q, k = vectors(2, 2, q_pos.shape[1], 8, 1), vectors(2, 2, k_pos.shape[1], 8, 2)
    both = (q_pos.filled[:, None, :, None] & k_pos.filled[:, None, None, :]).expand(-1, 2, -1, -1)
    here = part.query(q, q_pos) @ part.key(k, k_pos).transpose(-1, -2)
    there = part.query(q, moved(q_pos, by)) @ part.key(k, moved(k_pos, by)).transpose(-1, -2)
    torch.testing.assert_close(here[both], there[both], atol=1e-8, rtol=1e-8)


def test_looking_back_fades():
    part, x = build(8), torch.ones(1, 1, 1, 8, dtype=F64)
    size = part.query(x, Positions.of(torch.tensor([[1000]]))).norm()
    assert size < x.norm()
    assert part.key(x, Positions.of(torch.tensor([[1000]]))).norm() > x.norm()


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 36_000), (torch.bfloat16, 36_000), (torch.float16, 3_000), (F64, 290_000)]
)
def test_the_last_position_is_what_the_dtype_holds(dtype, near):
    last = XPos().last_position(dtype)
    assert near * 0.9 < last < near
    info, zeta = torch.finfo(dtype), 0.4 / 1.4
    assert HEADROOM * zeta ** (-last / 512) <= info.max
    assert zeta ** (last / 512) / HEADROOM >= info.tiny
    assert (HEADROOM * zeta ** (-(last + 1) / 512) > info.max) or (zeta ** ((last + 1) / 512) / HEADROOM < info.tiny)
    part = build(4)
    x, pos = torch.full((1, 1, 1, 4), HEADROOM).to(dtype), Positions.arange(1, 1, start=last)
    assert part.key(x, pos).isfinite().all()
    assert (part.query(1 / x, pos).abs() >= info.tiny * 0.9).any()
    for call in (part.query, part.key):
        with pytest.raises(BadInput, match=f"position {last + 1} is past {last}, the last that xPos's factors.*dtype"):
            call(x, Positions.arange(1, 1, start=last + 1))


def test_the_last_position_follows_the_constants():
    assert XPos(scale_base=1024).last_position(torch.float32) == pytest.approx(
        2 * XPos().last_position(torch.float32), abs=1
    )
    assert XPos(gamma=4.0).last_position(torch.float32) > XPos().last_position(torch.float32)


def test_bounds_are_known_declared_or_asked_for():
    part, x, pos = build(4), torch.ones(1, 1, 1, 4, dtype=torch.float16), torch.tensor([[5]])
    last = XPos().last_position(torch.float16)
    want = part.query(x, Positions.of(pos))
    assert torch.equal(part.query(x, unread(pos).declare(last + 1)), want)
    with pytest.raises(BadInput, match=f"position {last + 1} is past"):
        part.query(x, unread(pos).declare(last + 2))
    with pytest.raises(BadInput, match="xPos must know the highest position"):
        part.query(x, unread(pos))


def test_tables_are_made_once_for_each_side():
    part, pos = build(4), Positions.arange(2, 3)
    q, k = part.query_tables.tables(pos, F64), part.key_tables.tables(pos, F64)
    assert build(4).query_tables.tables(pos, F64)[0] is q[0]
    assert q[0] is not k[0]
    assert q[0].shape == (1, 1, 3, 4)
    assert build(4).query_tables.tables(pos, torch.float32)[0].dtype == torch.float32
    assert build(4, base=5.0).query_tables.tables(pos, F64)[0] is not q[0]
    assert build(6).query_tables.tables(pos, F64)[0].shape[-1] == 6


def test_half_precision_and_empty_places():
    pos = Positions.of(torch.tensor([[-1, 3]]))
    out = build(4).key(torch.ones(1, 1, 2, 4, dtype=torch.bfloat16), pos)
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_gradients_flow():
    x, pos = vectors(1, 1, 2, 4).requires_grad_(), Positions.arange(1, 2, start=300)
    assert torch.autograd.gradcheck(lambda x: build(4).key(x, pos), (x,))


def test_acts_on_queries_and_keys_alone():
    config = XPos()
    assert config.parts(causal=True) == config.parts(causal=False) == Parts(qk=(config,))
    mla = config.build(Shape(width=32, heads=2, kv_heads=2, key_dim=12, value_dim=8, rotary_dim=4))
    assert mla.query(torch.ones(1, 1, 1, 4), Positions.arange(1, 1)).shape[-1] == 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: XPos(pairing="x"), "pairing='x'"),
        (lambda: XPos(base=0.0), "base=0.0: use a positive number"),
        (lambda: XPos(gamma=0.0), "gamma=0.0"),
        (lambda: XPos(scale_base=0), "scale_base=0"),
        (lambda: build(5), "xPos works on pairs of dimensions, got 5"),
    ],
)
def test_bad_input(make, says):
    XPos(base=0.5, gamma=0.5, scale_base=0.5)
    with pytest.raises(BadInput, match=says):
        make()
