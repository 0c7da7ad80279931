"""RoFormer: BERT with RoPE (adjacent pairs) in the place of learned positions; its table may be narrower."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each
from vantage.families import bert
from vantage.families.family import Family
from vantage.families.module_links import modules
from vantage.position import Rope
from vantage.spec.model import Embedding, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.must_be("rotary_value", False)  # values are never turned here
    c.must_be("add_cross_attention", False)
    width = c.whole("hidden_size", low=1)
    own = c.whole("embedding_size", width, low=1)
    narrow = None if own == width else own
    layer = replace(bert.layer(c), qk=(Rope(pairing="adjacent"),))
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (layer,) * c.whole("num_hidden_layers", low=1),
        Embedding(
            types=c.whole("type_vocab_size", 2, low=1),
            norm=bert.norm(c),
            dropout=c.number("hidden_dropout_prob", 0.1),
            width=narrow,
        ),
        head=bert.masked_head(c, "cls.predictions", bert.activation(c), narrow),
        max_length=c.whole("max_position_embeddings", low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    project = {"embed.project": "roformer.embeddings_project"} if spec.embedding.width else {}
    return [
        *bert.embedding_links("roformer"),
        *modules(project),
        *each(len(spec.layers), bert.layer_links(spec, "roformer")),
        *(bert.masked_head_links() if spec.head else []),
    ]


FAMILY = Family(
    "roformer",
    spec,
    links,
    ignored=("encoder.embed_positions.weight",),  # the angles, computed here
    copied=bert.masked_head_copies("roformer"),
    prefix="roformer.",
    older=bert.OLDER,
)
