"""Equal parameters: models that differ in one part, with feed-forward layers as wide as makes up for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vantage.errors import BadInput
from vantage.model import empty_model
from vantage.model.feed_forward import FeedForward, named
from vantage.training.models import Decoder

TOLERANCE = 0.005  # how far from each other counts may be, as a share of the largest
Entry = tuple[str, str]  # position, attention


def parameters(section: Decoder, vocab: int) -> int:
    """How many a model of this section has, without building its weights."""
    return sum(p.numel() for p in empty_model(section.spec(vocab)).parameters())


def hidden_of(section: Decoder) -> int:
    """How wide the feed-forward layers are."""
    ffn = named(section.ffn, section.width) if isinstance(section.ffn, str) else section.ffn
    assert isinstance(ffn, FeedForward)
    return ffn.hidden


def matched(sections: Mapping[Entry, Decoder], vocab: int) -> dict[Entry, Decoder]:
    """The same sections, those with fewer parameters than the largest with wider feed-forward layers.

    A feed-forward layer has no part in position, and its width can be any number, so it moves the count in small steps
    and nothing else.
    """
    counts = {entry: parameters(section, vocab) for entry, section in sections.items()}
    largest = max(counts.values())
    widened: dict[Entry, Decoder] = {}
    for entry, section in sections.items():
        hidden = hidden_of(section)
        step = parameters(_widened(section, hidden + 1), vocab) - counts[entry]
        more = round((largest - counts[entry]) / step)
        widened[entry] = _widened(section, hidden + more)
        off = abs(counts[entry] + more * step - largest) / largest
        if off > TOLERANCE:
            raise BadInput(
                f"equal parameters: {entry[0]} comes no nearer than {off:.1%} to the largest model, as one "
                f"more unit in its feed-forward layers is {step:,} of {largest:,} parameters. Use a larger width, or "
                "compare at equal compute"
            )
    return widened


def _widened(section: Decoder, hidden: int) -> Decoder:
    ffn = named(section.ffn, section.width) if isinstance(section.ffn, str) else section.ffn
    assert isinstance(ffn, FeedForward)
    return replace(section, ffn=replace(ffn, hidden=hidden))
