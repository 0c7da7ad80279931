"""NoPE: no position encoding. A causal mask alone tells a decoder where it is (Haviv et al. 2022; P11)."""

from __future__ import annotations

from dataclasses import dataclass

from vantage.spec.parts import Parts
from vantage.spec.registry import Entry


@dataclass(frozen=True)
class NoPE:
    """Acts nowhere."""

    def parts(self, *, causal: bool) -> Parts:
        return Parts()


ENTRY = Entry(
    "none",
    NoPE,
    "None (NoPE)",
    "No encoding: a decoder learns position from the causal mask alone.",
    randomised=False,
)
