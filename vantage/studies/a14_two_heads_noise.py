"""A14: two heads average two values in spite of the noise in a key's length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vantage.figures import Figure, Histogram, Line, Lines
from vantage.studies.a13_one_head_noise import GAINS, HIGH, LOW, MOSTLY, Keys, draw_keys, scatter
from vantage.studies.shared.findings import compared, conclude, held, interval, mean
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

RESAMPLES = 400


@dataclass(frozen=True)
class Both:
    """The outputs of one head and of two over the same draws, and how many times as much the first varies."""

    one: Tensor
    two: Tensor
    ratio: float
    ratio_in: tuple[float, float]


def run(values: Values, progress: Progress) -> Result:
    n, samples = int(values["keys"]), int(values["samples"])
    clean, noisy = (draw_keys(n, samples, noisy=noisy) for noisy in (False, True))
    again = _again(samples)
    by_gain: dict[float, Both] = {}
    for i, gain in enumerate(GAINS):
        progress(i / len(GAINS), f"gain {gain:g}")
        by_gain[gain] = _both(noisy, gain, again)
    calm = clean.two_heads(HIGH)
    low, high = by_gain[LOW], by_gain[HIGH]
    right = [
        compared(f"αI alone, g = {HIGH:g}: mean share of v_a", float(calm[:, 0].mean()), 0.5, within=0.01),
        compared(f"αI alone, g = {HIGH:g}: mean share of v_b", float(calm[:, 1].mean()), 0.5, within=0.01),
        *(held(f"two heads vary less than one, g = {gain:g}", both.ratio_in[0] > 1) for gain, both in by_gain.items()),
        held(f"g = {HIGH:g}: head 2 copies v_b", _second(noisy, HIGH) > MOSTLY),
    ]
    slips = [held(f"g = {LOW:g}: head 2 copies v_b", _second(noisy, LOW) > MOSTLY)]
    also = [
        Number(f"variance of one head over that of two, g = {gain:g}", both.ratio, interval=both.ratio_in)
        for gain, both in by_gain.items()
    ]
    also.append(Number(f"g = {LOW:g}: weight that head 2 gives v_b", _second(noisy, LOW)))
    also.append(_share(f"g = {HIGH:g}: mean share of v_a, two heads", high.two[:, 0]))
    words = TEXT.conclusion(low_ratio=low.ratio, high_ratio=high.ratio, high_gain=HIGH, second=_second(noisy, LOW), n=n)
    return conclude(words, [*right, *also], _figures(by_gain), slips)


def _both(keys: Keys, gain: float, again: np.ndarray) -> Both:
    one, two = keys.one_head(gain), keys.two_heads(gain)
    a, b = np.array(scatter(one)), np.array(scatter(two))
    low, high = np.quantile((again @ a) / (again @ b), [0.025, 0.975])  # both saw the same draws
    return Both(one, two, float(a.mean() / b.mean()), (float(low), float(high)))


def _again(samples: int) -> np.ndarray:
    """How often each draw is taken when they are drawn again with replacement, for the interval of a ratio."""
    share = np.full(samples, 1 / samples)
    return np.random.default_rng(0).multinomial(samples, share, RESAMPLES).astype(np.float64)


def _second(keys: Keys, gain: float) -> float:
    """The mean weight that the head which asks for μ_b gives v_b."""
    return float(keys.look(gain * keys.means[1])[:, 1].mean())


def _share(what: str, shares: Tensor) -> Number:
    return Number(what, float(shares.mean()), interval=interval(shares.tolist()))


def _figures(by_gain: dict[float, Both]) -> list[Figure]:
    spread = tuple(
        Histogram(
            f"g = {gain:g}",
            "share of v_a in the output",
            (("one head", by_gain[gain].one[:, 0].tolist()), ("two heads", by_gain[gain].two[:, 0].tolist())),
        )
        for gain in (LOW, 3.0, HIGH)
    )
    ratio = Lines(
        "Variance of one head over that of two",
        "gain g",
        "ratio",
        (
            Line(
                "ratio",
                GAINS,
                [by_gain[g].ratio for g in GAINS],
                [by_gain[g].ratio_in[0] for g in GAINS],
                [by_gain[g].ratio_in[1] for g in GAINS],
            ),
        ),
        marks=(("no difference", 1.0),),
    )
    one, two = ([mean(scatter(outputs)) for outputs in side] for side in _sides(by_gain))
    variance = Lines(
        "Variance of the output", "gain g", "variance", (Line("one head", GAINS, one), Line("two heads", GAINS, two))
    )
    return [
        Figure("shares", TEXT.caption("shares"), spread),
        Figure("ratio", TEXT.caption("ratio"), (ratio, variance)),
    ]


def _sides(by_gain: dict[float, Both]) -> tuple[list[Tensor], list[Tensor]]:
    return [by_gain[g].one for g in GAINS], [by_gain[g].two for g in GAINS]


STUDY = TEXT.study(
    "A14",
    run,
    (
        TEXT.parameter("keys", 10, 3, 30),
        TEXT.parameter("samples", 8000, 1000, 10000),
    ),
    seconds=2.0,
)
