"""SmolLM3: LLaMA whose every fourth layer has no position (NoPE), with a window on those layers if switched on."""

from __future__ import annotations

from dataclasses import replace

from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import llama, llama_layout
from vantage.families.common import rope
from vantage.families.family import Family
from vantage.model.norms import RMSNorm
from vantage.spec.model import Layer, ModelSpec


def spec(c: Config) -> ModelSpec:
    c.inert("max_window_layers", "pretraining_tp")  # another family's pattern; how the training was split
    norm = RMSNorm(c.number("rms_norm_eps", 1e-6))
    bias = c.flag("attention_bias", False)
    attention = llama_layout.attention(c, bias=bias, out_bias=bias)
    layer = Layer(attention, llama_layout.feed_forward(c, bias=c.flag("mlp_bias", False)), norm)
    turns, turn = turning(c), rope(c, base=2_000_000.0)
    width = llama_layout.window(c, used=c.flag("use_sliding_window", False))
    silent = [llama_layout.FULL if turned or width is None else llama_layout.SLIDING for turned in turns]
    masks = llama_layout.masks(llama_layout.layer_types(c, silent), width)
    layers = [
        replace(layer, mask=mask, qk=(turn,) if turned else ()) for turned, mask in zip(turns, masks, strict=True)
    ]
    return llama_layout.model(c, layers, norm, tied=True)


def turning(c: Config) -> list[bool]:
    """Which layers have RoPE: ``no_rope_layers`` is 0 where there is none."""
    n, every = llama_layout.count(c), c.whole("no_rope_layer_interval", 4, low=1)
    flags = c.numbers("no_rope_layers", tuple(int((i + 1) % every != 0) for i in range(n)))
    if len(flags) != n:
        raise CheckpointError(f"config.json: no_rope_layers names {len(flags)} layers, num_hidden_layers is {n}")
    return [bool(turned) for turned in flags]


FAMILY = Family("smollm3", spec, llama.links, gguf="smollm3")
