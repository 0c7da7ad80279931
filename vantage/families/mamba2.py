"""Mamba-2: token mixers with a state, and nothing else."""

from __future__ import annotations

import math

from vantage.attention import Mamba2
from vantage.attention.mamba import channels
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Reshape, each, same
from vantage.errors import CheckpointError
from vantage.families.family import Family
from vantage.families.llama_layout import count
from vantage.families.module_links import modules
from vantage.model.no_feed_forward import NoFeedForward
from vantage.model.norms import RMSNorm
from vantage.spec.model import Head, Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.must_be("hidden_act", "silu")
    width, heads, head_dim = (c.whole(name, low=1) for name in ("hidden_size", "num_heads", "head_dim"))
    if width * c.whole("expand", 2, low=1) != heads * head_dim:
        raise CheckpointError(f"config.json: expand × hidden_size is not {heads} heads × {head_dim}")
    norm = RMSNorm(c.number("layer_norm_epsilon", 1e-5))
    mixer = Mamba2(
        heads,
        norm,
        head_dim,
        c.whole("state_size", 128, low=1),
        c.whole("n_groups", 8, low=1),
        c.whole("conv_kernel", 4, low=2),
        c.flag("use_bias", False),
        c.flag("use_conv_bias", True),
        *step_limits(c),
    )
    # fresh weights, how the sum is cut into chunks, and in which precision sums are kept
    c.inert("time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "rescale_prenorm_residual")
    c.inert("chunk_size", "residual_in_fp32", "intermediate_size", "layer_types")
    return ModelSpec(
        c.whole("vocab_size", low=1),
        width,
        (Layer(mixer, NoFeedForward(), norm),) * count(c),
        norm=norm,
        head=Head(tied=c.flag("tie_word_embeddings", False)),
    )


def step_limits(c: Config) -> tuple[float, float | None]:
    """The least and the greatest step; ``None``: no end. JSON has no infinity: transformers writes an object there."""
    if "time_step_limit" not in c:
        return 0.0, None
    limits = c.plain("time_step_limit")
    numbers = [x.get("__float__") if isinstance(x, dict) else x for x in limits] if isinstance(limits, list) else []
    try:
        low, high = (float(x) for x in numbers)  # pyright: ignore[reportArgumentType] (what is no number raises)
    except (TypeError, ValueError) as e:
        raise CheckpointError(f"config.json: time_step_limit is {limits!r}; wanted two numbers") from e
    return low, None if math.isinf(high) else high


def links(c: Config, spec: ModelSpec) -> list[Link]:
    head = {} if spec.head is None or spec.head.tied else {"head.linear": "lm_head"}
    ends = {"embed.tokens": "backbone.embeddings", "norm": "backbone.norm_f", **head}
    ours, theirs = "blocks.{i}.steps.0", "backbone.layers.{i}"
    layer = [
        *modules({f"{ours}.before": f"{theirs}.norm"}, bias=False),
        *mixer_links(spec.layers[0], spec.width, f"{theirs}.mixer"),
    ]
    return [*modules(ends, bias=False), *each(len(spec.layers), layer)]


def mixer_links(layer: Layer, width: int, theirs: str) -> list[Link]:
    mixer, ours = layer.attention, "blocks.{i}.steps.0.sublayer"
    assert isinstance(mixer, Mamba2)
    n, taps = channels(mixer.shape(width)), mixer.taps
    bias = {f"{ours}.conv.bias": f"{theirs}.conv1d.bias"} if mixer.convolution_bias else {}
    return [
        *modules({f"{ours}.maps": f"{theirs}.in_proj", f"{ours}.out": f"{theirs}.out_proj"}, bias=mixer.bias),
        *modules({f"{ours}.norm": f"{theirs}.norm"}, bias=False),
        *same({f"{ours}.{x}": f"{theirs}.{x}" for x in ("dt_bias", "A_log", "D")}),
        *same({f"{ours}.conv.weight": f"{theirs}.conv1d.weight"}, Reshape((n, taps), (n, 1, taps))),
        *same(bias),
    ]


FAMILY = Family("mamba2", spec, links)
