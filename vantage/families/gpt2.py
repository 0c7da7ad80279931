"""GPT-2: LayerNorm before each part, learned positions, linear maps stored transposed, one table for both ends."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Transpose, each, same
from vantage.families.common import ACTIVATIONS
from vantage.families.family import Family
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.position import Learned
from vantage.spec.model import Embedding, Head, Layer, ModelSpec, Scores

MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks, which older checkpoints store


def spec(c: Config) -> ModelSpec:
    width = c.whole("n_embd", low=1)
    hidden = c.whole("n_inner", 4 * width, low=1)
    ffn = FeedForward(hidden, c.choice("activation_function", ACTIVATIONS, "gelu_new"), gated=False, bias=True)
    norm = LayerNorm(c.number("layer_norm_epsilon", 1e-5))
    plain = attention(c)
    layer = Layer(plain, ffn, norm, dropout=c.number("resid_pdrop", 0.1))
    layers = tuple(replace(layer, attention=a) for a in scaled(c, plain, width))
    c.inert("reorder_and_upcast_attn")  # the order and precision of the same products
    return replace(model(c, layers), norm=norm)


def attention(c: Config) -> GroupedQuery:
    scores = Scores(dropout=c.number("attn_pdrop", 0.1))
    return GroupedQuery(c.whole("n_head", low=1), bias=True, out_bias=True, scores=scores)


def scaled(c: Config, plain: GroupedQuery, width: int) -> list[GroupedQuery]:
    """One for each layer: scores are divided by √d unless told not to, and by the layer's number if told to."""
    scale = plain.shape(width).key_dim ** -0.5 if c.flag("scale_attn_weights", True) else 1.0
    by_layer = c.flag("scale_attn_by_inverse_layer_idx", False)
    scales = [scale / (i + 1 if by_layer else 1) for i in range(c.whole("n_layer", low=1))]
    return [replace(plain, scores=replace(plain.scores, scale=s)) for s in scales]


def model(c: Config, layers: tuple[Layer, ...]) -> ModelSpec:
    """The ends, which GPT-1 has as well. The summary is a multiple-choice head: its tensors would be refused."""
    c.inert("n_ctx", *(f"summary_{x}" for x in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")))
    positions = c.whole("n_positions", low=1)
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("n_embd", low=1),
        layers,
        Embedding(inputs=(Learned(positions),), dropout=c.number("embd_pdrop", 0.1)),
        head=Head(tied=c.flag("tie_word_embeddings", True)),
        max_length=positions,
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    norm = {f"norm.{kind}": f"transformer.ln_f.{kind}" for kind in ("weight", "bias")}
    return [*ends(spec, "wte", "wpe"), *same(norm), *each(len(spec.layers), layer_links("before"))]


def ends(spec: ModelSpec, tokens: str, positions: str) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    ours = {"embed.tokens.weight": tokens, "embed.inputs.0.table": positions}
    return same({**{our: f"transformer.{their}.weight" for our, their in ours.items()}, **head})


def layer_links(norm: str) -> list[Link]:
    """``norm`` is where the norms stand: "before" (GPT-2) or "outer" (GPT-1)."""
    links: list[Link] = []
    maps = {"qkv": "attn.c_attn", "out": "attn.c_proj"}, {"up": "mlp.c_fc", "down": "mlp.c_proj"}
    for step, inner in enumerate(maps):
        ours, theirs = f"blocks.{{i}}.steps.{step}", "transformer.h.{i}"
        for kind, changes in (("weight", (Transpose(),)), ("bias", ())):
            names = {f"{ours}.sublayer.{our}.{kind}": f"{theirs}.{their}.{kind}" for our, their in inner.items()}
            links += same(names, *changes)
            links += same({f"{ours}.{norm}.{kind}": f"{theirs}.ln_{step + 1}.{kind}"})
    return links


FAMILY = Family("gpt2", spec, links, ignored=MASKS, prefix="transformer.", gguf="gpt2")
