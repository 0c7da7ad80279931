"""Layers that read another layer's keys and values: with and without a cache, counted once, and what cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.inspect.cache_bytes import CacheSettings, cache_bytes

WINDOW = vt.Causal() & vt.Window(3)


def shared(sources: list[int | None], **options) -> vt.ModelSpec:
    spec = vt.decoder(vocab=19, width=16, layers=len(sources), heads=4, kv_heads=2, **options)
    return replace(spec, layers=tuple(replace(layer, source=s) for layer, s in zip(spec.layers, sources, strict=True)))


def test_it_is_the_model_whose_later_layer_projects_the_same_keys_from_the_sources_input():
    """Written out: the second layer attends to what the first one projected, with its own queries."""
    model = sharpen(vt.build(shared([None, 0]), kernel="reference").double())
    tokens = torch.randint(19, (2, 7), generator=torch.Generator().manual_seed(0))
    seen = []
    model.hidden(tokens, watch=lambda site, index, view, need, attended: seen.append(view))
    assert seen[0] is seen[1]
    first, second = (block.sublayers[0] for block in model.blocks)
    assert first.qkv.weight.shape[0] == 16 + 8 + 8
    assert second.qkv.weight.shape[0] == 16


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring", "quantised"])
def test_a_cache_counts_a_source_once_and_changes_nothing(kind):
    spec = shared([None, None, 0, 1], mask=WINDOW)
    model = sharpen(vt.build(spec).double())
    tokens = torch.randint(19, (2, 12), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(2, kind=kind)
    assert len(cache.layers) == 2
    # a prefill longer than the window: the ring has dropped what the readers still need in this pass
    first = model(tokens[:, :8], cache=cache)
    steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(8, 12)]
    got = torch.cat([first, *steps], 1)
    if kind != "quantised":
        torch.testing.assert_close(got, model(tokens), rtol=1e-9, atol=1e-9)
    fixed = CacheSettings(10, 2, torch.float64, kind)
    assert 2 * cache_bytes(spec, fixed) == cache_bytes(shared([None] * 4, mask=WINDOW), fixed)


@torch.no_grad()
def test_fork_and_reorder():
    model = sharpen(vt.build(shared([None, 0, 0])).double())
    tokens = torch.randint(19, (2, 9), generator=torch.Generator().manual_seed(0))
    cache = model.new_cache(2)
    model(tokens[:, :5], cache=cache)
    other = cache.fork()
    other.reorder([1, 0])
    model(tokens[:, 5:6], cache=cache)
    got = model(tokens.flip(0)[:, 5:], cache=other)
    torch.testing.assert_close(got, model(tokens.flip(0))[:, 5:], rtol=1e-9, atol=1e-9)


def test_gradients_reach_the_source_from_both():
    model = vt.build(shared([None, 0]))
    model(torch.arange(6)[None]).square().sum().backward()
    both = model.blocks[0].sublayers[0].qkv.weight.grad.clone()
    assert both.abs().sum() > 0


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([0, None], "layer 0 reads the keys of layer 0: give an earlier layer"),
        ([None, 1], "layer 1 reads the keys of layer 1"),
        ([None, 0, 1], "layer 2 reads the keys of layer 1, which has none: give 0 instead"),
    ],
)
def test_what_cannot_be(sources, says):
    with pytest.raises(BadInput, match=says):
        shared(sources)


def test_a_reader_sees_no_further_than_its_source():
    spec = vt.decoder(vocab=19, width=16, layers=2, heads=4)
    near = replace(spec.layers[0], mask=WINDOW)
    with pytest.raises(BadInput, match="layer 1 sees further than layer 0"):
        replace(spec, layers=(near, replace(spec.layers[1], source=0)))
    other = replace(spec.layers[1], attention=vt.GroupedQuery(2), source=0)
    with pytest.raises(BadInput, match="their heads differ"):
        replace(spec, layers=(spec.layers[0], other))


def test_an_attention_that_cannot_share_says_so():
    latent = vt.Latent(2, kv_rank=4, nope_dim=4, rope_dim=4, value_dim=4, norm=vt.RMSNorm())
    spec = vt.decoder(vocab=9, width=8, layers=2, attention=latent)
    with pytest.raises(Refused, match="Latent has no keys that another layer could read"):
        vt.build(replace(spec, layers=(spec.layers[0], replace(spec.layers[1], source=0))))
