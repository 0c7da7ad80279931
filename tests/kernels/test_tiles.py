"""Attention in tiles on a CPU against the float64 reference: every form, mask and kind of place."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.fused_calls import FORMS, LARGE, MASKS, SMALL, Case, Inputs
from tests.sampling import examples
from tests.spec.helpers import pairs
from vantage.kernels import chooser, kernel_named
from vantage.kernels.native import native
from vantage.kernels.tiles import TILE, Tiles
from vantage.model import build, decoder
from vantage.position import Fire
from vantage.position.shaw import ValueDistances
from vantage.spec.forms import Slope
from vantage.spec.masks import Causal, Everything, SameSegment, Window, dense, visible
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import Attended, Dense, Need, Pointwise, Shape, View
from vantage.spec.positions import Positions

pytestmark = pytest.mark.skipif(native() is None, reason="needs a C++ compiler")


def refused(case: Case) -> bool:
    return case.places == "fractional" or case.form == "pieces" or case.values > 0


CASES = [case for case in SMALL if not refused(case)]
LIMIT = 2e-6  # of the norm, as inputs are in float32


def need_of(case: Case, inputs: Inputs) -> Need:
    return Need(
        case.mask,
        case.d**-0.5,
        softcap=case.softcap,
        bias=inputs.bias,
        sinks=inputs.sinks if case.sinks else None,
        normalise=Softmax(case.temperature),
        lse=True,
    )


@torch.no_grad()
def run(case: Case, kernel: object, dtype: torch.dtype = torch.float32, *, poison: bool = False) -> Attended:
    """``poison``: what lies in empty places is NaN."""
    inputs = Inputs(case, torch.float32, device="cpu")
    q, k, v = (x.to(dtype) for x in (inputs.q, inputs.k, inputs.v))
    if poison:
        gone = (~inputs.k_pos.filled)[:, None, :, None]
        k, v = k.masked_fill(gone, float("nan")), v.masked_fill(gone, float("nan"))
    need, view = need_of(case, inputs), View(k, v, inputs.k_pos)
    assert kernel.refuses(need, q, view) is None  # pyright: ignore[reportAttributeAccessIssue]
    return kernel(q, view, inputs.q_pos.against(inputs.k_pos), need)  # pyright: ignore[reportCallIssue]


def check(case: Case) -> None:
    got, right = run(case, Tiles(), poison=True), run(case, kernel_named("reference"), torch.float64)
    assert got.lse is not None
    assert right.lse is not None
    assert float((got.out - right.out).norm()) <= LIMIT * float(right.out.norm())
    some = right.lse.isfinite()
    assert torch.equal(got.lse.isfinite(), some)
    assert torch.allclose(got.lse[some].double(), right.lse[some], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_reference(case):
    check(case)


@pytest.mark.parametrize("case", [replace(case, T=5 * case.T, S=5 * case.S) for case in CASES[::3]], ids=str)
def test_it_is_the_reference_over_several_tiles(case):
    check(case)


@pytest.mark.sampled
@pytest.mark.parametrize("case", [case for case in LARGE if not refused(case)], ids=str)
def test_it_is_the_reference_over_many_tiles(case):
    check(case)


@pytest.mark.parametrize("size", [1, TILE - 1, TILE, TILE + 1, 2 * TILE])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "pieces"])
def test_at_the_edges_of_tiles(form, size):
    check(Case(form, T=size, S=size + 3, d=7, e=5))


@settings(max_examples=examples(120), deadline=None)
@given(mask=st.sampled_from([*MASKS.values(), *(mask & SameSegment() for mask in MASKS.values())]), places=pairs())
def test_it_sees_what_the_mask_shows(mask, places):
    q, k = places
    (B, T), (_, S), pair = q.shape, k.shape, q.against(k)
    seen = visible(mask, pair)
    view = View(torch.zeros(B, 1, S, 4), torch.eye(S).expand(B, 1, S, S), k)
    with torch.no_grad():
        weights = Tiles()(torch.zeros(B, 1, T, 4), view, pair, Need(mask, 1.0)).out[:, 0]  # equal over all that is seen
    shown = dense(seen, pair).expand(B, 1, T, S)[:, 0]
    assert torch.equal(weights > 0, shown)


def test_the_number_of_threads_changes_no_bit():
    case, results = Case("table", T=500, S=700, G=2, width=33), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(case, Tiles()))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert torch.equal(other.out, results[0].out)


def test_tensors_in_any_arrangement():
    case = Case("slope", T=90, S=90, G=2)
    inputs = Inputs(case, torch.float32, device="cpu")
    need, pair = need_of(case, inputs), inputs.q_pos.against(inputs.k_pos)
    arranged = {
        "as they come": lambda x: x,
        "packed": lambda x: x.contiguous(),
        "every other number": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
        "of a larger one": lambda x: torch.nn.functional.pad(x, (3, 5, 2, 1))[:, :, 2:-1, 3:-5],
    }
    with torch.no_grad():
        outs = [
            Tiles()(make(inputs.q), View(make(inputs.k), make(inputs.v), inputs.k_pos), pair, need).out
            for make in arranged.values()
        ]
    assert all(torch.equal(out, outs[0]) for out in outs[1:])


class Own(Pointwise):
    def __call__(self, b, h, i, q, k):
        return (q.pos - k.pos).float()


def refusal(*, dtype: torch.dtype = torch.float32, learns: bool = False, **changes) -> str | None:
    q, at = torch.randn(1, 2, 70, 16, dtype=dtype, requires_grad=learns), Positions.arange(1, 70)
    need = replace(Need(Causal(), 1.0), **changes)
    return Tiles().refuses(need, q, View(q.detach(), q.detach(), at))


def test_what_it_refuses():
    assert refusal() is None
    assert "weights" in (refusal(weights=True) or "")
    assert "softmax alone, not Argmax" in (refusal(normalise=Argmax()) or "")
    assert "dropout" in (refusal(dropout=0.1) or "")
    assert "float32, not in torch.float64" in (refusal(dtype=torch.float64) or "")
    assert "dense bias" in (refusal(bias=Dense(torch.zeros(1, 2, 70, 70))) or "")
    assert "bias Own has no form" in (refusal(bias=Own()) or "")
    assert "of a ratio of positions" in (
        refusal(bias=Fire(bidirectional=False).build(Shape(32, 2, 2, 16, 16, 16)).form()) or ""
    )
    assert "a value bias needs the weights" in (refusal(value_bias=ValueDistances(3, 16)) or "")
    assert "no backward pass" in (refusal(learns=True) or "")
    assert "no backward pass" in (refusal(bias=Slope(torch.ones(2, requires_grad=True))) or "")
    with torch.no_grad():
        assert refusal(learns=True) is None


def test_fractions_of_a_position_are_refused():
    inputs = Inputs(Case("slope", places="fractional", T=70, S=70), torch.float32, device="cpu")
    view = View(inputs.k, inputs.v, inputs.k_pos)
    assert "fractions" in (Tiles().refuses(need_of(inputs.case, inputs), inputs.q, view) or "")
    assert Tiles().refuses(replace(need_of(inputs.case, inputs), bias=None), inputs.q, view) is None


def test_distances_too_far_apart_are_computed_otherwise():
    q, at = torch.randn(1, 2, 70, 16), Positions.of(torch.arange(70)[None] * 10**7)
    need, view = Need(Causal(), 0.25, bias=Slope(torch.full((2,), 1e-7))), View(q, q, at)
    right = kernel_named("reference")(q, view, at.against(at), need).out
    assert torch.allclose(Tiles()(q, view, at.against(at), need).out, right, atol=1e-6)


@pytest.mark.parametrize("position", ["none", "rope", "alibi", "t5", "kerple", "shaw"])
def test_a_model_runs_on_it_by_itself(position):
    spec = decoder(vocab=50, width=64, layers=2, heads=4, position=position, window=40 if position == "rope" else None)
    model, tokens = build(spec, seed=1).eval(), torch.randint(50, (2, 150))
    plain = build(spec, kernel="reference", seed=1).eval()
    with torch.no_grad():
        assert torch.allclose(model(tokens), plain(tokens), atol=2e-4)
        cache = model.new_cache(2)
        pieces = [model(piece, cache=cache) for piece in tokens.split([70, 1, 64, 15], 1)]
        assert torch.allclose(torch.cat(pieces, 1), plain(tokens), atol=2e-4)


def test_which_kernel_is_chosen():
    q, at = torch.randn(1, 2, 70, 16), Positions.arange(1, 70)
    ask = Need(Causal() & Window(9), 1.0), q, View(q, q, at)
    assert chooser("auto")(*ask).name == "tiles"
    assert chooser("auto")(ask[0], q[:, :, :63], ask[2]).name == "sdpa"
    assert chooser("auto")(replace(ask[0], mask=Everything()), *ask[1:]).name == "tiles"
    assert chooser("auto")(ask[0], q.requires_grad_(), ask[2]).name == "sdpa"


@pytest.mark.sampled
def test_without_native_code_torch_runs():
    code = """
import torch
from vantage.kernels import chooser
from vantage.spec.masks import Causal
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions
q = torch.randn(1, 2, 70, 16)
print(chooser("auto")(Need(Causal(), 1.0), q, View(q, q, Positions.arange(1, 70))).name)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "VANTAGE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "sdpa"
