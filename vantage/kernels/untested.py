"""What is written for a GPU and has run in Triton's interpreter alone, which runs programs one after the other and sees
no missing wait between kernels that depend on each other. It is off until somebody asks for it."""

from __future__ import annotations

import os
from enum import Enum

SWITCH = "VANTAGE_UNTESTED_GPU_STEPS"


class Untested(Enum):
    """Take an entry out of this list when it has passed its tests on a GPU (``docs/kernel-notes.md``)."""

    QUERY_DISTANCES = "a bias by distance that is made of queries"  # Shaw, Transformer-XL, shifted positions
    QUERY_COUNTS = "a bias by counts of keys"  # CoPE
    QUERY_SHIFT = "a vector that is added to queries"  # Transformer-XL
    VALUE_DISTANCES = "a vector by distance that is added to values"  # Shaw
    KEY_TABLES = "a rotation of keys by tables of their own"  # xPos
    GATE_SUMS = "a bias by sums of gates"  # FoX
    PIECES_AS_PRODUCT = "a piecewise linear bias as a product"  # FIRE; without it each key's piece is looked up
    Q6_K_ROWS = "a product of several rows with Q6_K as it is"  # without it the weights are unpacked first

    @property
    def on(self) -> bool:
        return os.environ.get(SWITCH) == "1"

    @property
    def why_off(self) -> str:
        return f"{self.value} has not run on a GPU yet: {SWITCH}=1 turns it on"
