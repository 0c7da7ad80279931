"""What an extension measures, checked before a model is loaded."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vantage.compare.names import SCALING_RULES
from vantage.errors import BadInput, unknown
from vantage.files import expand
from vantage.spec.table_reader import PartNames, Reader

MIN_TOKENS = 64  # tokens: a question needs room
LONGEST_LORA = 16_384  # tokens of a training row, unless said


@dataclass(frozen=True)
class ExtensionSettings:
    """A model, a text, how far beyond its context to read, and with which scalings.

    ``factor`` is what every scaling stretches by: the largest of ``times`` unless said. ``pieces`` of the text are read
    at every length by every entry, so that differences are paired. With ``lora_steps`` each scaling is read once more
    after so many steps of training.
    """

    model: str
    text: tuple[str, ...]
    context: int | None = None  # None: what the model says of itself
    times: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    scalings: tuple[str, ...] = SCALING_RULES
    factor: float | None = None
    pieces: int = 3
    tries: int = 2  # passkeys in each piece at each length; 0 leaves retrieval out
    needles: int = 4
    lora_steps: int = 0
    lora_length: int | None = None
    lora_rank: int = 8
    lora_rate: float = 2e-4
    lora_batch: int = 1
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        expand(self.text)
        for name in ("times", "scalings"):
            if not getattr(self, name):
                raise BadInput(f"{name} is empty: give at least one")
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise BadInput(f"{name} = {list(getattr(self, name))} names one of them twice")
        for name in self.scalings:
            if name not in SCALING_RULES:
                raise BadInput(unknown("scaling", name, SCALING_RULES))
        if not all(0 < one < math.inf for one in self.times):
            raise BadInput(f"times={list(self.times)}: give multiples of the context, as in 1 2 4")
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise BadInput(f"factor={self.factor:g}: a scaling stretches by 1 or more")
        for name, least in (("pieces", 1), ("tries", 0), ("needles", 2), ("lora_steps", 0), ("lora_rank", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"{name}={getattr(self, name)}: give at least {least}")
        for name, least in (("context", MIN_TOKENS), ("lora_length", 2), ("lora_batch", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise BadInput(f"{name}={value}: give at least {least}")
        if not 0 < self.lora_rate < 1:
            raise BadInput(f"lora_rate={self.lora_rate:g}: give a learning rate between 0 and 1, such as 2e-4")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise BadInput(f"dtype={self.dtype!r}: use float32, bfloat16 or float16")

    @property
    def stretch(self) -> float:
        return max(self.times) if self.factor is None else self.factor

    def lengths(self, context: int) -> tuple[int, ...]:
        lengths = tuple(sorted(round(context * one) for one in self.times))
        if lengths[0] < MIN_TOKENS:
            raise BadInput(f"{lengths[0]} tokens are too few to hide a number in and ask: give {MIN_TOKENS} or more")
        return lengths

    def row(self, context: int) -> int:
        """How many tokens a row of the training has."""
        return self.lora_length or min(round(self.stretch * context), LONGEST_LORA)

    def fingerprint(self) -> str:
        """Of the settings, and of what the files hold."""
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in expand(self.text)]
        identity = json.dumps({**asdict(self), "text": hashes}, sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:16]


def extension_of(fields: Mapping[str, Any], where: str) -> ExtensionSettings:
    return Reader(4096, PartNames(error=BadInput, loose=True)).part(dict(fields), (ExtensionSettings,), where, 0)
