"""A model in a few lines of text."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import groupby

from torch import nn

from vantage.model.packed import packed_weights
from vantage.spec.abilities import Described
from vantage.spec.masks import Mask
from vantage.spec.model import Layer, ModelSpec


def summary(model: nn.Module, spec: ModelSpec) -> str:
    """The parts of each run of equal layers, and the parameters."""
    # packed weights are no parameters to torch
    packed = sum(weight.outputs * weight.inputs for weight in packed_weights(model))
    lines = [f"{spec.kind}, {sum(p.numel() for p in model.parameters()) + packed:,} parameters"]
    if spec.encoder is not None:
        lines += ["encoder", *_stack(spec.encoder), "decoder"]
    if spec.vision is not None:
        lines += ["vision tower", *_stack(spec.vision.encoder), "text model"]
    return "\n".join([*lines, *_stack(spec)])


def _stack(spec: ModelSpec) -> list[str]:
    lines = [f"  vocabulary {spec.vocab:,}, width {spec.width}"]
    source = () if spec.embedding.source is None else (spec.embedding.source,)
    lines += [f"  input: {brief(part)}" for part in (*source, *spec.embedding.inputs)]
    lines += [] if spec.altup is None else [f"  streams: {brief(spec.altup)}"]
    for layer, run in groupby(spec.layers):
        first, *rest = _layer(layer)
        lines += [f"  {sum(1 for _ in run)} x {first}", *(f"      {line}" for line in rest)]
    return [*lines, *([f"  head: {brief(spec.head)}"] if spec.head is not None else [])]


def _layer(layer: Layer) -> list[str]:
    parts = [
        ("", layer.attention),
        ("mask ", layer.mask),
        *(("q/k ", part) for part in layer.qk),
        ("bias ", layer.bias),
        ("value bias ", layer.value_bias),
        ("keys and values of layer ", layer.source),
        *(("output ", part) for part in layer.output),
        ("indexer ", layer.indexer),
        ("cross ", layer.cross),
        ("", layer.ffn),
        ("", layer.norm),
        ("", layer.wiring),
    ]
    return [f"{label}{brief(part)}" for label, part in parts if part is not None]


def describe(part: object) -> str:
    """A part in its own few words; one that has none is written as in code."""
    return part.describe() if isinstance(part, Described) else brief(part)


def brief(part: object) -> str:
    """A frozen part as one would write it: what is as by default is left out."""
    if not is_dataclass(part) or isinstance(part, (type, Mask)):
        return repr(part)
    values = [(f.name, getattr(part, f.name)) for f in fields(part)]
    default = {f.name: f.default for f in fields(part)}
    return f"{type(part).__name__}({', '.join(f'{n}={brief(v)}' for n, v in values if v != default[n])})"
