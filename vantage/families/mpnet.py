"""MPNet: BERT with T5's buckets of distance, one table for all layers, beside learned positions; no token types."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families import bert
from vantage.families.family import Family
from vantage.families.module_links import modules, self_attention
from vantage.model.pooling import Pooler
from vantage.position import T5, Learned
from vantage.spec.model import Embedding, ModelSpec

UNUSED = 2  # rows in front of the table of positions: counting starts behind the number of the padding token, 1


def spec(c: Config) -> ModelSpec:
    c.must_be("relative_attention_num_buckets", 32)  # the original buckets by 32 whatever the config says
    c.must_be("is_decoder", False)
    length = c.whole("max_position_embeddings", low=UNUSED + 1) - UNUSED
    layer = replace(bert.layer(c), bias=T5(buckets=32, max_distance=128, bidirectional=True))
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        (layer,) * c.whole("num_hidden_layers", low=1),
        Embedding(
            inputs=(Learned(length, offset=UNUSED),), norm=bert.norm(c), dropout=c.number("hidden_dropout_prob", 0.1)
        ),
        head=bert.masked_head(c, "lm_head.", "gelu"),  # whatever hidden_act is
        max_length=length,
        pooler=Pooler() if c.holds("mpnet.pooler") else None,
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    tables = {
        "embed.tokens.weight": "mpnet.embeddings.word_embeddings.weight",
        "embed.inputs.0.table": "mpnet.embeddings.position_embeddings.weight",
        "blocks.0.steps.0.sublayer.scorer.bias.table": "mpnet.encoder.relative_attention_bias.weight",
    }
    norm, pooler = {"embed.norm": "mpnet.embeddings.LayerNorm"}, {"pooler.linear": "mpnet.pooler.dense"}
    head = {"head.transform.linear": "lm_head.dense", "head.transform.norm": "lm_head.layer_norm"}
    return [
        *same(tables),
        *modules(norm | (pooler if spec.pooler else {}) | (head if spec.head else {})),
        *same({"head.linear.bias": "lm_head.bias"} if spec.head else {}),
        *each(len(spec.layers), layer_links(spec)),
    ]


def layer_links(spec: ModelSpec) -> list[Link]:
    ours, theirs = "blocks.{i}.steps.0", "mpnet.encoder.layer.{i}"
    q, k, v, out = (f"{theirs}.attention.attn.{x}" for x in "qkvo")
    shape = spec.layers[0].attention.shape(spec.width)
    return [
        *self_attention(f"{ours}.sublayer", q, k, v, out, shape),
        *modules({f"{ours}.outer": f"{theirs}.attention.LayerNorm"}),
        *bert.feed_forward_links(theirs),
    ]


# the tied weights once more, and the bias
COPIED = (
    ("lm_head.decoder.weight", "mpnet.embeddings.word_embeddings.weight"),
    ("lm_head.decoder.bias", "lm_head.bias"),
)
IGNORED = ("embeddings.position_ids",)  # a buffer
FAMILY = Family("mpnet", spec, links, ignored=IGNORED, copied=COPIED, prefix="mpnet.", older=bert.OLDER)
