"""The backward pass over documents for Hopper, and what runs before and after it."""

import importlib.util

import pytest
import torch

from vantage.kernels.documents import key_blocks
from vantage.kernels.gluon import has_gluon
from vantage.spec.positions import Positions

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_hopper = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_gluon(torch.device("cuda"))), reason="needs a Hopper GPU and Triton 3.6"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOG2E = 1.4426950408889634
ODD = [[300, 128, 1, 64, 65, 500, 127]]
TWO_ROWS = [[700, 129, 371], [64, 1136]]


def side_by_side(rows: int, heads: int, tokens: int, width: int, dtype: torch.dtype, generator=None):
    x = torch.randn(rows, tokens, heads, width, generator=generator, dtype=torch.float64)
    return x.to(dtype).to(DEVICE).transpose(1, 2)


def blocks_of(lengths: list[list[int]]):
    at = Positions.packed(lengths)
    assert at.known.documents is not None
    return key_blocks(at, at.known.documents[0], 128, 64).to(DEVICE)


# ---- before and after, in plain Triton


@needs_triton
def test_lines_have_the_numbers_of_each_query_and_none_behind_a_document():
    from vantage.kernels.gpu.document_rows import prepare

    lengths, H, D = [[70, 130], [200]], 2, 16
    out, grad = (side_by_side(2, H, 200, D, torch.float32) for _ in range(2))
    lse = torch.randn(2, H, 200, device=DEVICE)
    blocks = blocks_of(lengths)
    most = len(blocks) - 1
    lines = torch.full((H, 2 * most, 2, 64), float("nan"), device=DEVICE)
    sums = torch.full((H, 2 * most * 64, D), float("nan"), device=DEVICE)
    by_row = torch.full((2, H, 200), float("nan"), device=DEVICE)
    counter = torch.full((1,), 7, dtype=torch.int32, device=DEVICE)
    prepare[(H, most)](
        out, grad, lse, lines, sums, by_row, blocks, counter, out.stride(2), grad.stride(2), *lse.stride(), 200,
        2 * most, D=D, BLOCK=128, ROWS=64, H=H, HAS_DELTA=True,
    )  # fmt: skip
    assert int(counter) == 0
    delta = (out * grad).sum(-1)
    torch.testing.assert_close(by_row, delta)
    for first, left, _, place in blocks[1 : 1 + int(blocks[0, 0])].tolist():
        n, row, at = min(left, 128), first // 200, first % 200
        of_block = lines[:, place : place + 2].transpose(1, 2).flatten(2)  # (H, 2, 128)
        torch.testing.assert_close(of_block[:, 0, :n], lse[row, :, at : at + n] * LOG2E)
        torch.testing.assert_close(of_block[:, 1, :n], delta[row, :, at : at + n])
        assert (of_block[:, 0, n:] == float("inf")).all()
        assert (of_block[:, 1, n:] == 0).all()
        assert (sums[:, place * 64 : place * 64 + 128] == 0).all()


@needs_triton
def test_a_queries_gradient_is_its_sum_and_nothing_else_is_written():
    from vantage.kernels.gpu.document_rows import finish

    lengths, H, D = [[70, 130], [150]], 2, 16  # the second row ends before the first
    blocks = blocks_of(lengths)
    most = len(blocks) - 1
    sums = torch.randn(H, 2 * most * 64, D, device=DEVICE)
    got = torch.full((2, 200, H, D), float("nan"), device=DEVICE).transpose(1, 2)
    finish[(H, most)](sums, got, blocks, got.stride(2), 2 * most, 0.5, D=D, BLOCK=128, ROWS=64)
    for first, left, _, place in blocks[1 : 1 + int(blocks[0, 0])].tolist():
        n, row, at = min(left, 128), first // 200, first % 200
        torch.testing.assert_close(got[row, :, at : at + n], sums[:, place * 64 : place * 64 + n] / 2)
    assert got[1, :, 150:].isnan().all()
    assert not got[1, :, :150].isnan().any()


# ---- all of it


