"""The kernels of whole causal rows against the float64 reference: on a GPU where there is one, else with Triton's
interpreter."""

from dataclasses import replace

import pytest
import torch

from tests.kernels.fused_calls import DEVICE, LEARNED, MISSING, TOLERANCE, Case, Inputs, error
from vantage.kernels import kernel_named
from vantage.kernels.fused import Fused
from vantage.model import build, decoder
from vantage.spec.masks import Causal, Everything, Window

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
FORMS = ["none", "slope", "log", "table"]
# with far tiles: of a logarithm they begin four blocks away
ROWS = {"none": 32, "slope": 32, "log": 96, "table": 64}
SMALL = [
    Case(form, B=2, T=ROWS[form], S=ROWS[form], first=-3, width=20, lse=form in ("slope", "table")) for form in FORMS
]
GPU = [
    Case(form, B=2, G=2, share=share, T=T, S=T, d=d, e=d, first=first, width=width, lse=T == 1024)
    for form in FORMS
    for share, T, d, first, width in ((2, 1024, 64, 0, 129), (1, 640, 128, -7, 30), (3, 64, 64, 0, 129))
]


@pytest.fixture
def ran(monkeypatch):
    """How often these kernels were launched, forward and backward."""
    from vantage.kernels.gpu import causal_operators

    counts = {"attend": 0, "attend_back": 0}
    for name in counts:
        kernels = getattr(causal_operators, name)

        def counted(*args, name=name, kernels=kernels):
            counts[name] += 1
            return kernels(*args)

        monkeypatch.setattr(causal_operators, name, counted)
    return counts


def check(case: Case, dtype: torch.dtype, block: int | None) -> None:
    inputs = Inputs(case, dtype)
    learned = case.form != "slope"
    got = inputs.run(Fused(block), learned=learned)
    right = inputs.run(kernel_named("reference"), torch.float64, learned=learned)
    names = ["q", "k", "v", *(LEARNED.get(case.form, ("bias",)) if learned else ())]
    errors = {"out": error(got.out, right.out), "lse": error(got.lse, right.lse)}
    errors |= {name: error(a, b) for name, a, b in zip(names, got.grads, right.grads, strict=True)}
    # a cubic for a logarithm; sums of a bias's gradient cancel where its terms do not
    limit = {name: TOLERANCE[dtype] * (10 if name.startswith("bias") else 1) for name in errors}
    assert {name: e for name, e in errors.items() if not e <= limit[name]} == {}


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_they_are_the_reference(case, ran):
    check(case, torch.float32, 16)
    assert ran == ({"attend": 1, "attend_back": 1} if DEVICE == "cpu" else {"attend": 0, "attend_back": 0})


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", GPU, ids=str)
def test_they_are_the_reference_on_a_gpu(case, dtype, ran):
    check(case, dtype, None)
    assert ran["attend_back"] == (case.d == 64)


@pytest.mark.parametrize(
    "case",
    [
        replace(SMALL[3], T=31, S=31),  # no whole blocks
        replace(SMALL[3], T=16),  # behind a cache
        replace(SMALL[3], mask=Causal() & Window(9)),
        replace(SMALL[0], mask=Everything()),
        replace(SMALL[0], softcap=2.0),
        replace(SMALL[0], sinks="head"),
        replace(SMALL[0], places="padded"),
        replace(SMALL[2], form="power"),
    ],
    ids=str,
)
def test_what_other_kernels_run(case, ran):
    Inputs(case, torch.float32).run(Fused(16))
    assert ran == {"attend": 0, "attend_back": 0}


def test_slopes_that_are_learned_are_for_other_kernels(ran):
    Inputs(SMALL[1], torch.float32).run(Fused(16))
    assert ran == {"attend": 0, "attend_back": 0}


def test_a_compiled_model_trains_with_them(ran):
    """torch's compiler gives a gradient of the log-sum-exp, zeros, where there is none."""
    width, T, block = (32, 32, 16) if DEVICE == "cpu" else (128, 128, None)
    model = build(decoder(vocab=17, width=width, layers=1, heads=2, position="t5"), seed=0, kernel=Fused(block)).to(
        DEVICE
    )
    if DEVICE == "cuda":
        model = model.to(torch.bfloat16)
    tokens = torch.randint(17, (1, T), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    grads = []
    torch._dynamo.reset()
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        run(tokens).logsumexp(-1).sum().backward()
        grads.append([p.grad for p in model.parameters()])
    torch._dynamo.reset()
    assert ran == {"attend": 2, "attend_back": 2}
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(eager, compiled)


def test_gradients_are_equal_from_run_to_run(ran):
    case, dtype, block = (SMALL[3], torch.float32, 16) if DEVICE == "cpu" else (GPU[-3], torch.bfloat16, None)
    first, second = (Inputs(case, dtype).run(Fused(block)) for _ in range(2))
    assert ran["attend_back"] == 2
    assert all(torch.equal(a, b) for a, b in zip(first.grads, second.grads, strict=True))
