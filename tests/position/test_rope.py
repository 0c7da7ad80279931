"""RoPE: P8, against transformers in both pairings, and with lengths that matter."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_adjacent
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_halves

import vantage as vt
from tests.position.helpers import F64, moved, positions, unread, vectors
from vantage import functional as vf
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, LengthExceeded, Refused
from vantage.kernels.native import native
from vantage.position import AxialRope, MultiAxisRope, Rope, permutation
from vantage.position.rope import Rotation, banded, in_one_launch, join, rotate, rotate_both, rotate_by, turns
from vantage.position.rope import _back_on_gpu as back_on_gpu
from vantage.position.rope import _has_triton as has_triton
from vantage.position.rope import _kernel_does as kernel_does
from vantage.position.rope import _opaque as opaque
from vantage.position.rope import _there_on_gpu as there_on_gpu
from vantage.position.rope import _Turn as Turn
from vantage.position.rope import _turned as turned
from vantage.position.rope import _turned_back as turned_back
from vantage.position.scaling import DynamicNTK, Linear, Llama3, LongRope, YaRN
from vantage.spec.abilities import LengthDependent
from vantage.spec.parts import Encoding, Parts, Shape
from vantage.spec.positions import Positions

BOTH = pytest.mark.parametrize("pairing", ["halves", "adjacent"])
DYNAMIC = Rope(scaling=DynamicNTK(2.0, 10))


def turn(x, pos, rope, *, side="query"):
    module = rope.build(Shape(32, 2, 1, x.shape[-1], x.shape[-1], x.shape[-1]))
    return getattr(module, side)(x, pos)


def scores(q, k, q_pos, k_pos, rope):
    return turn(q, q_pos, rope) @ turn(k, k_pos, rope, side="key").transpose(-1, -2)


# ---- against others


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (None, {"rope_type": "default"}),
        (Linear(3.0), {"rope_type": "linear", "factor": 3.0}),
        (YaRN(4.0, 16), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        (
            Llama3(8.0, 1.0, 4.0, 16),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        ),
    ],
)
def test_halves_are_transformers_llama(rule, theirs):
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": 500.0, **theirs},
    )
    pos = Positions.rows([7, 4], starts=[3, 30], pad="left")
    q, k = vectors(2, 2, 7, 16, 1, torch.float32), vectors(2, 1, 7, 16, 2, torch.float32)
    cos, sin = LlamaRotaryEmbedding(config)(q, pos.pos)
    want_q, want_k = apply_halves(q, k, cos, sin)
    rope = Rope(500.0, rule)
    torch.testing.assert_close(turn(q, pos, rope), want_q, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(turn(k, pos, rope, side="key"), want_k, atol=2e-6, rtol=1e-5)


def test_adjacent_is_transformers_gptj():
    pos = Positions.arange(2, 9, start=5)
    q = vectors(2, 3, 9, 16, 1)
    angle = torch.arange(5, 14, dtype=F64)[:, None] / 10000 ** (torch.arange(0, 16, 2, dtype=F64) / 16)
    want = apply_adjacent(q.transpose(1, 2), angle.sin()[None], angle.cos()[None]).transpose(1, 2)
    torch.testing.assert_close(turn(q, pos, Rope(pairing="adjacent")), want)


# ---- P8


def test_P8_complex_form():
    """Pair k of a vector at t is multiplied by e^(j t w_k)."""
    x, t = vectors(1, 2, 5, 8), torch.tensor([0, 1, 7, 100, 12345])
    w = torch.tensor([10000 ** (-2 * k / 8) for k in range(4)], dtype=F64)
    spin = torch.polar(torch.ones(5, 4, dtype=F64), t[:, None] * w)
    want = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * spin).flatten(-2)
    torch.testing.assert_close(vf.apply_rope(x, t, Rope(pairing="adjacent")), want)


@BOTH
@settings(deadline=None, max_examples=25)
@given(positions(high=3000), positions(high=3000), st.integers(-500, 5000), st.integers(0, 9))
def test_P8_shift_identity(pairing, q_pos, k_pos, by, seed):
    rope = Rope(pairing=pairing)
    q, k = vectors(2, 2, q_pos.shape[1], 8, seed), vectors(2, 2, k_pos.shape[1], 8, seed + 50)
    both = (q_pos.filled[:, None, :, None] & k_pos.filled[:, None, None, :]).expand(-1, 2, -1, -1)
    here = scores(q, k, q_pos, k_pos, rope)
    there = scores(q, k, moved(q_pos, by), moved(k_pos, by), rope)
    torch.testing.assert_close(here[both], there[both], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(F64, 0, 1e-12), (torch.float32, 1e-8, 1e-5), (torch.float16, 1e-4, 1e-2), (torch.bfloat16, 1e-3, 1e-1)],
)
def test_P8_how_far_the_shift_identity_holds(dtype, least, most):
    """The worst error of a score of unit vectors of width 64, moved by 10,000."""
    q, k = (torch.nn.functional.normalize(vectors(1, 8, 64, 64, s), dim=-1).to(dtype) for s in (1, 2))
    pos = Positions.arange(1, 64)
    exact = scores(q.double(), k.double(), pos, pos, Rope())
    far = moved(pos, 10_000)
    moved_scores = turn(q, far, Rope()).double() @ turn(k, far, Rope()).double().transpose(-1, -2)
    error = (moved_scores - exact).abs().max().item()
    assert least <= error <= most


@BOTH
@settings(deadline=None, max_examples=25)
@given(positions(high=10**6), st.integers(0, 9))
def test_P8_rotation_keeps_the_norm(pairing, pos, seed):
    x = vectors(2, 3, pos.shape[1], 8, seed)
    torch.testing.assert_close(turn(x, pos, Rope(pairing=pairing)).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("dim", [2, 4, 10])
def test_P8_the_pairings_differ_by_a_permutation_of_projection_rows(dim):
    W, x, pos = vectors(1, 1, dim, 7)[0, 0], vectors(1, 1, 6, 7, 3), Positions.arange(1, 6, start=2)
    p = permutation(dim)
    adjacent = turn(x @ W.T, pos, Rope(pairing="adjacent"))
    halves = turn(x @ W[p].T, pos, Rope(pairing="halves"))
    torch.testing.assert_close(halves, adjacent[..., p])
    back = permutation(dim, to="adjacent")
    torch.testing.assert_close(halves[..., back], adjacent)
    assert torch.equal(p[back], torch.arange(dim))
    if dim == 10:
        assert p.tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
        assert back.tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


def test_P8_erratum_the_pairings_are_not_the_same():
    x, pos = vectors(1, 1, 3, 8), Positions.arange(1, 3)
    a, h = turn(x, pos, Rope(pairing="adjacent")), turn(x, pos, Rope(pairing="halves"))
    torch.testing.assert_close(a[..., 0, :], h[..., 0, :])
    assert (a - h)[..., 1:, :].abs().max() > 0.1


@BOTH
def test_P8_erratum_a_cached_step_stands_at_its_position_and_not_at_0(pairing):
    """S3's apply_rope always starts at 0, so a single-token step is never turned at all."""
    rope, x = Rope(pairing=pairing), vectors(1, 2, 6, 8)
    whole = turn(x, Positions.arange(1, 6), rope)
    for t in range(6):
        step = x[:, :, t : t + 1]
        torch.testing.assert_close(turn(step, Positions.arange(1, 1, start=t), rope), whole[:, :, t : t + 1])
        s3 = turn(step, Positions.arange(1, 1), rope)
        torch.testing.assert_close(s3, step)
        assert t == 0 or (s3 - whole[:, :, t : t + 1]).abs().max() > 0.1


