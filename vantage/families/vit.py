"""ViT: an image as patches behind a class token, learned positions, LayerNorm before each part.

``model(images)`` gives the logits of the class token with a classifier, hidden states without one.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Reshape, Same, each
from vantage.families import bert
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.families.layer_parts import grouped_query
from vantage.families.module_links import modules, self_attention
from vantage.model.feed_forward import FeedForward
from vantage.model.patches import Patches
from vantage.model.pooling import First, Pooler
from vantage.position import Learned
from vantage.spec.masks import Everything, SameSegment
from vantage.spec.model import Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    patches = Patches(
        c.pair("image_size", (224, 224)), c.pair("patch_size", (16, 16)), c.whole("num_channels", 3, low=1)
    )
    dropout = c.number("hidden_dropout_prob", 0.0)
    scores = Scores(dropout=c.number("attention_probs_dropout_prob", 0.0))
    bias = c.flag("qkv_bias", True)
    attention = GroupedQuery(c.whole("num_attention_heads", low=1), bias=bias, out_bias=True, scores=scores)
    ffn = FeedForward(c.whole("intermediate_size", low=1), bert.activation(c), gated=False, bias=True)
    layer = Layer(attention, ffn, bert.norm(c), Everything() & SameSegment(), dropout=dropout)
    c.inert("encoder_stride")  # of the head that paints masked patches, which no form loaded here has
    classes = c.count("id2label", 2)  # transformers leaves the key out when there are two
    return ModelSpec(
        max(classes, 1),
        c.whole("hidden_size", low=1),
        (layer,) * c.whole("num_hidden_layers", low=1),
        Embedding(inputs=(Learned(patches.places),), dropout=dropout, source=patches),
        norm=bert.norm(c),
        head=Head(bias=True, transform=First()) if c.holds("classifier.") else None,
        max_length=patches.places,
        pooler=pooler(c),
    )


def pooler(c: Config) -> Pooler | None:
    built = Pooler(c.choice("pooler_act", ACTIVATIONS | {"tanh": "tanh"}, "tanh"), c.whole("pooler_output_size", None))
    return built if c.holds("vit.pooler") else None


def links(c: Config, spec: ModelSpec) -> list[Link]:
    D, at = spec.width, "vit.embeddings"
    places = spec.max_length
    assert places is not None
    names = {"embed.tokens": f"{at}.patch_embeddings.projection", "norm": "vit.layernorm"}
    names |= {"head.linear": "classifier"} if spec.head else {}
    names |= {"pooler.linear": "vit.pooler.dense"} if spec.pooler else {}
    return [
        Same("embed.tokens.first", f"{at}.cls_token", (Reshape((D,), (1, 1, D)),)),
        Same("embed.inputs.0.table", f"{at}.position_embeddings", (Reshape((places, D), (1, places, D)),)),
        *modules(names),
        *each(len(spec.layers), layer_links(spec)),
    ]


def layer_links(spec: ModelSpec) -> list[Link]:
    ours, theirs = "blocks.{i}.steps", "vit.encoder.layer.{i}"
    attention = grouped_query(spec.layers[0])
    q, k, v = (f"{theirs}.attention.attention.{x}" for x in ("query", "key", "value"))
    names = {
        "0.before": "layernorm_before",
        "1.before": "layernorm_after",
        "1.sublayer.up": "intermediate.dense",
        "1.sublayer.down": "output.dense",
    }
    out, shape = f"{theirs}.attention.output.dense", attention.shape(spec.width)
    return [
        *self_attention(f"{ours}.0.sublayer", q, k, v, out, shape, bias=attention.bias, out_bias=True),
        *modules({f"{ours}.{our}": f"{theirs}.{their}" for our, their in names.items()}),
    ]


FAMILY = Family("vit", spec, links, prefix="vit.")
