"""From a spec to modules: every part is built here, once, and handed where it acts."""

from __future__ import annotations

from typing import Any

from torch import nn

from vantage.attention import NoBias
from vantage.errors import Refused
from vantage.model.altup import AltUpBlock, StreamsBegin, StreamsEnd
from vantage.model.block import wire
from vantage.model.ends import Embed
from vantage.model.linear import dense
from vantage.model.part_errors import build_norm, build_part
from vantage.spec.masks import Everything, SameSegment
from vantage.spec.model import BuildContext, Layer, ModelSpec
from vantage.spec.parts import Buildable, Shape


def build_shared(
    part: Buildable,
    shape: Shape,
    shared: dict[Any, nn.Module],
    *,
    role: str = "position encoding",
    layer: int | None = None,
) -> Any:
    """Build a part; if its config says it is shared, equal parts of a model are one module.

    ``role`` (of ``part_errors.ROLES``) and ``layer`` name it where it fails.
    """
    if not part.shared:
        return build_part(role, part, "build()", lambda: part.build(shape), layer)
    if (part, shape) not in shared:
        shared[part, shape] = build_part(role, part, "build()", lambda: part.build(shape), layer)
    return shared[part, shape]


def assemble_embedding(spec: ModelSpec, shared: dict[Any, nn.Module]) -> Embed:
    """The embedding with the positions that are added to it, and with the streams of AltUp where the spec has them."""
    shape = spec.layers[0].attention.shape(spec.width)
    inputs = [
        build_shared(part, shape, shared, role="position added to the embeddings") for part in spec.embedding.inputs
    ]
    embed = Embed(spec.embedding, spec.vocab, spec.width, inputs)
    if spec.altup is not None and spec.norm is not None:
        embed.streams = StreamsBegin(spec.altup, spec.norm, spec.width, len(spec.layers))
    return embed


def assemble_last_norm(spec: ModelSpec) -> nn.Module:
    """What stands behind the last block."""
    norm = nn.Identity() if spec.norm is None else build_norm(spec.norm, spec.width)
    return norm if spec.altup is None else StreamsEnd(spec.altup, norm, spec.width)


def check_buffers(model: nn.Module) -> None:
    """Files of a model have its parameters. A buffer that is to be saved would come back as a constructor makes it."""
    buffers = [name for name, _ in model.named_buffers()]
    if kept := sorted(set(buffers) & set(model.state_dict())) if buffers else []:
        owner = type(model.get_submodule(kept[0].rpartition(".")[0])).__name__
        raise Refused(
            f"{owner} keeps the buffer {kept[0]!r}, and only parameters are saved with a model: register it with "
            "persistent=False if the constructor computes it, or make it an nn.Parameter"
        )


def assemble_blocks(spec: ModelSpec, shared: dict[Any, nn.Module]) -> nn.ModuleList:
    read = {layer.source for layer in spec.layers}
    blocks = [_block(i, layer, spec.width, shared, i in read) for i, layer in enumerate(spec.layers)]
    if spec.altup is not None:
        parts = enumerate(zip(blocks, spec.layers, strict=True))
        blocks = [AltUpBlock(block, spec.altup, layer, spec.width, i) for i, (block, layer) in parts]
    return nn.ModuleList(blocks)


def _block(index: int, layer: Layer, width: int, shared: dict[Any, nn.Module], read: bool) -> nn.Module:
    attention, cross, ffn = layer.attention, layer.cross, layer.ffn
    shape = build_part("attention", attention, "shape()", lambda: attention.shape(width), index)

    def built(part: Buildable, role: str) -> Any:
        return build_shared(part, shape, shared, role=role, layer=index)

    context = BuildContext(
        index=index,
        mask=layer.mask,
        qk=tuple(built(part, "q/k transform") for part in layer.qk),
        bias=NoBias() if layer.bias is None else built(layer.bias, "score bias"),
        value_bias=None if layer.value_bias is None else built(layer.value_bias, "value bias"),
        linear=dense,
        output=tuple(built(part, "output transform") for part in layer.output),
        source=layer.source,
        shared=read,
        indexer=None if layer.indexer is None else built(layer.indexer, "indexer"),
    )
    module = build_part("attention", attention, "build()", lambda: attention.build(width, context), index)
    wanted = {
        "output": (layer.output, "cannot have an output transform"),
        "source": (layer.source is not None, "cannot read the keys of another layer"),
        "shared": (read, "has no keys that another layer could read"),
        "scorer": (layer.indexer, "cannot have an indexer"),  # which a scorer asks
    }
    for name, (value, why) in wanted.items():
        if value and not hasattr(module, name):
            raise Refused(f"layer {index}: {type(attention).__name__} {why}: use GroupedQuery there")
    sublayers = [module]
    if cross is not None:
        across = BuildContext(index, Everything() & SameSegment(), (), NoBias(), None, dense)
        sublayers.append(
            build_part("cross-attention", cross, "build_cross()", lambda: cross.build_cross(width, across), index)
        )
    sublayers.append(build_part("feed-forward layer", ffn, "build()", lambda: ffn.build(width), index))
    return wire(sublayers, layer, width)