def test_P8_worked_by_hand():
    """(1, 0, 0, 0) at t = 3, base 100, d = 4: pairs turn by 3 and by 0.3."""
    e = torch.eye(4, dtype=F64)
    at3 = torch.full((4,), 3)
    c, s, c1, s1 = math.cos(3), math.sin(3), math.cos(0.3), math.sin(0.3)
    halves = [[c, 0, s, 0], [0, c1, 0, s1], [-s, 0, c, 0], [0, -s1, 0, c1]]
    adjacent = [[c, s, 0, 0], [-s, c, 0, 0], [0, 0, c1, s1], [0, 0, -s1, c1]]
    torch.testing.assert_close(vf.apply_rope(e, at3, Rope(100.0)), torch.tensor(halves, dtype=F64))
    torch.testing.assert_close(
        vf.apply_rope(e, at3, Rope(100.0, pairing="adjacent")), torch.tensor(adjacent, dtype=F64)
    )


# ---- the share that is turned, precision, sharing of tables


@BOTH
def test_only_the_first_share_is_turned(pairing):
    x, pos = vectors(1, 2, 5, 16), Positions.arange(1, 5, start=1)
    out = turn(x, pos, Rope(pairing=pairing, share=0.25))
    assert torch.equal(out[..., 4:], x[..., 4:])
    torch.testing.assert_close(out[..., :4], turn(x[..., :4], pos, Rope(pairing=pairing)))