def reference(q, k, v, grad, lengths: list[list[int]]):
    """Output, log-sum-exp and gradients, document by document, in float64."""
    leaves = [x.detach().cpu().double().requires_grad_() for x in (q, k, v)]
    share = q.shape[1] // k.shape[1]
    outs, lses = [], []
    for row, documents in enumerate(lengths):
        for part in zip(*(x[row].split(documents, 1) for x in leaves), strict=True):
            a, b, c = part[0], *(x.repeat_interleave(share, 0) for x in part[1:])
            s = a @ b.transpose(1, 2) * q.shape[3] ** -0.5
            s = s.masked_fill(torch.ones_like(s[0], dtype=torch.bool).triu(1), float("-inf"))
            outs.append(s.softmax(-1) @ c)
            lses.append(s.logsumexp(-1))
    per_row = [len(documents) for documents in lengths]
    out = torch.stack([torch.cat(x, 1) for x in split(outs, per_row)])
    lse = torch.stack([torch.cat(x, 1) for x in split(lses, per_row)])
    grads = torch.autograd.grad(out, leaves, grad.cpu().double())
    return out.detach().to(DEVICE), lse.detach().to(DEVICE), [x.to(DEVICE) for x in grads]


def split(parts: list, counts: list[int]) -> list[list]:
    each = iter(parts)
    return [[next(each) for _ in range(n)] for n in counts]


@needs_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("lengths", "H", "G", "D"),
    [
        ([[128]], 1, 1, 128),
        (ODD, 2, 2, 128),
        (ODD, 6, 2, 64),
        (TWO_ROWS, 4, 1, 128),
        (TWO_ROWS, 16, 16, 128),  # more blocks than programs
        ([[1, 2047]], 24, 8, 128),
        ([[5] * 100], 3, 3, 64),
    ],
)
def test_gradients_are_the_references(lengths, H, G, D, dtype):
    from vantage.kernels.gpu.hopper_rows_backward import row_gradients

    B, T = len(lengths), sum(lengths[0])
    q, grad, *dq = (side_by_side(B, H, T, D, dtype) for _ in range(3))
    k, v, dk, dv = (side_by_side(B, G, T, D, dtype) for _ in range(4))
    out, lse, right = reference(q, k, v, grad, lengths)
    out = out.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    got = (*dq, dk, dv)
    blocks = blocks_of(lengths)
    for how in (lse, lse.transpose(0, 1).contiguous().transpose(0, 1)):  # heads outermost, as cuDNN has it
        for x in got:
            x.fill_(float("nan"))
        row_gradients(q, k, v, out, how.float(), grad, got, blocks, (D**-0.5 * LOG2E, 1.0), D**-0.5)
        far = [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, right, strict=True)]
        assert max(far) < {torch.bfloat16: 1e-2, torch.float16: 1.5e-3}[dtype], far


@needs_hopper
def test_any_strides_of_what_it_reads():
    """Queries, keys and values from one projection, and a gradient with heads apart."""
    from vantage.kernels.gpu.hopper_rows_backward import row_gradients

    H, T, D = 4, sum(ODD[0]), 128
    qkv = torch.randn(1, T, 3 * H * D, device="cuda", dtype=torch.bfloat16)
    q, k, v = (x.unflatten(-1, (H, D)).transpose(1, 2) for x in qkv.split(H * D, -1))
    grad = torch.randn(1, H, T, D, device="cuda", dtype=torch.bfloat16)
    out, lse, right = reference(q, k, v, grad, ODD)
    out = out.bfloat16().transpose(1, 2).contiguous().transpose(1, 2)
    got = tuple(torch.full_like(out, float("nan")) for _ in range(3))
    row_gradients(q, k, v, out, lse.float(), grad, got, blocks_of(ODD), (D**-0.5 * LOG2E, 1.0), D**-0.5)
    assert max(float((a.double() - b).norm() / b.norm()) for a, b in zip(got, right, strict=True)) < 1e-2


