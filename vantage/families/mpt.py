"""MPT: ALiBi with slopes of its own steepness, LayerNorm without bias, no biases at all.

Followed is MosaicML's definition; transformers reads fewer keys (it takes alibi_bias_max to be 8, whatever it says).
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, each, same
from vantage.families.family import Family
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.position import Alibi, alibi_slopes
from vantage.spec.model import Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    width, heads = c.whole("d_model", low=1), c.whole("n_heads", low=1)
    attention, alibi = attending(c.part("attn_config") or Config({}, "attn_config"), heads)
    norm = LayerNorm(c.number("layer_norm_epsilon", 1e-5), bias=False)
    c.must_be("norm_type", "low_precision_layernorm", "layernorm")  # the first: under autocast, in training
    c.must_be("no_bias", True)
    c.must_be("expansion_ratio", 4)
    c.must_be("logit_scale", None)
    c.inert("learned_pos_emb")  # with ALiBi there is no table of positions
    c.inert("embedding_fraction", "init_config", "init_device", "tokenizer_name", "verbose")  # how it was trained
    ffn = FeedForward(4 * width, "gelu", gated=False)
    layer = Layer(attention, ffn, norm, bias=alibi, dropout=c.number("resid_pdrop", 0.0))
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (layer,) * c.whole("n_layers", low=1),
        Embedding(dropout=c.number("emb_pdrop", 0.0)),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", True)),
        max_length=c.whole("max_seq_len", 2048, low=1),
    )


def attending(a: Config, heads: int) -> tuple[GroupedQuery, Alibi]:
    a.must_be("alibi", True)
    a.must_be("attn_type", "multihead_attention")
    for name in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        a.must_be(name, False)
    a.inert("attn_impl")
    scores = Scores(a.number("softmax_scale", None), dropout=a.number("attn_pdrop", 0.0))
    steep = a.number("alibi_bias_max", 8.0) / 8.0  # the paper's last slope is 2^-8
    slopes = tuple(slope**steep for slope in alibi_slopes(heads))
    clip = a.number("clip_qkv", None) or None  # 0 is none as well
    return GroupedQuery(heads, scores=scores, clip=clip), Alibi(slopes)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    ends = {"embed.tokens.weight": "transformer.wte.weight", "norm.weight": "transformer.norm_f.weight"}
    steps = {"0.before": "norm_1", "0.sublayer.qkv": "attn.Wqkv", "0.sublayer.out": "attn.out_proj"}
    steps |= {"1.before": "norm_2", "1.sublayer.up": "ffn.up_proj", "1.sublayer.down": "ffn.down_proj"}
    layer = {f"blocks.{{i}}.steps.{o}.weight": f"transformer.blocks.{{i}}.{t}.weight" for o, t in steps.items()}
    return [*same({**ends, **head}), *each(len(spec.layers), same(layer))]


FAMILY = Family("mpt", spec, links, prefix="transformer.")
