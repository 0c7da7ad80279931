"""P10: ALiBi's bias, and its slopes for any number of heads."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.functional import alibi_bias, alibi_slopes
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.words import Mistake, unlike

TASK = """\
ALiBi takes m_h · |i − j| from the score of query i and key j: far keys count less, each head at its own rate.
Write alibi_bias(n_heads, seq_len): the tensor of shape (n_heads, seq_len, seq_len) that is added to the scores.

The slopes are the paper's, m_k = 2^(−8k/h) for heads k = 1 … h, where h = n_heads is a power of two."""

STARTER = """\
# vantage exercise P10: ALiBi's bias
import torch


def alibi_bias(n_heads, seq_len):
    \"\"\"(n_heads, seq_len, seq_len), to be added to the scores; n_heads is a power of two\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise P10: ALiBi's bias
import torch


def alibi_bias(n_heads, seq_len):
    \"\"\"(n_heads, seq_len, seq_len), to be added to the scores; n_heads is a power of two\"\"\"
    slopes = 2.0 ** (-8 * torch.arange(1, n_heads + 1) / n_heads)
    at = torch.arange(seq_len)
    distance = (at[:, None] - at[None, :]).abs()
    return -slopes[:, None, None] * distance
"""

WORDS = """\
The bias is 0 on the diagonal and falls off on both sides in proportion to the distance. The slopes are a
geometric series that starts at 2^(−8/h) and whose ratio is the same: with 8 heads 1/2, 1/4, … 1/256, with 4
heads 1/4, 1/16, 1/64, 1/256. One document prints 1/2, 1/4, … 1/2^h, which is the paper's series for 8 heads
only. The last slope is 1/256 for every h, so there is always a head that looks far."""


def _bias(slopes: Tensor, length: int) -> Tensor:
    at = torch.arange(length)
    return -slopes[:, None, None] * (at[:, None] - at).abs()


def _mistakes(h: int, n: int) -> list[Mistake]:
    right, k = alibi_bias(h, n), torch.arange(1, h + 1)
    at = torch.arange(n)
    signed = (at[:, None] - at).float()
    slopes = alibi_slopes(h)
    ahead = torch.ones(n, n).triu(1).bool()
    return [
        (
            _bias(2.0 ** -k.float(), n),
            f"the slopes are 1/2, 1/4, …: that is right for 8 heads only; for {h} heads the paper has 2^(−8k/h)",
        ),
        (
            _bias(2.0 ** (-8 * (k - 1) / h), n),
            "the slopes start at 1: the heads count from 1, so the first is 2^(−8/h)",
        ),
        (-right, "the bias is positive, so that far keys count more: it is taken from the score, −m · |i − j|"),
        (
            -slopes[:, None, None] * signed,
            "keys after the query get a bonus: the distance is |i − j|, without its sign",
        ),
        (slopes[:, None, None] * signed, "the distance keeps its sign: it is |i − j|"),
        (
            right.masked_fill(ahead, 0.0),
            "keys after the query get no bias: here it falls off on both sides, with |i − j|",
        ),
        (
            right.masked_fill(ahead, -torch.inf),
            "keys after the query are masked here as well; the bias leaves that to the "
            "mask, and falls off on both sides",
        ),
        (right.flip(0), "the heads come in reverse order: the first has the steepest slope"),
        (_bias(slopes.new_full((h,), float(slopes[0])), n), "all heads have the same slope"),
        (right / slopes[:, None, None], "the slopes are missing: each head has its own"),
        (-slopes[:, None, None] * signed**2, "the distance is squared; it is |i − j|"),
    ]


def _one(ask: Ask, h: int, n: int) -> str | None:
    got = ask.call("alibi_bias", h, n)
    return unlike(got, alibi_bias(h, n), f"alibi_bias({h}, {n})", _mistakes(h, n), tolerance=1e-6)


def eight(ask: Ask) -> str | None:
    return _one(ask, 8, 5)


def others(ask: Ask) -> str | None:
    return next((w for h, n in ((4, 6), (2, 3), (16, 4), (1, 7), (64, 3)) if (w := _one(ask, h, n)) is not None), None)


def long(ask: Ask) -> str | None:
    return next((w for h, n in ((2, 300), (8, 1)) if (w := _one(ask, h, n)) is not None), None)


