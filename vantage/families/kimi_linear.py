"""Kimi Linear: three layers of Kimi delta attention, then one of latent attention; neither has a position encoding."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import KimiDelta, Latent
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Joined, Link, Reshape, each, same
from vantage.errors import CheckpointError
from vantage.families import deepseek_v2, llama_layout
from vantage.families.family import Family
from vantage.families.layer_parts import experts_of
from vantage.families.llama import ends
from vantage.families.module_links import gated_links, joined, modules
from vantage.model.experts import Experts
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.model.routers import GroupLimited
from vantage.spec.model import Layer, ModelSpec, NormConfig, Scores

LINEAR = "linear_attention"
OURS, THEIRS = "blocks.{i}.steps", "model.layers.{i}"


def spec(c: Config) -> ModelSpec:
    c.inert("pretraining_tp", "output_router_logits", "ep_size", "num_nextn_predict_layers")  # for training
    c.inert("rope_theta", "rope_scaling")  # published, although nothing turns
    c.must_be("mla_use_nope", True)
    c.must_be("tie_word_embeddings", False)  # transformers does not tie them, whatever a config says
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    linear = c.part("linear_attn_config")
    types = layer_types(c, linear)
    if LINEAR in types:
        c.must_be("hidden_act", "silu", "swish")  # the convolution's as well, which has no other here
    rule, latent, dense, routed = delta(c, linear, norm), attention(c), llama_layout.feed_forward(c), experts(c)
    layers = [
        Layer(rule if kind == LINEAR else latent, routed if sparse else dense, norm)
        for kind, sparse in zip(types, experts_in(c), strict=True)
    ]
    longest = c.whole("model_max_length", 1_048_576, low=1)
    return replace(llama_layout.model(c, layers, norm), max_length=longest)


def layer_types(c: Config, linear: Config | None) -> tuple[str, ...]:
    """Every fourth layer behind the first is attention, unless layers are named. Published configs count from 1."""
    n = llama_layout.count(c)
    silent = [llama_layout.FULL if i and i % 4 == 0 else LINEAR for i in range(n)]
    if linear is not None:
        full, rules = (linear.numbers(name, ()) for name in ("full_attn_layers", "kda_layers"))
        if full or rules:
            if sorted((*full, *rules)) != list(range(1, n + 1)):
                raise CheckpointError(
                    f"linear_attn_config: full_attn_layers and kda_layers are not 1 to {n}, each once"
                )
            silent = [llama_layout.FULL if i in full else LINEAR for i in range(1, n + 1)]
    return llama_layout.layer_types(c, silent, (llama_layout.FULL, LINEAR))


def delta(c: Config, linear: Config | None, norm: NormConfig) -> KimiDelta:
    width, heads, taps = (
        c.whole(name, default, low=1)
        for name, default in (("linear_head_dim", 128), ("linear_num_heads", 32), ("linear_conv_kernel_dim", 4))
    )
    if linear is not None:
        width, heads = linear.whole("head_dim", width, low=1), linear.whole("num_heads", heads, low=1)
        taps = linear.whole("short_conv_kernel_size", taps, low=2)
    return KimiDelta(heads, norm, width, taps=taps)


def attention(c: Config) -> Latent:
    """DeepSeek-V3's, of which no part turns: the one that would is shared by all heads all the same."""
    heads = c.whole("num_attention_heads", low=1)
    nope, shared = c.whole("qk_nope_head_dim", 128, low=1), c.whole("qk_rope_head_dim", 64, low=1)
    c.must_be("num_key_value_heads", heads)
    c.must_be("qk_head_dim", nope + shared)
    c.inert("head_dim")  # published with another meaning
    return Latent(
        heads,
        c.whole("kv_lora_rank", 512, low=1),
        nope,
        shared,
        c.whole("v_head_dim", 128, low=1),
        RMSNorm(1e-6),  # the latents' norms do not follow rms_norm_eps
        c.whole("q_lora_rank", None, low=1),
        c.flag("attention_bias", False),
        Scores((nope + shared) ** -0.5, dropout=c.number("attention_dropout", 0.0)),
    )


