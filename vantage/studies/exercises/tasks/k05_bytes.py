"""K5: how many bytes a cache takes."""

from __future__ import annotations

import torch

from vantage.model import build, decoder
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import whole

TASK = """\
Write cache_bytes(layers, heads, kv_heads, width, batch, length, bytes_per_number): how many bytes the keys and
values of a model take, when all of them are kept for batch sequences of length tokens. The model has so many
layers, heads query heads that share kv_heads heads of keys and values, and a width of width, so that a head has
width / heads numbers.

It is compared with what the library's cache really allocates."""

STARTER = """\
# vantage exercise K5: the size of a cache


def cache_bytes(layers, heads, kv_heads, width, batch, length, bytes_per_number):
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise K5: the size of a cache


def cache_bytes(layers, heads, kv_heads, width, batch, length, bytes_per_number):
    head = width // heads
    return 2 * layers * batch * length * kv_heads * head * bytes_per_number
"""

WORDS = """\
For every layer, sequence and token there are kv_heads keys and as many values, each of width / heads numbers.
It grows in proportion to length and batch, and shrinks by heads / kv_heads with grouped-query attention; the
number of query heads matters only through the width of a head. A model of 32 layers, 8 key/value heads of 128
numbers and two bytes each keeps 128 KiB for each token: 1 GiB for 8,192 of them."""

#        layers, heads, kv_heads, width, batch, length
CASES = ((2, 4, 4, 32, 1, 10), (3, 8, 2, 32, 1, 40), (1, 8, 1, 64, 5, 16), (4, 6, 3, 24, 2, 33))


def _allocated(case: tuple[int, ...], dtype: torch.dtype) -> int:
    layers, heads, kv_heads, width, batch, length = case
    model = build(decoder(vocab=5, width=width, layers=layers, heads=heads, kv_heads=kv_heads)).to(dtype)
    return model.new_cache(batch, capacity=length).bytes


def _slips(case: tuple[int, ...], each: int) -> list[tuple[int, str]]:
    layers, heads, kv_heads, width, batch, length = case
    head = width // heads
    right = 2 * layers * batch * length * kv_heads * head * each
    return [
        (right // 2, "this counts keys or values, not both: they are kept alike, so it is twice that"),
        (right * heads // kv_heads, "this counts every query head; keys and values have kv_heads heads"),
        (right // layers, "this is one layer; every layer keeps its own"),
        (right // batch, "the batch is missing: every sequence has its own keys and values"),
        (right // length, "this is one token; there are length of them"),
        (right // each, "these are numbers; multiply by the bytes of each"),
        (right * 8, "these are bits"),
        (right * heads, "each head is taken to have the whole width; it has width / heads numbers"),
        (right * 3 // 2, "queries are counted as well; they are not kept"),
        (right * length, "length counts twice: the weights (length × length) are not kept, only keys and values"),
    ]


def _compare(ask: Ask, cases: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> str | None:
    for case in cases:
        what = f"cache_bytes{(*case, dtype.itemsize)}"
        got = ask.call("cache_bytes", *case, dtype.itemsize)
        words = whole(got, _allocated(case, dtype), what, _slips(case, dtype.itemsize))
        if words is not None:
            return words
    return None


def plain(ask: Ask) -> str | None:
    return _compare(ask, CASES[:1], torch.float32)


def shared(ask: Ask) -> str | None:
    return _compare(ask, CASES[1:], torch.float32)


def types(ask: Ask) -> str | None:
    return _compare(ask, CASES[:2], torch.float64) or _compare(ask, CASES[2:], torch.bfloat16)


EXERCISE = Exercise(
    tag="K5",
    title="The size of a cache",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("cache_bytes",),
    checks=(("one head for each", plain), ("shared heads, several sequences", shared), ("other types", types)),
)