EXERCISE = Exercise(
    tag="P10",
    title="ALiBi's bias",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("alibi_bias",),
    checks=(("eight heads", eight), ("other numbers of heads", others), ("long and short sequences", long)),
)

# ---- the extra: slopes for any number of heads

SLOPES_TASK = """\
Write slopes(heads) for any number of heads: a tensor (heads,) with ALiBi's slopes as the paper's own code has
them.

For a power of two they are 2^(−8k/heads), k = 1 … heads. Otherwise let p be the largest power of two below
heads: the first p slopes are those of p heads, and the rest are every second one of those of 2p heads, from the
first on."""

SLOPES_STARTER = """\
# vantage exercise P10-slopes: ALiBi's slopes for any number of heads
import torch


def slopes(heads):
    \"\"\"(heads,): the slopes of the paper, also where heads is no power of two\"\"\"
    raise NotImplementedError
"""

SLOPES_ANSWER = """\
# vantage exercise P10-slopes: ALiBi's slopes for any number of heads
import torch


def power_of_two(heads):
    return [2.0 ** (-8 * k / heads) for k in range(1, heads + 1)]


def slopes(heads):
    \"\"\"(heads,): the slopes of the paper, also where heads is no power of two\"\"\"
    below = 2 ** (heads.bit_length() - 1)
    rest = power_of_two(2 * below)[0::2][: heads - below]
    return torch.tensor(power_of_two(below) + rest)
"""

SLOPES_WORDS = """\
For twelve heads the power below is 8: the first eight slopes are 1/2 … 1/256. Those of sixteen heads are
2^(−1/2), 2^(−1), 2^(−3/2), …; every second one from the first on, 2^(−1/2), 2^(−3/2), 2^(−5/2), 2^(−7/2), lies
between those of eight and repeats none of them. The result is not sorted, and models trained with it rely on
that order."""


def _slope_mistakes(h: int) -> list[Mistake]:
    right = alibi_slopes(h)
    below = 1 << (h.bit_length() - 1)
    double = alibi_slopes(2 * below)
    rest = h - below
    return [
        (
            2.0 ** (-8 * torch.arange(1, h + 1) / h),
            f"2^(−8k/h) is used for every h; {h} is no power of two, and the paper "
            f"takes the slopes of {below} heads and then some of {2 * below}",
        ),
        (
            2.0 ** -torch.arange(1.0, h + 1),
            f"the slopes are 1/2, 1/4, …: that is right for 8 heads only; for {h} heads the paper has others",
        ),
        (right.sort(descending=True).values, "the slopes are sorted; the paper's code puts the extra ones at the end"),
        (
            torch.cat((double[:0], alibi_slopes(below), double[1::2][:rest])),
            "every second slope is taken from the second on, "
            "which repeats those that are there already: take the first, the third, …",
        ),
        (
            torch.cat((alibi_slopes(below), double[:rest])),
            f"the extra slopes are the first ones of {2 * below} heads; it is every second one of them",
        ),
        (double[:h], f"these are the first slopes of {2 * below} heads; begin with all those of {below} heads"),
        (2.0 ** (-8 * torch.arange(h) / h), "the slopes start at 1: the heads count from 1"),
        (-right, "the slopes are negative; they are positive, and the bias subtracts"),
    ]


def _slopes_of(ask: Ask, counts: tuple[int, ...]) -> str | None:
    for h in counts:
        words = unlike(ask.call("slopes", h), alibi_slopes(h), f"slopes({h})", _slope_mistakes(h), tolerance=1e-6)
        if words is not None:
            return words
    return None


def powers(ask: Ask) -> str | None:
    return _slopes_of(ask, (8, 1, 2, 4, 16, 32))


def between(ask: Ask) -> str | None:
    return _slopes_of(ask, (12, 3, 5, 6, 7, 9, 20, 25, 112))


SLOPES = Exercise(
    tag="P10-slopes",
    title="ALiBi's slopes for any number of heads",
    task=SLOPES_TASK,
    starter=SLOPES_STARTER,
    answer=SLOPES_ANSWER,
    words=SLOPES_WORDS,
    names=("slopes",),
    checks=(("powers of two", powers), ("numbers between", between)),
)
