"""Bamba: layers of Mamba-2, and a layer of attention here and there, each with a feed-forward layer."""

from __future__ import annotations

from vantage.attention import GroupedQuery, Mamba2
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.errors import CheckpointError
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward, grouped_query
from vantage.families.mamba2 import mixer_links, step_limits
from vantage.families.module_links import joined, modules, self_attention
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec

OURS, THEIRS = "blocks.{i}.steps", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    c.must_be("hidden_act", "silu")
    width, bias = c.whole("hidden_size", low=1), c.flag("attention_bias", False)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    heads, inner = c.whole("mamba_n_heads", 128, low=1), width * c.whole("mamba_expand", 2, low=1)
    c.must_be("mamba_d_head", inner // heads, "auto")
    if inner % heads:
        raise CheckpointError(f"config.json: mamba_expand × hidden_size does not divide into {heads} heads")
    mixer = Mamba2(
        heads,
        norm,
        inner // heads,
        c.whole("mamba_d_state", 256, low=1),
        c.whole("mamba_n_groups", 1, low=1),
        c.whole("mamba_d_conv", 4, low=2),
        c.flag("mamba_proj_bias", False),
        c.flag("mamba_conv_bias", True),
        *step_limits(c),
    )
    attention = llama_layout.attention(c, bias=bias, out_bias=bias)
    ffn = llama_layout.feed_forward(c, bias=c.flag("mlp_bias", False))
    # how sums are cut, which logits transformers keeps, a loss, and what follows from attn_layer_indices
    c.inert("mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient", "layers_block_type", "layer_types")
    c.must_be("partial_rotary_factor", 0.5)
    qk = (rope(c, partial=True, share=0.5),)
    n, attends = llama_layout.count(c), c.numbers("attn_layer_indices", ())
    layers = [Layer(attention, ffn, norm, qk=qk) if i in attends else Layer(mixer, ffn, norm) for i in range(n)]
    return llama_layout.model(c, layers, norm)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear": "lm_head"}
    ends = {"embed.tokens": "model.embed_tokens", "norm": "model.final_layernorm", **head}
    table = modules(ends, bias=False)
    for i, layer in enumerate(spec.layers):
        attends = isinstance(layer.attention, GroupedQuery)
        mixes = attention_links(layer, spec.width) if attends else mixer_links(layer, spec.width, f"{THEIRS}.mamba")
        table += each([i], [*mixes, *feed_forward_links(layer)])
    return table


def attention_links(layer: Layer, width: int) -> list[Link]:
    attention, theirs = grouped_query(layer), f"{THEIRS}.self_attn"
    q, k, v, out = (f"{theirs}.{x}_proj" for x in "qkvo")
    return self_attention(f"{OURS}.0.sublayer", q, k, v, out, attention.shape(width), bias=attention.bias)


def feed_forward_links(layer: Layer) -> list[Link]:
    ffn, ours, theirs = dense_feed_forward(layer), f"{OURS}.1.sublayer", f"{THEIRS}.feed_forward"
    norms = {f"{OURS}.0.before": f"{THEIRS}.input_layernorm", f"{OURS}.1.before": f"{THEIRS}.pre_ff_layernorm"}
    pair = (f"{theirs}.gate_proj", f"{theirs}.up_proj")
    return [
        *modules(norms, bias=False),
        *joined(f"{ours}.gate_up", pair, (ffn.hidden, ffn.hidden), bias=ffn.bias),
        *modules({f"{ours}.down": f"{theirs}.down_proj"}, bias=ffn.bias),
    ]


FAMILY = Family("bamba", spec, links, ignored=("rotary_emb.inv_freq",))
