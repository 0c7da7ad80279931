"""What competes: encodings by name, each as the ``[model]`` section that trains it."""

from __future__ import annotations

from typing import Any

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, GroupedQuery
from vantage.compare.experiment_fields import ModelShape
from vantage.compare.names import (
    ATTENDING,
    CONTROL,
    GROUPED,
    RANDOMISED,
    SHARED_KEYS,
    all_names,
    attending_names,
    plain_names,
)
from vantage.errors import BadInput, Refused, unknown
from vantage.parts import registry
from vantage.position import ENCODINGS, encoding
from vantage.position.randomised import Randomised
from vantage.spec.model import AttentionConfig, Scores
from vantage.spec.normalisers import NORMALISERS
from vantage.training.models import Decoder

CHECKED, LENGTH, VOCAB = ModelShape(), 64, 8  # a size in which a position and an attention are put together


def plain_positions() -> tuple[str, ...]:
    """Every encoding that competes, the usual ones first."""
    return plain_names(e.name for e in ENCODINGS.entries() if e.compared)


def all_positions() -> tuple[str, ...]:
    """These, the randomised form of those that have one, and the control."""
    plain = plain_positions()
    return all_names(plain, (name for name in plain if ENCODINGS[name].randomised))


def attentions() -> tuple[str, ...]:
    """Multi-head attention and its forms, the other kinds, and multi-head attention with a part of its own: another
    normaliser, something between the kernel and the output map, an indexer."""
    return attending_names(entry for kind in ATTENDING for entry in registry(kind).entries() if entry.compared)


def goes_with(position: str, attention: str) -> bool:
    """Whether the two make a model: layers with a state have no scores that a position could act on, and a layer that
    reads another one's keys stores nothing for a bias."""
    if attention in ATTENTIONS:
        config = ATTENTIONS[attention].make(CHECKED.heads)
        return position == "none" or config.cache_shape(CHECKED.width).kv_heads > 0
    try:
        section(position, attention, CHECKED, LENGTH).spec(VOCAB)
    except (BadInput, Refused):
        return False
    return True


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
        output=attention if attention in OUTPUT_PARTS else None,
        indexer=attention if attention in INDEXERS else None,
        kv_sharing=SHARED_KEYS.get(attention, 1),
    )


def _attention(name: str, heads: int) -> AttentionConfig:
    if name in GROUPED:
        return GroupedQuery(heads, GROUPED[name](heads))
    if name in NORMALISERS:
        return GroupedQuery(heads, scores=Scores(normalise=NORMALISERS[name].make()))
    return ATTENTIONS[name].make(heads) if name in ATTENTIONS else _attention("multi-head", heads)


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
