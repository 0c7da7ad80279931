"""A bias that counts keys, in the fused kernel: against the reference, and in models."""

import pytest
import torch

from tests.kernels.fused_calls import (
    DEVICE,
    LARGE_COUNTS,
    MISSING,
    SMALL_COUNTS,
    TOLERANCE,
    Case,
    Inputs,
    either_side,
    errors,
    far_off,
)
from vantage.kernels import kernel_named
from vantage.kernels.fused import Fused
from vantage.model import build, decoder
from vantage.spec.forms import CountTable
from vantage.spec.masks import Causal, Everything, Prefix
from vantage.spec.parts import Dense, Need, View
from vantage.spec.positions import Positions

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")


def check(case: Case, dtype: torch.dtype, block: int | None = 16) -> None:
    """A count that lies within rounding of a whole number may have the gradient of the piece beside its own: one among
    half a million makes 0.1 % of a norm."""
    wrong = {name: e for name, e in far_off(case, dtype, block).items() if not e <= 3 * TOLERANCE[dtype]}
    either = either_side(case, dtype) if wrong else {}
    assert {name: (e, either[name]) for name, e in wrong.items() if not e <= 3 * TOLERANCE[dtype] + either[name]} == {}


@pytest.mark.slow
def test_a_count_beside_a_whole_number():
    """In this case there is one, and the reference in float32 gives its gradient one of the two values."""
    case = next(case for case in LARGE_COUNTS if case.gates == 40.0)
    inputs, reference = Inputs(case, torch.float32), kernel_named("reference")
    own = errors(case, inputs.run(reference), inputs.run(reference, torch.float64))
    either = either_side(case, torch.float32)
    assert either["q.grad"] > 1e-3
    assert own["q.grad"] < 3 * TOLERANCE[torch.float32] + either["q.grad"]
    assert max(either["out"], either["v.grad"]) < 1e-5


@pytest.mark.sampled
@pytest.mark.parametrize("case", SMALL_COUNTS, ids=str)
def test_it_is_the_reference(case):
    check(case, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", SMALL_COUNTS, ids=str)
def test_it_is_the_reference_in_half_precision(case):
    check(case, torch.float16)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("case", LARGE_COUNTS, ids=str)
def test_it_is_the_reference_on_a_gpu(case, dtype):
    check(case, dtype, block=None)


def test_sums_that_are_not_kept_are_worked_out_again(monkeypatch):
    from vantage.kernels.gpu import count_operators

    monkeypatch.setattr(count_operators, "KEPT_TILES", 2)
    check(Case("counts", T=90, S=90, width=60), torch.float32)


@pytest.mark.parametrize(
    ("kept", "parts"),
    [(60 * 9 * 8 * 4, 3), (60 * 9 * 8 * 8, 2), (60 * 9 * 8 * 2, 6), (1, 6)],
    ids=["a row", "two rows", "two heads of a row", "no fewer than share their keys"],
)
def test_counts_are_summed_part_by_part(monkeypatch, kept, parts):
    """With the same result to the bit; ``kept``: bytes that may be held at once."""
    from vantage.kernels.gpu import count_operators

    inputs = Inputs(Case("counts", B=3, G=2, T=60, S=60, d=16, width=9), torch.float32)
    whole, cut = inputs.run(Fused(16)), count_operators._parts
    found = []

    def at_most(q, k, counts):
        found.append(cut(q[..., :0], k, counts))
        return found[-1]

    monkeypatch.setattr(count_operators, "LITTLE", kept)
    monkeypatch.setattr(count_operators, "_parts", at_most)
    again = inputs.run(Fused(16))
    assert [len(found[0]), len(found)] == [parts, 1]
    assert all(torch.equal(a, b) for a, b in zip(whole.grads, again.grads, strict=True))


def test_gradients_are_equal_from_run_to_run():
    inputs = Inputs(Case("counts", B=2, T=40, S=40, width=6), torch.float32)
    once, again = inputs.run(Fused(16)), inputs.run(Fused(16))
    assert all(torch.equal(a, b) for a, b in zip(once.grads, again.grads, strict=True))


def asked(mask) -> str | None:
    q, k, v = (torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(n)).to(DEVICE) for n in range(3))
    bias = Dense(lambda cut: torch.zeros(1, 2, 20, 20), lambda: CountTable(q[..., :5], 1.0))
    view = View(k, v, Positions.arange(1, 20, device=DEVICE))
    return Fused().refuses(Need(mask, 1.0, bias=bias), q, view)


def test_it_refuses_masks_that_look_ahead():
    assert asked(Causal()) is None
    assert "does not look ahead" in (asked(Everything()) or "")
    assert "does not look ahead" in (asked(Causal() | Prefix(4)) or "")


def losses(kernel, **pass_options) -> list[torch.Tensor]:
    model = build(decoder(vocab=17, width=32, layers=2, heads=2, position="cope"), seed=0, kernel=kernel).to(DEVICE)
    for name, parameter in model.named_parameters():
        if name.endswith("bias.table"):  # zero at first, so that nothing would be seen
            torch.nn.init.normal_(parameter, generator=torch.Generator(DEVICE).manual_seed(1))
    tokens = torch.randint(17, (2, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    out = model(tokens, **pass_options)
    out.logsumexp(-1).sum().backward()
    return [out, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_a_model_learns_the_same():
    got, right = losses(Fused(16)), losses("reference")
    assert len(got) == len(right)
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-4)


def test_places_that_do_not_run_on_have_no_form():
    """Then the bias is formed as a whole, by the kernels that take one."""
    packed = Positions.packed([[12, 8], [20]])
    with pytest.raises(Exception, match="dense bias is as large as the scores"):
        losses(Fused(16), positions=packed)
    assert kernel_named("reference").refuses is not None
