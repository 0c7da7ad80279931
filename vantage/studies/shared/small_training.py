"""Small decoders trained inside a study, from one seed each, and how often they are right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.attention import GatedConvolution
from vantage.figures import Line
from vantage.model import Model, build
from vantage.model.recipes import decoder_spec
from vantage.spec.model import ModelSpec
from vantage.spec.options import DecoderOptions
from vantage.studies.shared.findings import interval, mean
from vantage.studies.study import Number, Progress

WIDTH, HEADS = 32, 2
WARM = 50  # steps of a rising rate
LARGER = 4.0  # times the usual first weights, which are made for widths of hundreds
CLIP = 1.0
TEST_SEED = 7
Draw = Callable[[torch.Generator], "Questions"]


class Questions(NamedTuple):
    """Rows of tokens (B, T), and what is to follow each of the last n tokens, (B, n)."""

    tokens: Tensor
    answers: Tensor


def small_decoder(vocab: int, position: str, layers: int, longest: int = 512) -> ModelSpec:
    options = DecoderOptions(width=WIDTH, layers=layers, heads=HEADS, position=position, max_length=longest)
    return decoder_spec(vocab, options)


def with_convolution(spec: ModelSpec, *which: int) -> ModelSpec:
    """These layers of a model without positions get a short convolution in the place of their attention."""
    layers = [replace(one, attention=GatedConvolution()) if n in which else one for n, one in enumerate(spec.layers)]
    return replace(spec, layers=tuple(layers))


def train_small(spec: ModelSpec, seed: int, draw: Draw, steps: int, rate: float, report: Progress) -> Model:
    """A model that has seen so many batches, each drawn anew: AdamW, a warm-up and a cosine."""
    model = build(spec, seed=seed).train()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2 and p.shape[-1] > HEADS + 1:  # matrices, and no filters
                p.mul_(LARGER)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1000 + seed)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARM) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        tokens, answers = draw(generator)
        loss = F.cross_entropy(_logits(model, tokens, answers.shape[1]).flatten(0, 1), answers.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        if step % 20 == 0:
            report(step / steps, f"step {step} of {steps}, loss {loss.item():.2f}")
    return model.eval()


@torch.no_grad()
def right(model: Model, questions: Questions) -> Tensor:
    """(B, n) bool: where the likeliest token is the answer."""
    tokens, answers = questions
    return _logits(model, tokens, answers.shape[1]).argmax(-1) == answers


def _logits(model: Model, tokens: Tensor, last: int) -> Tensor:
    return model.head(model.hidden(tokens)[:, -last:])


def test_generator() -> torch.Generator:
    return torch.Generator().manual_seed(TEST_SEED)


def over_seeds(what: str, shares: list[float]) -> Number:
    """A share in the mean over seeds, with its interval."""
    return Number(what, mean(shares), interval=interval(shares))


def line_with_band(name: str, x: list[float], samples: list[list[float]]) -> Line:
    """The mean of some samples at each x, with its interval."""
    ends = [interval(some) for some in samples]
    return Line(name, x, [mean(some) for some in samples], [low for low, _ in ends], [high for _, high in ends])


def repeated(generator: torch.Generator, rows: int, symbols: int, length: int) -> Questions:
    """Different symbols, and the same once more: in the second half each token tells which one follows."""
    once = torch.rand(rows, symbols, generator=generator).argsort(1)[:, :length]
    twice = torch.cat([once, once], 1)
    return Questions(twice[:, :-1], twice[:, length + 1 :])
