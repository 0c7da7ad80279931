"""DeepSeek-V2: latent attention with decoupled RoPE, a few dense layers, then experts in groups with shared ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from vantage.attention import Latent
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Parted, Reshape, each, same
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.llama import ends
from vantage.families.module_links import gated_links, modules
from vantage.model.experts import Experts, RouterConfig
from vantage.model.norms import RMSNorm
from vantage.model.routers import GroupLimited
from vantage.position import Rope
from vantage.position.scaling import YaRN
from vantage.spec.model import Layer, ModelSpec, Scores

OURS, THEIRS = "blocks.{i}.steps", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    # transformers skips the renormalisation that DeepSeek's own code does instead of the scaling
    c.must_be("norm_topk_prob", False)
    c.must_be("scoring_func", "softmax")
    limited = c.choice("topk_method", {"greedy": False, "group_limited_greedy": True}, "greedy")
    if not limited:
        c.inert("n_group", "topk_group")  # published next to "greedy", which has no groups
    router = GroupLimited(
        c.whole("num_experts_per_tok", low=1),
        c.whole("n_group", low=1) if limited else 1,
        c.whole("topk_group", low=1) if limited else 1,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    return model(c, rope(c, pairing="adjacent"), router, mlp_bias=c.flag("mlp_bias", False))


def model(
    c: Config, turn: Rope, router: RouterConfig, *, mlp_bias: bool, experts_in: Sequence[bool] | None = None
) -> ModelSpec:
    """What V2 and V3 share. ``experts_in``: which layers have experts; ``None``: all but the first few."""
    dense = llama_layout.feed_forward(c, bias=mlp_bias)
    expert = llama_layout.feed_forward(c, "moe_intermediate_size")
    shared = replace(expert, hidden=expert.hidden * c.whole("n_shared_experts", low=1), bias=mlp_bias)
    experts = Experts(expert, c.whole("n_routed_experts", low=1), router, shared)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    if experts_in is None:
        first = c.whole("first_k_dense_replace", 0)
        experts_in = [i >= first for i in range(llama_layout.count(c))]
    layer = Layer(attention(c, turn), dense, norm, qk=(turn,))
    c.must_be("moe_layer_freq", 1)
    # how it was trained and spread over machines
    c.inert("aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp", "output_router_logits", "router_aux_loss_coef")
    layers = [replace(layer, ffn=experts) if has_experts else layer for has_experts in experts_in]
    return llama_layout.model(c, layers, norm)


def attention(c: Config, turn: Rope) -> Latent:
    heads, nope, turned = (
        c.whole(name, low=1) for name in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim")
    )
    for name, follows in (("num_key_value_heads", heads), ("head_dim", turned), ("qk_head_dim", nope + turned)):
        c.must_be(name, follows)
    scale = (nope + turned) ** -0.5 * sharpening(turn) ** 2
    return Latent(
        heads,
        c.whole("kv_lora_rank", low=1),
        nope,
        turned,
        c.whole("v_head_dim", low=1),
        RMSNorm(1e-6),  # the latents' norms do not follow rms_norm_eps
        c.whole("q_lora_rank", None, low=1),
        c.flag("attention_bias", False),
        Scores(scale, dropout=c.number("attention_dropout", 0.0)),
    )


def sharpening(turn: Rope) -> float:
    """YaRN's factor for the whole head: RoPE itself only reaches the dimensions that turn."""
    rule = turn.scaling
    return 1.0 + 0.1 * (rule.mscale_all_dim or 0.0) * math.log(rule.factor) if isinstance(rule, YaRN) else 1.0


def links(c: Config, spec: ModelSpec) -> list[Link]:
    ffns = [layer.ffn for layer in spec.layers]
    table = [*ends(spec), *each(len(ffns), attention_links(spec.layers[0].attention))]
    for i, ffn in enumerate(ffns):
        table += each([i], expert_links(ffn) if isinstance(ffn, Experts) else gated_links("", f"{THEIRS}.mlp", ffn))
    return table


def attention_links(a: object) -> list[Link]:
    """Latent attention, and the norms before it and before the feed-forward layer."""
    assert isinstance(a, Latent)
    ours, theirs, both = f"{OURS}.0.sublayer", f"{THEIRS}.self_attn", a.nope_dim + a.value_dim
    down = {f"{ours}.q_down": f"{theirs}.q_a_proj"} if a.q_rank else {}
    norms = {f"{ours}.q_norm": f"{theirs}.q_a_layernorm"} if a.q_rank else {}
    heads = Reshape((a.heads, both, a.kv_rank), (a.heads * both, a.kv_rank))
    up = (f"{ours}.k_up", f"{ours}.v_up")
    return [
        *modules({f"{ours}.kv_down": f"{theirs}.kv_a_proj_with_mqa", f"{ours}.out": f"{theirs}.o_proj"}, bias=a.bias),
        *modules(down, bias=a.bias),
        *modules(
            {
                f"{OURS}.0.before": f"{THEIRS}.input_layernorm",
                f"{OURS}.1.before": f"{THEIRS}.post_attention_layernorm",
                f"{ours}.kv_norm": f"{theirs}.kv_a_layernorm",
                f"{ours}.q_up": f"{theirs}.{'q_b_proj' if a.q_rank else 'q_proj'}",
                **norms,
            },
            bias=False,
        ),
        Parted(up, f"{theirs}.kv_b_proj.weight", (a.nope_dim, a.value_dim), 1, (heads,)),
    ]


def expert_links(e: Experts) -> list[Link]:
    return [
        *shared_links(e, f"{THEIRS}.mlp"),
        *each(e.count, gated_links(".experts.{e}", f"{THEIRS}.mlp.experts.{{e}}", e.expert), "e"),
    ]


def shared_links(e: Experts, theirs: str) -> list[Link]:
    """The router and the experts that every token goes to."""
    router = {f"{OURS}.1.sublayer.router.weight": f"{theirs}.gate.weight"}
    assert isinstance(e.router, GroupLimited)
    if e.router.bias:
        router[f"{OURS}.1.sublayer.router.bias"] = f"{theirs}.gate.e_score_correction_bias"
    return [*same(router), *gated_links(".shared", f"{theirs}.shared_experts", e.shared)]


FAMILY = Family("deepseek_v2", spec, links, ignored=("rotary_emb.inv_freq",))
