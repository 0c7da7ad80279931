"""Texts that repeat words, and heads to compare others with."""

from __future__ import annotations

import random
import re

from vantage.model import Model

COMMON_TOKENS = range(500, 12000)  # tokens to draw from
Head = tuple[int, int]  # a layer and a head in it


def repeated_words(model: Model, length: int, seed: int) -> tuple[list[int], list[int], int]:
    """Words and the same again but for the last, which is the answer; and other words before the same end."""
    drawn = random.Random(seed)
    known = common_words(model)
    words, other = drawn.sample(known, length), drawn.sample(known, length)
    return [*words, *words[:-1]], [*other, *words[:-1]], words[-1]


def common_words(model: Model) -> list[int]:
    """Words of one token, with a space before them."""
    return [n for n in COMMON_TOKENS if re.fullmatch(r" [a-z]{3,}", model.tokenizer.decode([n]))]


def other_heads(named: list[Head], model: Model, seed: int) -> list[Head]:
    """As many heads of the same layers, drawn from those that are not named."""
    drawn, chosen = random.Random(seed), list[Head]()
    for layer in sorted({layer for layer, _ in named}):
        heads = model.spec.layers[layer].attention.shape(model.spec.width).heads
        free = [(layer, head) for head in range(heads) if (layer, head) not in named]
        count = sum(one == layer for one, _ in named)
        chosen += drawn.sample(free, min(count, len(free)))
    return chosen
