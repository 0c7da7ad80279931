"""What the newest token attends to, while native steps run: the weights that they used. Watching changes no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vantage as vt
from vantage.cache import CacheKind
from vantage.cache.kinds.sinks import SinkCache
from vantage.conformance.scenarios import sharpen
from vantage.errors import Refused
from vantage.generation.stats import paths_of
from vantage.inspect.last_query import LastQuery, LastQueryWatch
from vantage.inspect.sites import sites_of
from vantage.kernels.native import native
from vantage.model.lowered import run as lowered_run
from vantage.model.packed import quantise
from vantage.spec.model import Scores

pytestmark = pytest.mark.skipif(native() is None, reason="no C++ compiler here")

FORMS: dict[str, dict[str, Any]] = {
    "rope": {},
    "window": {"window": 70},
    "alibi": {"position": "alibi"},
    "softcap": {"attention": vt.GroupedQuery(4, 2, scores=Scores(softcap=2.0))},
    "sinks": {"attention": vt.GroupedQuery(4, 2, scores=Scores(sinks=True))},
    "scale, multi-head": {"attention": vt.GroupedQuery(4, 4, scores=Scores(scale=0.4))},
}


def built(**options: Any) -> vt.Model:
    heads = {} if "attention" in options else {"heads": 4, "kv_heads": 2}
    return sharpen(vt.build(vt.decoder(**{"vocab": 50, "width": 64, "layers": 3, **heads, **options})))


def chosen(model: vt.Model, layers: set[int] | None = None) -> list[Any]:
    return [site for site in sites_of(model) if layers is None or site.layer in layers]


@torch.inference_mode()
def watched(
    model: vt.Model,
    tokens: torch.Tensor,
    chunks: list[int],
    layers: set[int] | None = None,
    kind: str | CacheKind = "contiguous",
) -> tuple[dict[int, LastQuery], torch.Tensor, LastQueryWatch, vt.ModelCache]:
    """The last pass as it was seen, its logits, the watch and the cache."""
    seen: dict[int, LastQuery] = {}

    def see(one: LastQuery) -> None:
        seen[one.site.layer] = one._replace(weights=one.weights.clone())

    watch, cache, logits = (
        LastQueryWatch(model, chosen(model, layers), see),
        model.new_cache(len(tokens), kind=kind),
        None,
    )
    for part in tokens.split(chunks, 1):
        with watch.on():
            logits = model(part, cache=cache)
    assert logits is not None
    return seen, logits, watch, cache


def by_order(seen: LastQuery, tokens: int) -> torch.Tensor:
    """(H, tokens): the first row's weights where its keys stand in the text."""
    line = torch.zeros(seen.weights.shape[1], tokens)
    return line.index_add_(1, seen.order[0].clamp_min(0), seen.weights[0])


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("kv_dtype", [None, "float16", "int8"])
@pytest.mark.parametrize("form", FORMS)
def test_native_steps_show_what_a_capture_shows(form: str, kv_dtype: str | None, kind: str):
    model, tokens = built(**FORMS[form]), torch.randint(50, (1, 330))
    model.kv_dtype = kv_dtype
    seen, _, watch, cache = watched(model, tokens, [327, 1, 1, 1], kind=kind)
    assert watch.by_modules is None
    assert paths_of(cache)["native"] == 3
    with torch.inference_mode():
        captured = vt.capture(model, tokens)
    # keys of 8 bits: a rounding that falls the other way in one of the two runs moves a key by one step
    allowed = 2e-2 if kv_dtype == "int8" else 2e-3 if kv_dtype == "float16" else 2e-5
    for layer in range(3):
        torch.testing.assert_close(
            seen[layer].weights[0], captured.weights(layer)[:, -1], rtol=allowed, atol=allowed / 10
        )
        assert torch.equal(seen[layer].order, torch.arange(330)[None])


