"""What a recurrent encoder-decoder is, as frozen data (A1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vantage.errors import BadInput, Refused, unknown

CELLS = ("rnn", "gru", "lstm")
SCORES = ("dot", "general", "additive")
FEEDS = ("nothing", "attended", "context")


@dataclass(frozen=True)
class RecurrentSpec:
    """A recurrent encoder-decoder over one vocabulary, with or without attention.

    ``attention`` is how a decoder state is scored against the encoder's; None: all that the decoder knows of the
    source is the encoder's last state. ``feed`` is what of the attention goes into the recurrence:

    - "nothing": the cell sees tokens alone, and its new state looks at the source (Luong et al. 2015). The whole
      decoder runs in one call, several times faster than the other two. The default of dot and general.
    - "attended": the same, and the attentional vector goes into the next step (Luong's input feeding).
    - "context": the state before the step looks at the source, and what it sees goes into the cell (Bahdanau et al.
      2014). The default of additive.
    """

    vocab: int
    width: int  # of embeddings and states; with bidirectional each direction has half of it
    cell: str = "gru"
    layers: int = 1
    attention: str | None = None
    bidirectional: bool = False  # the encoder alone
    dropout: float = 0.0  # on embeddings, between layers and before the head
    feed: str | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "width", "layers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(f"{name}={value!r}: use a whole number from 1 up")
        if not isinstance(self.bidirectional, bool):
            raise BadInput(f"bidirectional={self.bidirectional!r}: use True or False")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise BadInput(f"dropout={self.dropout!r}: use a share from 0 up to, not including, 1")
        _one_of("cell", self.cell, CELLS)
        if self.attention is not None:
            _one_of("attention", self.attention, SCORES)
        if self.feed is not None:
            _one_of("feed", self.feed, FEEDS)
            if self.attention is None:
                raise Refused(f"feed={self.feed!r} without attention: there is nothing to feed; leave feed=None")
        if self.bidirectional and self.width % 2:
            raise Refused(f"width={self.width} and bidirectional: each direction has half the width, so make it even")

    @property
    def fed(self) -> str | None:
        """``feed``, or the score's default; None without attention."""
        if self.attention is None or self.feed is not None:
            return self.feed
        return {"dot": "nothing", "general": "nothing", "additive": "context"}[self.attention]


def _one_of(name: str, value: object, valid: Iterable[str]) -> None:
    valid = tuple(valid)
    if not isinstance(value, str) or value not in valid:
        raise BadInput(unknown(name, value, valid))