def test_share_rounds_down_as_transformers_does():
    assert Rotation(Rope(share=0.4), 20).turned == 8
    assert Rotation(Rope(share=0.45), 19).turned == 8
    assert Rotation(Rope(), 2).turned == 2


def test_the_factor_of_a_rule_scales_both_sides():
    x, pos = vectors(1, 1, 4, 8), Positions.arange(1, 4)
    plain, sharp = Rope(scaling=Linear(1.0)), Rope(scaling=YaRN(1.0, 4, attention_factor=1.5))
    torch.testing.assert_close(turn(x, pos, sharp), 1.5 * turn(x, pos, plain))


def test_far_positions_keep_their_precision():
    x, far = torch.ones(1, 1, 1, 2), 10_000_019
    got = turn(x, Positions.of(torch.tensor([[far]])), Rope())
    assert got.dtype == torch.float32
    want = [math.cos(far) - math.sin(far), math.cos(far) + math.sin(far)]
    assert got.flatten().tolist() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, F64])
def test_the_dtype_stays(dtype):
    x, pos = vectors(2, 2, 5, 8, dtype=dtype), Positions.rows([5, 2])
    out = turn(x, pos, Rope())
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), turn(x.double(), pos, Rope()), atol=4 * torch.finfo(dtype).eps, rtol=0.02)


def test_fractional_positions_lie_between():
    x = torch.tensor([[[[1.0, 0.0]]]], dtype=F64)
    pos = Positions.of(torch.tensor([[0.5]]), order=torch.tensor([[0]]))
    assert turn(x, pos, Rope())[0, 0, 0].tolist() == pytest.approx([math.cos(0.5), math.sin(0.5)])


def test_equal_rows_share_one_table_and_unequal_rows_do_not():
    module = Rotation(Rope(), 4)
    assert module.tables(Positions.arange(3, 5), F64)[0].shape == (1, 1, 5, 4)
    assert module.tables(Positions.rows([5, 2, 3]), F64)[0].shape == (3, 1, 5, 4)
    x = vectors(3, 1, 5, 4)
    torch.testing.assert_close(
        module.query(x, Positions.arange(3, 5)), module.query(x, unread(torch.arange(5).expand(3, 5)))
    )


def test_tables_are_made_once_for_all_layers():
    pos = Positions.arange(1, 5)
    first = Rotation(Rope(), 8).tables(pos, F64)
    assert Rotation(Rope(), 8).tables(pos, F64)[0] is first[0]
    others = [
        Rotation(Rope(), 8).tables(pos, torch.float32),
        Rotation(Rope(base=500.0), 8).tables(pos, F64),
        Rotation(Rope(pairing="adjacent"), 8).tables(pos, F64),
        Rotation(Rope(scaling=Linear(2.0)), 8).tables(pos, F64),
        Rotation(Rope(), 6).tables(pos, F64),
        Rotation(Rope(), 8).tables(Positions.arange(1, 5), F64),
    ]
    assert all(t[0] is not first[0] for t in others)


def test_tables_of_steps_are_made_for_many_of_them_at_once(monkeypatch):
    made = []
    monkeypatch.setattr("vantage.position.rope.turns", lambda pos, *of: made.append(pos.tolist()) or turns(pos, *of))
    part = Rotation(Rope(), 8)
    for position in (40, 41, 63, 64, 65):
        part.tables(Positions.arange(1, 1, position), F64)
    assert made == [[list(range(32, 64))], [list(range(64, 96))]]


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
def test_on_a_processor_nothing_is_turned_by_the_operator_for_others(pairing, monkeypatch):
    def refuse(*of):
        raise AssertionError("slower here than a roll and two passes")

    monkeypatch.setattr(Turn, "apply", refuse)
    Rotation(Rope(pairing=pairing), 8).query(vectors(1, 2, 3, 8), Positions.arange(1, 3))


