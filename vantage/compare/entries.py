"""What competes: encodings by name, each as the ``[model]`` section that trains it."""

from __future__ import annotations

from typing import Any

from vantage.attention import ATTENTIONS, GroupedQuery
from vantage.compare.experiment_fields import ModelShape
from vantage.compare.names import CONTROL, GROUPED, RANDOMISED, all_names, plain_names
from vantage.errors import BadInput, unknown
from vantage.position import ENCODINGS, encoding
from vantage.position.randomised import Randomised
from vantage.spec.model import AttentionConfig, Scores
from vantage.spec.normalisers import NORMALISERS
from vantage.training.models import Decoder

CHECKED = ModelShape()  # a size in which an attention is asked what it keeps


def plain_positions() -> tuple[str, ...]:
    """Every encoding that competes, the usual ones first."""
    return plain_names(e.name for e in ENCODINGS.entries() if e.compared)


def all_positions() -> tuple[str, ...]:
    """These, the randomised form of those that have one, and the control."""
    plain = plain_positions()
    return all_names(plain, (name for name in plain if ENCODINGS[name].randomised))


def attentions() -> tuple[str, ...]:
    """Multi-head attention and its forms, the other kinds, and multi-head attention with another normaliser."""
    others = (*ATTENTIONS.entries(), *NORMALISERS.entries())
    return (*GROUPED, *(entry.name for entry in others if entry.compared))


def goes_with(position: str, attention: str) -> bool:
    """Whether the two make a model: layers with a state have no scores that a position could act on."""
    if attention in GROUPED or attention in NORMALISERS:
        return True
    return position == "none" or _attention(attention, CHECKED.heads).cache_shape(CHECKED.width).kv_heads > 0


def section(position: str, attention: str, shape: ModelShape, longest: int) -> Decoder:
    """The model of an entry. ``longest`` is how many tokens any row will have, tests included."""
    check_entry(position, attention)
    bidirectional = position == CONTROL
    name = "none" if bidirectional else position
    return Decoder(
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        attention=_attention(attention, shape.heads),
        position=_encoding(name, longest),
        bidirectional=bidirectional,
    )


def _attention(name: str, heads: int) -> AttentionConfig:
    if name in GROUPED:
        return GroupedQuery(heads, GROUPED[name](heads))
    if name in NORMALISERS:
        return GroupedQuery(heads, scores=Scores(normalise=NORMALISERS[name].make()))
    return ATTENTIONS[name].make(heads)


def _encoding(name: str, longest: int) -> Any:
    """With rows for the longest test, where it has a table: those beyond the training length are untrained (P6)."""
    if name.startswith(RANDOMISED):
        high = 4 * longest  # positions are drawn from four times what any test needs
        return Randomised(_encoding(name.removeprefix(RANDOMISED), high), high=high)
    return encoding(name, max_length=longest)


def check_entry(position: str, attention: str) -> None:
    for what, name, known in (("position", position, all_positions()), ("attention", attention, attentions())):
        if name not in known:
            raise BadInput(unknown(what, name, known))
