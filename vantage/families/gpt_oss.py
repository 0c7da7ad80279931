"""GPT-OSS: attention with sinks, every second layer with a window, YaRN, experts with a clamped SwiGLU.

Published with its experts in MXFP4: they are unpacked when loaded, and saved plain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Parted, Reshape, Transpose, each, same
from vantage.checkpoints.mxfp4 import Unpacked
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.families.layer_parts import experts_of
from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import Experts, TopK
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.position.scaling import YaRN
from vantage.spec.model import Layer, ModelSpec, Scores


def spec(c: Config) -> ModelSpec:
    if (packed := c.part("quantization_config")) is not None:
        packed.must_be("quant_method", "mxfp4")
        packed.inert("modules_to_not_convert")  # the tensors' names say the same
    c.inert("output_router_logits", "router_aux_loss_coef")  # what training may ask for besides the logits
    c.inert("hidden_act", "initial_context_length")  # the experts have their own; rope says the length
    norm = RMSNorm(c.number("rms_norm_eps", 1e-5))
    bias = c.flag("attention_bias", True)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias, head_dim=64, scores=Scores(sinks=True))
    layer = Layer(attention, experts(c), norm, qk=(turn(c),))
    silent = [llama_layout.FULL if i % 2 else llama_layout.SLIDING for i in range(llama_layout.count(c))]
    masks = llama_layout.masks(llama_layout.layer_types(c, silent), llama_layout.window(c, silent=128))
    return llama_layout.model(c, [replace(layer, mask=mask) for mask in masks], norm)


def experts(c: Config) -> Experts:
    chosen = c.whole("num_experts_per_tok", 4, low=1)
    c.must_be("experts_per_token", chosen)  # the same under the name of the original code
    alpha, limit = c.number("swiglu_alpha", 1.702), c.number("swiglu_limit", 7.0)
    expert = ClampedSwiGLU(c.whole("intermediate_size", low=1), alpha, limit)
    return Experts(expert, c.whole("num_local_experts", 128, low=1), TopK(chosen, bias=True))


def turn(c: Config) -> Rope:
    """The published models' YaRN where the config is silent."""
    has_rope = "rope_parameters" in c or "rope_scaling" in c
    read = rope(c, base=150_000.0)
    return read if has_rope else replace(read, scaling=YaRN(32.0, 4096, truncate=False))


def links(c: Config, spec: ModelSpec) -> list[Link]:
    ours, theirs = "blocks.{i}.steps", "model.layers.{i}"
    own = {
        f"{ours}.0.sublayer.scorer.sinks": f"{theirs}.self_attn.sinks",
        f"{ours}.1.sublayer.router.linear.weight": f"{theirs}.mlp.router.weight",
        f"{ours}.1.sublayer.router.linear.bias": f"{theirs}.mlp.router.bias",
    }
    layer = [*llama.attention_links(spec), *same(own), *expert_links(spec)]
    return [*llama.ends(spec), *each(len(spec.layers), layer)]


def expert_links(spec: ModelSpec) -> list[Link]:
    """All experts in one tensor, their matrices the other way round."""
    ffn = experts_of(spec.layers[0])
    assert isinstance(ffn.expert, ClampedSwiGLU)
    n, hidden, width = ffn.count, ffn.expert.hidden, spec.width
    links: list[Link] = []
    for name, rows, columns in (("gate_up", 2 * hidden, width), ("down", width, hidden)):
        ours = tuple(f"blocks.{{i}}.steps.1.sublayer.experts.{e}.{name}" for e in range(n))
        theirs, sizes = f"model.layers.{{i}}.mlp.experts.{name}_proj", (rows,) * n
        flat = (Transpose(), Reshape((n * rows, columns), (n, rows, columns)))
        links.append(Parted(tuple(f"{x}.weight" for x in ours), theirs, sizes, changes=flat))
        flat = (Reshape((n * rows,), (n, rows)),)
        links.append(Parted(tuple(f"{x}.bias" for x in ours), f"{theirs}_bias", sizes, changes=flat))
    return links


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "quantization_config"}


NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
FAMILY = Family("gpt_oss", spec, links, unpacked=Unpacked, saved_as=plain_config, wide_in_float16=NORMS)
