"""Gopher (Rae et al. 2021, section 3.1): GPT-2 with RMSNorm and the relative positions of Transformer-XL.

Never published, so the names are ours. Config: ``vocab_size``, ``hidden_size``, ``num_hidden_layers``,
``num_attention_heads``, ``head_dim`` (hidden_size / heads), ``intermediate_size`` (4 · hidden_size),
``hidden_act`` ("gelu_new"), ``rms_norm_eps`` (1e-6), ``relative_base`` (10000, of the sinusoids),
``max_position_embeddings`` (2048), ``tie_word_embeddings`` (true). Tensors: ``embed_tokens.weight``,
``norm.weight``, ``lm_head.weight`` if untied, and for each layer ``layers.{i}.norm_1.weight``,
``.attention.{q,k,v,out}.{weight,bias}``, ``.norm_2.weight``, ``.mlp.{up,down}.{weight,bias}``. The relative
part of a layer is ``.attention.r.weight`` (W_r, heads · head_dim by width, without bias) and
``.attention.content_bias`` and ``.position_bias`` (u and v, heads by head_dim).
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, Reshape, each, same
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.position import TransformerXL
from vantage.spec.model import Head, Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    width, heads = c.whole("hidden_size", low=1), c.whole("num_attention_heads", low=1)
    attention = GroupedQuery(heads, head_dim=c.whole("head_dim", None, low=1), bias=True, out_bias=True)
    hidden = c.whole("intermediate_size", 4 * width, low=1)
    ffn = FeedForward(hidden, c.choice("hidden_act", ACTIVATIONS, "gelu_new"), gated=False, bias=True)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    relative = TransformerXL(c.number("relative_base", 10000.0)).parts(causal=True)
    layer = Layer(attention, ffn, norm, qk=relative.qk, bias=relative.bias)
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (layer,) * c.whole("num_hidden_layers", low=1),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", True)),
        max_length=c.whole("max_position_embeddings", 2048, low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    s = spec.layers[0].attention.shape(spec.width)
    flat, ours, theirs = s.heads * s.key_dim, "blocks.{i}.steps", "layers.{i}"
    names = {f"{ours}.{i}.before.weight": f"{theirs}.norm_{i + 1}.weight" for i in range(2)}
    names |= {f"{ours}.0.sublayer.qk.0.u": f"{theirs}.attention.content_bias"}
    names |= {f"{ours}.0.sublayer.scorer.bias.v": f"{theirs}.attention.position_bias"}
    table = Reshape((s.heads, s.key_dim, spec.width), (flat, spec.width))
    layer = same({f"{ours}.0.sublayer.scorer.bias.w_r": f"{theirs}.attention.r.weight"}, table)
    for kind in ("weight", "bias"):
        qkv = tuple(f"{theirs}.attention.{x}.{kind}" for x in "qkv")
        layer += [Joined(f"{ours}.0.sublayer.qkv.{kind}", qkv, (flat,) * 3)]
        names |= {f"{ours}.0.sublayer.out.{kind}": f"{theirs}.attention.out.{kind}"}
        names |= {f"{ours}.1.sublayer.{x}.{kind}": f"{theirs}.mlp.{x}.{kind}" for x in ("up", "down")}
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    ends = {"embed.tokens.weight": "embed_tokens.weight", "norm.weight": "norm.weight", **head}
    return [*same(ends), *each(len(spec.layers), [*layer, *same(names)])]


FAMILY = Family("gopher", spec, links)
