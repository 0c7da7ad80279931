"""Qwen 3: queries and keys are normed head by head before they are turned; no biases unless said."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import llama, llama_layout, qwen2
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    bias = c.flag("attention_bias", False)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias, head_dim=128)
    layer = Layer(attention, llama_layout.feed_forward(c), norm, qk=(QKNorm(norm), rope(c)))
    return llama_layout.model(c, [replace(layer, mask=mask) for mask in qwen2.masks(c)], norm)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    return [*llama.links(c, spec), *each(len(spec.layers), llama_layout.qk_norm_links())]


FAMILY = Family("qwen3", spec, links, gguf="qwen3")
