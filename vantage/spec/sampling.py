"""How tokens are chosen, as frozen data. ``vantage.generation.sampling`` does the choosing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

from vantage.errors import BadInput

SEEDS = 2**64


@final
@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled. The default is greedy."""

    temperature: float = 0.0  # 0: greedy
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over the output only, as in OpenAI's API
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()  # kept as pairs, so that it can be hashed
    seed: int | None = None  # None: drawn once per request, and reported
    logprobs: int | None = None  # None: not reported; n: the chosen token and the n best

    def __post_init__(self) -> None:
        bias = self.logit_bias
        pairs = bias.items() if isinstance(bias, Mapping) else bias
        object.__setattr__(self, "logit_bias", tuple(sorted((token, float(value)) for token, value in pairs)))
        number = (int, float)
        _check("temperature", self.temperature, number, lambda x: 0 <= x < math.inf, "0 (greedy) or a positive number")
        _check("top_k", self.top_k, int, lambda x: x >= 1, "at least 1, or None for all")
        _check("top_p", self.top_p, number, lambda x: 0 < x <= 1, "a share above 0 and up to 1, or None for all")
        _check("min_p", self.min_p, number, lambda x: 0 <= x <= 1, "a share from 0 to 1, or None for all")
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            number,
            lambda x: 0 < x < math.inf,
            "a number above 0; 1 is none",
        )
        for name in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            if getattr(self, name) is None:
                raise BadInput(f"{name}=None: give a number, or leave it out")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, getattr(self, name), number, math.isfinite, "a finite number; 0 is none")
        _check("seed", self.seed, int, lambda x: 0 <= x < SEEDS, "a number from 0 to 2**64 - 1, or None to draw one")
        _check("logprobs", self.logprobs, int, lambda x: x >= 0, "0 or more, or None for none")
        for token, value in self.bias:
            _check("a token of logit_bias", token, int, lambda x: x >= 0, "a token, 0 or more")
            _check("logit_bias", value, number, lambda x: x < math.inf, "below infinity; -inf forbids a token")

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """``logit_bias`` as it is kept."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class RowChoice(NamedTuple):
    """How a row of a batch chooses its next tokens, for a device that chooses them itself."""

    temperature: float  # 0: the likeliest
    top_k: int  # 0: all
    top_p: float  # 1: all
    min_p: float  # 0: all
    uniforms: Sequence[float]  # one for each step; none where it takes the likeliest


class Chosen(NamedTuple):
    """What the rows chose in several steps."""

    tokens: list[list[int]]  # by step, then by row
    logprobs: list[list[float]]
    fine: list[list[bool]]  # False: its logits were not finite


class PendingSteps(Protocol):
    """Steps of several rows that are under way, or done."""

    def read(self) -> Chosen:
        """Waits for them."""
        ...

    @property
    def seconds(self) -> float | None:
        """What they took of the device, once they have been read; ``None``: they ran in the caller's own time."""
        ...


def check_guessing(*, n: int, stream: bool, batch_invariant: bool, cache: bool, images: bool = False) -> None:
    """Guessing ahead (``draft``) runs one sample at a time, on a cache that can go back; it counts positions."""
    unfit = {"n": n > 1, "stream": stream, "batch_invariant": batch_invariant, "cache=False": not cache}
    unfit["images"] = images
    if named := [name for name, wanted in unfit.items() if wanted]:
        raise BadInput(f"guessing ahead (draft, --lookup) and {named[0]} do not go together: leave one of them out")


def _check(name: str, value: Any, kind: type | tuple[type, ...], good: Callable[[Any], bool], wanted: str) -> None:
    if value is None:
        return
    if not isinstance(value, kind) or isinstance(value, bool) or not good(value):
        raise BadInput(f"{name}={value!r}: give {wanted}")
