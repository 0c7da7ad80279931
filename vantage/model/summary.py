"""A model in a few lines of text."""

from __future__ import annotations

from itertools import groupby

from torch import nn

from vantage.spec.model import Layer, ModelSpec


def summary(model: nn.Module, spec: ModelSpec) -> str:
    """The parts of each run of equal layers, and the parameters."""
    lines = [f"{_kind(spec)}, {sum(p.numel() for p in model.parameters()):,} parameters"]
    if spec.encoder is not None:
        lines += ["encoder", *_stack(spec.encoder), "decoder"]
    return "\n".join([*lines, *_stack(spec)])


def _kind(spec: ModelSpec) -> str:
    return "encoder-decoder" if spec.encoder is not None else "encoder" if spec.head is None else "decoder"


def _stack(spec: ModelSpec) -> list[str]:
    lines = [f"  vocabulary {spec.vocab:,}, width {spec.width}"]
    lines += [f"  input: {part}" for part in spec.embedding.inputs]
    for layer, run in groupby(spec.layers):
        lines += [f"  {len(list(run))} x {line}" if i == 0 else f"      {line}" for i, line in enumerate(_layer(layer))]
    return [*lines, f"  head: {spec.head}"]


def _layer(layer: Layer) -> list[str]:
    lines = [f"{layer.attention}", f"mask {layer.mask}"]
    lines += [f"q/k {part}" for part in layer.qk]
    lines += [f"bias {layer.bias}"] if layer.bias is not None else []
    lines += [f"value bias {layer.value_bias}"] if layer.value_bias is not None else []
    lines += [f"cross {layer.cross}"] if layer.cross is not None else []
    return [*lines, f"{layer.ffn}, {layer.norm}, {layer.wiring}"]