@needs_hopper
def test_gradients_of_keys_and_values_are_equal_from_run_to_run():
    """Each is summed by one program. Queries' gradients are sums without an order."""
    from vantage.kernels.gpu.hopper_rows_backward import row_gradients

    H, T = 16, sum(TWO_ROWS[0])
    q, k, v, out, grad = (side_by_side(2, H, T, 128, torch.bfloat16) for _ in range(5))
    lse = torch.full((2, H, T), 8.0, device="cuda")
    runs = []
    for _ in range(10):
        got = tuple(torch.full_like(out, float("nan")) for _ in range(3))
        row_gradients(q, k, v, out, lse, grad, got, blocks_of(TWO_ROWS), (128**-0.5 * LOG2E, 1.0), 128**-0.5)
        runs.append(got)
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run[1:], runs[0][1:], strict=True))
    assert all(float((run[0] - runs[0][0]).norm() / runs[0][0].norm()) < 5e-3 for run in runs)


# ---- who hands over to it


@needs_triton
def test_the_fused_kernel_hands_over_what_it_wants(monkeypatch):
    """With formulas in the place of both passes for Hopper. They meet all rows' tokens one behind the other."""
    from vantage.kernels import documents, kernel_named
    from vantage.kernels.fused import Fused
    from vantage.kernels.gpu import hopper_rows, hopper_rows_backward
    from vantage.spec.masks import Causal, SameSegment
    from vantage.spec.normalisers import Softmax
    from vantage.spec.parts import Need, View

    lengths, H, G, D = [[200, 300, 400], [500, 257, 143]], 4, 2, 64
    at, ran = Positions.packed(lengths).to(DEVICE), []
    tokens = torch.tensor([n for row in lengths for n in row], device=DEVICE)
    of = torch.arange(len(tokens), device=DEVICE).repeat_interleave(tokens)
    hidden = (of[:, None] != of[None, :]) | torch.ones(len(of), len(of), device=DEVICE, dtype=torch.bool).triu(1)

    def flat(x, heads=H):  # (B, G, T, d) to (H, B T, d)
        return x.float().repeat_interleave(heads // x.shape[1], 1).transpose(0, 1).flatten(1, 2)

    def back(x, like):
        return x.unflatten(1, (2, -1)).transpose(0, 1).unflatten(1, (like.shape[1], -1)).sum(2).to(like.dtype)

    def scores(q, k, scale):
        return (flat(q) @ flat(k).transpose(1, 2) * scale).masked_fill(hidden, float("-inf"))

    def forward(q, k, v, out, lse, blocks, scale, bias):
        assert bias.form == 0
        s = scores(q, k, scale)
        lse.copy_(back(s.logsumexp(-1)[..., None], lse[..., None])[..., 0])
        out.copy_(back(s.softmax(-1) @ flat(v), out))

    def backward(q, k, v, out, lse, grad, gradients, blocks, units, scale, bias, softcap, window, delta):
        assert (units, softcap, window, bias.form, delta) == ((scale * LOG2E, 1.0), False, 0, 0, None)
        assert int(blocks[0, 0]) == sum(-(-n // 128) for n in tokens.tolist())
        p = (scores(q, k, scale) - flat(lse[..., None])).exp()
        dp = flat(grad) @ flat(v).transpose(1, 2)
        ds = p * (dp - (flat(grad) * flat(out)).sum(-1, keepdim=True)) * scale
        for to, x in zip(
            gradients, (ds @ flat(k), ds.transpose(1, 2) @ flat(q), p.transpose(1, 2) @ flat(grad)), strict=True
        ):
            to.copy_(back(x, to))
        ran.append(blocks)

    monkeypatch.setattr(documents, "has_gluon", lambda device: True)
    monkeypatch.setattr(hopper_rows, "attend_rows", forward)
    monkeypatch.setattr(hopper_rows_backward, "row_gradients", backward)
    q, upstream = (side_by_side(2, H, 900, D, torch.bfloat16) for _ in range(2))
    k, v = (side_by_side(2, G, 900, D, torch.bfloat16) for _ in range(2))
    need, runs = Need(Causal() & SameSegment(), 0.2, normalise=Softmax(1.5)), []
    for kernel, dtype in ((Fused(), torch.bfloat16), (kernel_named("reference"), torch.float64)):
        x = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        out = kernel(x[0], View(x[1], x[2], at), at.against(at), need).out
        runs.append((out.detach(), *torch.autograd.grad(out, x, upstream.to(dtype))))
    assert len(ran) == 1
    assert all(float((a.double() - b).norm() / b.norm()) < 1e-2 for a, b in zip(*runs, strict=True))
