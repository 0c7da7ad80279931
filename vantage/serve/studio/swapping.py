"""The running model with another encoding: perplexity, perplexity over position, and what it says next."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.generate.generate import generate
from vantage.inspect import swap
from vantage.inspect.extend import BINS, token_losses
from vantage.inspect.select import context_of
from vantage.inspect.swap import NOT_POSITION
from vantage.model import Model
from vantage.position import Rope
from vantage.serve.studio.drag import fitting
from vantage.serve.studio.encodings import CHOICES, NOTES, Asked, made
from vantage.spec.model import ModelSpec
from vantage.studies.figure import Figure, Line, Lines
from vantage.studies.study import Value

LEAST, MOST = 2 * BINS, 1024  # tokens of the text


def swapped(model: Model, text: str, name: str, values: dict[str, Value], tokens: int) -> dict[str, Any]:
    """Before and after. Encodings with weights of their own start untrained, and that is said."""
    if model.encoder is not None or model.spec.head is None:
        raise Refused("an encoding is swapped on a decoder, which has a perplexity: this model is none")
    ids = fitting(model, text, MOST, tokens)
    if len(ids) < LEAST:
        raise BadInput(f"the text has {len(ids)} tokens: give {LEAST} or more, so that there is a curve to see")
    length = context_of(model) or len(ids) + tokens
    shape = model.spec.layers[0].attention.shape(model.spec.width)
    other = swap(model, made(name, values, Asked(length, shape.rotary_dim)), init=True)
    own = {id(p) for p in model.parameters()}
    both = {"before": model, "after": other}
    with torch.inference_mode():
        losses = {which: token_losses(one, ids).double() for which, one in both.items()}
    said = {which: generate(one, ids, max_tokens=tokens).text for which, one in both.items()}
    return {
        "perplexity": {which: _perplexity(found) for which, found in losses.items()},
        "text": said,
        "over_position": _curve(losses),
        "untrained": any(id(p) not in own for p in other.parameters()),
        "tokens": len(ids),
    }


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.mean()), 700.0))


def _curve(losses: dict[str, Tensor]) -> Figure:
    lines = []
    for which, found in losses.items():
        at = torch.arange(1, len(found) + 1).double()
        middles = [float(part.mean()) for part in at.tensor_split(BINS)]
        lines.append(Line(which, middles, [_perplexity(part) for part in found.tensor_split(BINS)]))
    panel = Lines("perplexity over position", "position", "perplexity", tuple(lines), log_y=True)
    caption = "Perplexity of the text in equal stretches, with the model's own encoding and with the other."
    return Figure("over-position", caption, (panel,))


def own_encoding(spec: ModelSpec) -> dict[str, Any] | None:
    """The name and values of the encoding that a model has, where it is one that is offered here."""
    layer = spec.layers[0]
    acting = [
        p for p in (*spec.embedding.inputs, *layer.qk, layer.bias) if p is not None and not isinstance(p, NOT_POSITION)
    ]
    if not acting:
        return {"name": "none", "values": {}}
    part = acting[0]
    rule = part.scaling if isinstance(part, Rope) else None
    for name, choice in CHOICES.items():
        values: dict[str, Value] = {}
        for one in (part, rule):
            for field, note in NOTES.get(type(one), {}).items():
                value = getattr(one, field)
                if isinstance(value, (int, float, str)) and not isinstance(value, bool):
                    values[note.name or field] = value
        values = {p.name: values[p.name] for p in choice.parameters if p.name in values}
        try:
            again = choice.made(values, Asked(spec.max_length or 1, layer.attention.shape(spec.width).rotary_dim))
        except BadInput:
            continue
        parts = again.parts(causal=layer.mask.settled(1))
        if part in (*parts.inputs, *parts.qk, parts.bias):
            return {"name": name, "values": values}
    return None
