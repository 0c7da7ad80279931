"""cuDNN's own attention against the float64 reference where there is a GPU that has it; what it refuses, anywhere."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from tests.kernels.fused_calls import TOLERANCE, Case, Inputs, error
from vantage.kernels import chooser, cudnn, gpu, kernel_named
from vantage.kernels.alignment import side_by_side
from vantage.kernels.cudnn import Cudnn, cannot_run
from vantage.kernels.cudnn_operator import empty_gradients, empty_outputs, suits
from vantage.position.shaw import ValueDistances
from vantage.spec.forms import DistanceTable, Slope, alibi_slopes
from vantage.spec.masks import Causal, Chunked, Everything, Prefix, SameSegment, Window
from vantage.spec.normalisers import Argmax, Softmax
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

needs_cudnn = pytest.mark.skipif(
    not torch.cuda.is_available() or cannot_run("cuda") is not None, reason="needs a Hopper GPU and cuDNN's front end"
)
DOCUMENTS = Causal() & SameSegment()
WIDE = {"G": 2, "share": 2, "d": 128, "e": 128}
CASES = [
    Case(T=256, S=256, **WIDE),
    Case(B=2, T=333, S=333, **WIDE),
    Case(B=2, T=300, S=300, G=3, share=1, d=64, e=64),
    Case(T=200, S=200, d=96, e=64),
    Case(mask=Everything(), B=2, T=100, S=300, **WIDE),
    Case(mask=Causal() & Window(64), B=2, T=300, S=300, **WIDE),
    Case(mask=Causal() & Window(2), T=130, S=130, **WIDE),
    Case(T=100, S=300, **WIDE),  # behind a cache
    Case(mask=Causal() & Window(77), T=128, S=384, **WIDE),
    Case("slope", B=2, T=333, S=333, **WIDE),
    Case("slope", T=200, S=200, G=1, share=6, d=64, e=64),
    Case("slope", Causal() & Window(50), T=200, S=200, **WIDE),
    Case(mask=DOCUMENTS, places="documents", B=2, T=500, S=500, **WIDE),
    Case("slope", DOCUMENTS, "documents", B=3, T=401, S=401, G=2, share=1, d=64, e=64),
    Case(mask=DOCUMENTS & Window(40), places="documents", B=2, T=500, S=500, **WIDE),
    Case(mask=DOCUMENTS, places="filled by documents", B=2, T=500, S=500, **WIDE),  # gradients by a kernel of ours
    Case(mask=DOCUMENTS, places="filled by documents", B=2, T=901, S=901, G=2, share=3, d=64, e=64, temperature=1.5),
    Case(sinks="head", T=256, S=256, G=2, share=2, d=64, e=64, temperature=1.5),
]


def far_off(case: Case, dtype: torch.dtype, *, poison: bool = False) -> dict[str, float]:
    inputs = Inputs(case, dtype)
    if case.form == "slope":
        inputs.bias = Slope(torch.tensor(alibi_slopes(case.H)), alibi_slopes(case.H))
    got = inputs.run(Cudnn(), poison=poison, lse=False, learned=False)
    right = inputs.run(kernel_named("reference"), torch.float64, lse=False, learned=False)
    names = ["q", "k", "v", "sinks"]
    errors = {"out": error(got.out, right.out)}
    return errors | {f"{name}.grad": error(a, b) for name, a, b in zip(names, got.grads, right.grads, strict=False)}


@needs_cudnn
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, torch.bfloat16) for case in CASES] + [(case, torch.float16) for case in CASES[::4]],
    ids=str,
)
def test_it_is_the_reference(case, dtype):
    errors = far_off(case, dtype, poison=case.places == "documents")
    assert {name: e for name, e in errors.items() if not e <= TOLERANCE[dtype]} == {}


@needs_cudnn
@pytest.mark.parametrize("packed", [False, True])
def test_over_the_strides_that_a_projection_hands_on(packed):
    B, T, H, G, d = 2, 300, 4, 2, 64
    at = (Positions.packed([[100, 57, 143], [200, 90]], width=T) if packed else Positions.arange(B, T)).to("cuda")
    need = Need(DOCUMENTS, 0.2)
    qkv = torch.randn(B, T, (H + 2 * G) * d, device="cuda", dtype=torch.bfloat16)
    upstream = torch.randn(B, H, T, d, device="cuda", dtype=torch.bfloat16)
    runs = []
    for kernel, dtype in ((Cudnn(), torch.bfloat16), (kernel_named("reference"), torch.float64)):
        x = qkv.to(dtype).requires_grad_()
        parts = x.split((H * d, G * d, G * d), -1)
        q, k, v = (part.unflatten(-1, (-1, d)).transpose(1, 2) for part in parts)
        out = kernel(q, View(k, v, at), at.against(at), need).out
        runs.append((out.detach(), *torch.autograd.grad(out, x, upstream.to(dtype))))
    assert all(error(a, b) < TOLERANCE[torch.bfloat16] for a, b in zip(*runs, strict=True))


@needs_cudnn
@pytest.mark.parametrize("learns", [False, True])
def test_layers_that_share_a_call_read_their_own_tensors(learns):
    """What a pass has prepared is asked for once; whose tensors lie otherwise gets its own."""
    at = Positions.packed([[100, 57, 143], [200, 100]]).to("cuda")
    need, kernel, pair = Need(DOCUMENTS, 0.2), Cudnn(), at.against(at)
    inputs = [[torch.randn(2, 300, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkvg"] for _ in range(3)]
    with torch.set_grad_enabled(learns):
        for number, tensors in enumerate(inputs):
            q, k, v, upstream = (x.transpose(1, 2).contiguous() if number == 2 else x.transpose(1, 2) for x in tensors)
            q, k, v = (x.requires_grad_() for x in (q, k, v))
            out = kernel(q, View(k, v, at), pair, need).out
            wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
            right = kernel_named("reference")(wide[0], View(wide[1], wide[2], at), pair, need).out
            assert error(out.detach(), right.detach()) < TOLERANCE[torch.bfloat16]
            if learns:
                grads = (
                    torch.autograd.grad(out, (q, k, v), upstream),
                    torch.autograd.grad(right, wide, upstream.double()),
                )
                assert all(error(a, b) < TOLERANCE[torch.bfloat16] for a, b in zip(*grads, strict=True))


@needs_cudnn
@pytest.mark.parametrize("lengths", [[260, 203, 33], [3] * 40 + [376]], ids=["alike", "one is long"])
def test_memory_of_a_backward_pass_over_documents(lengths):
    """Where all documents as long as the longest would take much more than the tokens, cuDNN is told their number. An
    empty place keeps a kernel of ours away."""
    from vantage.kernels.gpu import cudnn_graphs

    H, d, tokens = 4, 128, sum(lengths) + 1
    at = Positions.packed([lengths], width=tokens).to("cuda")
    q, k, v, upstream = (torch.randn(1, H, tokens, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    runs = []
    cudnn_graphs._plans.clear()
    for kernel, dtype in ((Cudnn(), torch.bfloat16), (kernel_named("reference"), torch.float64)):
        x = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = kernel(x[0], View(x[1], x[2], at), at.against(at), Need(DOCUMENTS, 0.1)).out
        runs.append((out.detach(), *torch.autograd.grad(out, x, upstream.to(dtype))))
    assert all(error(a, b) < TOLERANCE[torch.bfloat16] for a, b in zip(*runs, strict=True))
    most = max(plan.workspace for plan in cudnn_graphs._plans.values())
    assert tokens * H * d * 4 <= most < 2 * cudnn_graphs.MAX_PADDING * tokens * H * d * 4


@needs_cudnn
def test_queries_that_are_not_the_last_keys_go_to_the_fused_kernel(monkeypatch):
    """Only the call knows where queries stand."""
    kernel, calls = Cudnn(), []
    monkeypatch.setattr(kernel, "elsewhere", lambda *a: (calls.append(a), Cudnn().elsewhere(*a))[1])
    at = Positions.arange(1, 300, device="cuda")
    q, k = (torch.randn(1, 2, n, 64, device="cuda", dtype=torch.bfloat16) for n in (100, 300))
    early = Positions.arange(1, 100, 50, device="cuda")
    need = Need(Causal(), 0.125)
    got = kernel(q, View(k, k, at), early.against(at), need).out
    right = kernel_named("reference")(q.double(), View(k.double(), k.double(), at), early.against(at), need).out
    assert len(calls) == 1
    assert error(got, right) < TOLERANCE[torch.bfloat16]


@needs_cudnn
def test_auto_takes_it_once_a_shape_has_come_again():
    q = torch.randn(1, 2, 4096, 64, device="cuda", dtype=torch.bfloat16)
    choose, need, chosen = chooser("auto"), Need(Causal() & Window(100), 0.125), []
    kernel_named("cudnn").shapes = type(kernel_named("cudnn").shapes)(cudnn.PAYS_AFTER)
    for _ in range(4):
        view = View(q, q, Positions.arange(1, 4096, device="cuda"))
        chosen.append({choose(need, q, view).name for _ in range(5)})
    assert chosen == [{"fused"}, {"fused"}, {"cudnn"}, {"cudnn"}]


@needs_cudnn
@pytest.mark.slow
def test_a_compiler_carries_it():
    at = Positions.arange(1, 512, device="cuda")
    need, kernel = Need(Causal() & Window(100), 0.125), Cudnn()
    x = [
        torch.randn(1, 512, 2, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in "qkv"
    ]

    def attend(q, k, v):
        return kernel(q, View(k, v, at), at.against(at), need).out * 2

    compiled = torch.compile(attend, fullgraph=True)
    runs = [run(*x).detach() for run in (attend, compiled)]
    grads = [torch.autograd.grad(run(*x).float().square().sum(), x) for run in (attend, compiled)]
    torch.testing.assert_close(*runs)
    torch.testing.assert_close(*grads, rtol=2e-2, atol=2e-2)


# ---- without cuDNN


class Formulas(ModuleType):
    """What cuDNN works out, for a causal mask, in the place of the calls."""

    @staticmethod
    def weights(q, k, scale):
        scores = (q.float() @ k.float().mT) * scale
        return scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), float("-inf")).softmax(-1)

    @staticmethod
    def PassCalls(options, scale, *documents):  # the class whose place it takes
        return SimpleNamespace(scale=scale)

    def attend(self, q, k, v, sinks, calls):
        assert not any(n % 4 for n in (q.storage_offset(), *q.stride()[:3])), "as cuDNN wants it"
        out, stats = empty_outputs(q, v, documents=False)
        return out.copy_(self.weights(q, k, calls.scale) @ v.float()), stats.zero_()

    def attend_back(self, q, k, v, sinks, out, stats, grad, calls):
        p, q, k, v, out, grad = (self.weights(q, k, calls.scale), *(x.float() for x in (q, k, v, out, grad)))
        ds = p * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * calls.scale
        return ds @ k, ds.mT @ q, p.mT @ grad, None


def test_a_compiler_traces_one_operator(monkeypatch):
    """No graph is broken, also where tensors must be laid out anew."""
    monkeypatch.setitem(sys.modules, "vantage.kernels.gpu.cudnn_calls", Formulas("cudnn_calls"))
    monkeypatch.setattr(gpu, "cudnn_calls", sys.modules["vantage.kernels.gpu.cudnn_calls"], raising=False)
    at, need, kernel = Positions.arange(1, 24), Need(Causal(), 0.125), Cudnn()
    x = [torch.randn(1, 24, 2, 65)[..., 1:].transpose(1, 2).requires_grad_() for _ in "qkv"]

    def attend(q, k, v):
        return kernel(q, View(k, v, at), at.against(at), need).out * 2

    upstream = torch.randn(1, 2, 24, 64)
    for run in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        got = run(*x)
        right = kernel_named("reference")(x[0], View(x[1], x[2], at), at.against(at), need).out * 2
        torch.testing.assert_close(got, right)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, upstream) for y in (got, right)))


# ---- what it refuses, as if this machine had all that it needs


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(cudnn, "cannot_run", lambda device: None)
    q = torch.zeros(1, 4, 8, 64, dtype=torch.bfloat16)
    return q, View(q[:, :2], q[:, :2], Positions.arange(1, 8))


PLAIN, PAPER = Need(Causal(), 0.125), alibi_slopes(4)
REFUSED = {
    "weights": ({"weights": True}, "does not hand back weights"),
    "lse": ({"lse": True}, "no gradient of the log-sum-exp"),
    "values by distance": ({"value_bias": ValueDistances(2, 64)}, "a value bias needs the weights"),
    "softcap": ({"softcap": 2.0}, "no softcap"),
    "argmax": ({"normalise": Argmax()}, "softmax alone"),
    "sinks": ({"sinks": torch.zeros(1, 4, 8)}, "one sink for each head"),
    "table": ({"bias": DistanceTable(torch.zeros(4, 3), 0)}, "no bias but ALiBi's .*, not DistanceTable"),
    "unknown slopes": ({"bias": Slope(torch.tensor(PAPER))}, "the slopes of its paper"),
    "other slopes": ({"bias": Slope(torch.ones(4), (1.0,) * 4)}, "the slopes of its paper"),
    "learned": ({"bias": Slope(torch.tensor(PAPER).requires_grad_(), PAPER)}, "neither learned"),
    "temperature": ({"bias": Slope(torch.tensor(PAPER), PAPER), "normalise": Softmax(2.0)}, "nor divided"),
    "both sides": ({"bias": Slope(torch.tensor(PAPER), PAPER), "mask": Everything()}, "under a causal mask alone"),
    "chunks": ({"mask": Causal() & Chunked(4)}, "not .*Chunked"),
    "prefix": ({"mask": Causal() | Prefix(4)}, "not .*Prefix"),
    "two-sided window": ({"mask": Window(3)}, "not Window"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses(here, what):
    q, view = here
    assert Cudnn().refuses(PLAIN, q, view) is None
    changes, why = REFUSED[what]
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(Cudnn().refuses(replace(PLAIN, **changes), q, view))


def test_places_it_refuses(here):
    q, view = here
    kernel, needs = Cudnn(), replace(PLAIN, mask=DOCUMENTS)
    packed = Positions.packed([[3, 5]])
    assert kernel.refuses(needs, q, view._replace(pos=packed)) is None
    assert "documents" in (kernel.refuses(PLAIN, q, view._replace(pos=packed)) or "")
    assert "how many" in (kernel.refuses(needs, q, view._replace(pos=packed.narrow(0, 8))) or "")
    assert "one after another" in (kernel.refuses(PLAIN, q, view._replace(pos=Positions.rows([6], width=8))) or "")
    slope = replace(PLAIN, bias=Slope(torch.tensor(PAPER), PAPER))
    assert kernel.refuses(PLAIN, q[:, :, :5], view) is None
    assert "behind a cache" in (kernel.refuses(slope, q[:, :, :5], view) or "")
    assert "at least as many keys" in (kernel.refuses(PLAIN, torch.cat((q, q), 2), view) or "")
    sinks = replace(PLAIN, sinks=torch.zeros(q.shape[1]))
    assert kernel.refuses(sinks, q[:, :, :2], view) is None
    assert "a single query" in (kernel.refuses(sinks, q[:, :, :1], view) or "")


def test_dtypes_and_widths_it_refuses(here):
    q, view = here
    assert "float32" in (Cudnn().refuses(PLAIN, q.float(), view) or "")
    wide = q.new_zeros(1, 4, 8, 264)
    assert "up to 256, not 264" in (Cudnn().refuses(PLAIN, wide, View(wide, wide, view.pos)) or "")


def test_where_it_runs():
    assert cannot_run("cpu") == "the cudnn kernel needs a CUDA GPU"
    assert cannot_run("mps") == "the cudnn kernel needs a CUDA GPU"


def test_it_yields_to_kernels_without_plans_until_a_shape_comes_again(here):
    long = torch.zeros(1, 1, 600, 8, dtype=torch.bfloat16)
    kernel = Cudnn()
    yields = [kernel.yields(PLAIN, long, View(long, long, Positions.arange(1, 600))) for _ in range(4)]
    assert yields == [True, True, False, False]
    q, view = here
    assert all(kernel.yields(PLAIN, q, view._replace(pos=Positions.arange(1, 8))) for _ in range(9))


# ---- documents


def test_bounds_of_documents_are_few():
    rounded = cudnn._rounded
    assert rounded(Positions.packed([[300, 100, 7]])) == (4, 384)
    assert rounded(Positions.packed([[300, 700]])) == (2, 768)
    assert rounded(Positions.packed([[3000, 1100]])) == (2, 3072)
    longest = {rounded(Positions.packed([[n]])) for n in range(2049, 4097, 7)}
    assert longest == {(1, 2560), (1, 3072), (1, 3584), (1, 4096)}
    assert rounded(Positions.packed([[60] * 5])) == (8, 128)
    assert rounded(Positions.arange(1, 9)) == (0, 0)


def test_offsets_of_documents_find_their_first_tokens():
    """In every tensor of a call, whichever way it lies."""
    B, H, G, T, d, e = 2, 6, 3, 12, 8, 16
    at = Positions.packed([[5, 7], [3, 9]])
    first = [(1, 3), (0, 5), (0, 0), (1, 0)]  # row and place, the longest first
    q, k, v = (side_by_side(torch.zeros(B, n, T, width)) for n, width in ((H, d), (G, d), (G, e)))
    tensors = (q, k, v, *empty_outputs(q, v, documents=True), *empty_gradients(q, k, v))
    offsets, _ = cudnn._documents(at.against(at), 4, 9, cudnn._token_strides(q, k, v, True, True, True))
    for x, begin in zip(tensors, offsets.flatten(1).tolist(), strict=True):
        assert begin[:4] == [row * x.stride(0) + place * x.stride(2) for row, place in first]
        assert suits(x, packed=True) or x.shape[3] == 1  # rows of the log-sum-exp lie at any multiple of 4 bytes
        addresses = {sum(i * n for i, n in zip(at_, x.stride(), strict=True)) for at_ in np.ndindex(*x.shape)}
        assert addresses == set(range(x.numel()))