@pytest.mark.parametrize("form", FORMS)
def test_of_the_same_keys_the_weights_are_those_of_the_reference(form: str):
    """In the first layer both ways have the very same queries and keys: in 8 bits too, only rounding differs."""
    model, tokens = built(**FORMS[form]), torch.randint(50, (1, 200))
    model.kv_dtype = "int8"
    natively, *_ = watched(model, tokens, [199, 1], {0})
    model.kernel = "reference"
    by_modules, _, watch, _ = watched(model, tokens, [199, 1], {0})
    assert watch.by_modules == "kernel='reference' was chosen"
    torch.testing.assert_close(by_order(natively[0], 200), by_order(by_modules[0], 200), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("chunks", [[97, 1, 1, 1], [60, 40]], ids=["steps", "a prompt"])
def test_watching_changes_no_bit(chunks: list[int], bits: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lowered_run, "MAX_OWN_PRODUCT_ROWS", 10**6)  # the prompt runs natively as well
    model, tokens = built(), torch.randint(50, (2, 100))
    if bits is not None:
        quantise(model, bits)
    model.kernel = "native"  # which refuses what it cannot run
    seen, logits, _, _ = watched(model, tokens, chunks, {1})
    cache = model.new_cache(2)
    with torch.inference_mode():
        (*_, plain) = [model(part, cache=cache) for part in tokens.split(chunks, 1)]
    assert torch.equal(logits, plain)
    assert set(seen) == {1}
    torch.testing.assert_close(seen[1].weights.sum(-1), torch.ones(2, 4))


def test_rows_of_different_lengths():
    model, tokens = built(window=20), torch.randint(50, (1, 90))
    long, *_ = watched(model, tokens, [89, 1], kind="paged")
    short, *_ = watched(model, tokens[:, :31], [30, 1], kind="paged")
    seen: dict[int, LastQuery] = {}
    watch = LastQueryWatch(model, chosen(model), lambda one: seen.__setitem__(one.site.layer, one))
    mask = torch.ones(2, 89, dtype=torch.bool)
    mask[1, 30:] = False
    with torch.inference_mode():
        cache = model.new_cache(2, kind="paged")
        model(tokens[:, :89].expand(2, -1), cache=cache, mask=mask)
        last = torch.stack((tokens[0, 89:90], tokens[0, 30:31]))
        with watch.on():
            model(last, cache=cache)
    assert watch.by_modules is None
    for layer in range(3):
        torch.testing.assert_close(seen[layer].weights[0], long[layer].weights[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(seen[layer].weights[1, :, :31], short[layer].weights[0], rtol=1e-4, atol=1e-6)
        assert not seen[layer].weights[1, :, 31:].any()


def test_a_ring_is_watched_without_modules():
    model, tokens = built(window=16), torch.randint(50, (1, 60))
    quantise(model, 4)
    whole, logits, *_ = watched(model, tokens, [59, 1])
    ring, same, watch, cache = watched(model, tokens, [40, 19, 1], kind="ring")
    assert watch.by_modules is None
    assert paths_of(cache) == {"native": 60}
    assert torch.equal(same, logits)
    for layer in range(3):
        assert torch.equal(ring[layer].weights, whole[layer].weights)


def test_a_cache_that_no_native_step_reads_is_watched_by_modules():
    model, tokens = built(), torch.randint(50, (1, 60))
    whole, *_ = watched(model, tokens, [59, 1])
    sinks, _, watch, cache = watched(model, tokens, [59, 1], kind=SinkCache(window=60))
    assert watch.by_modules is not None
    assert "this pass is one for torch" in watch.by_modules
    assert "native" not in paths_of(cache)
    for layer in range(3):
        torch.testing.assert_close(by_order(sinks[layer], 60), whole[layer].weights[0], rtol=1e-4, atol=1e-6)


def test_one_watcher_at_a_time_and_none_afterwards():
    model = built()
    watch = LastQueryWatch(model, chosen(model), lambda one: None)
    with watch.on(), pytest.raises(Refused, match="one at a time"), watch.on():
        pass
    assert model.whole_steps.watcher is None
    assert not model.blocks[0]._forward_pre_hooks


def test_steps_are_not_run_ahead_of_a_watcher():
    model = built()
    quantise(model, 4)
    with torch.inference_mode():
        assert model.whole_steps.runs_ahead(model)
        with LastQueryWatch(model, chosen(model), lambda one: None).on():
            assert not model.whole_steps.runs_ahead(model)
