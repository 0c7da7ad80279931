"""Grok-1, in the layout of its Hugging Face port: experts, capped scores, multipliers, norms before and after.

Followed is xAI's own code where the port differs: gelu is the tanh form.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.families.family import Family
from vantage.families.llama_layout import expert_links
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.spec.model import SANDWICH, Embedding, Head, Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    heads = c.whole("num_attention_heads", low=1)
    # the "output" multiplier multiplies the scores: it stands where others divide by √d
    scores = Scores(c.number("attn_output_multiplier", 1.0), softcap=c.number("max_attn_value", 30.0))
    attention = GroupedQuery(heads, c.whole("num_key_value_heads", heads, low=1), scores=scores)
    router = TopK(c.whole("num_experts_per_tok", 2, low=1), renormalise=False)
    expert = FeedForward(c.whole("intermediate_size", low=1), "gelu_tanh")
    experts = Experts(expert, c.whole("num_experts", 8, low=1), router)
    turn = Rope(c.number("rope_theta", 10000.0))
    c.inert("output_router_logits", "router_aux_loss_coef")  # of training
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    layer = Layer(attention, experts, norm, qk=(turn,), wiring=SANDWICH)
    return model(c, layer, norm, tied=True)


def model(c: Config, layer: Layer, norm: RMSNorm, *, tied: bool, softcap: float | None = None) -> ModelSpec:
    """The ends, which Grok-2 has as well."""
    tied, scale = c.flag("tie_word_embeddings", tied), c.number("output_multiplier_scale", 1.0)
    return ModelSpec(
        c.whole("vocab_size", low=1),
        c.whole("hidden_size", low=1),
        (layer,) * c.whole("num_hidden_layers", low=1),
        Embedding(scale=c.number("embedding_multiplier_scale", 1.0)),
        norm=norm,
        head=Head(tied=tied, scale=scale, softcap=softcap),
        max_length=c.whole("max_position_embeddings", 8192, low=1),
    )


def links(c: Config, spec: ModelSpec) -> list[Link]:
    experts = expert_links(spec.layers[0], "model.layers.{i}.moe_block", ("linear", "linear_v", "linear_1"))
    return [*ends(spec, "scale"), *each(len(spec.layers), [*layer_links(spec, "attn", "scale"), *experts])]


def ends(spec: ModelSpec, norm: str) -> list[Link]:
    """``norm`` is what the weight of a norm is called."""
    head = {} if spec.head is None or spec.head.tied else {"head.linear.weight": "lm_head.weight"}
    return same({"embed.tokens.weight": "model.embed_tokens.weight", "norm.weight": f"model.norm.{norm}", **head})


def layer_links(spec: ModelSpec, attention: str, norm: str) -> list[Link]:
    s = spec.layers[0].attention.shape(spec.width)
    ours, theirs = "blocks.{i}.steps", "model.layers.{i}"
    sides = {"0.before": "pre_attn", "0.after": "post_attn", "1.before": "pre_moe", "1.after": "post_moe"}
    norms = {f"{ours}.{our}.weight": f"{theirs}.{their}_norm.{norm}" for our, their in sides.items()}
    qkv = tuple(f"{theirs}.{attention}.{x}_proj.weight" for x in "qkv")
    sizes = (s.heads * s.key_dim, s.kv_heads * s.key_dim, s.kv_heads * s.value_dim)
    return [
        *same({**norms, f"{ours}.0.sublayer.out.weight": f"{theirs}.{attention}.o_proj.weight"}),
        Joined(f"{ours}.0.sublayer.qkv.weight", qkv, sizes),
    ]


FAMILY = Family("grok-1", spec, links, ignored=("rotary_emb.inv_freq",))
