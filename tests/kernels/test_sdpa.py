"""Which of torch's own attentions is let run: none that plans, where shapes do not come again."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from vantage.attention import LowRankQuery
from vantage.conformance.scenarios import sharpen
from vantage.kernels import chooser, sdpa
from vantage.kernels.recurring import RecurringShapes
from vantage.kernels.sdpa import plans_pay, without_cudnn
from vantage.model import build, decoder
from vantage.spec.masks import Causal
from vantage.spec.parts import Need, View
from vantage.spec.positions import Pair, Positions

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def allowed() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


def test_plans_are_off_inside_and_as_before_afterwards():
    assert allowed()
    with without_cudnn():
        assert not allowed()
    assert allowed()
    with pytest.raises(ZeroDivisionError), without_cudnn():
        raise ZeroDivisionError
    assert allowed()


def test_what_the_caller_chose_stays():
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), without_cudnn():
        assert allowed()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), without_cudnn():
        assert not allowed()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        with without_cudnn():
            pass
        assert not allowed()


def view_of(q: torch.Tensor) -> View:
    return View(q, q, Positions.arange(len(q), q.shape[2], device=q.device))


def test_a_processor_has_no_plans():
    q = torch.empty(1, 1, 1, 8)
    assert plans_pay(q, view_of(q))


@needs_gpu
@pytest.mark.parametrize(("queries", "grad", "pays"), [(1, True, False), (512, True, True), (512, False, False)])
def test_a_plan_pays_for_long_rows_that_are_trained_on(queries: int, grad: bool, pays: bool):
    q = torch.empty(1, 1, queries, 8, device="cuda")
    with torch.set_grad_enabled(grad):
        assert plans_pay(q, view_of(q)) is pays


@needs_gpu
def test_without_gradients_a_plan_pays_once_a_shape_has_come_again(monkeypatch):
    monkeypatch.setattr(sdpa, "_shapes", RecurringShapes(sdpa.PAYS_AFTER))
    q = torch.empty(1, 2, 4096, 64, device="cuda", dtype=torch.bfloat16)
    choose, need, chosen = chooser("auto"), Need(Causal(), 0.125), []
    with torch.no_grad():
        for _ in range(4):
            view = view_of(q)
            chosen.append([choose(need, q, view).name for layer in range(5)])
    assert chosen == [["fused"] * 5] * 2 + [["sdpa"] * 5] * 2


@needs_gpu
def test_no_step_of_a_cache_makes_a_plan():
    model = build(decoder(vocab=20, width=256, layers=2, heads=4)).to("cuda", torch.bfloat16).eval()
    tokens = torch.randint(20, (1, 40), device="cuda")
    with torch.inference_mode(), profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        cache = model.new_cache()
        model(tokens, cache=cache)
        for _ in range(3):
            model(tokens[:, :1], cache=cache)
    names = {event.key for event in seen.key_averages()}
    assert "aten::embedding" in names  # the passes were seen
    assert not any("cudnn_attention" in name for name in names)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("queries", "plans"), [(1, False), (512, True)])
def test_compiled_code_plans_for_long_rows_and_training_alone(
    queries: int, plans: bool, grad: bool, monkeypatch: pytest.MonkeyPatch
):
    """In compiled code torch chooses when it traces: which attentions it may choose stands in the graph."""
    graphs: list[torch.fx.GraphModule] = []
    step = "_sdpa_kernel"

    def keep(graph: torch.fx.GraphModule, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(sdpa, "on_gpu", lambda q: True)
    need, q = Need(Causal(), scale=0.5), torch.randn(1, 2, queries, 8)

    def attend(q: torch.Tensor) -> torch.Tensor:
        pos = Positions.arange(1, queries)
        return sdpa.Sdpa()(q, View(q, q, pos), Pair(pos, pos), need).out

    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        got = torch.compile(attend, backend=keep, fullgraph=True)(q)
    torch._dynamo.reset()
    assert any(step in str(node.target) for node in graphs[0].graph.nodes) is not (plans or grad)
    assert allowed()
    torch.testing.assert_close(got, attend(q))


def projected_beside(width: int, heads: int = 2, dim: int = 8, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Heads (2, heads, 5, dim) of one projection, behind something of this width."""
    every = torch.randn(2, 5, width + heads * dim).to(dtype)
    return every[..., width:].unflatten(-1, (heads, dim)).transpose(1, 2)


@pytest.mark.parametrize(
    ("x", "copied"),
    [
        (projected_beside(6), True),
        (projected_beside(4), True),
        (projected_beside(8), False),
        (projected_beside(8)[:, :, 1:], False),
        (projected_beside(8)[:, :, :, 2:].contiguous()[..., :4], False),  # torch pads such heads
        (projected_beside(6, dtype=torch.float32), False),  # and looks where numbers of 32 bits lie
    ],
)
def test_what_lies_at_odd_addresses_is_copied_for_a_gpu(monkeypatch, x: torch.Tensor, copied: bool):
    assert sdpa.readable(x) is x
    monkeypatch.setattr(sdpa, "on_gpu", lambda x: True)
    got = sdpa.readable(x)
    assert (got is not x) == copied
    assert torch.equal(got, x)
    if copied:
        assert got.stride() == (5 * 16, 8, 16, 1)
        assert got.storage_offset() == 0


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("rank", [3, 6, 12])
def test_keys_projected_beside_something_odd_on_a_gpu(rank: int, compiled: bool):
    """Flash attention reads 16 bytes at a time and does not ask where they lie."""
    spec = decoder(vocab=31, width=32, layers=2, attention=LowRankQuery(4, rank=rank), position="rope")
    reference = sharpen(build(spec, kernel="reference")).double()
    model = sharpen(build(spec, kernel="sdpa")).to("cuda", torch.bfloat16)
    tokens = torch.randint(31, (2, 11), generator=torch.Generator().manual_seed(0))
    call = torch.compile(model) if compiled else model
    with torch.no_grad():
        off = call(tokens.cuda()).double().cpu() - reference(tokens)
    assert off.norm() < 0.05 * reference(tokens).norm()
    loss = call(tokens.cuda()).float().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
