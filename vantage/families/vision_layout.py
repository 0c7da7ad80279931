"""What the vision towers of Qwen2-VL and Qwen3-VL read alike, and the links of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vantage.attention import GroupedQuery
from vantage.checkpoints.config import Config
from vantage.checkpoints.links import Link, Reshape, Same, each
from vantage.errors import CheckpointError
from vantage.families.common import ACTIVATIONS
from vantage.families.module_links import modules
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.model.patches import PatchVectors
from vantage.model.vision import VisionTower
from vantage.position import AxialRope
from vantage.spec.masks import Everything, SameSegment
from vantage.spec.model import Embedding, Layer, ModelSpec
from vantage.spec.parts import Buildable

NORM = LayerNorm(1e-6)  # a constant of both families


def vision_config(c: Config) -> Config:
    """The part of a config that tells of the tower."""
    part = c.part("vision_config")
    if part is None:
        raise CheckpointError("config.json: 'vision_config' is missing: it says what the vision tower is")
    return part


def encoder(
    c: Config,
    stored: int,
    *,
    width: int,
    hidden: int,
    activation: str,
    patch: int,
    bias: bool,
    inputs: Buildable | None,
) -> ModelSpec:
    """The layers that the patches go through. ``stored``: tensors of the checkpoint, 0 where there is none."""
    depth = c.whole("depth", low=1)
    if stored and depth > stored:
        raise CheckpointError(f"vision_config: depth is {depth}, and the checkpoint holds {stored} tensors in all")
    rope = c.part("rope_parameters")
    if rope is not None:
        rope.must_be("rope_type", "axial")
    turn = AxialRope(10000.0 if rope is None else rope.number("rope_theta", 10000.0))
    channels = c.whole("in_channels", 3, low=1)
    size = c.whole("patch_size", patch, low=1)
    c.must_be("in_chans", channels)  # other names, which published configs have beside those that are read
    c.must_be("spatial_patch_size", size)
    source = PatchVectors(size, c.whole("temporal_patch_size", 2, low=1), channels, bias)
    act = c.choice("hidden_act", ACTIVATIONS, activation)
    layer = Layer(
        GroupedQuery(c.whole("num_heads", 16, low=1), bias=True, out_bias=True),
        FeedForward(hidden, act, gated=False, bias=True),
        NORM,
        Everything() & SameSegment(),
        (turn,),
    )
    embedding = Embedding(inputs=() if inputs is None else (inputs,), source=source)
    return ModelSpec(1, width, (layer,) * depth, embedding)


def with_tower(c: Config, text: ModelSpec, tower: VisionTower, out: int) -> ModelSpec:
    """The text model and its tower, if the one can read what the other gives (``out``)."""
    if out != text.width:
        raise CheckpointError(f"vision_config: the tower gives vectors of {out}, and the text model's are {text.width}")
    if len(tower.deep) > len(text.layers):
        raise CheckpointError(
            f"vision_config: {len(tower.deep)} layers are added to the text model's, which has {len(text.layers)}"
        )
    c.inert("vision_start_token_id", "vision_end_token_id", "vision_token_id")  # a template writes them
    c.inert("video_token_id")  # films are not read
    return replace(text, vision=tower)


def tower_links(spec: ModelSpec, at: str, block: Mapping[str, str], merger: Mapping[str, str]) -> list[Link]:
    """``at``: how the tower's tensors begin. ``block`` and ``merger``: their names for our modules."""
    assert isinstance(spec.vision, VisionTower)
    tower = spec.vision.encoder
    source, ours = tower.embedding.source, "vision.encoder"
    assert isinstance(source, PatchVectors)
    cut = (tower.width, source.channels, source.frames, source.size, source.size)
    patches = f"{at}.patch_embed.proj"
    bias = [Same(f"{ours}.embed.tokens.bias", f"{patches}.bias")] if source.bias else []
    layer, theirs = f"{ours}.blocks.{{i}}.steps", f"{at}.blocks.{{i}}"
    deep = f"{at}.deepstack_merger_list.{{j}}"
    return [
        Same(f"{ours}.embed.tokens.weight", f"{patches}.weight", (Reshape((tower.width, source.values), cut),)),
        *bias,
        *each(len(tower.layers), modules({f"{layer}.{our}": f"{theirs}.{their}" for our, their in block.items()})),
        *modules({f"vision.merger.{our}": f"{at}.merger.{their}" for our, their in merger.items()}),
        *each(
            len(spec.vision.deep),
            modules({f"vision.deep_mergers.{{j}}.{our}": f"{deep}.{their}" for our, their in merger.items()}),
            "j",
        ),
    ]


ATTENTION = {"0.before": "norm1", "0.sublayer.qkv": "attn.qkv", "0.sublayer.out": "attn.proj", "1.before": "norm2"}
