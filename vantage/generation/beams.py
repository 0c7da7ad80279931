"""Beam search from a prompt, or from what an encoder read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.errors import BadInput
from vantage.generation.stops import Stop
from vantage.model import Model
from vantage.model.beam_search import Beams, BeamSearch, Hypothesis, search
from vantage.spec.parts import EncoderOutput


@final
@dataclass(frozen=True, eq=False)
class BeamResult:
    """The best texts, best first, and what finding them took."""

    best: tuple[Hypothesis, ...]
    calls: int
    computed: int
    cache: ModelCache


@torch.inference_mode()
def beam_search(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    beams: Beams = Beams(),
    stop: Stop | int | Sequence[int] | None = None,
    kind: str = "contiguous",
    source: Tensor | EncoderOutput | None = None,
) -> BeamResult:
    """The best continuations of ``tokens``. A text ends with a stop token, which is its last, or after ``max_tokens``.

    Where frequencies depend on the length, the whole search runs at one that holds all of it.
    """
    stop = Stop.of(stop)
    if stop.strings:
        raise BadInput(f"beam search stops at tokens, not at strings: got {list(stop.strings)}")
    if not tokens or max_tokens < 1:
        raise BadInput(f"{len(tokens)} tokens to go on from, max_tokens={max_tokens}: give at least 1 of each")
    cache = model.new_cache(kind=kind, length=_length(model, len(tokens) + max_tokens))
    device = model.device
    calls = computed = 0

    def logprobs(newest: list[int]) -> Tensor:
        nonlocal calls, computed, source
        new = torch.tensor([[token] for token in newest] if newest else [list(tokens)], device=device)
        logits = model.head(model.hidden(new, cache=cache, source=source)[:, -1:])[:, 0]
        calls, computed, source = calls + 1, computed + new.numel(), None
        return logits.double().log_softmax(-1).cpu()

    texts = BeamSearch(beams, stop.tokens, max_tokens)
    search([texts], logprobs, cache.reorder)
    return BeamResult(tuple(texts.finished[: beams.n_best]), calls, computed, cache)


def _length(model: Model, wanted: int) -> int | None:
    """The declared length that holds so many tokens, in the doubling steps in which a text would grow."""
    length = model.spec.original_length
    while length is not None and length < wanted:
        length *= 2
    return length