def test_rotate_and_join_by_hand():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    a, b = torch.tensor([10.0, 20.0]), torch.tensor([30.0, 40.0])
    assert join(a, b, "halves").tolist() == [10, 20, 30, 40]
    assert join(a, b, "adjacent").tolist() == [10, 30, 20, 40]
    ones = torch.ones(4)
    assert rotate(x, 0 * ones, ones, "halves").tolist() == [3, 4, 1, 2]
    assert rotate(x, 0 * ones, ones, "adjacent").tolist() == [2, 1, 4, 3]
    assert rotate(x, 2 * ones, 0 * ones, "halves").tolist() == [2, 4, 6, 8]


@BOTH
def test_gradients_flow_to_queries(pairing):
    x = vectors(1, 2, 3, 4).requires_grad_()
    pos = Positions.of(torch.tensor([[4, 9, -1]]))
    assert torch.autograd.gradcheck(lambda x: turn(x, pos, Rope(pairing=pairing)), (x,))


def test_empty_places_are_finite():
    assert turn(vectors(1, 1, 2, 4), Positions.of(torch.tensor([[-1, 5]])), Rope()).isfinite().all()


# ---- rules that depend on the length


@pytest.mark.parametrize("rule", [DynamicNTK(2.0, 10), LongRope((1.0, 1.5), (3.0, 4.0), 10, factor=3.0)])
def test_a_declared_length_fixes_the_frequencies(rule):
    """Chunks of a context of declared length are turned as the whole is."""
    rope, x = Rope(scaling=rule), vectors(1, 1, 20, 4)
    whole = turn(x, Positions.arange(1, 20).declare(20), rope)
    for a, b in ((0, 5), (5, 12), (12, 20)):
        chunk = Positions.arange(1, b - a, start=a).declare(20)
        torch.testing.assert_close(turn(x[:, :, a:b], chunk, rope), whole[:, :, a:b])
    longer = turn(x, Positions.arange(1, 20).declare(40), rope)
    assert torch.equal(longer, whole) is isinstance(rule, LongRope)  # LongRoPE knows only short and long


def test_without_a_declared_length_the_known_positions_count():
    x, rope = vectors(1, 1, 3, 4), DYNAMIC
    pos = torch.tensor([[4, 14, 9]])
    want = turn(x, Positions.of(pos).declare(15), rope)
    torch.testing.assert_close(turn(x, Positions.of(pos), rope), want)
    torch.testing.assert_close(turn(x, unread(pos).declare(15), rope), want)
    assert (turn(x, Positions.of(pos).declare(16), rope) - want).abs().max() > 1e-4


def test_a_length_that_nobody_knows_is_asked_for():
    x, pos = vectors(1, 1, 3, 4), unread(torch.tensor([[4, 14, 9]]))
    with pytest.raises(BadInput, match="a RoPE rule that depends on the length must know the highest position"):
        turn(x, pos, DYNAMIC)
    turn(x, pos, Rope())  # the others do not ask


def test_a_position_past_the_declared_length_is_refused():
    x = vectors(1, 1, 3, 4)
    pos = Positions.of(torch.tensor([[4, 14, 9]]))
    turn(x, pos.declare(15), DYNAMIC)
    with pytest.raises(
        LengthExceeded, match=r"position 14 lies past the declared length of 14.*declare a longer length"
    ):
        turn(x, pos.declare(14), DYNAMIC)
    turn(x, pos.declare(14), Rope(scaling=Linear(2.0)))  # the others do not mind


def test_a_batch_of_padding_passes_through_a_rule_that_depends_on_the_length():
    assert turn(vectors(1, 1, 2, 4), Positions.rows([0], width=2), DYNAMIC).isfinite().all()


def test_the_length_from_which_the_rule_changes():
    assert DYNAMIC.original_length == 10
    assert Rope().original_length is None
    assert isinstance(DYNAMIC, LengthDependent)


# ---- where it acts, bad input


