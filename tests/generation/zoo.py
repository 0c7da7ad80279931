"""Tiny models of the kinds that differ for a cache, built the same in every process."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

import vantage as vt
from vantage.cache import CACHES, ModelCache
from vantage.cache.kinds.static import StaticCache
from vantage.conformance.scenarios import sharpen
from vantage.model import Model
from vantage.spec.masks import Window
from vantage.spec.model import ModelSpec

VOCAB, WINDOW = 40, 9


def spec(kind: str) -> ModelSpec:
    base = {"vocab": VOCAB, "width": 24, "layers": 2, "heads": 4}
    if kind == "plain":
        return vt.decoder(**base, kv_heads=2)
    if kind == "window":
        return vt.decoder(**base, window=WINDOW, position="alibi")
    if kind == "mixed":  # a local layer and a global one
        made = vt.decoder(**base)
        local, wide = made.layers
        return replace(made, layers=(replace(local, mask=local.mask & Window(WINDOW)), wide))
    if kind == "latent":
        mla = vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=vt.RMSNorm())
        return vt.decoder(vocab=VOCAB, width=24, layers=2, attention=mla)
    if kind == "ntk":  # frequencies that depend on the length
        return vt.decoder(**base, position=vt.Rope(scaling=vt.scaling.DynamicNTK(2.0, 16)))
    if kind == "fox":  # running sums beside the keys
        return vt.decoder(**base, kv_heads=2, position="fox")
    if kind == "shared-keys":  # the second layer reads the first one's
        shared = vt.decoder(**base, kv_heads=2)
        return replace(shared, layers=(shared.layers[0], replace(shared.layers[1], source=0)))
    if kind == "states":  # a state of constant size, and keys
        hybrid = vt.decoder(**base, kv_heads=2)
        state = replace(hybrid.layers[0], attention=vt.GatedDelta(4, vt.RMSNorm(), key_heads=2), qk=())
        return replace(hybrid, layers=(state, hybrid.layers[1]))
    assert kind == "encoder-decoder"
    return vt.encoder_decoder(**base)


MODELS = ("plain", "window", "mixed", "latent", "ntk", "fox", "shared-keys", "states", "encoder-decoder")
KINDS = [kind for kind in CACHES if kind != "low-bit"]  # as quantised, only coarser
EVERY = [(m, k) for m in MODELS for k in KINDS if k != "ring" or m in ("window", "mixed")]
CASES = [(m, k) for m, k in EVERY if k not in ("heavy-hitters", "tova", "snapkv")]  # which take tokens back

# so that they forget and pack, or read little
SMALL = {"sinks": vt.SinkCache(2, 7), "kivi": vt.KiviCache(4, 2, 3, 4), "static": StaticCache(96)}


@functools.cache
def model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    """One for all tests: whoever changes it takes a copy."""
    return sharpen(vt.build(spec(kind), seed=seed), seed).to(dtype)


def cache(of: Model, kind: str, batch: int = 1, length: int | None = None, draft: int = 8) -> ModelCache:
    """With room to take ``draft`` tokens back, in a paged cache too."""
    windowed = kind in ("ring", "paged") and any(layer.mask.reach() is not None for layer in of.spec.layers)
    back = draft if windowed or kind in SMALL or of.spec.keeps_states else None
    return of.new_cache(batch, kind=SMALL.get(kind, kind), length=length, draft=back, block=4)


def tokens(n: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))
