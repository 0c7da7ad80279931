"""Mistral: LLaMA with a window on every layer."""

from __future__ import annotations

from vantage.checkpoints.config import Config
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    mask = llama_layout.mask(llama_layout.window(c, silent=4096))
    layer = Layer(llama_layout.attention(c), llama_layout.feed_forward(c), norm, mask, (rope(c),))
    return llama_layout.model(c, (layer,) * llama_layout.count(c), norm)


FAMILY = Family("mistral", spec, llama.links, ignored=("rotary_emb.inv_freq",), gguf="llama")
