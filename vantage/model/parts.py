"""The smaller parts of a model that can stand in a spec, by kind."""

from __future__ import annotations

from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import Experts, RouterConfig, TopK
from vantage.model.feed_forward import FeedForward, named
from vantage.model.no_feed_forward import NoFeedForward
from vantage.model.norms import NORMS, LayerNorm, RMSNorm
from vantage.model.patches import Patches, PatchVectors
from vantage.model.pooling import First, Pooler, Transform
from vantage.model.routers import GroupLimited
from vantage.model.unit import UnitRMS
from vantage.model.vision import VisionTower
from vantage.spec.images import VisionConfig
from vantage.spec.model import FeedForwardConfig, InputConfig, NormConfig, TransformConfig
from vantage.spec.registry import Entry, Registry

NORM_PARTS: Registry[NormConfig] = Registry(
    "norm",
    (
        Entry("rms", RMSNorm, "RMSNorm"),
        Entry("layer", LayerNorm, "LayerNorm"),
        Entry("unit-rms", UnitRMS, "RMSNorm without weights"),
    ),
    needs=("build",),
)
FEED_FORWARDS: Registry[FeedForwardConfig] = Registry(
    "feed-forward layer",
    (
        Entry("dense", FeedForward, "Dense"),
        Entry("clamped-swiglu", ClampedSwiGLU, "Clamped SwiGLU"),
        Entry("experts", Experts, "Mixture of experts"),
        Entry("none", NoFeedForward, "No feed-forward layer"),
    ),
    needs=("build",),
)
ROUTERS: Registry[RouterConfig] = Registry(
    "router of experts",
    (Entry("top-k", TopK, "The best k"), Entry("group-limited", GroupLimited, "The best k of the best groups")),
    needs=("build",),
)
INPUTS: Registry[InputConfig] = Registry(
    "input",
    (
        Entry("patches", Patches, "Patches of an image"),
        Entry("patch-vectors", PatchVectors, "Patches that were cut before"),
    ),
    needs=("build",),
)
VISIONS: Registry[VisionConfig] = Registry(
    "vision tower", (Entry("tower", VisionTower, "A vision tower"),), needs=("build",)
)
TRANSFORMS: Registry[TransformConfig] = Registry(
    "transform before a head",
    (
        Entry("first", First, "The first token"),
        Entry("pooler", Pooler, "A pooled vector"),
        Entry("transform", Transform, "A masked-LM transform"),
    ),
    needs=("build",),
)


def norms_by_name() -> dict[str, NormConfig]:
    """What ``norm=`` takes: ours that need no arguments, and those from outside."""
    return NORMS | {entry.name: entry.make() for entry in NORM_PARTS.from_outside()}


def ffn_by_name(name: str, width: int) -> FeedForwardConfig:
    """What ``ffn=`` takes: the names that papers use, and those from outside, made for the model's width."""
    outside = {entry.name: entry for entry in FEED_FORWARDS.from_outside()}
    return outside[name].make(width) if name in outside else named(name, width)
