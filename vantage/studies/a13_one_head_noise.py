"""A13: one head that averages two values, when the length of a key is noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.figures import Figure, Histogram, Line, Lines
from vantage.studies.shared.attention import attend
from vantage.studies.shared.findings import compared, conclude, held, interval, mean
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

ALPHA = 1e-6  # the variance that every key has in every direction
NORM_VARIANCE = 0.5  # and that of key a along itself
GAINS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
LOW, HIGH = GAINS[0], GAINS[-1]
MOSTLY = 0.9  # a value that has this share of the output is nearly copied


@dataclass(frozen=True)
class Keys:
    """Drawn keys (samples, n, n), and the directions they scatter around."""

    means: Tensor
    drawn: Tensor

    def look(self, query: Tensor) -> Tensor:
        """(samples, n): how much of each value the output of one head holds."""
        return attend(query[None, None], self.drawn, torch.eye(len(self.means), dtype=F64))[0][:, 0]

    def one_head(self, gain: float) -> Tensor:
        """q = g(μ_a + μ_b); a is the first key, b the second."""
        return self.look(gain * (self.means[0] + self.means[1]))

    def two_heads(self, gain: float) -> Tensor:
        """q = gμ_a in one head and gμ_b in the other, and the mean of both."""
        return (self.look(gain * self.means[0]) + self.look(gain * self.means[1])) / 2


def draw_keys(n: int, samples: int, *, noisy: bool, seed: int = 0) -> Keys:
    """k_i = μ_i + √α z, and if ``noisy`` key a is β times as long, β of mean 1 and variance ½."""
    means = torch.linalg.qr(random_normal(n, n, seed=n)).Q
    drawn = means + ALPHA**0.5 * random_normal(samples, n, n, seed=seed + 1)
    if noisy:
        drawn[:, 0] += NORM_VARIANCE**0.5 * random_normal(samples, 1, seed=seed + 2) * means[0]
    return Keys(means, drawn)


def scatter(outputs: Tensor) -> list[float]:
    """Of each sample the squared distance from the mean output; their mean is the variance, over all directions."""
    return ((outputs - outputs.mean(0)) ** 2).sum(-1).tolist()


def run(values: Values, progress: Progress) -> Result:
    n, samples = int(values["keys"]), int(values["samples"])
    clean, noisy = (draw_keys(n, samples, noisy=noisy) for noisy in (False, True))
    outputs: dict[float, Tensor] = {}
    for i, gain in enumerate(GAINS):
        progress(i / len(GAINS), f"gain {gain:g}")
        outputs[gain] = noisy.one_head(gain)
    calm = clean.one_head(HIGH)
    lengths = (noisy.drawn[:, 0] @ noisy.means[0]).tolist()
    right = [
        compared(f"αI alone, g = {HIGH:g}: mean share of v_a", float(calm[:, 0].mean()), 0.5, within=0.01),
        compared(f"αI alone, g = {HIGH:g}: mean share of v_b", float(calm[:, 1].mean()), 0.5, within=0.01),
        compared("mean of the length β of key a", mean(lengths), 1.0, within=0.1, interval=interval(lengths)),
        compared("variance of β", mean(_squares(lengths)), 0.5, within=0.1, interval=interval(_squares(lengths))),
        held(f"g = {HIGH:g}: most outputs are nearly v_a or nearly v_b", mean(_copies(outputs[HIGH])) > 0.5),
    ]
    slips = [held(f"g = {LOW:g}: most outputs are nearly v_a or nearly v_b", mean(_copies(outputs[LOW])) > 0.5)]
    share = outputs[LOW][:, 0].quantile(torch.tensor([0.05, 0.95], dtype=F64)).tolist()
    also = [Number(f"g = {LOW:g}: weight of v_a that 5 % of samples stay below", share[0])]
    also.append(Number(f"g = {LOW:g}: weight of v_a that 95 % stay below", share[1]))
    also += [_copied(gain, outputs[gain]) for gain in (LOW, HIGH)]
    also += [_variance(gain, outputs[gain]) for gain in (LOW, HIGH)]
    words = TEXT.conclusion(gain=HIGH, copies=mean(_copies(outputs[HIGH])), n=n, low=share[0], high=share[1])
    return conclude(words, [*right, *also], _figures(outputs, clean), slips)


def _squares(samples: list[float]) -> list[float]:
    middle = mean(samples)
    return [(x - middle) ** 2 for x in samples]


def _copies(outputs: Tensor) -> list[float]:
    """1 for each sample in which one of the two values is nearly all, 0 for the others."""
    return (outputs[:, :2].amax(-1) > MOSTLY).double().tolist()


def _copied(gain: float, outputs: Tensor) -> Number:
    copies = _copies(outputs)
    return Number(f"g = {gain:g}: share of outputs that are nearly v_a or v_b", mean(copies), interval=interval(copies))


def _variance(gain: float, outputs: Tensor) -> Number:
    spreads = scatter(outputs)
    return Number(f"g = {gain:g}: variance of the output", mean(spreads), interval=interval(spreads))


def _figures(outputs: dict[float, Tensor], clean: Keys) -> list[Figure]:
    spread = tuple(
        Histogram(f"g = {gain:g}", "share of v_a in the output", (("noisy length", outputs[gain][:, 0].tolist()),))
        for gain in (LOW, 3.0, HIGH)
    )
    calm = [scatter(clean.one_head(gain)) for gain in GAINS]
    wild = [scatter(outputs[gain]) for gain in GAINS]

    def line(name: str, samples: list[list[float]]) -> Line:
        low, high = zip(*map(interval, samples), strict=True)
        return Line(name, GAINS, [mean(one) for one in samples], low, high)

    variance = Lines(
        "Variance of the output",
        "gain g",
        "variance",
        (line("noisy length", wild), line("αI alone", calm)),
        marks=(("a coin between v_a and v_b", 0.5),),
    )
    return [
        Figure("shares", TEXT.caption("shares"), spread),
        Figure("variance", TEXT.caption("variance"), (variance,)),
    ]


STUDY = TEXT.study(
    "A13",
    run,
    (
        TEXT.parameter("keys", 10, 3, 30),
        TEXT.parameter("samples", 8000, 1000, 10000),
    ),
    seconds=1.5,
)