def test_acts_on_queries_and_keys_alone():
    config = Rope()
    assert config.parts(causal=True) == config.parts(causal=False) == Parts(qk=(config,))
    mla = config.build(Shape(width=32, heads=2, kv_heads=2, key_dim=12, value_dim=8, rotary_dim=4))
    assert isinstance(mla, Rotation)
    assert mla.dim == 4


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Rope(pairing="quarters"), "pairing='quarters': use one of 'halves', 'adjacent'"),
        (lambda: Rope(base=0.0), "base=0.0: use a positive number"),
        (lambda: Rope(base=math.inf), "base=inf: use a positive number"),
        (lambda: Rope(share=0.0), "share=0.0"),
        (lambda: Rope(share=1.5), "share=1.5"),
        (lambda: Rotation(Rope(), 7), r"RoPE \(share 1.0 of 7\) works on pairs of dimensions, got 7"),
        (lambda: Rotation(Rope(share=0.1), 8), "got 0"),
        (lambda: permutation(5), "a pairing works on pairs of dimensions, got 5"),
        (lambda: permutation(4, to="x"), "pairing='x'"),
    ],
)
def test_bad_input(make, says):
    Rope(base=0.5, share=0.01)
    with pytest.raises(BadInput, match=says):
        make()


def test_frequencies_that_were_made_while_generating_are_ordinary_tensors():
    """They are kept for all later passes, and a compiled training step may not touch an inference tensor."""
    rotation = Rotation(Rope(), 8)
    with torch.inference_mode():
        rotation.query(vectors(1, 1, 3, 8), Positions.arange(1, 3))
    assert not any(rates.is_inference() for rates, _ in rotation._rates.values())


@BOTH
@pytest.mark.parametrize("stacked", [False, True])
def test_compiled_it_turns_and_turns_back_the_same(pairing: str, stacked: bool):
    """Compiled, halves have a backward of their own, which torch.func must see through as well."""
    cos, sin = Rotation(Rope(pairing=pairing), 6).tables(Positions.arange(1, 5), F64)
    shape = (3, 2, 1, 5, 6) if stacked else (2, 1, 5, 6)
    x, upstream = (torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(n)) for n in (0, 1))

    def turn(x: torch.Tensor) -> torch.Tensor:
        return rotate(x, cos, sin, pairing)

    run = torch.func.vmap(turn, in_dims=1, out_dims=1) if stacked else turn
    x = x.movedim(0, 1) if stacked else x
    upstream = upstream.movedim(0, 1) if stacked else upstream
    found = []
    for f in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        given = x.clone().requires_grad_()
        out = f(given)
        found.append((out.detach(), *torch.autograd.grad(out, given, upstream)))
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-15)


def test_what_a_compiler_is_told_about_our_operators_is_true():
    freq = torch.rand(3, dtype=F64)
    torch.library.opcheck(opaque, (torch.arange(10).view(2, 5), freq, 1.5, "halves", F64))
    cos, sin = turns(torch.arange(5).view(1, 5), freq, 1.0, "halves", F64)
    torch.library.opcheck(turned_back, (vectors(2, 1, 5, 6), cos, sin, "halves"))


@pytest.mark.parametrize("dims", [(1, None, None), (0, 0, None), (2, None, 1)])
def test_turning_back_under_vmap(dims: tuple[int | None, ...]):
    """Each model of a stack as if it were alone, wherever the dimension of models stands."""
    tables = turns(torch.arange(5).view(1, 5), torch.rand(3, dtype=F64), 1.0, "halves", F64)
    alone = [(vectors(2, 1, 5, 6, seed=n), *(table * (n + 1) for table in tables)) for n in range(3)]
    given = [
        alone[0][i] if dim is None else torch.stack([args[i] for args in alone], dim) for i, dim in enumerate(dims)
    ]
    wanted = [
        turned_back(*(args[i] if dim is not None else alone[0][i] for i, dim in enumerate(dims)), "halves")
        for args in alone
    ]
    got = torch.func.vmap(turned_back, in_dims=(*dims, None))(*given, "halves")
    torch.testing.assert_close(got, torch.stack(wanted), rtol=0, atol=0)


