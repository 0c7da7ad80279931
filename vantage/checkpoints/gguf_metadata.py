"""What a GGUF file says of a model besides its weights, from the model's spec: the way back from ``gguf_names``.

Nothing is checked here. The file's own reader is asked what it would make of it, and that must be the model again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.errors import BadInput
from vantage.model.feed_forward import FeedForward
from vantage.position import Rope, ropes_among, scaling
from vantage.spec.masks import windows
from vantage.spec.model import Layer, ModelSpec

NO_LIMIT = 2**15  # the context length of a model that has none


def metadata_from(arch: str, spec: ModelSpec) -> dict[str, Any]:
    """The keys of an architecture, with its name in front."""
    return {f"{arch}.{key}": value for key, value in DESCRIBE[arch](spec).items() if value is not None}


def attention_of(layer: Layer) -> GroupedQuery:
    if not isinstance(layer.attention, GroupedQuery):
        raise BadInput(f"{type(layer.attention).__name__} attention has no GGUF architecture that is written here")
    return layer.attention


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    layer = spec.layers[0]
    ffn, attention = layer.ffn, attention_of(layer)
    if not isinstance(ffn, FeedForward):
        raise BadInput(f"{type(ffn).__name__} as feed-forward part has no GGUF architecture that is written here")
    return {
        "block_count": len(spec.layers),
        "context_length": spec.max_length or NO_LIMIT,
        "embedding_length": spec.width,
        "feed_forward_length": ffn.hidden,
        "attention.head_count": attention.heads,
        "vocab_size": spec.vocab,
    }


def _decoder(spec: ModelSpec) -> dict[str, Any]:
    layer = spec.layers[0]
    attention = attention_of(layer)
    head = attention.shape(spec.width).key_dim
    return {
        **_sizes(spec),
        "attention.head_count_kv": attention.kv_heads or attention.heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": float(getattr(layer.norm, "eps", 0.0)),
        "rope.dimension_count": head,
        **_rope_keys(rope_of(layer)),
    }


def rope_of(layer: Layer) -> Rope:
    ropes = ropes_among(layer.qk)
    if len(ropes) != 1:
        raise BadInput("a GGUF file of this architecture needs a model with one RoPE in every layer")
    return ropes[0]


def _rope_keys(rope: Rope) -> dict[str, Any]:
    keys: dict[str, Any] = {"rope.freq_base": float(rope.base)}
    rule = rope.scaling
    if isinstance(rule, scaling.Linear):
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rule.factor)}
    elif isinstance(rule, scaling.YaRN):
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rule.factor)}
        keys |= {"rope.scaling.original_context_length": rule.original}
    elif rule is not None and not isinstance(rule, scaling.Llama3):
        raise BadInput(f"the frequency rule {type(rule).__name__} has no place in a GGUF file")
    return keys


def frequency_divisors(spec: ModelSpec) -> Tensor | None:
    """What LLaMA 3.1 and later store in 'rope_freqs.weight' in place of their rule."""
    layer = spec.layers[0]
    ropes = ropes_among(layer.qk)
    if not ropes or not isinstance(rule := ropes[0].scaling, scaling.Llama3):
        return None
    head = attention_of(layer).shape(spec.width).key_dim
    turns = rule.original * ropes[0].base ** -(torch.arange(0, head, 2, dtype=torch.float64) / head)
    smooth = ((turns / (2 * torch.pi) - rule.low_freq_factor) / (rule.high_freq_factor - rule.low_freq_factor)).clamp(
        0, 1
    )
    return (1 / ((1 - smooth) / rule.factor + smooth)).float()


def _gemma3(spec: ModelSpec) -> dict[str, Any]:
    reaches = [n for layer in spec.layers for n in windows(layer.mask)]
    keys = _decoder(spec) | {"attention.sliding_window": reaches[0] if reaches else None}
    for layer in spec.layers:
        if not windows(layer.mask):
            return keys | _rope_keys(rope_of(layer))  # the base of the local layers is always the same
    return keys


def _with_layer_norm(spec: ModelSpec) -> dict[str, Any]:
    return {**_sizes(spec), "attention.layer_norm_epsilon": float(getattr(spec.layers[0].norm, "eps", 0.0))}


def _bert(spec: ModelSpec) -> dict[str, Any]:
    return {**_with_layer_norm(spec), "attention.causal": False, "pooling_type": 1}


DESCRIBE: dict[str, Callable[[ModelSpec], dict[str, Any]]] = {
    "llama": _decoder,
    "smollm3": _decoder,
    "qwen2": _decoder,
    "qwen3": _decoder,
    "gemma3": _gemma3,
    "gpt2": _with_layer_norm,
    "bert": _bert,
}
