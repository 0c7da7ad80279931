"""Qwen3.5's text model: Qwen3-Next's layers without experts, turned by time, row and column (M-RoPE)."""

from __future__ import annotations

from vantage.attention import GatedDelta
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.families import llama_layout, qwen3_next
from vantage.families.family import Family
from vantage.families.llama import ends
from vantage.families.qwen2_vl import multi_axis_rope
from vantage.families.qwen3_next import OURS, THEIRS
from vantage.spec.model import FeedForwardConfig, ModelSpec


def spec(c: Config) -> ModelSpec:
    return hybrid(c, [llama_layout.feed_forward(c)] * llama_layout.count(c))


def hybrid(c: Config, feed_forwards: list[FeedForwardConfig]) -> ModelSpec:
    c.must_be("attn_output_gate", True)
    c.inert("mamba_ssm_dtype")  # the state is float32 here as there
    c.inert("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")  # layers that guess more than one token ahead
    turn = multi_axis_rope(c, (11, 11, 10), 10_000.0, interleaved=True, share=0.25)
    return qwen3_next.hybrid(c, feed_forwards, turn)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    table = ends(spec)
    for i, layer in enumerate(spec.layers):
        table += each([i], mixer_links(layer.attention, spec.width))
        table += each([i], llama_layout.feed_forward_links(layer))
    return table


def mixer_links(mixer: object, width: int) -> list[Link]:
    """Norms, and the delta rule or the attention between them."""
    own = delta_links(mixer, width) if isinstance(mixer, GatedDelta) else qwen3_next.attention_links(mixer, width)
    return [*qwen3_next.norm_links(), *own]


def delta_links(delta: GatedDelta, width: int) -> list[Link]:
    """Their projections, unlike Qwen3-Next's, hold all heads of one kind after the other."""
    s, theirs = delta.shape(width), f"{THEIRS}.linear_attn"
    gates = tuple(f"{theirs}.in_proj_{x}.weight" for x in "zba")
    return [
        *same({f"{OURS}.qkv.weight": f"{theirs}.in_proj_qkv.weight"}),
        Joined(f"{OURS}.gates.weight", gates, (s.heads * s.value_dim, s.heads, s.heads)),
        *qwen3_next.state_links(delta, width),
    ]


FAMILY = Family("qwen3_5_text", spec, links, ignored=("mtp.",))
