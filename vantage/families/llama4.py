"""LLaMA-4's text model: chunked RoPE layers, NoPE layers with temperature, experts whose weight acts on their input."""

from __future__ import annotations

from dataclasses import replace

from vantage.attention import LengthTemperature, QKNorm
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Parted, Reshape, Transpose, each, same
from vantage.errors import CheckpointError
from vantage.families import llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.llama import attention_links, ends
from vantage.families.module_links import gated_links
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import RMSNorm
from vantage.model.unit import UnitRMS
from vantage.spec.masks import Causal, Chunked, Mask, SameSegment
from vantage.spec.model import Layer, ModelSpec
from vantage.spec.parts import Buildable


def spec(c: Config) -> ModelSpec:
    n, bias = llama_layout.count(c), c.flag("attention_bias", False)
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    attention = llama_layout.attention(c, bias=bias, out_bias=bias, head_dim=128)
    layer = Layer(attention, llama_layout.feed_forward(c, "intermediate_size_mlp"), norm)
    expert = llama_layout.feed_forward(c)
    router = TopK(c.whole("num_experts_per_tok", 1, low=1), "sigmoid", renormalise=False)
    experts = Experts(expert, c.whole("num_local_experts", low=1), router, expert, weigh_input=True)
    # how the router was trained; and a mark that quantising tools leave
    c.inert("router_aux_loss_coef", "router_jitter_noise", "output_router_logits", "for_llm_compressor")
    c.inert("cache_implementation")  # which cache transformers is to take
    with_experts, turned = expert_layers(c, n), rope_layers(c, n)
    parts = zip(masks(c, turned), transforms(c, turned, norm.eps), strict=True)
    layers = [replace(layer, mask=mask, qk=qk) for mask, qk in parts]
    return llama_layout.model(
        c, [replace(x, ffn=experts) if i in with_experts else x for i, x in enumerate(layers)], norm
    )


def expert_layers(c: Config, n: int) -> tuple[float, ...]:
    """Every ``step``-th layer has experts, unless a list says which."""
    step = c.whole("interleave_moe_layer_step", 1, low=1)
    return c.numbers("moe_layers", tuple(range(step - 1, n, step)))


def rope_layers(c: Config, n: int) -> tuple[float, ...]:
    """1 for a layer with RoPE, 0 for one without: every ``interval``-th, unless a list says which."""
    interval = c.whole("no_rope_layer_interval", 4, low=1)
    flags = c.numbers("no_rope_layers", ()) or tuple(float((i + 1) % interval != 0) for i in range(n))
    if len(flags) < n:
        raise CheckpointError(f"config.json: no_rope_layers speaks of {len(flags)} layers, num_hidden_layers is {n}")
    return flags[:n]


def masks(c: Config, turned: tuple[float, ...]) -> list[Mask]:
    see: dict[str, Mask] = {
        "chunked_attention": Causal() & Chunked(c.whole("attention_chunk_size", low=1)) & SameSegment(),
        "full_attention": Causal() & SameSegment(),
    }
    kinds = c.names("layer_types", tuple("chunked_attention" if t else "full_attention" for t in turned))
    if len(kinds) < len(turned) or not set(kinds) <= set(see):
        raise CheckpointError(f"config.json: layer_types is {kinds}; wanted one of {', '.join(see)} for each layer")
    return [see[kind] for kind in kinds[: len(turned)]]


def transforms(c: Config, turned: tuple[float, ...], eps: float) -> list[tuple[Buildable, ...]]:
    """RoPE and then, unlike elsewhere, a norm; or nothing but the temperature."""
    turn, norm = rope(c, base=500000.0, pairing="adjacent"), QKNorm(UnitRMS(eps))
    temperature = LengthTemperature(c.number("attn_scale", 0.1), c.number("floor_scale", 8192.0))
    near = (turn, norm) if c.flag("use_qk_norm", True) else (turn,)
    far = (temperature,) if c.switch("attn_temperature_tuning", True) else ()
    return [near if t else far for t in turned]


def links(c: Config, spec: ModelSpec) -> list[Link]:
    table = [*ends(spec), *each(len(spec.layers), attention_links(spec))]
    for i, layer in enumerate(spec.layers):
        ffn, theirs = layer.ffn, "model.layers.{i}.feed_forward"
        experts = isinstance(ffn, Experts)
        table += each([i], expert_links(ffn, spec.width, theirs) if experts else gated_links("", theirs, ffn))
    return table


def expert_links(e: Experts, width: int, theirs: str) -> list[Link]:
    assert isinstance(e.expert, FeedForward)
    ours, n = "blocks.{i}.steps.1.sublayer", e.expert.hidden

    def packed(our: str, their: str, out: int, into: int) -> Link:
        """All experts in one tensor (count, in, out)."""
        flat = Reshape((e.count * out, into), (e.count, out, into))
        names = tuple(f"{ours}.experts.{i}.{our}.weight" for i in range(e.count))
        return Parted(names, f"{theirs}.experts.{their}", (out,) * e.count, changes=(Transpose(), flat))

    return [
        *same({f"{ours}.router.linear.weight": f"{theirs}.router.weight"}),
        *gated_links(".shared", f"{theirs}.shared_expert", e.shared),
        packed("gate_up", "gate_up_proj", 2 * n, width),
        packed("down", "down_proj", width, n),
    ]


FAMILY = Family("llama4_text", spec, links, ignored=("rotary_emb.inv_freq",))
