"""Which of torch's own attentions is let run: none that plans, where shapes do not come again."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

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
