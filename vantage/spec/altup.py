"""Alternating updates (Baykal et al. 2023) as Gemma 3n has them, as data."""

from __future__ import annotations

from dataclasses import dataclass

from vantage.errors import BadInput


@dataclass(frozen=True)
class AltUp:
    """Several residual streams, of which a layer computes with one: the others are predicted, then corrected.

    Beside attention stands a map of low rank (LAuReL), and each layer reads an embedding of the token of its own, which
    it adds to all streams but the first. A hidden state between layers is all of that side by side: the streams, then
    what each layer is to read.
    """

    token_vocab: int  # ids from here on read the first row
    token_width: int = 256  # of a layer's own embedding of a token
    streams: int = 4
    active: int = 0  # the one that layers compute with
    rank: int = 64  # of the map beside attention
    activation: str = "gelu_tanh"
    scaled: bool = True  # the active stream is scaled before it meets the token
    clip: float | None = 120.0  # of the weights that predict and correct, while training

    def __post_init__(self) -> None:
        for name in ("token_vocab", "token_width", "streams", "rank"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)}: AltUp needs at least 1")
        if not 0 <= self.active < self.streams:
            raise BadInput(f"active={self.active}: there are {self.streams} streams, from 0 to {self.streams - 1}")

    def describe(self) -> str:
        return f"{self.streams} streams (AltUp), a residual of rank {self.rank}"

    def width(self, width: int, layers: int) -> int:
        """Of what stands between layers."""
        return self.streams * width + layers * self.token_width
