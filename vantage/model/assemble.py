"""From a spec to modules: every part is built here, once, and handed where it acts."""

from __future__ import annotations

from typing import Any

from torch import nn

from vantage.attention import NoBias
from vantage.errors import Refused
from vantage.model.block import wire
from vantage.model.linear import dense
from vantage.spec.masks import Everything, SameSegment
from vantage.spec.model import BuildContext, Layer, ModelSpec
from vantage.spec.parts import Buildable, Shape


def build_shared(part: Buildable, shape: Shape, shared: dict[Any, nn.Module]) -> Any:
    """Build a part; if its config says it is shared, equal parts of a model are one module."""
    if not part.shared:
        return part.build(shape)
    if (part, shape) not in shared:
        shared[part, shape] = part.build(shape)
    return shared[part, shape]


def assemble_blocks(spec: ModelSpec, shared: dict[Any, nn.Module]) -> nn.ModuleList:
    read = {layer.source for layer in spec.layers}
    return nn.ModuleList(_block(i, layer, spec.width, shared, i in read) for i, layer in enumerate(spec.layers))


def _block(index: int, layer: Layer, width: int, shared: dict[Any, nn.Module], read: bool) -> nn.Module:
    shape = layer.attention.shape(width)
    context = BuildContext(
        index=index,
        mask=layer.mask,
        qk=tuple(build_shared(part, shape, shared) for part in layer.qk),
        bias=NoBias() if layer.bias is None else build_shared(layer.bias, shape, shared),
        value_bias=None if layer.value_bias is None else build_shared(layer.value_bias, shape, shared),
        linear=dense,
        output=tuple(build_shared(part, shape, shared) for part in layer.output),
        source=layer.source,
        shared=read,
    )
    attention = layer.attention.build(width, context)
    for name, wanted in (("output", bool(layer.output)), ("source", layer.source is not None), ("shared", read)):
        if wanted and not hasattr(attention, name):
            raise Refused(f"layer {index}: {type(attention).__name__} has no {name}: use GroupedQuery there")
    sublayers = [attention]
    if layer.cross is not None:
        across = BuildContext(index, Everything() & SameSegment(), (), NoBias(), None, dense)
        sublayers.append(layer.cross.build_cross(width, across))
    sublayers.append(layer.ffn.build(width))
    return wire(sublayers, layer, width)
