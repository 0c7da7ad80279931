"""The fused kernel against the float64 reference: on a GPU where there is one, else with Triton's interpreter."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from tests.kernels.fused_calls import DEVICE, LARGE, MISSING, SMALL, TOLERANCE, VALUES, Case, Inputs, far_off
from tests.kernels.helpers import ByDistance, call
from tests.sampling import examples
from tests.spec.helpers import masks, pairs
from vantage.errors import Refused
from vantage.kernels import chooser, kernel_named
from vantage.kernels.fused import Fused
from vantage.kernels.fused_bias import bias_tensors
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.kernels.tile_ranges import tile_ranges
from vantage.position import Fire
from vantage.position.shaw import ValueDistances
from vantage.spec.forms import DistanceTable, RatioPieces, RowTable, Slope
from vantage.spec.masks import Causal, Chunked, Everything, Filled, Nothing, Prefix, SameSegment, Window, dense, visible
from vantage.spec.normalisers import Argmax
from vantage.spec.parts import Dense, Need, Shape, View
from vantage.spec.positions import Positions

needs_triton = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
# a call is interpreted number by number: a few of them here, the others where there is time or a GPU
FEW = [case for n, case in enumerate(SMALL) if n % 13 == 0]
MANY = [case for case in SMALL if case not in FEW]


def check(case: Case, dtype: torch.dtype = torch.float32, block: int | None = 16) -> None:
    errors = far_off(case, dtype, block, poison=case.places in ("padded", "blind"))
    # sums of a bias's gradient cancel where its terms do not, and in half precision little is left of them
    limit = {name: TOLERANCE[dtype] * (10 if name[:4] in ("bias", "seco", "sink") else 1) for name in errors}
    assert {name: e for name, e in errors.items() if not e <= limit[name]} == {}


@needs_triton
@pytest.mark.parametrize("case", FEW, ids=str)
def test_it_is_the_reference(case):
    check(case)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("case", MANY, ids=str)
def test_it_is_the_reference_everywhere(case):
    check(case)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_it_is_the_reference_on_a_gpu(case, dtype):
    check(case, dtype, block=None)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_more_than_32_bits_can_count():
    """2.3·10⁹ numbers in each of q, k and v; the last rows of the last head, there and back."""
    B, H, N, d, last = 8, 16, 140_000, 128, 700
    q, k, v = (torch.randn(B, N, H, d, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3))
    assert q.numel() > 2**31
    slopes = torch.rand(H, device=DEVICE)
    runs = []
    for cut, kernel in ((slice(None), Fused()), (slice(N - last, None), kernel_named("reference"))):
        part = slice(None) if isinstance(kernel, Fused) else slice(-1, None)
        x = [t[part, part, cut].detach() for t in (q, k, v)]
        x = [(t if isinstance(kernel, Fused) else t.double()).requires_grad_() for t in x]
        at = Positions.arange(len(x[0]), x[0].shape[2], N - x[0].shape[2], device=DEVICE)
        need = Need(Causal() & Window(300), d**-0.5, bias=Slope(slopes[part]))
        out = kernel(x[0], View(x[1], x[2], at), at.against(at), need).out
        grad = torch.zeros_like(out)
        grad[-1, -1, -64:] = torch.linspace(-1, 1, 64 * d, device=DEVICE).view(64, d)
        runs.append([t.detach()[-1, -1, -300:].double() for t in (out, *torch.autograd.grad(out, x, grad))])
    for got, right in zip(*runs, strict=True):
        assert float((got - right).norm() / right.norm()) < TOLERANCE[torch.bfloat16]


@needs_triton
@pytest.mark.parametrize("case", [Case("table", T=20, S=20), Case("pieces", T=20, S=20), VALUES[0]], ids=str)
def test_gradients_of_a_table_are_equal_from_run_to_run(case):
    inputs = Inputs(case, torch.float32)
    once, again = inputs.run(Fused(16)), inputs.run(Fused(16))
    assert all(torch.equal(a, b) for a, b in zip(once.grads, again.grads, strict=True))


@needs_triton
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(20), Causal() & Chunked(24)], ids=str)
@pytest.mark.parametrize("places", ["beyond", "before"])
def test_a_table_where_keys_and_queries_begin_or_end_apart(places, mask):
    """Its gradient goes along diagonals of tiles, some of which lie outside of the keys in part."""
    check(Case("table", mask, places, B=2, T=53, S=43, width=21))


@needs_triton
def test_what_inference_has_made_is_there_for_training():
    """Ranges of tiles are kept from pass to pass, and by the positions: neither belongs to inference alone."""
    inputs = Inputs(Case("slope", T=19, S=23), torch.float32)
    view = View(inputs.k, inputs.v, inputs.k_pos)
    with torch.inference_mode():
        Fused(16)(
            inputs.q,
            view,
            inputs.q_pos.against(inputs.k_pos),
            Need(Causal(), 1.0, bias=Slope(torch.ones(2).to(DEVICE))),
        )
    assert inputs.run(Fused(16)).out.isfinite().all()


@needs_triton
@pytest.mark.parametrize("hidden", [1, 3, 30])
def test_tables_of_a_network_are_the_same_in_one_launch(hidden):
    part = Fire(hidden=hidden, init_L=11.0, init_c=0.3, bidirectional=False)
    part = part.build(Shape(64, 4, 4, 16, 16, 16))
    with torch.no_grad():
        part.f[0].bias.copy_(-part.f[0].weight[:, 0] * torch.linspace(0.9, 0.1, hidden))
        part.f[0].weight[0] = 0.0  # cuts nothing
    part, at = part.to(DEVICE), Positions.arange(2, 37, 5, device=DEVICE)
    results = []
    for form in (part.form(), part.form().pieces()):
        made = bias_tensors(form, MaskFlags(causal=True), at.against(at), 0.7, 16, (2, 4))
        seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE) for x in made[1:3]]
        seeds[1][1 : 4 + made.width - 1] = 0.0  # break points have no gradient
        finite = torch.where(made.two.isfinite(), made.two, 0.0)
        total = (made.one * seeds[0]).sum() + (finite * seeds[1]).sum()
        results.append([*made, *torch.autograd.grad(total, list(part.parameters()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@needs_triton
def test_a_second_derivative_is_refused():
    inputs = Inputs(Case(T=5, S=5), torch.float32)
    q = inputs.q.clone().requires_grad_()
    view, pair = View(inputs.k, inputs.v, inputs.k_pos), inputs.q_pos.against(inputs.k_pos)
    need = Need(Causal(), 1.0)
    (first,) = torch.autograd.grad((Fused(16)(q, view, pair, need).out ** 2).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@needs_triton
def test_places_below_0_that_run_on_are_not_empty():
    check(Case("slope", Everything(), T=60, S=20))


@needs_triton
def test_without_keys_there_is_nothing():
    q = torch.zeros(2, 2, 3, 16, device=DEVICE)
    view = View(torch.zeros(2, 1, 0, 16, device=DEVICE), torch.zeros(2, 1, 0, 8, device=DEVICE), Positions.arange(2, 0))
    sinks = torch.tensor([1.0, 2.0], device=DEVICE)
    got = Fused()(q, view, Positions.arange(2, 3).against(view.pos), Need(Causal(), 1.0, sinks=sinks, lse=True))
    assert got.out.shape == (2, 2, 3, 8)
    assert (got.out == 0).all()
    assert got.lse[0].tolist() == [[1.0] * 3, [2.0] * 3]


# ---- masks as numbers


def test_masks_as_numbers():
    assert mask_flags(Everything()) == MaskFlags()
    assert mask_flags(Causal() & SameSegment()) == MaskFlags(causal=True, segments=True)
    assert mask_flags(Window(9) & Causal() & Window(4) & Filled()) == MaskFlags(causal=True, window=4)
    assert mask_flags(Causal() & Chunked(8)) == MaskFlags(causal=True, chunk=8)
    assert mask_flags((Causal() | Prefix(5)) & SameSegment()) == MaskFlags(causal=True, prefix=5, segments=True)
    assert mask_flags(Prefix(5) | (Causal() & Window(3))) == MaskFlags(causal=True, window=3, prefix=5)
    assert mask_flags(Nothing()) == MaskFlags(nothing=True)
    for other in (
        Prefix(5),
        Causal() | Window(3),
        (Causal() | Prefix(5)) & Window(3),
        (Causal() & SameSegment()) | Prefix(5),
        Chunked(3) & Chunked(4),
    ):
        assert mask_flags(other) is None


@given(masks(), pairs(high=30))
@settings(deadline=None, max_examples=examples(60))
def test_tiles_that_are_visited_are_enough_and_full_ones_are_full(meant, pair):
    q, k = pair
    pair = q.against(k)
    mask = visible(meant.mask, pair)
    flags = mask_flags(mask)
    if flags is None or flags.nothing or not q.pos.numel() or not k.pos.numel():
        return
    seen, block = dense(mask, pair)[:, 0], 4
    found = tile_ranges(pair, flags, block, None)
    for ranges, shown in ((found.keys, seen), (found.queries, seen.transpose(1, 2))):
        for r in range(shown.shape[0]):
            for i, (lo, full_lo, full_hi, hi) in enumerate(ranges[r].tolist()):
                rows = shown[r, i * block : (i + 1) * block]
                assert 0 <= lo <= full_lo <= full_hi <= hi <= math.ceil(shown.shape[2] / block)
                assert not rows[:, : lo * block].any()
                assert not rows[:, hi * block :].any()
                assert rows[:, full_lo * block : full_hi * block].all()


def test_full_tiles_of_a_plain_triangle():
    """Three blocks of queries over a past of two: the first sees two blocks whole and one in part."""
    pair = Positions.arange(1, 12, 8).against(Positions.arange(1, 20))
    assert tile_ranges(pair, MaskFlags(causal=True), 4, None).keys[0].tolist() == [
        [0, 0, 2, 3],
        [0, 0, 3, 4],
        [0, 0, 4, 5],
    ]
    beyond = tile_ranges(pair, MaskFlags(causal=True), 4, 5).keys[0].tolist()
    assert beyond == [[0, 0, 1, 3], [0, 0, 2, 4], [0, 0, 3, 5]]
    window = tile_ranges(pair, MaskFlags(causal=True, window=8), 4, None).keys[0].tolist()
    assert window == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


# ---- what it refuses


def test_where_it_runs(monkeypatch):
    c = call().to(torch.float32)
    if DEVICE == "cpu":
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        assert Fused().refuses(c.need, c.q, c.view) == "the fused kernel needs a GPU"
    assert not Fused().auto("cpu")
    assert not Fused().auto("mps")
    assert Fused().auto("cuda")


class Weighing:
    """A value bias that does not say what it is."""

    def at(self, weights, q_pos, k_pos):
        return weights.sum(-1, keepdim=True)


REFUSED = {
    "weights": ({"weights": True}, "does not hand back weights"),
    "argmax": ({"normalise": Argmax()}, "softmax alone, not Argmax"),
    "dropout": ({"dropout": 0.1}, "no dropout"),
    "mask": ({"mask": Causal() | Window(3)}, r"does not know the mask Causal\(\) | Window\(n=3\)"),
    "dense": ({"bias": Dense(torch.zeros(1, 4, 3, 5))}, "dense bias is as large as the scores"),
    "no form": ({"bias": ByDistance(torch.ones(4))}, "the bias ByDistance has no form"),
    "pieces": (
        {"bias": RatioPieces(torch.zeros(65), *torch.zeros(2, 4, 66), torch.ones(1), torch.ones(1))},
        "up to 64 break points, not 65",
    ),
    "ratio to the later": (
        {"bias": RatioPieces(torch.zeros(3), *torch.zeros(2, 4, 4), torch.ones(1), torch.ones(1), two_sided=True)},
        "no ratio to the later of query and key",
    ),
    "values": (
        {"value_bias": ValueDistances(3, 8), "bias": Slope(torch.zeros(4))},
        "beside a table of scores by distance alone",
    ),
    "other values": (
        {"value_bias": ValueDistances(3, 8), "bias": RowTable(torch.zeros(2, 4, 3, 9), -4)},
        "needs values by distance to have the distances that scores have",
    ),
    "many values": ({"value_bias": ValueDistances(65, 8)}, "values of up to 129 distances, not 131"),
    "value bias": ({"value_bias": Weighing()}, "a value bias needs the weights"),
    "long table": (
        {"bias": DistanceTable(torch.zeros(4, 2000, requires_grad=True), 0)},
        "learns tables of up to 1024 distances, not 2000",
    ),
}


@needs_triton
@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses_and_why(what):
    c, (changes, why) = call(d_v=8).to(torch.float32), REFUSED[what]
    q = c.q.to(DEVICE)
    assert Fused().refuses(c.need, q, replace_view(c.view, DEVICE)) is None
    with pytest.raises(Refused, match=why):
        chooser(Fused())(replace(c.need, **changes), q, replace_view(c.view, DEVICE))


def replace_view(view: View, device: str) -> View:
    return View(view.k.to(device), view.v.to(device), view.pos.to(device))


@needs_triton
def test_shapes_that_it_refuses():
    def why(d: int, e: int, dtype: torch.dtype) -> str | None:
        q, k, v = (torch.zeros(1, 2, 3, n, dtype=dtype, device=DEVICE) for n in (d, d, e))
        return Fused().refuses(Need(Causal(), 1.0), q, View(k, v, Positions.arange(1, 3)))

    assert why(192, 128, torch.bfloat16) is None
    assert why(512, 512, torch.bfloat16) == "the fused kernel has heads up to 256 wide, not 512"
    assert why(20, 20, torch.bfloat16) == "the fused kernel needs heads of a multiple of 8 numbers, not 20"
    assert why(20, 20, torch.float32) is None
    assert why(16, 16, torch.float64) == "the fused kernel works in bfloat16, float16 and float32, not in torch.float64"
    under = torch.func.vmap(lambda q: q + len(kernel_named("fused").refuses(Need(Causal(), 1.0), q, VIEW) or ""))
    assert (under(torch.zeros(2, 1, 1, 3, 4, device=DEVICE)) == len("the fused kernel has no rule for vmap")).all()


VIEW = View(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), Positions.arange(1, 3))


# ---- as an operator


@needs_triton
@pytest.mark.parametrize(
    "position", ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fire", "shaw", "cope"))]
)
def test_a_model_with_it_compiles_whole(position):
    """Without a break, forward and backward, and to the same numbers."""
    from vantage.model import build, decoder

    model = build(decoder(vocab=17, width=32, layers=2, heads=2, position=position), seed=0, kernel=Fused(16)).to(
        DEVICE
    )
    tokens = torch.randint(17, (1, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    grads = []
    torch._dynamo.reset()
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        out = run(tokens)
        out.logsumexp(-1).sum().backward()
        grads.append([out, *(p.grad for p in model.parameters())])
    torch._dynamo.reset()
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(eager, compiled)


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the kernels run")
def test_it_compiles_for_gpus_that_are_not_here():
    """Without TMA, wgmma or dependent launch: compute capability 8.0, 8.9, 10.0 and 12.0, and Hopper."""
    import os
    import subprocess
    import sys

    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_targets"], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"80", "89", "90", "100", "120"}
