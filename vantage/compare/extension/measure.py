"""What a model makes of long texts: the loss of every token, and numbers hidden in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput
from vantage.generation.cached_sequence import CachedSequence
from vantage.model import Model

CHUNK, CUDA_CHUNK = 512, 2048  # tokens of a pass
DIGITS = 5
ANSWER = DIGITS + 2  # tokens: each digit may be one, and a space before them
ONE = "There is a pass key hidden in the following text. Find it and remember it.\n"
SEVERAL = "There are pass keys hidden in the following text. Find them and remember them.\n"
STATEMENT = "\nThe pass key{name} is {key}. Remember it. {key} is the pass key{name}.\n"
QUESTION = "\nWhat is the pass key{name}? The pass key{name} is"
NAMES = ("Amber", "Birch", "Cedar", "Delta", "Ember", "Flint", "Grove", "Heron", "Ivory", "Jasper", "Kite", "Lotus")


def declared_length(model: Model, tokens: int) -> int | None:
    """The length to choose frequencies for, where a rule looks at it."""
    original = model.spec.original_length
    return None if original is None else max(original, tokens)


@torch.inference_mode()
def token_losses(model: Model, tokens: Sequence[int]) -> Tensor:
    """(T − 1,): minus the log-probability of each token after the first, read in chunks through a cache."""
    device = model.device
    row = torch.tensor([list(tokens)], device=device)
    cache = model.new_cache(capacity=len(tokens), length=declared_length(model, len(tokens)))
    chunk = CUDA_CHUNK if device.type == "cuda" else CHUNK
    losses: list[Tensor] = []
    for at in range(0, len(tokens) - 1, chunk):
        some = row[:, at : min(at + chunk, len(tokens) - 1)]
        logits = model(some, cache=cache)[0].float()
        losses.append(F.cross_entropy(logits, row[0, at + 1 : at + 1 + some.shape[1]], reduction="none"))
    return torch.cat(losses).cpu()


@dataclass(frozen=True)
class HiddenNumbers:
    """A text with numbers in it: the tokens of the prompt, and for each number its question and its digits."""

    prompt: list[int]
    questions: list[tuple[list[int], str]]


def hide_numbers(
    tokenizer: Any, filler: Sequence[int], length: int, depths: Sequence[float], seed: int
) -> HiddenNumbers:
    """Numbers at these depths of a text, which with a question and its answer has ``length`` tokens."""
    rng = random.Random(seed)
    names = [""] if len(depths) == 1 else [f" of {name}" for name in rng.sample(NAMES, len(depths))]
    keys = [str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS)) for _ in depths]
    task = tokenizer.encode(ONE if len(depths) == 1 else SEVERAL)
    statements = [
        tokenizer.encode(STATEMENT.format(name=n, key=k), special=False) for n, k in zip(names, keys, strict=True)
    ]
    questions = [tokenizer.encode(QUESTION.format(name=n), special=False) for n in names]
    room = length - len(task) - sum(map(len, statements)) - max(map(len, questions)) - ANSWER
    if room < 1:
        raise BadInput(
            f"a length of {length} has no room for {len(depths)} hidden numbers: it takes {length - room + 1} tokens"
            " or more. Give a longer context, fewer needles, or no tries"
        )
    prompt, at = list(task), 0
    for depth, one in zip(depths, statements, strict=True):
        to = int(depth * room)
        prompt += [*filler[at:to], *one]
        at = to
    return HiddenNumbers([*prompt, *filler[at:room]], list(zip(questions, keys, strict=True)))


@torch.inference_mode()
def recall(model: Model, hidden: HiddenNumbers, length: int) -> list[bool]:
    """Which numbers the model says when asked, each asked by itself after the same text."""
    row = CachedSequence(model, model.new_cache(capacity=length, length=declared_length(model, length)))
    row.feed(hidden.prompt)
    right = []
    for question, key in hidden.questions:
        row.crop(len(hidden.prompt))
        answer: list[int] = []
        logits = row.feed(question)
        for _ in range(ANSWER):
            answer.append(int(logits[-1].argmax()))
            logits = row.feed(answer[-1:])
        right.append(model.tokenizer.decode(answer).strip().startswith(key))
    return right


def even_depths(n: int) -> list[float]:
    """Depths, evenly over a text."""
    return [(i + 0.5) / n for i in range(n)]
