"""What an edited position does to a model: perplexity over position and passkeys found, before and after."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.figures.html import page_table
from vantage.generation.cached_sequence import CHUNK, CachedSequence
from vantage.inspect.capture import Progress
from vantage.model import Model

BINS = 8
TASK = "There is a pass key hidden in the following text. Find it and remember it.\n"
KEY = "\nThe pass key is {key}. Remember it. {key} is the pass key.\n"
QUESTION = "\nWhat is the pass key? The pass key is"
DIGITS = 5
ANSWER = DIGITS + 2  # tokens: each digit may be one, and a space before them


@final
@dataclass(frozen=True)
class Lengthwise:
    """One model at one length."""

    model: str  # "before" or "after"
    length: int
    perplexity: float
    over_position: tuple[float, ...]  # in equal stretches of the length
    passkeys: int | None  # found, of ``tries``
    tries: int


@final
@dataclass(frozen=True, repr=False)
class Extension:
    """Before and after, at every length."""

    change: str
    results: tuple[Lengthwise, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"change": self.change, "results": [asdict(one) for one in self.results]}

    @property
    def header(self) -> list[str]:
        return ["model", "length", "perplexity", "first stretch", "last stretch", "passkeys"]

    def rows(self) -> list[list[Any]]:
        return [
            [
                one.model,
                one.length,
                one.perplexity,
                one.over_position[0],
                one.over_position[-1],
                "" if one.passkeys is None else f"{one.passkeys} of {one.tries}",
            ]
            for one in self.results
        ]

    def __repr__(self) -> str:
        return f"Extension({self.change}: {len(self.results)} results)"

    def _repr_html_(self) -> str:
        from vantage.inspect.plots import plot_extension

        return page_table(repr(self), self.header, self.rows(), plot_extension(self))


@torch.inference_mode()
def extend(
    before: Model,
    after: Model,
    text: str,
    lengths: Sequence[int],
    *,
    change: str = "",
    tries: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Extension:
    """Perplexity over position on ``text``, and passkeys found in it, at each length, for two models.

    ``tries``: passkeys hidden at each length, at depths spread over the text; 0 leaves them out.
    """
    tokenizer = before.tokenizer
    if tokenizer is None:
        raise BadInput("this model has no tokenizer, and texts are read here: load one that has")
    if before.kind != "decoder":
        raise Refused("perplexity and passkeys are measured on decoders: this model is not one")
    tokens = tokenizer.encode(text)
    for n in lengths:
        if n < 64:
            raise BadInput(f"a length of {n}: give 64 tokens or more, there must be room for a question")
        if len(tokens) < n:
            raise BadInput(
                f"the text has {len(tokens):,} tokens and a length of {n:,} was requested: give a longer text"
            )
    count = 2 * len(lengths) * (1 + tries)
    finished = 0

    def tell() -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(finished, count)

    results: list[Lengthwise] = []
    for n in lengths:
        for name, model in (("before", before), ("after", after)):
            losses = token_losses(model, tokens[:n])
            tell()
            hits = 0
            for trial in range(tries):
                hits += _finds(model, tokens, n, (trial + 0.5) / tries, seed + trial)
                tell()
            stretches = tuple(_perplexity(part) for part in losses.tensor_split(BINS))
            passkeys = hits if tries else None
            results.append(Lengthwise(name, n, _perplexity(losses), stretches, passkeys, tries))
    return Extension(change, tuple(results))


def token_losses(model: Model, tokens: Sequence[int]) -> Tensor:
    """(T - 1,): minus the log-probability of each token after the first, read in chunks through a cache."""
    row = torch.tensor([list(tokens)], device=model.device)
    length = _declared(model, len(tokens))
    cache = model.new_cache(capacity=len(tokens), length=length)
    losses: list[Tensor] = []
    for at in range(0, len(tokens) - 1, CHUNK):
        some = row[:, at : min(at + CHUNK, len(tokens) - 1)]
        logits = model(some, cache=cache)[0].float()
        losses.append(F.cross_entropy(logits, row[0, at + 1 : at + 1 + some.shape[1]], reduction="none"))
    return torch.cat(losses)


def _declared(model: Model, tokens: int) -> int | None:
    original = model.spec.original_length
    return None if original is None else max(original, tokens)


def _finds(model: Model, filler: Sequence[int], length: int, depth: float, seed: int) -> bool:
    """Whether the model says the digits hidden at this depth."""
    key = str(random.Random(seed).randrange(10 ** (DIGITS - 1), 10**DIGITS))
    encode = model.tokenizer.encode
    task, statement = encode(TASK), encode(KEY.format(key=key), special=False)
    question = encode(QUESTION, special=False)
    space = length - len(task) - len(statement) - len(question) - ANSWER
    if space < 1:
        raise BadInput(f"a length of {length} has no room for a passkey: give more, or tries=0")
    at = int(depth * space)
    prompt = [*task, *filler[:at], *statement, *filler[at:space], *question]
    row = CachedSequence(model, model.new_cache(capacity=length, length=_declared(model, length)))
    answer: list[int] = []
    logits = row.feed(prompt)
    for _ in range(ANSWER):
        answer.append(int(logits[-1].argmax()))
        logits = row.feed(answer[-1:])
    return model.tokenizer.decode(answer).strip().startswith(key)


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.double().mean()), 700.0))
