"""T5 (1.0, 1.1, FLAN): encoder-decoder, RMSNorm before each part, buckets of distance in one table a stack, no biases.

Scores are not scaled: the original folds 1 / sqrt(d) into how it starts its queries. A checkpoint of the encoder
alone is an encoder here as well.
"""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.families.layer_parts import dense_feed_forward
from vantage.families.module_links import cross_attention, joined, modules, self_attention
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.position import T5
from vantage.spec.masks import Causal, Everything, SameSegment
from vantage.spec.model import Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    width, layers = c.whole("d_model", low=1), c.whole("num_layers", low=1)
    dropout = c.number("dropout_rate", 0.1)  # where we drop; the original also does inside the feed-forward part
    attention = GroupedQuery(
        c.whole("num_heads", low=1), head_dim=c.whole("d_kv", low=1), scores=Scores(scale=1.0, dropout=dropout)
    )
    norm = RMSNorm(c.number("layer_norm_epsilon", 1e-6))
    table = T5(c.whole("relative_attention_num_buckets", 32), c.whole("relative_attention_max_distance", 128))
    layer = Layer(
        attention,
        feed_forward(c),
        norm,
        Everything() & SameSegment(),
        bias=replace(table, bidirectional=True),
        dropout=dropout,
    )
    inner = ModelSpec(c.whole("vocab_size", low=1), width, (layer,) * layers, Embedding(dropout=dropout), norm)
    scaled = c.flag("scale_decoder_outputs", c.flag("tie_word_embeddings", True))  # transformers 5, and before
    deep = c.whole("num_decoder_layers", layers, low=1)
    c.inert("n_positions", "classifier_dropout")  # no table of positions, no classifier
    if not c.holds("decoder."):
        return inner
    crossed = replace(layer, mask=Causal() & SameSegment(), bias=replace(table, bidirectional=False), cross=attention)
    return replace(
        inner,
        layers=(crossed,) * deep,
        embedding=Embedding(dropout=dropout, shared=True),
        head=Head(tied=not c.holds("lm_head."), scale=width**-0.5 if scaled else 1.0),
        encoder=inner,
    )


def feed_forward(c: Config) -> FeedForward:
    """``feed_forward_proj`` says both things; the keys that were derived from it count if they are there."""
    names = {f"{gate}{act}": (gate != "", act) for gate in ("", "gated-") for act in ACTIVATIONS}
    gated, act = c.choice("feed_forward_proj", {**names, "gated-gelu": (True, "gelu_new")}, "relu")
    act, gated = c.choice("dense_act_fn", ACTIVATIONS, act), c.flag("is_gated_act", gated)
    return FeedForward(c.whole("d_ff", low=1), act, gated=gated)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    if spec.encoder is None:
        return [*same({"embed.tokens.weight": "shared.weight"}), *stack(spec, "", "encoder")]
    head = same({} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"})
    tokens = same({"encoder.embed.tokens.weight": "shared.weight"})  # the decoder's as well
    return [*tokens, *stack(spec.encoder, "encoder.", "encoder"), *stack(spec, "", "decoder"), *head]


def stack(spec: ModelSpec, ours: str, theirs: str) -> list[Link]:
    table = {
        f"{ours}blocks.0.steps.0.sublayer.scorer.bias.table": (
            f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        ),
        f"{ours}norm.weight": f"{theirs}.final_layer_norm.weight",
    }
    layer = layer_links(spec, f"{ours}blocks.{{i}}.steps", f"{theirs}.block.{{i}}.layer")
    return [*same(table), *each(len(spec.layers), layer)]


def layer_links(spec: ModelSpec, ours: str, theirs: str) -> list[Link]:
    first, shape = spec.layers[0], spec.layers[0].attention.shape(spec.width)
    ffn = dense_feed_forward(first)
    last = 1 if first.cross is None else 2
    norms = {f"{ours}.{n}.before": f"{theirs}.{n}.layer_norm" for n in range(last + 1)}
    q, k, v, out = (f"{theirs}.0.SelfAttention.{x}" for x in "qkvo")
    links = [*self_attention(f"{ours}.0.sublayer", q, k, v, out, shape, bias=False), *modules(norms, bias=False)]
    if first.cross is not None:
        q, k, v, out = (f"{theirs}.1.EncDecAttention.{x}" for x in "qkvo")
        links += cross_attention(f"{ours}.1.sublayer", q, k, v, out, shape, bias=False)
    our, their, hidden = f"{ours}.{last}.sublayer", f"{theirs}.{last}.DenseReluDense", ffn.hidden
    up = (
        joined(f"{our}.gate_up", (f"{their}.wi_0", f"{their}.wi_1"), (hidden, hidden), bias=False)
        if ffn.gated
        else modules({f"{our}.up": f"{their}.wi"}, bias=False)
    )
    return [*links, *up, *modules({f"{our}.down": f"{their}.wo"}, bias=False)]


# a table of cross-attention that was never used
IGNORED = ("EncDecAttention.relative_attention_bias",)
# the shared table once more under each stack
COPIED = tuple((f"{side}.embed_tokens.weight", "shared.weight") for side in ("encoder", "decoder"))
FAMILY = Family("t5", spec, links, ignored=IGNORED, copied=COPIED, wide_in_float16=("wo",))
