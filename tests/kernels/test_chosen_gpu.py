"""Chosen keys in Triton, on a GPU where there is one and interpreted where there is none."""

import pytest
import torch
from torch import Tensor

from tests.kernels.fused_calls import DEVICE, MISSING
from tests.kernels.helpers import normal
from vantage.kernels import chosen, kernel_named
from vantage.kernels.chosen import ChosenKeysKernel, runs_in_triton
from vantage.spec.chosen import ChosenKeys
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.parts import Attended, Kernel, Need, View
from vantage.spec.positions import EMPTY, Positions

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")


def places(kind: str, T: int, S: int) -> tuple[Positions, Positions]:
    if kind == "run":
        return Positions.arange(2, T, S - T), Positions.arange(2, S)
    packed = Positions.packed([[3, S - 3], [S - 4, 2]], width=S)
    return packed.narrow(S - T, T), packed


@pytest.mark.parametrize("kind", ["run", "packed"])
@pytest.mark.parametrize(
    ("G", "share", "T", "S", "d", "e", "keep"),
    [(2, 2, 5, 9, 16, 16, 4), (1, 4, 7, 7, 24, 8, 3), (1, 20, 3, 80, 32, 32, 70), (1, 70, 2, 9, 16, 16, 5)],
)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
def test_output_and_gradients_are_those_of_the_reference(kind, G, share, T, S, d, e, keep, sinks, monkeypatch):
    monkeypatch.setattr(chosen, "IN_TRITON", ("cpu", "cuda"))
    H, (at, keys) = G * share, places(kind, T, S)
    given = [normal(2, H, T, d, seed=1), normal(2, G, S, d, seed=2), normal(2, G, S, e, seed=3), normal(H, seed=4)]
    columns = normal(2, T, S, seed=5).argsort(-1)[..., :keep]
    columns = torch.where(normal(*columns.shape, seed=6) > 1, EMPTY, columns)  # some are none
    weights = normal(2, H, T, e, seed=7)

    def run(kernel: Kernel, dtype: torch.dtype, device: str) -> tuple[Attended, list[Tensor]]:
        inputs = [x.to(device, dtype).requires_grad_() for x in given]
        q, k, v, sink = inputs
        q_at, k_at = at.to(device), keys.to(device)
        pair = q_at.against(k_at)
        bias = ChosenKeys(columns.to(device), None).bias(pair, H, dtype)
        need = Need(Causal() & SameSegment(), 0.3, sinks=sink if sinks else None, bias=bias, lse=True)
        view = View(k, v, k_at)
        assert kernel.refuses(need, q, view) is None
        assert isinstance(kernel, ChosenKeysKernel) == (
            dtype == torch.float32 and runs_in_triton(bias.chosen, need, q, view)
        )
        got = kernel(q, view, pair, need)
        of = weights.to(device, dtype)
        loss = (got.out * of).sum()
        if sinks:  # without them a query may see nothing, and the formula's logarithm of 0 has no gradient
            loss = loss + (got.lse * of[..., 0]).sum()
        return got, [x.cpu() for x in torch.autograd.grad(loss, inputs if sinks else inputs[:3])]

    got, grads = run(ChosenKeysKernel(), torch.float32, DEVICE)
    wanted, right = run(kernel_named("reference"), torch.float64, "cpu")
    for a, b in zip((got.out, got.lse, *grads), (wanted.out, wanted.lse, *right), strict=True):
        torch.testing.assert_close(a.detach().cpu().double(), b.detach(), rtol=1e-4, atol=2e-5)
