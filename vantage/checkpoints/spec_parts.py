"""Which classes may stand where a spec asks for a protocol: what the registries hold, at the time of asking."""

from __future__ import annotations

from typing import Any

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, QK_PARTS
from vantage.model.experts import RouterConfig
from vantage.model.parts import FEED_FORWARDS, INPUTS, NORM_PARTS, ROUTERS, TRANSFORMS, VISIONS
from vantage.position import ENCODINGS, INPUT_PARTS, SAMPLERS, SCORE_PARTS, components
from vantage.position.scaling import SCALINGS, Default, Rule
from vantage.spec.images import VisionConfig
from vantage.spec.mask_registry import MASKS
from vantage.spec.masks import Mask
from vantage.spec.model import AttentionConfig, FeedForwardConfig, InputConfig, NormConfig, TransformConfig
from vantage.spec.normalisers import NORMALISERS, Normaliser
from vantage.spec.parts import Encoding, Sampler
from vantage.spec.registry import Registry

REGISTRIES: dict[Any, Registry[Any]] = {
    AttentionConfig: ATTENTIONS,
    FeedForwardConfig: FEED_FORWARDS,
    InputConfig: INPUTS,
    NormConfig: NORM_PARTS,
    RouterConfig: ROUTERS,
    Sampler: SAMPLERS,
    TransformConfig: TRANSFORMS,
    VisionConfig: VISIONS,
    Mask: MASKS,
    Normaliser: NORMALISERS,
    Rule: SCALINGS,
    Encoding: ENCODINGS,
}


def classes_by_protocol() -> dict[Any, tuple[type, ...]]:
    """The classes that fit where a field asks for a protocol."""
    classes = {protocol: registry.classes() for protocol, registry in REGISTRIES.items()}
    classes[Rule] = (Default, *classes[Rule])
    classes[Encoding] = (*classes[Encoding], *SAMPLERS.classes())
    classes[Sampler] = (*classes[Sampler], *_components().get("sampler", ()))
    return classes


def classes_by_place() -> dict[str, tuple[type, ...]]:
    """``Buildable`` says too little: what may stand there goes by the field's name."""
    by_place = _components()
    for registry in (QK_PARTS, SCORE_PARTS, INPUT_PARTS, OUTPUT_PARTS, INDEXERS):
        for entry in registry.entries():
            for place, classes in (entry.components or {}).items():
                by_place[place] = (*by_place.get(place, ()), *classes)
    return {place: by_place.get(place, ()) for place in ("inputs", "qk", "bias", "value_bias", "output", "indexer")}


def _components() -> dict[str, tuple[type, ...]]:
    """The classes that the encodings put into a spec, by place."""
    by_place: dict[str, tuple[type, ...]] = {}
    for entry in ENCODINGS.entries():
        for place, classes in components(entry).items():
            by_place[place] = tuple(dict.fromkeys((*by_place.get(place, ()), *classes)))
    return by_place
