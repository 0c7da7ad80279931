"""On a GPU: the same results, and no waiting for the device in a pass."""

import pytest
import torch

from tests.cache.helpers import F64, Oracle, check_view, ragged
from vantage.cache import CACHES, LayerPlan, make_cache
from vantage.spec.masks import Causal, Window
from vantage.spec.parts import View
from vantage.spec.positions import Positions

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]
PLAN = [LayerPlan(2, 3, 2, Causal()), LayerPlan(2, 3, 2, Causal() & Window(4))]


@pytest.fixture
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_cpu(view: View) -> View:
    pos = view.pos.to("cpu")
    return View(view.k.cpu(), view.v.cpu(), pos)


@pytest.mark.parametrize(
    "kind", [k for k in CACHES if k not in ("quantised", "low-bit", "heavy-hitters", "tova", "snapkv")]
)
def test_the_same_as_on_the_host(kind):
    cache = make_cache(PLAN, batch=2, kind=kind, device="cuda", dtype=F64, block=4)
    oracle = Oracle([[], []])
    for lengths in ([5, 3], [1, 1], [4, 6], [1, 1], [1, 0]):
        before = oracle.next()
        chunk = ragged(before, lengths, uid=100 * sum(before))
        pos = chunk.pos.to("cuda")
        with cache.step(pos):
            views = [c.append(pos, chunk.keys(i).cuda(), chunk.values(i).cuda()) for i, c in enumerate(cache.layers)]
        oracle.append(chunk)
        check_view(on_cpu(views[0]), oracle, 0, [0, 0])
        check_view(on_cpu(views[1]), oracle, 1, [n - 3 for n in before])
    assert cache.next_positions.order.tolist() == oracle.next()
    if kind != "ring":
        cache.crop([4, 9])
        oracle.crop([4, 9])
        check_view(on_cpu(cache.layers[0].view()), oracle, 0, [0, 0])
    cache.reorder([1, 0, 1])
    oracle.reorder([1, 0, 1])
    check_view(on_cpu(cache.layers[0].view()), oracle, 0, [0, 0, 0])
    assert cache.holds().bytes == cache.bytes


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.usefixtures("no_waiting")
def test_a_plain_pass_never_waits(kind):
    cache = make_cache(PLAN, batch=2, kind=kind, device="cuda", dtype=torch.float32)
    x = torch.zeros(2, 2, 9, 3, device="cuda")
    for width in (9, 1, 1, 3, 1, 1):
        start = cache.next_positions.host
        assert start is not None
        pos = Positions.arange(2, width, start, device="cuda")
        with cache.step(pos):
            for layer in cache.layers:
                layer.append(pos, x[:, :, :width], x[:, :, :width, :2])


@pytest.mark.parametrize("kind", ["contiguous", "ring"])
def test_a_ragged_pass_never_waits(kind, no_waiting):
    torch.cuda.set_sync_debug_mode("default")
    cache = make_cache(PLAN, batch=2, kind=kind, device="cuda", dtype=torch.float32)
    x = torch.zeros(2, 2, 6, 3, device="cuda")
    passes = [Positions.rows(n, s).to("cuda") for n, s in (([6, 2], [0, 0]), ([1, 1], [6, 2]), ([1, 1], [7, 3]))]
    torch.cuda.set_sync_debug_mode("error")
    for pos in passes:
        width = pos.shape[1]
        with cache.step(pos):
            for layer in cache.layers:
                layer.append(pos, x[:, :, :width], x[:, :, :width, :2])