@pytest.mark.parametrize("width", [6, 4])
@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_operator_that_turns_and_its_gradient(stacked: bool, pairing: str, width: int):
    """What a GPU runs in one pass, here with the passes of a CPU: alone and for a stack of models."""
    tables = turns(torch.arange(5).view(1, 5), torch.rand(width // 2, dtype=F64), 1.0, pairing, F64)
    torch.library.opcheck(turned, (vectors(2, 1, 5, 6), *tables, pairing))
    x, upstream = (vectors(3, 2, 1, 5 * 6, seed=n).view(3, 2, 1, 5, 6) for n in (1, 2))
    outcomes = []
    for rule in (lambda x: Turn.apply(x, *tables, pairing), lambda x: by_hand(x, *tables, pairing)):
        given = x.clone().requires_grad_()
        out = torch.func.vmap(rule)(given) if stacked else torch.stack([rule(one) for one in given])
        outcomes.append((out.detach(), *torch.autograd.grad(out, given, upstream)))
    for got, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-15)


def by_hand(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Turned as far as the tables reach."""
    width = cos.shape[-1]
    return torch.cat((rotate_by(x[..., :width], cos, sin, pairing), x[..., width:]), -1)


ONE_PASS = [(64, 64), (80, 80), (24, 16), (128, 32)]  # width of a head, and of what turns


@pytest.mark.parametrize(("dim", "width"), ONE_PASS)
@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("back", [False, True])
def test_queries_and_keys_in_one_pass(back: bool, pairing: str, dim: int, width: int):
    """Over the strides that a projection or an attention hands on, with fewer keys; a row may have positions of its
    own. On a GPU, or in Triton's interpreter."""
    pytest.importorskip("triton")
    from vantage.position.gpu import rope

    on_gpu = torch.cuda.is_available()  # the interpreter cuts bfloat16 off where a GPU rounds
    device, half = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float16)
    length = 77 if on_gpu else 9
    positions = torch.arange(2 * length).view(2, length)[: 1 + (dim < 80)].to(device)
    for dtype, tolerance in ((half, 2**-8), (torch.float32, 2e-6)):
        cos, sin = turns(positions, torch.rand(width // 2, device=device), 1.0, pairing, dtype)
        x = torch.randn(2, length, 5 * dim, device=device).to(dtype)
        q, k = (part.unflatten(-1, (-1, dim)).transpose(1, 2) for part in x.split((3 * dim, 2 * dim), -1))
        for xs in ((q, k), (k, q.contiguous()), (q,)):
            got = rope.turned(xs, cos, sin, pairing, back=back)
            for one, out in zip(xs, got, strict=True):
                wide = one.double().requires_grad_()
                wanted = by_hand(wide, cos.double(), sin.double(), pairing)
                if back:
                    (wanted,) = torch.autograd.grad(wanted, wide, one.double())
                torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)


def test_nothing_to_turn():
    pytest.importorskip("triton")
    from vantage.position.gpu import rope

    cos, sin = turns(torch.arange(0).view(1, 0), torch.rand(4), 1.0, "halves", torch.float32)
    got = rope.turned((torch.empty(2, 3, 0, 8), torch.empty(2, 1, 0, 8)), cos, sin, "halves", back=False)
    assert [x.shape for x in got] == [(2, 3, 0, 8), (2, 1, 0, 8)]


@pytest.mark.parametrize("config", [vt.Rope(), vt.Rope(pairing="adjacent"), vt.Rope(share=0.5)])
def test_both_at_once_is_one_after_the_other(config):
    """Gradients as well, of both or of one alone."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rotation = config.build(Shape(32, 4, 2, 8, 8, 8)).to(device)
    at = Positions.arange(2, 7, 3, device=device)
    q, k = (torch.randn(2, n, 7, 8, device=device).requires_grad_() for n in (4, 2))
    both = rotation.query_and_key(q, k, at)
    apart = rotation.query(q, at), rotation.key(k, at)
    for got, wanted, leaf in zip(both, apart, (q, k), strict=True):
        torch.testing.assert_close(got, wanted)
        upstream = torch.randn_like(got)
        of = (torch.autograd.grad(out, leaf, upstream, retain_graph=True)[0] for out in (got, wanted))
        torch.testing.assert_close(*of)
    together = (torch.autograd.grad([x.sin().sum() for x in pair], (q, k), retain_graph=True) for pair in (both, apart))
    torch.testing.assert_close(*together)


@BOTH
def test_one_launch_for_both_and_one_back(pairing):
    """On a GPU, or in Triton's interpreter. Of a side that nothing came back for there is no gradient at all."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cos, sin = turns(torch.arange(3, 8, device=device)[None], torch.rand(4, device=device), 1.0, pairing, torch.float32)
    q, k = (torch.randn(2, n, 5, 8, device=device).requires_grad_() for n in (4, 2))
    both = rotate_both(q, k, cos, sin, pairing)
    apart = tuple(by_hand(x, cos, sin, pairing) for x in (q, k))
    torch.testing.assert_close(both, apart)
    for used in ((0,), (1,), (0, 1)):
        got, wanted = (
            torch.autograd.grad([pair[i].sin().sum() for i in used], (q, k), retain_graph=True, allow_unused=True)
            for pair in (both, apart)
        )
        assert [grad is None for grad in got] == [i not in used for i in (0, 1)]
        for i in used:
            torch.testing.assert_close(got[i], wanted[i])


@BOTH
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-14)])
def test_what_a_gpu_runs_for_the_operators(pairing, dtype, tolerance):
    """A kernel of ours, or in float64, where that would lose digits, torch's."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cos, sin = turns(torch.arange(3, 8, device=device)[None], torch.rand(4, device=device), 1.0, pairing, dtype)
    x, upstream = (torch.randn(2, 4, 5, 8, device=device, dtype=dtype) for _ in range(2))
    wanted = by_hand(x.requires_grad_(), cos, sin, pairing)
    torch.testing.assert_close(there_on_gpu(x.detach(), cos, sin, pairing), wanted, rtol=tolerance, atol=tolerance)
    (grad,) = torch.autograd.grad(wanted, x, upstream)
    torch.testing.assert_close(back_on_gpu(upstream, cos, sin, pairing), grad, rtol=tolerance, atol=tolerance)


def test_bands_behind_the_turned_share_are_none():
    assert banded(8, 4, "halves").tolist() == [0, 1, 0, 1, -1, -1, -1, -1]
    assert banded(6, 4, "adjacent").tolist() == [0, 0, 1, 1, -1, -1]


def test_operators_leave_the_rest_of_a_head_alone():
    """4 heads, 4 tokens and 4 dimensions that turn, of 6: what is left over goes by the head and by nothing else."""
    cos, sin = turns(torch.arange(4)[None], torch.rand(2), 1.0, "halves", F64)
    x = vectors(1, 4, 4, 6)
    for operator in (turned, turned_back):
        out = operator(x, cos, sin, "halves")
        assert torch.equal(out[..., 4:], x[..., 4:])
        assert not torch.equal(out[..., 1:, :4], x[..., 1:, :4])


def test_in_float64_both_at_once_lose_no_digits():
    rotation, at = Rope().build(Shape(32, 4, 2, 8, 8, 8)), Positions.arange(1, 5, 1000)
    q, k = vectors(1, 4, 5, 8), vectors(1, 2, 5, 8, 1)
    for got, x in zip(rotation.query_and_key(q, k, at), (q, k), strict=True):
        torch.testing.assert_close(got, rotation.query(x, at), rtol=1e-14, atol=1e-14)


def test_when_both_are_taken_at_once():
    """On a GPU, of one dtype, not in float64, and not under vmap. Tensors without memory say where they would be."""
    pytest.importorskip("triton")
    has_triton.cache_clear()  # asked once, and here anew
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    with FakeTensorMode():
        gpu = {dtype: torch.empty(2, 4, 3, 8, dtype=dtype, device="cuda") for dtype in (half, single, double)}
        cpu = torch.empty(2, 4, 3, 8, dtype=half)
        at_once = [(q, k) for q in gpu for k in gpu if in_one_launch(gpu[q], gpu[k])]
        assert at_once == [(half, half), (single, single)]
        assert not in_one_launch(gpu[half], cpu)
        assert not in_one_launch(cpu, gpu[half])
        assert not in_one_launch(cpu, cpu)
        assert [kernel_does(x) for x in gpu.values()] == [True, True, False]
        many = torch.empty(5, 2, 4, 3, 8, dtype=half, device="cuda")  # models
        assert not kernel_does(many)
        seen = []
        torch.vmap(lambda q: (seen.append(in_one_launch(q, q)), q)[1])(many)
    assert seen == [False]


def test_back_is_the_other_way():
    rotation, x, at = Rope(share=0.5).build(Shape(32, 4, 2, 8, 8, 8)), vectors(1, 4, 5, 8), Positions.arange(1, 5, 9)
    torch.testing.assert_close(rotation.back(rotation.turn(x, at), at), x)


def test_bands_have_the_frequencies_of_the_context():
    """Past the original length they are others; a rule that does not ask for the length needs none."""
    rotation = DYNAMIC.build(Shape(32, 4, 2, 8, 8, 8))
    near, far = Positions.arange(1, 5), Positions.arange(1, 50)
    assert torch.equal(rotation.bands(far).frequency, rotation.rates(far)[0])
    assert not torch.equal(rotation.bands(far).frequency, rotation.bands(near).frequency)
    blind = unread(torch.arange(3, device="meta")[None])
    assert len(Rope().build(Shape(32, 4, 2, 8, 8, 8)).bands(blind).frequency) == 4


def test_steps_in_any_order_are_turned_by_their_own_positions():
    """Tables of the last few positions are kept: a step elsewhere, or in a context of another length, has others."""
    shape, x = Shape(32, 4, 2, 8, 8, 8), vectors(1, 4, 1, 8)
    rotation, rule = Rope().build(shape), DYNAMIC.build(shape)
    for first in (1024, 1, 31, 32, 0):
        at = Positions.arange(1, 1, first)
        torch.testing.assert_close(rotation.query(x, at), rotation.query(x, unread(at.pos)))
    for length in (8, 64, 8):
        here, again = (Positions.arange(1, 1, 5).declare(length) for _ in range(2))  # each keeps its tables
        torch.testing.assert_close(rule.query(x, here), DYNAMIC.build(shape).query(x, again))


def test_what_it_is_called():
    assert Rope().describe() == "RoPE, base 10,000"
    assert Rope(5e5, Linear(4.0), share=0.5).describe() == "RoPE, base 500,000, Linear × 4, on 0.5 of each head"


def native_step(position: Encoding, kernel: str) -> Tensor:
    """Logits of four tokens, one and one; the axes are the position, as in text."""
    model = sharpen(vt.build(vt.decoder(vocab=9, width=64, layers=2, heads=4, kv_heads=2, position=position)))
    model.kernel = kernel
    cache = model.new_cache(1)
    with torch.inference_mode():
        return torch.cat([model(part, cache=cache) for part in torch.arange(6)[None].split([4, 1, 1], 1)], 1)


@pytest.mark.skipif(native() is None, reason="no C++ compiler here")
@pytest.mark.parametrize(
    "config",
    [
        Rope(),
        Rope(pairing="adjacent", share=0.5),
        MultiAxisRope(),
        MultiAxisRope(rope=Rope(pairing="adjacent")),
        AxialRope(base=50.0),
    ],
    ids=str,
)
def test_native_steps_turn_alike(config):
    torch.testing.assert_close(native_step(config, "native"), native_step(config, "sdpa"), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(native() is None, reason="no C++ compiler here")
def test_a_split_head_has_no_native_form():
    with pytest.raises(Refused, match="axial RoPE that splits a head has no native form"):
        native_step(AxialRope(layout="split"), "native")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_turns_queries_and_keys_in_one_pass(monkeypatch, dtype):
    from vantage.position.gpu import rope

    calls, turned = [], rope.turned
    monkeypatch.setattr(
        rope, "turned", lambda xs, *a, back: (calls.append((len(xs), back)), turned(xs, *a, back=back))[1]
    )
    model = vt.build(vt.decoder(vocab=19, width=64, layers=2, heads=4)).to("cuda", dtype)
    model(torch.arange(12, device="cuda")[None]).float().sum().backward()
    assert calls == [(2, False)] * 2 + [(2, True)] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_turning_back_more_rows_than_a_grid_is_high():
    cos, sin = turns(torch.arange(3).view(1, 3).cuda(), torch.rand(8, device="cuda"), 1.0, "halves", torch.bfloat16)
    grad = torch.randn(2**16, 2, 3, 16, device="cuda", dtype=torch.bfloat16)
    wanted = turned_back(*(t.double() for t in (grad, cos, sin)), "halves")
    torch.testing.assert_close(turned_back(grad, cos, sin, "halves").double(), wanted, rtol=2**-8, atol=2**-8)
