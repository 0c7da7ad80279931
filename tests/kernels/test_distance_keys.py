"""A bias that is a product of queries and distances, in the fused kernel: against the reference, and in models."""

import re

import pytest
import torch

from tests.kernels.fused_calls import DEVICE, LARGE_PRODUCTS, MISSING, SMALL_PRODUCTS, TOLERANCE, Case, Inputs, far_off
from vantage.kernels import kernel_named
from vantage.kernels.fused import Fused
from vantage.model import build, decoder
from vantage.spec.forms import DistanceKeys
from vantage.spec.masks import Causal, Everything, Window
from vantage.spec.parts import Dense, Need, View
from vantage.spec.positions import Positions

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
FEW = SMALL_PRODUCTS[::4]
MANY = [case for case in SMALL_PRODUCTS if case not in FEW]


def check(case: Case, dtype: torch.dtype, block: int | None = 16) -> None:
    errors = far_off(case, dtype, block)
    assert {name: e for name, e in errors.items() if not e <= 3 * TOLERANCE[dtype]} == {}


@pytest.mark.parametrize("case", FEW, ids=str)
def test_it_is_the_reference(case):
    check(case, torch.float32)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_it_is_the_reference_in_half_precision_with_more_rows_than_keys(case):
    check(case, torch.float16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", MANY, ids=str)
def test_it_is_the_reference_everywhere(case, dtype):
    check(case, dtype)


def keep(monkeypatch, heads: int) -> None:
    """Room for the scores' gradient of so many heads at once."""
    from vantage.kernels.gpu import distance_operators as operators

    room = operators._room_to_keep

    def room_for(q, p, batch, most):
        monkeypatch.setattr(operators, "KEPT_SHARE", 1000.0)
        monkeypatch.setattr(operators, "FEWEST_PROGRAMS", 0)
        return room(q, p, batch, most)[0], min(heads, q.shape[1])

    monkeypatch.setattr(operators, "_room_to_keep", room_for)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_it_is_the_reference_where_the_gradient_of_scores_is_kept(case, monkeypatch):
    keep(monkeypatch, heads=2)
    check(case, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY, ids=str)
def test_it_is_the_reference_everywhere_where_the_gradient_of_scores_is_kept(case, monkeypatch):
    keep(monkeypatch, heads=1)
    check(case, torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("case", LARGE_PRODUCTS, ids=str)
def test_it_is_the_reference_on_a_gpu(case, dtype):
    check(case, dtype, block=None)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("case", [*LARGE_PRODUCTS[:4], LARGE_PRODUCTS[6]], ids=str)
def test_it_is_the_reference_on_a_gpu_where_the_gradient_of_scores_is_kept(case, monkeypatch):
    keep(monkeypatch, heads=2)
    check(case, torch.bfloat16, block=None)


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_keys_before_and_behind_all_queries_on_a_gpu():
    """Fewer keys than queries, some of which stand below 0, and all are seen."""
    check(Case("own distance keys", Everything(), T=900, S=300, d=128, e=128), torch.bfloat16, block=None)


def test_gradients_of_distances_are_equal_from_run_to_run():
    inputs = Inputs(Case("own distance keys", B=2, T=20, S=20), torch.float32)
    once, again = inputs.run(Fused(16)), inputs.run(Fused(16))
    assert all(torch.equal(a, b) for a, b in zip(once.grads, again.grads, strict=True))


def test_nothing_is_formed():
    def never(cut: slice) -> torch.Tensor:
        raise AssertionError("the whole bias was asked for")

    q, view, form = asked(never)
    out = Fused(16)(q, view, view.pos.against(view.pos), Need(Causal() & Window(4), 1.0, bias=form)).out
    assert out.isfinite().all()


def test_vectors_of_distances_learn_without_an_offset():
    q, view, _ = asked(None)
    table = torch.randn(2, 96, 16, generator=torch.Generator().manual_seed(5)).to(DEVICE).requires_grad_()

    def whole(cut: slice) -> torch.Tensor:
        distance = torch.arange(20, device=DEVICE)
        every = q @ table.transpose(-1, -2)
        return every.gather(-1, (distance[:, None] - distance + 32).expand(1, 2, 20, 20))[:, :, cut]

    keys = DistanceKeys(None, lambda high, n: table[:, high + 32 - torch.arange(n, device=DEVICE)], 1.0)
    bias = Dense(whole, lambda: keys)
    need, pair = Need(Causal(), 1.0, bias=bias), view.pos.against(view.pos)
    got, right = (
        torch.autograd.grad(kernel(q, view, pair, need).out.square().sum(), table)[0]
        for kernel in (Fused(16), kernel_named("reference"))
    )
    torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4)


def asked(whole) -> tuple[torch.Tensor, View, Dense]:
    q, k, v = (torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(n)).to(DEVICE) for n in range(3))
    form = DistanceKeys(q, lambda highest, n: torch.ones(1, n, 16, device=DEVICE), 1.0)
    return q, View(k, v, Positions.arange(1, 20, device=DEVICE)), Dense(whole, lambda: form)


