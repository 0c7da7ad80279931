"""BLOOM: ALiBi, a norm on the embeddings, LayerNorm before each part, biases everywhere."""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families.family import Family
from vantage.families.gpt_neox import BOTH, layer_links
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.position import Alibi
from vantage.spec.model import PRE, Embedding, Head, Layer, ModelSpec, Scores, Wiring


def spec(c: Config) -> ModelSpec:
    width = either(c, "n_embed", "hidden_size")
    heads = either(c, "n_head", "num_attention_heads")
    scores = Scores(dropout=c.number("attention_dropout", 0.0))
    norm = LayerNorm(c.number("layer_norm_epsilon", 1e-5))
    c.must_be("n_inner", None, 4 * width)
    normed = c.flag("apply_residual_connection_post_layernorm", False)
    layer = Layer(
        GroupedQuery(heads, bias=True, out_bias=True, scores=scores),
        FeedForward(4 * width, "gelu_tanh", gated=False, bias=True),
        norm,
        bias=Alibi(),
        wiring=Wiring(normed=True) if normed else PRE,
        dropout=c.number("hidden_dropout", 0.0),
    )
    c.must_be("slow_but_exact", False)  # with pretraining_tp it leaves out biases
    c.inert("pretraining_tp", "seq_length", "unk_token_id")  # how it was trained; ALiBi has no longest length
    c.inert("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion")  # how it was computed
    c.inert("offset_alibi", "skip_bias_add", "skip_bias_add_qkv")  # of a first version, read by nobody since
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (layer,) * either(c, "n_layer", "num_hidden_layers"),
        Embedding(norm=norm),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", True)),
    )


def either(c: Config, *names: str) -> int:
    """A size with an older and a newer name; the first that is there."""
    sizes = [n for name in names if (n := c.whole(name, None, low=1)) is not None]
    return sizes[0] if sizes else c.whole(names[-1], low=1)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    norms = {"embed.norm": "transformer.word_embeddings_layernorm", "norm": "transformer.ln_f"}
    norms = {f"{our}.{kind}": f"{their}.{kind}" for our, their in norms.items() for kind in BOTH}
    ends = same({"embed.tokens.weight": "transformer.word_embeddings.weight", **norms, **head})
    return [*ends, *each(len(spec.layers), layer_links(spec, "transformer.h.{i}", "self_attention"))]


FAMILY = Family("bloom", spec, links, prefix="transformer.")
