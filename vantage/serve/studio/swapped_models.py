"""A model under another encoding: how a request says it, the model itself, and what a page says of it."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from vantage.errors import BadInput
from vantage.inspect import swap
from vantage.inspect.swap import is_position
from vantage.model import Model
from vantage.position import Rope
from vantage.serve.bounds import Number, StrictModel, Whole
from vantage.serve.studio.answers import EncodingInfo, EncodingValues
from vantage.serve.studio.encodings import choice_of, choices, make_encoding
from vantage.serve.studio.models import position_of
from vantage.spec.model import ModelSpec
from vantage.spec.registry import Fit, parameters
from vantage.studies.study import Value

Name = Annotated[str, Field(min_length=1, max_length=64)]
Values = Annotated[dict[Name, Whole | Number | Annotated[str, Field(max_length=1000)]], Field(max_length=32)]


class EncodingRequest(StrictModel):
    """An encoding by name. What is not said stands as it comes."""

    name: Name
    values: Values = Field(default_factory=dict)


class SwappedModel(NamedTuple):
    """``fresh``: the weights that only this model has, since its encoding brings some; nobody trained them."""

    model: Model
    fresh: list[Tensor]


def swapped_model(model: Model, position: EncodingRequest, length: int) -> SwappedModel:
    """The same weights with another encoding. Fresh weights are drawn alike each time: a link shows what it showed.

    ``length``: the positions needed of a model that does not say its context.
    """
    shape = model.spec.layers[0].attention.shape(model.spec.width)
    fit = Fit(model.context_length or length, shape.rotary_dim)
    encoding = make_encoding(position.name, dict(position.values), fit)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = swap(model, encoding, init=True)
    own = {id(p) for p in model.parameters()}
    return SwappedModel(other, [p for p in other.parameters() if id(p) not in own])


def encoding_info(
    model: Model, position: EncodingRequest | None = None, other: SwappedModel | None = None
) -> EncodingInfo:
    """Which encoding a model is looked at with: its own, or another. ``same``: the other is its own once more."""
    if position is None or other is None:
        own = own_encoding(model.spec)
        title = position_of(model) if own is None else choice_of(own.name).title
        name, values = (None, {}) if own is None else (own.name, own.values)
        return EncodingInfo(name=name, values=values, title=title, swapped=False, untrained=False, same=True)
    return EncodingInfo(
        name=position.name,
        values=dict(position.values),
        title=choice_of(position.name).title,
        swapped=True,
        untrained=bool(other.fresh),
        same=_acting(other.model.spec) == _acting(model.spec),
    )


def _acting(spec: ModelSpec) -> tuple[Any, ...]:
    """What a pass can tell: drawn positions are for training, and a longer context changes no weight."""
    return spec.embedding, spec.layers, None if spec.encoder is None else _acting(spec.encoder)


def own_encoding(spec: ModelSpec) -> EncodingValues | None:
    """The name and values of the encoding that a model has, where it is one that is offered here."""
    layer = spec.layers[0]
    acting = [p for p in (*spec.embedding.inputs, *layer.qk, layer.bias) if p is not None and is_position(p)]
    if not acting:
        return EncodingValues(name="none", values={})
    part = acting[0]
    rule = part.scaling if isinstance(part, Rope) else None
    shown: dict[str, Value] = {}
    for one in (part, rule):
        for field, info in ({} if one is None else parameters(type(one))).items():
            value = getattr(one, field)
            if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                shown[info.name or field] = value
    fit = Fit(spec.max_length or 1, layer.attention.shape(spec.width).rotary_dim)
    for name, choice in choices().items():
        values = {p.name: shown[p.name] for p in choice.parameters if p.name in shown}
        try:
            again = choice.encoding(values, fit)
        except BadInput:
            continue
        parts = again.parts(causal=layer.mask.causal)
        if part in (*parts.inputs, *parts.qk, parts.bias):
            return EncodingValues(name=name, values=values)
    return None
