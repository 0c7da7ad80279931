"""Whole rows and documents by the passes for Hopper: biases, softcaps, sinks and gathered positions, against the
float64 reference. Without such a GPU the same calls meet formulas in the place of both passes."""

import importlib.util
from dataclasses import dataclass

import pytest
import torch

from vantage.kernels import chooser, kernel_named
from vantage.kernels.documents import gradients_on_hopper
from vantage.kernels.fused import Fused
from vantage.kernels.gluon import has_gluon
from vantage.spec.forms import DistanceTable, Slope, alibi_slopes
from vantage.spec.masks import Causal, Everything, SameSegment, Window
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import Need, View
from vantage.spec.positions import Positions

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
HOPPER = torch.cuda.is_available() and has_gluon(torch.device("cuda"))
DEVICE = "cuda" if HOPPER else "cpu"
LOG2 = 0.6931471805599453
DTYPES = [torch.bfloat16, torch.float16] if HOPPER else [torch.float16]  # the interpreter has no bfloat16


@dataclass(frozen=True)
class Case:
    name: str
    form: str = "none"
    gathered: bool = False
    fractional: bool = False
    softcap: float | None = None
    sinks: bool = False
    documents: bool = False
    temperature: float = 1.0
    heads: tuple[int, int] = (4, 4)
    width: int = 128
    rows: int = 2
    tokens: int = 448
    first: int = 0  # distance of a table
    window: int = 0

    def positions(self) -> Positions:
        if self.documents:
            return Positions.packed([[self.tokens - 217, 1, 216], [130, 64, self.tokens - 194]][: self.rows])
        if not self.gathered:
            return Positions.arange(self.rows, self.tokens, 3)
        steps = torch.randint(0, 4, (self.rows, self.tokens), generator=torch.Generator().manual_seed(1))
        pos = steps.cumsum(1)
        return Positions.of(pos / 2 if self.fractional else pos, order=torch.arange(self.tokens).expand_as(pos))


CASES = (
    Case("softcap", softcap=5.0),
    Case("softcap, odd length", softcap=5.0, tokens=385, heads=(6, 2), width=64),
    Case("sinks", sinks=True, tokens=333),
    Case("softcap and sinks over documents", softcap=5.0, sinks=True, documents=True, tokens=900),
    Case("slopes", "slope", temperature=1.5),
    Case("slopes, heads of 64", "slope", width=64, heads=(2, 1)),
    Case("slopes over documents", "slope", documents=True),
    Case("slopes, gathered", "slope", gathered=True),
    Case("slopes, gathered, grouped, odd", "slope", gathered=True, heads=(6, 2), tokens=391, rows=3),
    Case("slopes, gathered, heads of 64", "slope", gathered=True, heads=(4, 1), width=64, tokens=700),
    Case("slopes, fractional positions", "slope", gathered=True, fractional=True),
    Case("slopes, gathered, softcap, sinks", "slope", gathered=True, softcap=5.0, sinks=True),
    Case("no bias, gathered", gathered=True),
    Case("table", "table"),
    Case("table, grouped", "table", heads=(6, 2), softcap=5.0, temperature=0.7),
    Case("table that begins ahead", "table", first=3),
    Case("table that begins behind", "table", first=-20),
    Case("table, heads of 64", "table", width=64, heads=(2, 1)),
    Case("table, sinks", "table", sinks=True),
    Case("window", window=256, tokens=700),
    Case("window, no multiple of a tile", window=301, tokens=1_000, heads=(6, 2), width=64),
    Case("window beyond the row", window=600),
    Case("window, slopes", "slope", window=256, tokens=650),
    Case("window, gathered slopes", "slope", window=300, tokens=650, gathered=True),
    Case("window, softcap, sinks", window=257, tokens=641, softcap=5.0, sinks=True),
    Case("window, table", "table", window=256, tokens=640),
)


def ends_of(blocks: torch.Tensor, tokens: int, rows: int) -> torch.Tensor:
    """Where the document of each token of all rows ends, from a list of blocks of queries or of keys."""
    ends = torch.full((rows * tokens,), -1)
    key_blocks = blocks[0, 1:].eq(0).all() and len(blocks) > 1 and blocks[0, 0] < len(blocks)
    if key_blocks and blocks[0, 0] > 0:
        for first, left, _, _ in blocks[1 : 1 + int(blocks[0, 0])].tolist():
            ends[first : first + min(left, 128)] = first + left
    else:
        for row, first, end, number in blocks.tolist():
            begin = row * tokens + first + 128 * number
            ends[begin : min(begin + 128, row * tokens + end)] = row * tokens + end
    assert (ends > 0).all(), "every token is in a block"
    return ends


