"""PaLM (Chowdhery et al. 2022, section 2): parallel block, multi-query attention, SwiGLU, RoPE, no biases.

Never published, so the names are ours. Config, with PaLM's own values where a key may be left out:
``vocab_size``, ``hidden_size``, ``num_hidden_layers``, ``num_attention_heads``, ``head_dim`` (256),
``intermediate_size`` (4 · hidden_size), ``layer_norm_eps`` (1e-6), ``rope_theta`` (10000),
``max_position_embeddings`` (2048). Tensors: ``embed_tokens.weight``, ``norm.weight``, and for each layer
``layers.{i}.norm``, ``.attention.{q,k,v,out}`` and ``.mlp.{gate,up,down}``, each ``.weight`` alone.
RoPE turns adjacent pairs, as in its paper. The head is the embedding table, and logits are divided by √width.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.position import Rope
from vantage.spec.model import Head, Layer, ModelSpec, Parallel


def spec(c: Config) -> ModelSpec:
    width = c.whole("hidden_size", low=1)
    attention = GroupedQuery(c.whole("num_attention_heads", low=1), 1, c.whole("head_dim", 256, low=1))
    ffn = FeedForward(c.whole("intermediate_size", 4 * width, low=1), "silu")
    norm = LayerNorm(c.number("layer_norm_eps", 1e-6), bias=False)
    turn = Rope(c.number("rope_theta", 10000.0), pairing="adjacent")
    layer = Layer(attention, ffn, norm, qk=(turn,), wiring=Parallel(norms=1))
    c.must_be("tie_word_embeddings", True)
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (layer,) * c.whole("num_hidden_layers", low=1),
        norm=norm,
        head=Head(tied=True, scale=width**-0.5),
        max_length=c.whole("max_position_embeddings", 2048, low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    attention, ffn = spec.layers[0].attention, dense_feed_forward(spec.layers[0])
    s = attention.shape(spec.width)
    ours, theirs = "blocks.{i}", "layers.{i}"
    qkv = tuple(f"{theirs}.attention.{x}.weight" for x in "qkv")
    layer = [
        *same({f"{ours}.norms.0.weight": f"{theirs}.norm.weight"}),
        Joined(f"{ours}.sublayers.0.qkv.weight", qkv, (s.heads * s.key_dim, s.key_dim, s.value_dim)),
        *same({f"{ours}.sublayers.0.out.weight": f"{theirs}.attention.out.weight"}),
        Joined(
            f"{ours}.sublayers.1.gate_up.weight",
            (f"{theirs}.mlp.gate.weight", f"{theirs}.mlp.up.weight"),
            (ffn.hidden, ffn.hidden),
        ),
        *same({f"{ours}.sublayers.1.down.weight": f"{theirs}.mlp.down.weight"}),
    ]
    ends = same({"embed.tokens.weight": "embed_tokens.weight", "norm.weight": "norm.weight"})
    return [*ends, *each(len(spec.layers), layer)]


FAMILY = Family("palm", spec, links)