def test_it_refuses_widths_that_it_cannot_fetch():
    q, view, bias = asked(lambda: torch.zeros(1, 2, 20, 20))
    assert Fused().refuses(Need(Causal(), 1.0, bias=bias), q, view) is None
    wide = Dense(lambda cut: torch.zeros(1, 2, 20, 20), lambda: DistanceKeys(q[..., :3], bias.form().keys, 1.0))
    assert "as wide as its heads, not 3" in (Fused().refuses(Need(Causal(), 1.0, bias=wide), q, view) or "")
    assert "products of their own" in (kernel_named("tiles").refuses(Need(Causal(), 1.0, bias=bias), q, view) or "")


def losses(position: str, kernel, compiled: bool = False, **pass_options) -> list[torch.Tensor]:
    model = build(decoder(vocab=17, width=32, layers=2, heads=2, position=position), seed=0, kernel=kernel).to(DEVICE)
    tokens = torch.randint(17, (2, 20), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    out = run(tokens, **pass_options)
    out.logsumexp(-1).sum().backward()
    return [out, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("position", ["xl", "shifted"])
def test_a_model_learns_the_same(position):
    for got, right in zip(losses(position, Fused(16)), losses(position, "reference"), strict=True):
        torch.testing.assert_close(got, right, atol=2e-4, rtol=2e-4)


@pytest.mark.slow
def test_a_model_with_it_compiles_whole():
    torch._dynamo.reset()
    for compiled, eager in zip(losses("xl", Fused(16), compiled=True), losses("xl", Fused(16)), strict=True):
        torch.testing.assert_close(compiled, eager)
    torch._dynamo.reset()


def test_places_that_do_not_run_on_have_no_form():
    """Then the bias is formed as a whole, by the kernels that take one."""
    packed = Positions.packed([[12, 8], [20]])
    with pytest.raises(Exception, match="dense bias is as large as the scores"):
        losses("xl", Fused(16), positions=packed)


# ---- rows turned between registers


def run_ptx(text: str, arguments: list[str], results: int, warps: int = 4) -> list[dict[tuple[int, int], object]]:
    """What PTX makes of tiles of 64 columns that lie in warps as accumulators of Hopper do; a number is its tile's
    name, its row and its column."""
    from vantage.kernels.gpu.row_rotation import PLACES, VALUES, index

    def places(thread: int):
        lane, warp = thread % 32, thread // 32
        for group, half, parity in PLACES:
            at = 16 * warp + 8 * half + lane // 4, 8 * group + 2 * (lane % 4) + parity
            yield at, index(group, half, parity)

    threads = []
    for t in range(32 * warps):
        registers: dict = {"%tid.x": t}
        for n, name in enumerate(arguments):
            registers |= {f"${VALUES * (results + n) + i}": (name, *at) for at, i in places(t)}
        threads.append(registers)

    two = {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "shr": lambda a, b: a >> b,
        "shl": lambda a, b: a << b,
        "sub": lambda a, b: a - b,
        "add": lambda a, b: a + b,
        "setp.eq": lambda a, b: a == b,
        "setp.lt": lambda a, b: a < b,
        "setp.gt": lambda a, b: a > b,
        "setp.le": lambda a, b: a <= b,
        "setp.ge": lambda a, b: a >= b,
    }
    for line in text.strip("{}\n").split("\n"):
        if line.startswith(".reg"):
            continue
        name, rest = line.rstrip(";").split(" ", 1)
        into, *given = (x.strip() for x in rest.split(","))
        found = []
        for t, registers in enumerate(threads):
            a = [int(x) if re.fullmatch(r"-?\d+", x) else registers[x] for x in given]
            if name.startswith("shfl"):
                found.append(threads[t // 32 * 32 + a[1]][given[0]])
            elif name.startswith("selp"):
                found.append(a[0] if a[2] else a[1])
            elif name.startswith("mov"):
                found.append(a[0])
            else:
                found.append(two[next(x for x in two if name.startswith(x + "."))](*a))
        for registers, result in zip(threads, found, strict=True):
            registers[into] = result
    return [
        {at: threads[t][f"${VALUES * n + i}"] for t in range(32 * warps) for at, i in places(t)} for n in range(results)
    ]


SQUARE = [(a, c) for a in range(64) for c in range(64)]


def test_two_blocks_of_distances_become_keys():
    from vantage.kernels.gpu.row_rotation import to_keys

    (got,) = run_ptx(to_keys(wide=False), ["near", "far"], 1)
    assert got == {(a, b): ("near" if b >= a else "far", a, (b - a) % 64) for a, b in SQUARE}
    (got,) = run_ptx(to_keys(wide=True), ["near", "far", "farther"], 1, warps=8)
    assert all(got[a, b] == ("near" if b >= a else "far", a, (b - a) % 64) for a, b in SQUARE)
    assert all(got[a + 64, b] == ("far" if b >= a else "farther", a + 64, (b - a) % 64) for a, b in SQUARE)


def test_keys_become_two_blocks_of_distances():
    from vantage.kernels.gpu.row_rotation import to_distances

    near, far = run_ptx(to_distances(whole=False), ["x"], 2)
    for a, c in SQUARE:
        of_far = a + c >= 64
        assert (near[a, c], far[a, c]) == ((0, ("x", a, c + a - 64)) if of_far else (("x", a, c + a), 0))
    (one,) = run_ptx(to_distances(whole=True), ["x"], 1)
    assert one == {(a, c): ("x", a, (c + a) % 64) for a, c in SQUARE}


def test_two_tiles_on_one_diagonal():
    from vantage.kernels.gpu.row_rotation import on_one_diagonal

    (got,) = run_ptx(on_one_diagonal(), ["here", "later"], 1)
    assert got == {(a, c): ("here" if c >= a else "later", a, c) for a, c in SQUARE}


def test_how_tiles_lie_is_read_off_the_compiled_text():
    from vantage.kernels.gpu.row_rotation import lies_as_expected

    def text(layout: str) -> str:
        kind = "tensor<64x64xf32, #mma>"
        return f'#mma = {layout}\n%1 = tt.elementwise_inline_asm "x" {{pure = true}} %0 : {kind} -> {kind} loc(#a)\n'

    product = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"
    assert lies_as_expected(text(product))
    assert not lies_as_expected(text(product.replace("[4, 1]", "[2, 2]")))
    assert not lies_as_expected(text(product.replace("Major = 3", "Major = 2")))
    assert not lies_as_expected(text("#ttg.blocked<{sizePerThread = [1, 2]}>"))
    assert not lies_as_expected("")
