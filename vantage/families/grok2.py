"""Grok-2: Grok-1 with a dense layer beside the experts, more caps, and a temperature for late queries.

Its released config says model_type "git", and its files hold the eighths of eight machines: join those first.
Nothing says which gelu the experts have; taken is that of Grok-1.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, each, same
from vantage.families import grok
from vantage.families.family import Family
from vantage.families.layer_parts import experts_of
from vantage.families.llama_layout import expert_links
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.position.late_temperature import LateTemperature
from vantage.spec.model import SANDWICH, Layer, ModelSpec, Scores

# how YaRN would be set; "original" frequencies are used as they are
YARN = ("original_max_position_embeddings", "scaling_factor", "extrapolation_factor", "attn_factor")


def spec(c: Config) -> ModelSpec:
    heads, cap = c.whole("num_attention_heads", low=1), c.number("attn_logit_softcapping", 30.0)
    kv_heads = c.whole("num_key_value_heads", heads, low=1)
    attention = GroupedQuery(heads, kv_heads, c.whole("head_dim", 128, low=1), scores=Scores(softcap=cap))
    late = c.whole("attn_temperature_len", None, low=2)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    layer = Layer(
        attention,
        experts(c),
        norm,
        qk=(Rope(c.number("rope_theta", 10000.0)),),
        bias=None if late is None else LateTemperature(late, cap),
        wiring=SANDWICH,
    )
    c.must_be("rope_type", "original")
    c.inert(*YARN, "beta_fast", "beta_slow")
    c.must_be("sliding_window_size", -1)
    c.must_be("global_attn_every_n", 1)
    return grok.model(c, layer, norm, tied=False, softcap=c.number("final_logit_softcapping", None))


def experts(c: Config) -> Experts:
    hidden = c.whole("intermediate_size", low=1)
    expert = FeedForward(c.whole("moe_intermediate_size", hidden, low=1), "gelu_tanh")
    cap = c.number("router_logit_softcapping", 30.0)
    router = TopK(c.whole("num_experts_per_tok", 2, low=1), renormalise=False, softcap=cap)
    count = c.whole("num_local_experts", 8, low=1)
    if not c.flag("residual_moe", False):
        return Experts(expert, count, router)
    return Experts(expert, count, router, FeedForward(hidden, "gelu_tanh"), scale=2**-0.5)


def links(c: Config, spec: ModelSpec) -> list[Link]:
    layer = spec.layers[0]
    theirs = "model.layers.{i}"
    links = [
        *grok.layer_links(spec, "self_attn", "weight"),
        *expert_links(layer, f"{theirs}.block_sparse_moe", ("w1", "w3", "w2")),
        *dense_links(layer, f"{theirs}.mlp"),
    ]
    return [*grok.ends(spec, "weight"), *each(len(spec.layers), links)]


def dense_links(layer: Layer, theirs: str) -> list[Link]:
    shared = experts_of(layer).shared
    if shared is None:
        return []
    assert isinstance(shared, FeedForward)
    ours, hidden = "blocks.{i}.steps.1.sublayer.shared", shared.hidden
    pair = (f"{theirs}.gate_proj.weight", f"{theirs}.up_proj.weight")
    down = same({f"{ours}.down.weight": f"{theirs}.down_proj.weight"})
    return [Joined(f"{ours}.gate_up.weight", pair, (hidden, hidden)), *down]


FAMILY = Family("git", spec, links, ignored=("rotary_emb.inv_freq",))
