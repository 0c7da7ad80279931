"""A14: two heads average two values in spite of the noise in a key's length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vantage.figures import Figure, Histogram, Line, Lines
from vantage.studies.a13_one_head_noise import GAINS, HIGH, LOW, MOSTLY, Keys, draw_keys, scatter
from vantage.studies.shared.findings import compared, conclude, held, interval, mean
from vantage.studies.study import Number, Parameter, Progress, Result, Study, Values

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
    found: dict[float, Both] = {}
    for i, gain in enumerate(GAINS):
        progress(i / len(GAINS), f"gain {gain:g}")
        found[gain] = _both(noisy, gain, again)
    calm = clean.two_heads(HIGH)
    low, high = found[LOW], found[HIGH]
    right = [
        compared(f"αI alone, g = {HIGH:g}: mean share of v_a", float(calm[:, 0].mean()), 0.5, within=0.01),
        compared(f"αI alone, g = {HIGH:g}: mean share of v_b", float(calm[:, 1].mean()), 0.5, within=0.01),
        *(held(f"two heads vary less than one, g = {gain:g}", both.ratio_in[0] > 1) for gain, both in found.items()),
        held(f"g = {HIGH:g}: head 2 copies v_b", _second(noisy, HIGH) > MOSTLY),
    ]
    slips = [held(f"g = {LOW:g}: head 2 copies v_b", _second(noisy, LOW) > MOSTLY)]
    also = [
        Number(f"variance of one head over that of two, g = {gain:g}", both.ratio, interval=both.ratio_in)
        for gain, both in found.items()
    ]
    also.append(Number(f"g = {LOW:g}: weight that head 2 gives v_b", _second(noisy, LOW)))
    also.append(_share(f"g = {HIGH:g}: mean share of v_a, two heads", high.two[:, 0]))
    words = (
        f"Two heads vary less than one at every gain: by a factor of {low.ratio:.1f} at g = 1 and {high.ratio:.0f} at "
        f"g = {HIGH:g}. But the document works with g = 1, where its heads copy nothing: head 2 gives v_b a weight of "
        f"{_second(noisy, LOW):.2f} with {n} keys. Its prose needs a gain far above 1."
    )
    return conclude(words, [*right, *also], _figures(found), slips)


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


def _share(what: str, found: Tensor) -> Number:
    return Number(what, float(found.mean()), interval=interval(found.tolist()))


def _figures(found: dict[float, Both]) -> list[Figure]:
    spread = tuple(
        Histogram(
            f"g = {gain:g}",
            "share of v_a in the output",
            (("one head", found[gain].one[:, 0].tolist()), ("two heads", found[gain].two[:, 0].tolist())),
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
                [found[g].ratio for g in GAINS],
                [found[g].ratio_in[0] for g in GAINS],
                [found[g].ratio_in[1] for g in GAINS],
            ),
        ),
        marks=(("no difference", 1.0),),
    )
    one, two = ([mean(scatter(outputs)) for outputs in side] for side in _sides(found))
    variance = Lines(
        "Variance of the output", "gain g", "variance", (Line("one head", GAINS, one), Line("two heads", GAINS, two))
    )
    return [
        Figure(
            "shares",
            "At a high gain one head gives v_a all or nothing; two heads give it half, and nothing only where the "
            "drawn length of k_a is about 0 or negative.",
            spread,
        ),
        Figure(
            "ratio", "Two heads vary less at every gain, and the higher the gain the clearer it is.", (ratio, variance)
        ),
    ]


def _sides(found: dict[float, Both]) -> tuple[list[Tensor], list[Tensor]]:
    return [found[g].one for g in GAINS], [found[g].two for g in GAINS]


STUDY = Study(
    tag="A14",
    title="Two heads against the noise",
    sources=("S4",),
    statement=(
        "With one head that asks for μ_a and another that asks for μ_b, each copies its value and the mean of the two "
        "outputs is the mean of v_a and v_b. If the length of k_a is noisy, the output varies less than with one head. "
        "The document's formulas have no gain."
    ),
    explanation=(
        "Each head now has one key to find, and it need not be equal to anything, only far above the rest. If k_a is "
        "longer or shorter than usual, head 1 still finds it, as long as gβ beats the log of the number of keys. "
        "Only when β comes out near 0 or negative does head 1 look elsewhere, and then half of the output is still "
        "v_b, because head 2 does not see the noise at all. One head that asked for both would have lost one of the "
        "two in almost every draw.\n\n"
        "The variance is the mean squared distance of the output from its mean, with values that are unit vectors. "
        "The ratio of the variances is taken over the same draws, with an interval from drawing them again. At g = 1 "
        "both ways give every value a bit of the weight: there the ratio is about 3.5 for ten keys, and neither head "
        "copies. At g = 20 it is about 19.5."
    ),
    run=run,
    parameters=(
        Parameter("keys", 10, "keys", 3, 30),
        Parameter("samples", 8000, "draws of all keys", 1000, 10000),
    ),
    seconds=2.0,
)
