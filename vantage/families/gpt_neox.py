"""GPT-NeoX, Pythia: attention and feed-forward side by side, each with its norm; RoPE on a share of each head."""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Rows, each, same
from vantage.families.common import ACTIVATIONS, rope
from vantage.families.family import Family
from vantage.families.layer_parts import grouped_query
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.spec.model import PRE, Embedding, Head, Layer, ModelSpec, Parallel, Scores

BOTH = ("weight", "bias")


def spec(c: Config) -> ModelSpec:
    bias, drop = c.flag("attention_bias", True), c.number("hidden_dropout", 0.0)
    scores = Scores(dropout=c.number("attention_dropout", 0.0))
    attention = GroupedQuery(c.whole("num_attention_heads", low=1), bias=bias, out_bias=bias, scores=scores)
    hidden = c.whole("intermediate_size", low=1)
    ffn = FeedForward(hidden, c.choice("hidden_act", ACTIVATIONS, "gelu"), gated=False, bias=True)
    norm = LayerNorm(c.number("layer_norm_eps", 1e-5))
    # before transformers 5 the base and the share had names of their own
    turn = rope(c, base=c.number("rotary_emb_base", 10000.0), partial=True, share=c.number("rotary_pct", 0.25))
    wiring = Parallel(norms=2) if c.flag("use_parallel_residual", True) else PRE
    layer = Layer(attention, ffn, norm, qk=(turn,), wiring=wiring, dropout=drop)
    c.inert("classifier_dropout")  # of a head for classification, whose tensors would be refused
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        (layer,) * c.whole("num_hidden_layers", low=1),
        Embedding(dropout=drop),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", False)),
        max_length=c.whole("max_position_embeddings", 2048, low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "embed_out.weight"}
    norm = {f"norm.{kind}": f"gpt_neox.final_layer_norm.{kind}" for kind in BOTH}
    ends = same({"embed.tokens.weight": "gpt_neox.embed_in.weight", **norm, **head})
    return [*ends, *each(len(spec.layers), layer_links(spec, "gpt_neox.layers.{i}", "attention"))]


def layer_links(spec: ModelSpec, theirs: str, attention: str) -> list[Link]:
    """One layer, which BLOOM names alike."""
    layer = spec.layers[0]
    own = grouped_query(layer)
    if isinstance(layer.wiring, Parallel):
        ours, norms = "blocks.{i}.sublayers.%d", "blocks.{i}.norms.%d"
    else:
        ours, norms = "blocks.{i}.steps.%d.sublayer", "blocks.{i}.steps.%d.before"
    maps = {f"{ours % 0}.out": f"{theirs}.{attention}.dense"}
    maps |= {f"{ours % 1}.up": f"{theirs}.mlp.dense_h_to_4h", f"{ours % 1}.down": f"{theirs}.mlp.dense_4h_to_h"}
    maps |= {norms % 0: f"{theirs}.input_layernorm", norms % 1: f"{theirs}.post_attention_layernorm"}
    fused = {f"{ours % 0}.qkv": f"{theirs}.{attention}.query_key_value"}
    kinds = BOTH if own.bias else BOTH[:1]
    maps = {f"{our}.{kind}": f"{their}.{kind}" for our, their in maps.items() for kind in BOTH}
    if not own.out_bias:
        del maps[f"{ours % 0}.out.bias"]
    fused = {f"{our}.{kind}": f"{their}.{kind}" for our, their in fused.items() for kind in kinds}
    return [*same(maps), *same(fused, head_by_head(own, spec.width))]


def head_by_head(attention: GroupedQuery, width: int) -> Rows:
    """Stored are q, k and v of the first head, then of the second, …; ours are all q, all k, all v."""
    heads, dim = attention.heads, attention.shape(width).key_dim
    return Rows(tuple((h * 3 + part) * dim + d for part in range(3) for h in range(heads) for d in range(dim)))


FAMILY = Family(
    "gpt_neox",
    spec,
    links,
    ignored=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),  # stored by older checkpoints
)
