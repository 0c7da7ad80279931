"""Qwen3-VL's text model: Qwen 3 whose heads turn by time, row and column (M-RoPE), pair by pair in turns."""

from __future__ import annotations

from vantage.attention import QKNorm
from vantage.checkpoints.config import Config
from vantage.families import llama_layout, qwen3
from vantage.families.family import Family
from vantage.families.qwen2_vl import multi_axis_rope
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    bias = c.flag("attention_bias", False)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias, head_dim=128)
    qk = (QKNorm(norm), multi_axis_rope(c, (24, 20, 20), 500_000.0, interleaved=True))
    layer = Layer(attention, llama_layout.feed_forward(c), norm, qk=qk)
    return llama_layout.model(c, (layer,) * llama_layout.count(c), norm)


FAMILY = Family("qwen3_vl_text", spec, qwen3.links)
