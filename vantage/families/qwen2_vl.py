"""Qwen2-VL's text model: Qwen 2 whose heads turn by time, row and column (M-RoPE), which are equal in text."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.families import llama, llama_layout, qwen2
from vantage.families.common import rope_rule
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.position import MultiAxisRope, Rope
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    turn = multi_axis_rope(c, (16, 24, 24), 1_000_000.0)
    layer = Layer(llama_layout.attention(c, bias=True), llama_layout.feed_forward(c), norm, qk=(turn,))
    return llama_layout.model(c, [replace(layer, mask=mask) for mask in qwen2.masks(c, below=80)], norm)


def multi_axis_rope(
    c: Config, sections: tuple[int, ...], base: float, *, interleaved: bool = False, share: float | None = None
) -> MultiAxisRope:
    """Sections and base are what the family takes when its config is silent; ``share`` of each head as well, in a
    family that turns a part of it."""
    part, theta = c.part("rope_parameters") or c.part("rope_scaling"), c.number("rope_theta", base)
    turned = 1.0 if share is None else c.number("partial_rotary_factor", share)
    if part is None:
        return MultiAxisRope(sections, interleaved, Rope(theta, share=turned))
    part.must_be("mrope_interleaved", interleaved)
    longest = c.whole("max_position_embeddings", None, low=1)
    rule = rope_rule(part, c, longest, plain=("default", "mrope"))
    turned = turned if share is None else part.number("partial_rotary_factor", turned)
    rope = Rope(part.number("rope_theta", theta), rule, share=turned)
    return MultiAxisRope(tuple(map(int, part.numbers("mrope_section", sections))), interleaved, rope)


FAMILY = Family("qwen2_vl_text", spec, llama.links, ignored=("rotary_emb.inv_freq",))
