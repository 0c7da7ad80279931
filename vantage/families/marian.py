"""Marian: the original Transformer. Encoder-decoder, sinusoidal positions, LayerNorm after each part."""

from __future__ import annotations

from math import sqrt

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Reshape, Same, each, same
from vantage.errors import CheckpointError
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.families.module_links import cross_attention, modules, self_attention
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.position import Sinusoidal
from vantage.spec.masks import Causal, Everything, Mask, SameSegment
from vantage.spec.model import POST, Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        c.must_be(name, False)
    c.must_be("static_position_embeddings", True)
    c.must_be("tie_word_embeddings", True)
    c.inert("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")  # of a training we do not repeat
    c.inert(
        "classifier_dropout", "classif_dropout", "_num_labels", "init_std", "add_bias_logits", "extra_pos_embeddings"
    )
    c.inert("max_length", "num_beams", "bad_words_ids", "num_hidden_layers")  # of generation; the encoder's depth again
    width, shared = c.whole("d_model", low=1), c.flag("share_encoder_decoder_embeddings", True)
    vocab = c.whole("vocab_size", low=1)
    out = c.whole("decoder_vocab_size", vocab, low=1)
    if shared and out != vocab:
        raise CheckpointError(f"config.json: decoder_vocab_size is {out}; wanted {vocab}, as the embeddings are shared")
    scale, dropout = sqrt(width) if c.flag("scale_embedding", False) else 1.0, c.number("dropout", 0.1)
    positions, longest = (Sinusoidal(layout="halves"),), c.whole("max_position_embeddings", 1024, low=1)
    inner = ModelSpec(
        vocab,
        width,
        (layer(c, "encoder", Everything()),) * c.whole("encoder_layers", low=1),
        Embedding(positions, scale, dropout=dropout),
        max_length=longest,
    )
    return ModelSpec(
        out,
        width,
        (layer(c, "decoder", Causal()),) * c.whole("decoder_layers", low=1),
        Embedding(positions, scale, dropout=dropout, shared=shared),
        head=Head(tied=True, bias=c.holds("final_logits_bias")),
        max_length=longest,
        encoder=inner,
    )


def layer(c: Config, side: str, mask: Mask) -> Layer:
    scores = Scores(dropout=c.number("attention_dropout", 0.0))
    attention = GroupedQuery(c.whole(f"{side}_attention_heads", low=1), bias=True, out_bias=True, scores=scores)
    act = c.choice("activation_function", ACTIVATIONS, "gelu")
    ffn = FeedForward(c.whole(f"{side}_ffn_dim", low=1), act, gated=False, bias=True)
    across = attention if side == "decoder" else None
    dropout = c.number("dropout", 0.1)
    return Layer(attention, ffn, LayerNorm(), mask & SameSegment(), wiring=POST, cross=across, dropout=dropout)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    assert spec.encoder is not None
    both = {"encoder.embed.tokens.weight": "model.shared.weight"}
    each_own = {f"{ours}embed.tokens.weight": f"model.{side}.embed_tokens.weight" for ours, side in SIDES.items()}
    bias = Same("head.linear.bias", "final_logits_bias", (Reshape((spec.vocab,), (1, spec.vocab)),))
    return [
        *same(both if spec.embedding.shared else each_own),
        *([bias] if spec.head and spec.head.bias else []),
        *each(len(spec.encoder.layers), layer_links(spec.encoder, "encoder.blocks", "model.encoder")),
        *each(len(spec.layers), layer_links(spec, "blocks", "model.decoder")),
    ]


def layer_links(spec: ModelSpec, ours: str, theirs: str) -> list[Link]:
    first, shape = spec.layers[0], spec.layers[0].attention.shape(spec.width)
    ours, theirs = f"{ours}.{{i}}.steps", f"{theirs}.layers.{{i}}"
    names = {f"{ours}.0.outer": f"{theirs}.self_attn_layer_norm"}
    links = self_attention(f"{ours}.0.sublayer", *projections(f"{theirs}.self_attn"), shape)
    last = 1
    if first.cross is not None:
        links += cross_attention(f"{ours}.1.sublayer", *projections(f"{theirs}.encoder_attn"), shape)
        names |= {f"{ours}.1.outer": f"{theirs}.encoder_attn_layer_norm"}
        last = 2
    names |= {f"{ours}.{last}.sublayer.up": f"{theirs}.fc1", f"{ours}.{last}.sublayer.down": f"{theirs}.fc2"}
    return [*links, *modules({**names, f"{ours}.{last}.outer": f"{theirs}.final_layer_norm"})]


def projections(at: str) -> tuple[str, str, str, str]:
    return f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj", f"{at}.out_proj"


SIDES = {"encoder.": "encoder", "": "decoder"}
# the tables once more
COPIED = (
    ("lm_head.weight", "model.shared.weight"),
    ("lm_head.weight", "model.decoder.embed_tokens.weight"),
    *((f"model.{side}.embed_tokens.weight", "model.shared.weight") for side in SIDES.values()),
)
IGNORED = ("embed_positions.weight",)  # sines and cosines, computed here
FAMILY = Family("marian", spec, links, ignored=IGNORED, copied=COPIED)