def experts(c: Config) -> Experts:
    c.must_be("moe_router_activation_func", "sigmoid")
    c.must_be("use_grouped_topk", True)
    c.must_be("moe_layer_freq", 1)
    router = GroupLimited(
        c.whole("num_experts_per_token", 8, low=1),
        c.whole("num_expert_group", 1, low=1),
        c.whole("topk_group", 1, low=1),
        "sigmoid",
        best=2,
        bias=True,
        renormalise=c.flag("moe_renormalize", True),
        scale=c.number("routed_scaling_factor", 2.446),
    )
    expert = llama_layout.feed_forward(c, "moe_intermediate_size")
    shared = replace(expert, hidden=expert.hidden * c.whole("num_shared_experts", 1, low=1))
    return Experts(expert, c.whole("num_experts", 256, low=1), router, shared)


def experts_in(c: Config) -> list[bool]:
    """Which layers have experts: all but the first, unless the config says it layer by layer."""
    n, first = llama_layout.count(c), c.whole("first_k_dense_replace", 1)
    kinds = c.names("mlp_layer_types", tuple("dense" if i < first else "sparse" for i in range(n)))
    if len(kinds) != n or not {"dense", "sparse"}.issuperset(kinds):
        raise CheckpointError(f"config.json: mlp_layer_types is {kinds}; wanted 'dense' or 'sparse' for {n} layers")
    return [kind == "sparse" for kind in kinds]


# ---- links


def links(c: Config, spec: ModelSpec) -> list[Link]:
    table = ends(spec)
    for i, layer in enumerate(spec.layers):
        mixer = layer.attention
        own = delta_links(mixer, spec.width) if isinstance(mixer, KimiDelta) else deepseek_v2.attention_links(mixer)
        table += each([i], own)
        ffn = layer.ffn
        table += each([i], expert_links(layer) if isinstance(ffn, Experts) else gated_links("", f"{THEIRS}.mlp", ffn))
    return table


def delta_links(delta: KimiDelta, width: int) -> list[Link]:
    s, ours, theirs = delta.shape(width), f"{OURS}.0.sublayer", f"{THEIRS}.self_attn"
    channels, rank = s.heads * s.key_dim, s.key_dim
    flat = Reshape((channels, delta.taps), (channels, 1, delta.taps))
    convolutions = tuple(f"{theirs}.{x}_conv1d.weight" for x in "qkv")
    return [
        *modules(
            {
                f"{OURS}.0.before": f"{THEIRS}.input_layernorm",
                f"{OURS}.1.before": f"{THEIRS}.post_attention_layernorm",
                f"{ours}.beta": f"{theirs}.b_proj",
                f"{ours}.decay": f"{theirs}.f_b_proj",
                f"{ours}.gate": f"{theirs}.g_b_proj",
                f"{ours}.norm": f"{theirs}.o_norm",
                f"{ours}.out": f"{theirs}.o_proj",
            },
            bias=False,
        ),
        *joined(f"{ours}.qkv", [f"{theirs}.{x}_proj" for x in "qkv"], (channels,) * 3, bias=False),
        *joined(f"{ours}.low", [f"{theirs}.{x}_a_proj" for x in "fg"], (rank, rank), bias=False),
        Joined(f"{ours}.conv.weight", convolutions, (channels,) * 3, changes=(flat,) * 3),
        *same({f"{ours}.dt_bias": f"{theirs}.dt_bias"}),
        *same({f"{ours}.A_log": f"{theirs}.A_log"}, Reshape((s.heads,), (1, 1, s.heads, 1))),
    ]


def expert_links(layer: Layer) -> list[Link]:
    e, theirs = experts_of(layer), f"{THEIRS}.block_sparse_moe"
    assert isinstance(e.expert, FeedForward)
    ours, hidden = f"{OURS}.1.sublayer.experts.{{e}}", e.expert.hidden
    gate, down, up = (f"{theirs}.experts.{{e}}.{name}.weight" for name in ("w1", "w2", "w3"))
    expert = [Joined(f"{ours}.gate_up.weight", (gate, up), (hidden, hidden)), *same({f"{ours}.down.weight": down})]
    return [*deepseek_v2.shared_links(e, theirs), *each(e.count, expert, "e")]


FAMILY = Family(
    "kimi_linear",
    spec,
    links,
    # transformers saves the maps of dense layers under the experts' name
    older=tuple((f"block_sparse_moe.{x}_proj.weight", f"mlp.{x}_proj.weight") for x in ("gate", "up", "down")),
)