class Formulas:
    """Both passes over rows as matrices, of all rows' tokens one behind the other."""

    def __init__(self) -> None:
        self.forward_calls = self.backward_calls = 0

    def scores(self, q, k, bias, ends, window=0):
        (B, H, T, _), G = q.shape, k.shape[1]
        heads = [x.float().repeat_interleave(H // x.shape[1], 1).transpose(0, 1).flatten(1, 2) for x in (q, k)]
        n = torch.arange(B * T)
        at = n.float() if bias.positions is None else bias.positions.flatten().float()
        distance = at[:, None] - at[None, :]
        more = torch.zeros(H, 1, 1)
        if bias.form == 1:
            more = -bias.numbers[:, None, None] * distance
        elif bias.form == 4:
            more = bias.numbers[:, (distance.long() - bias.low).clamp(0, bias.width - 1)]
        hidden = (ends[:, None] != ends[None, :]) | (n[None, :] > n[:, None])
        assert G <= H
        return heads[0] @ heads[1].transpose(1, 2), more, hidden | (n[:, None] - n[None, :] >= (window or B * T))

    def attend_rows(self, q, k, v, out, lse, blocks, scale, bias):
        self.forward_calls += 1
        B, H, T, _ = q.shape
        s, more, hidden = self.scores(q, k, bias, ends_of(blocks, T, B))
        s = (s * scale + more).masked_fill(hidden, float("-inf"))
        values = v.float().repeat_interleave(H // v.shape[1], 1).transpose(0, 1).flatten(1, 2)
        out.copy_((s.softmax(-1) @ values).unflatten(1, (B, T)).transpose(0, 1))
        lse.copy_(s.logsumexp(-1).unflatten(1, (B, T)).transpose(0, 1))

    def row_gradients(self, q, k, v, out, lse, grad, gradients, blocks, units, weight, bias, *, softcap, window, delta):
        self.backward_calls += 1
        B, H, T, _ = q.shape
        scale, cap = units
        s, more, hidden = self.scores(q, k, bias, ends_of(blocks, T, B), window)
        bent = (s * scale).tanh()
        s = (bent * cap if softcap else s * scale) * LOG2 + more

        def flat(x):
            return x.float().repeat_interleave(H // x.shape[1], 1).transpose(0, 1).flatten(1, 2)

        p = (s - flat(lse[..., None])).exp().masked_fill(hidden, 0.0)
        row = (flat(grad) * flat(out)).sum(-1, keepdim=True)
        ds = p * (flat(grad) @ flat(v).transpose(1, 2) - row)
        ds = ds * (1 - bent * bent) if softcap else ds
        found = (ds @ flat(k) * weight, ds.transpose(1, 2) @ flat(q) * weight, p.transpose(1, 2) @ flat(grad))
        for to, x in zip(gradients, found, strict=True):
            x = x.unflatten(1, (B, T)).transpose(0, 1)
            to.copy_(x.unflatten(1, (to.shape[1], -1)).sum(2))
        if delta is not None:
            delta.copy_(row[..., 0].unflatten(1, (B, T)).transpose(0, 1))


class Counted:
    """The passes themselves."""

    def __init__(self, forward, backward) -> None:
        self.forward_calls = self.backward_calls = 0
        self.both = forward, backward

    def attend_rows(self, *x, **more):
        self.forward_calls += 1
        self.both[0](*x, **more)

    def row_gradients(self, *x, **more):
        self.backward_calls += 1
        self.both[1](*x, **more)


@pytest.fixture
def passes(monkeypatch):
    from vantage.kernels import documents, fused
    from vantage.kernels.gpu import hopper_rows, hopper_rows_backward

    instead = Counted(hopper_rows.attend_rows, hopper_rows_backward.row_gradients) if HOPPER else Formulas()
    if not HOPPER:
        monkeypatch.setattr(documents, "has_gluon", lambda device: True)
    monkeypatch.setattr(fused, "LONG_ROW", 0)
    monkeypatch.setattr(hopper_rows, "attend_rows", instead.attend_rows)
    monkeypatch.setattr(hopper_rows_backward, "row_gradients", instead.row_gradients)
    return instead


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_are_the_references(case, dtype, passes):
    (H, G), T, D = case.heads, case.tokens, case.width
    at = case.positions().to(DEVICE)
    g = torch.Generator().manual_seed(2)

    def heads(n):
        return torch.randn(case.rows, T, n, D, generator=g, dtype=torch.float64).to(dtype).to(DEVICE).transpose(1, 2)

    q, upstream, k, v = heads(H), heads(H), heads(G), heads(G)
    table = torch.randn(H, 40, generator=g, dtype=torch.float64) if case.form == "table" else None
    sinks = torch.randn(H, generator=g, dtype=torch.float64) if case.sinks else None
    found = []
    for kernel, kind in ((Fused(), dtype), (kernel_named("reference"), torch.float64)):
        wide = torch.float32 if kind is dtype else kind
        x = [t.detach().to(kind).requires_grad_() for t in (q, k, v)]
        learned = [t.to(DEVICE, wide).requires_grad_() for t in (table, sinks) if t is not None]
        bias = None
        if case.form == "slope":
            bias = Slope(torch.tensor(alibi_slopes(H), device=DEVICE, dtype=wide))
        elif table is not None:
            bias = DistanceTable(learned[0], case.first)
        mask = Causal() & SameSegment() if case.documents else Causal()
        mask = mask & Window(case.window) if case.window else mask
        rule = Softmax(case.temperature)
        need = Need(mask, D**-0.5, case.softcap, bias, learned[-1] if case.sinks else None, normalise=rule)
        view = View(x[1], x[2], at)
        assert kernel.refuses(need, x[0], view) is None or not HOPPER
        out = kernel(x[0], view, at.against(at), need).out
        found.append((out.detach(), *torch.autograd.grad(out, [*x, *learned], upstream.to(kind))))
    assert passes.backward_calls == 1
    alone = case.softcap is None and not case.sinks and case.form != "table" and not case.window
    assert passes.forward_calls == (alone and (case.gathered or case.documents))
    far = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*found, strict=True)]
    assert max(far) < {torch.bfloat16: 1.5e-2, torch.float16: 2e-3}[dtype], far


def test_a_slope_keeps_its_precision_far_from_the_first_position(passes):
    """Positions of millions: differences are taken before anything is rounded."""
    T, D = 256, 64
    pos = torch.arange(T)[None] * 3 + 5_000_000
    at = Positions.of(pos, order=torch.arange(T)[None]).to(DEVICE)
    q, k, v, upstream = (torch.randn(1, T, 1, D).half().to(DEVICE).transpose(1, 2) for _ in range(4))
    found = []
    for kernel, kind in ((Fused(), torch.float16), (kernel_named("reference"), torch.float64)):
        x = [t.detach().to(kind).requires_grad_() for t in (q, k, v)]
        slopes = torch.tensor([0.7], device=DEVICE, dtype=torch.float64 if kind is torch.float64 else torch.float32)
        need = Need(Causal(), D**-0.5, None, Slope(slopes))
        out = kernel(x[0], View(x[1], x[2], at), at.against(at), need).out
        found.append((out.detach(), *torch.autograd.grad(out, x, upstream.to(kind))))
    far = [float((a.double() - b).norm() / b.norm()) for a, b in zip(*found, strict=True)]
    assert max(far) < 2e-3, far


def test_what_the_passes_do_not_have_goes_elsewhere(passes, monkeypatch):
    """Positions that fall, slopes that are learned; and where torch is told to be deterministic, sums without order."""
    T, D = 192, 64
    q, k, v = (torch.randn(1, T, 2, D).half().to(DEVICE).transpose(1, 2).requires_grad_() for _ in range(3))
    run = Positions.arange(1, T, device=DEVICE)
    falls = Positions.of(torch.arange(T).flip(0)[None], order=torch.arange(T)[None]).to(DEVICE)
    slopes = torch.tensor([0.5, 0.25], device=DEVICE)
    for at, bias in ((falls, Slope(slopes)), (run, Slope(slopes.clone().requires_grad_()))):
        need = Need(Causal(), D**-0.5, 3.0, bias)
        Fused()(q, View(k, v, at), at.against(at), need).out.sum().backward()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    Fused()(q, View(k, v, run), run.against(run), Need(Causal(), D**-0.5, 3.0)).out.sum().backward()
    assert passes.forward_calls == passes.backward_calls == 0


def test_gradients_that_are_these_passes(passes):
    """As far as can be told before the queries' positions are known."""
    q = torch.randn(1, 4, 512, 64, device=DEVICE).half()
    k, at = q[:, :2], Positions.arange(1, 512, device=DEVICE)
    falls = Positions.of(torch.arange(512).flip(0)[None], order=torch.arange(512)[None]).to(DEVICE)

    def asked(mask, view=None):
        return gradients_on_hopper(Need(mask, 1.0), q, view or View(k, k, at))

    assert asked(Causal())
    assert asked(Causal() & SameSegment())
    packed = Positions.packed([[300, 212]]).to(DEVICE)
    assert not asked(Causal() & SameSegment(), View(k, k, packed))
    assert asked(Causal() & Window(256))
    assert not asked(Causal() & Window(255))
    assert not asked(Everything())
    assert not asked(Causal(), View(k[:, :, :256], k[:, :, :256], Positions.arange(1, 256, device=DEVICE)))
    assert not asked(Causal(), View(k, k, falls))
    with torch.no_grad():
        assert not asked(Causal())


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU and Triton 3.6")
@pytest.mark.parametrize(
    ("groups", "tokens", "sinks", "names"),
    [(4, 4_096, False, {"sdpa"}), (2, 4_096, False, {"fused", "cudnn"}), (2, 2_048, False, {"sdpa"}),
     (4, 4_096, True, {"fused"})],
)  # fmt: skip
def test_which_kernel_runs_where_keys_are_grouped_and_sinks_learned(groups, tokens, sinks, names):
    q, k = (torch.randn(1, n, tokens, 128, device=DEVICE).bfloat16() for n in (4, groups))
    need = Need(Causal(), 1.0, sinks=torch.randn(4, device=DEVICE, requires_grad=True) if sinks else None)
    choose = chooser("auto")
    for _ in range(5):  # a shape that comes again has a plan
        at = Positions.arange(1, tokens, device=DEVICE)
        kernel = choose(need, q.requires_grad_(), View(k, k, at))
    assert kernel.name in names
