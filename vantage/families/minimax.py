"""MiniMax-01: lightning attention in most layers, softmax attention here and there; experts on all.

Each sublayer's norm takes the place of the residual stream, and a factor stands before it in the sum.
"""

from __future__ import annotations

from vantage.attention import GroupedQuery, Lightning
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Rows, each, same
from vantage.errors import CheckpointError
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import grouped_query
from vantage.families.llama import ends
from vantage.families.module_links import modules, self_attention
from vantage.families.qwen3_next import LINEAR, OURS, THEIRS, norm_links
from vantage.model.experts import Experts, TopK
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec, Wiring

EPS = 1e-6  # of lightning attention's own norm, whatever rms_norm_eps says
NUDGE = 1e-5  # keeps the last layer's slopes above 0


def spec(c: Config) -> ModelSpec:
    c.inert("output_router_logits", "router_aux_loss_coef", "block_size")  # what is trained besides; how sums are cut
    c.must_be("router_jitter_noise", 0.0)
    norm, attention = RMSNorm(c.number("rms_norm_eps", 1e-5)), llama_layout.attention(c)
    count = llama_layout.count(c)
    kinds = layer_types(c, count)
    if LINEAR in kinds:
        c.must_be("hidden_act", "silu", "swish")  # lightning attention's as well, which has no other here
    experts = Experts(
        llama_layout.feed_forward(c),
        c.whole("num_local_experts", 8, low=1),
        TopK(c.whole("num_experts_per_tok", 2, low=1)),
    )
    mask, qk, wiring = llama_layout.mask(llama_layout.window(c)), (rope(c, base=1_000_000.0),), residual(c)
    layers = [
        Layer(lightning(attention, i, count), experts, norm, wiring=wiring)
        if kind == LINEAR
        else Layer(attention, experts, norm, mask, qk, wiring=wiring)
        for i, kind in enumerate(kinds)
    ]
    return llama_layout.model(c, layers, norm)


def layer_types(c: Config, count: int) -> tuple[str, ...]:
    silent = [LINEAR if i % 2 else llama_layout.FULL for i in range(count)]
    return llama_layout.layer_types(c, silent, (llama_layout.FULL, LINEAR))


def lightning(attention: GroupedQuery, layer: int, count: int) -> Lightning:
    """Later layers forget more slowly."""
    rate = 1 - layer / (count - 1 + NUDGE) + NUDGE
    return Lightning(attention.heads, RMSNorm(EPS), attention.head_dim, rate)


def residual(c: Config) -> Wiring:
    """What stands before the residual: MiniMax has one number for all sublayers, and none before what they add."""
    names = [f"{part}_alpha_factor" for part in ("full_attn", "linear_attn", "mlp")]
    factors = [c.number(name, 1.0) for name in names]
    if len(set(factors)) > 1:
        raise CheckpointError(f"config.json: {', '.join(names)} are {factors}; one number for all is understood here")
    for part in ("full_attn", "linear_attn", "mlp"):
        c.must_be(f"{part}_beta_factor", 1.0)
    return Wiring(normed=True, kept=factors[0])


# ---- links


def links(c: Config, spec: ModelSpec) -> list[Link]:
    experts = llama_layout.expert_links(spec.layers[0], f"{THEIRS}.block_sparse_moe", ("w1", "w3", "w2"))
    table = ends(spec)
    for i, layer in enumerate(spec.layers):
        mixer = layer.attention
        own = lightning_links(mixer, spec.width) if isinstance(mixer, Lightning) else attention_links(layer, spec.width)
        table += each([i], [*norm_links(), *own, *experts])
    return table


def attention_links(layer: Layer, width: int) -> list[Link]:
    q, k, v, out = (f"{THEIRS}.self_attn.{x}_proj" for x in "qkvo")
    return self_attention(OURS, q, k, v, out, grouped_query(layer).shape(width), bias=False)


def lightning_links(mixer: Lightning, width: int) -> list[Link]:
    """``qkv_proj`` holds the query, key and value of one head, then those of the next."""
    s, theirs = mixer.shape(width), f"{THEIRS}.self_attn"
    d = s.key_dim
    order = tuple(3 * d * h + part * d + i for part in range(3) for h in range(s.heads) for i in range(d))
    maps = {"gate": "output_gate", "norm": "norm", "out": "out_proj"}
    return [
        *same({f"{OURS}.qkv.weight": f"{theirs}.qkv_proj.weight"}, Rows(order)),
        *modules({f"{OURS}.{our}": f"{theirs}.{their}" for our, their in maps.items()}, bias=False),
    ]


# tables of the slopes, which the number of heads and layers gives
FAMILY = Family("minimax", spec, links, ignored=("slope_rate", "query_decay", "key_decay", "diagonal_decay"))
