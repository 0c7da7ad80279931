"""BERT: learned positions and token types, LayerNorm after each part; a pooler and a masked-LM head if stored.

What a checkpoint holds says which of its forms it is: ``architectures`` names a class, and sentence
encoders keep that of the model they were trained from, without its head.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.families.module_links import modules, self_attention
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.model.pooling import Pooler, Transform
from vantage.position import Learned
from vantage.spec.masks import Causal, Everything, SameSegment
from vantage.spec.model import POST, Embedding, Head, Layer, ModelSpec, Scores

POOLER = ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
OLDER = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))  # TensorFlow's names


def spec(c: Config) -> ModelSpec:
    c.must_be("add_cross_attention", False)
    c.must_be("position_embedding_type", "absolute")
    # what the multilingual checkpoints say of a pooler that nobody built, and of the direction of reading
    c.inert(*(f"pooler_{x}" for x in POOLER), "directionality")
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        (layer(c),) * c.whole("num_hidden_layers", low=1),
        Embedding(
            inputs=(Learned(c.whole("max_position_embeddings", low=1)),),
            types=c.whole("type_vocab_size", 2, low=1),
            norm=norm(c),
            dropout=c.number("hidden_dropout_prob", 0.1),
        ),
        head=masked_head(c, "cls.predictions", activation(c)),
        max_length=c.whole("max_position_embeddings", low=1),
        pooler=Pooler() if c.holds("bert.pooler") else None,
    )


def layer(c: Config) -> Layer:
    """Also MPNet's and RoFormer's, up to positions."""
    scores = Scores(dropout=c.number("attention_probs_dropout_prob", 0.1))
    attention = GroupedQuery(c.whole("num_attention_heads", low=1), bias=True, out_bias=True, scores=scores)
    ffn = FeedForward(c.whole("intermediate_size", low=1), activation(c), gated=False, bias=True)
    mask = Causal() if c.flag("is_decoder", False) else Everything()
    dropout = c.number("hidden_dropout_prob", 0.1)
    c.inert("classifier_dropout")  # of a classifier that no form loaded here has
    return Layer(attention, ffn, norm(c), mask & SameSegment(), wiring=POST, dropout=dropout)


def norm(c: Config) -> LayerNorm:
    return LayerNorm(c.number("layer_norm_eps", 1e-12))


def activation(c: Config) -> str:
    return c.choice("hidden_act", ACTIVATIONS, "gelu")


def masked_head(c: Config, stored: str, act: str, width: int | None = None) -> Head | None:
    """The head whose tensors' names begin with ``stored``, if there are such."""
    if not c.holds(stored):
        c.inert("tie_word_embeddings")  # nothing to tie
        return None
    c.must_be("tie_word_embeddings", True)
    return Head(tied=True, bias=True, transform=Transform(act, norm(c)), width=width)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    positions = same({"embed.inputs.0.table": "bert.embeddings.position_embeddings.weight"})
    return [*embedding_links("bert"), *positions, *each(len(spec.layers), layer_links(spec, "bert")), *ends(spec)]


def embedding_links(at: str) -> list[Link]:
    names = {"embed.tokens.weight": "word_embeddings.weight", "embed.types.table": "token_type_embeddings.weight"}
    tables = same({our: f"{at}.embeddings.{their}" for our, their in names.items()})
    return [*tables, *modules({"embed.norm": f"{at}.embeddings.LayerNorm"})]


def layer_links(spec: ModelSpec, at: str) -> list[Link]:
    ours, theirs = "blocks.{i}.steps", f"{at}.encoder.layer.{{i}}"
    q, k, v = (f"{theirs}.attention.self.{x}" for x in ("query", "key", "value"))
    shape = spec.layers[0].attention.shape(spec.width)
    return [
        *self_attention(f"{ours}.0.sublayer", q, k, v, f"{theirs}.attention.output.dense", shape),
        *modules({f"{ours}.0.outer": f"{theirs}.attention.output.LayerNorm"}),
        *feed_forward_links(theirs),
    ]


def feed_forward_links(theirs: str) -> list[Link]:
    ours = "blocks.{i}.steps.1"
    names = {"sublayer.up": "intermediate.dense", "sublayer.down": "output.dense", "outer": "output.LayerNorm"}
    return modules({f"{ours}.{our}": f"{theirs}.{their}" for our, their in names.items()})


def ends(spec: ModelSpec) -> list[Link]:
    """The pooler and the head, where there are such."""
    pooler = modules({"pooler.linear": "bert.pooler.dense"}) if spec.pooler else []
    return [*pooler, *(masked_head_links() if spec.head else [])]


def masked_head_copies(at: str) -> tuple[tuple[str, str], ...]:
    """The tied weights once more, and the bias, under the head's linear map."""
    head = "cls.predictions"
    weight = (f"{head}.decoder.weight", f"{at}.embeddings.word_embeddings.weight")
    return weight, (f"{head}.decoder.bias", f"{head}.bias")


def masked_head_links() -> list[Link]:
    at = "cls.predictions"
    names = {"linear": f"{at}.transform.dense", "norm": f"{at}.transform.LayerNorm"}
    return [
        *modules({f"head.transform.{our}": their for our, their in names.items()}),
        *same({"head.linear.bias": f"{at}.bias"}),
    ]


# position_ids: a buffer. seq_relationship: told two sentences apart in training
IGNORED = ("embeddings.position_ids", "cls.seq_relationship.")
FAMILY = Family(
    "bert", spec, links, ignored=IGNORED, copied=masked_head_copies("bert"), prefix="bert.", older=OLDER, gguf="bert"
)
