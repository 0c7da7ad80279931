"""What a few seeds can tell: intervals, paired differences, Holm's correction and mean reciprocal ranks.

The methods, and why these:

- **Mean over seeds**: a percentile bootstrap over seeds. With few seeds the plain bootstrap is too narrow (with 3 it
  never leaves the range of the three, which misses the truth in 1 case of 4), so its deviations are stretched by
  ``sqrt(n / (n - 1)) * t / z``: with 3 seeds by 2.69. It then covers 95 % for seeds that scatter normally. It cannot
  see a failure that happened in none of the seeds: where 3 runs in 10 fail, 3 seeds agree in a third of all
  experiments.
- **Rows**: where seeds agree more closely than their test rows allow, the rows' own noise is added up to what they
  allow. Ten runs that are right in 100 of 100 rows are not known to be perfect.
- **One seed**: Clopper and Pearson's exact binomial interval over its rows, and Fisher's exact test of two such
  shares. They say nothing about other seeds.
- **Differences** are taken seed by seed: the same seed means the same data and the same random numbers.
- **Many comparisons**: Holm's correction of Student's paired test (of the normal test over rows where the seeds agree
  too closely, whichever is more careful).
- **Ranks**: who shares places shares their mean reciprocal; the interval draws tasks, seeds and rows anew.

All draws come from a generator with a fixed key, so the same results give the same report.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from vantage.errors import BadInput

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
DRAWS = 10_000
_KEY = 20_230_519  # of the draws; any number will do


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval. The ends are infinite where nothing bounds them: one seed and no rows to count."""

    value: float
    low: float
    high: float
    seeds: int
    method: str = "bootstrap over seeds"

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high

    def mapped(self, function: Callable[[float], float]) -> Estimate:
        """Seen through a rising function, as perplexity is loss seen through exp."""
        return Estimate(function(self.value), function(self.low), function(self.high), self.seeds, self.method)


@dataclass(frozen=True)
class Sample:
    """One number for each seed, each with the standard deviation that its test rows give it (0: not known)."""

    seeds: tuple[int, ...]
    values: tuple[float, ...]
    noise: tuple[float, ...]
    rows: int = 0  # behind each value, where it is a share of rows
    bounds: tuple[float, float] = (-math.inf, math.inf)
    exact: float | None = None  # of a difference between two shares of rows: how surprising it is, by Fisher's test

    def __post_init__(self) -> None:
        if not self.seeds or not len(self.seeds) == len(self.values) == len(self.noise):
            sizes = f"{len(self.seeds)} seeds, {len(self.values)} values, {len(self.noise)} noises"
            raise BadInput(f"{sizes}: give as many of each, at least one")

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    def of(self, seeds: Sequence[int]) -> Sample:
        at = [self.seeds.index(seed) for seed in seeds]
        values, noise = tuple(self.values[i] for i in at), tuple(self.noise[i] for i in at)
        return Sample(tuple(seeds), values, noise, self.rows, self.bounds)

    def negated(self) -> Sample:
        bounds = (-self.bounds[1], -self.bounds[0])
        return Sample(self.seeds, tuple(-value for value in self.values), self.noise, 0, bounds)


# ------------------------------------------------------------------------------------- Student and the binomial


def student_within(t: float, freedom: int) -> float:
    """How likely Student's variable lies between −t and t: the finite sums for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = 1.0 if freedom % 2 == 0 else cosine
    for k in range(2 if freedom % 2 == 0 else 3, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if freedom % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


@functools.cache
def student_quantile(level: float, freedom: int) -> float:
    """The t that holds ``level`` of Student's variable between −t and t."""
    return _root(lambda t: student_within(t, freedom) - level, 0.0, 1e6)


def binomial_interval(right: float, rows: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper and Pearson's exact interval. A share that is no whole number of rows is rounded outwards."""
    if rows < 1 or not 0 <= right <= rows:
        raise BadInput(f"{right} right of {rows} rows: give at least 1 row and no more right than there are")
    tail = (1 - level) / 2
    few, many = math.floor(right + 1e-9), math.ceil(right - 1e-9)
    low = 0.0 if few == 0 else _root(lambda p: 1 - _binomial_up_to(few - 1, rows, p) - tail, 0.0, 1.0)
    high = 1.0 if many == rows else _root(lambda p: tail - _binomial_up_to(many, rows, p), 0.0, 1.0)
    return low, high


def _binomial_up_to(k: int, n: int, p: float) -> float:
    if p <= 0 or p >= 1:
        return float(p <= 0)
    i = np.arange(k + 1)
    logs = _log_choices(n)[: k + 1] + i * math.log(p) + (n - i) * math.log1p(-p)
    return float(np.exp(logs).sum())


@functools.lru_cache(maxsize=16)
def _log_choices(n: int) -> Floats:
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    return factorial[n] - factorial - factorial[::-1]


def fisher(right: float, rows: int, other_right: float, other_rows: int) -> float:
    """Fisher's exact test, two-sided: how likely counts as unlikely as these are, if both have the same share."""
    a, both = round(right), round(right) + round(other_right)
    k = np.arange(max(0, both - other_rows), min(both, rows) + 1)
    logs = _log_choices(rows)[k] + _log_choices(other_rows)[both - k] - _log_choices(rows + other_rows)[both]
    chances = np.exp(logs)
    return float(min(1.0, chances[chances <= chances[a - k[0]] * (1 + 1e-7)].sum()))


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def row_noise(share: float, rows: int) -> float:
    """The standard deviation of a share of rows: Jeffreys' posterior, which is not 0 at none and at all."""
    a, b = share * rows + 0.5, (1 - share) * rows + 0.5
    return math.sqrt(a * b / (a + b + 1)) / (a + b)


# ------------------------------------------------------------------------------------------------- the bootstrap


def _random(*which: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([_KEY, *which])))


def _stretch(seeds: int) -> float:
    """What makes a bootstrap over few seeds as wide as Student's interval (Hesterberg 2015 tells why it is not)."""
    if seeds < 2:
        return 0.0
    return math.sqrt(seeds / (seeds - 1)) * student_quantile(LEVEL, seeds - 1) / NormalDist().inv_cdf((1 + LEVEL) / 2)


@functools.lru_cache(maxsize=64)
def _draws(seeds: int, stream: int) -> Floats:
    """How much each seed weighs in each draw, (DRAWS, seeds). The same for all entries: that keeps them paired."""
    return _random(seeds, stream).multinomial(seeds, [1 / seeds] * seeds, DRAWS) / seeds


@functools.lru_cache(maxsize=256)
def _normal(stream: int) -> Floats:
    return _random(0, stream).standard_normal(DRAWS)


def _bootstrap(sample: Sample, stream: int = 0, rows_stream: int = 0) -> Floats:
    values = np.asarray(sample.values)
    seeds = len(values)
    draws = sample.mean + _stretch(seeds) * (_draws(seeds, stream) @ values - sample.mean)
    between = float(values.var(ddof=1)) if seeds > 1 else 0.0
    missing = float(np.mean(np.square(sample.noise))) - between
    if missing > 0:
        draws = draws + _normal(rows_stream) * math.sqrt(missing / seeds)
    return draws


@functools.lru_cache(maxsize=8192)  # a report asks for the same one in several places
def estimate(sample: Sample) -> Estimate:
    """The mean over seeds with its interval at 95 %."""
    seeds = len(sample.seeds)
    if seeds == 1 and sample.rows and sample.bounds == (0, 1):
        low, high = binomial_interval(sample.values[0] * sample.rows, sample.rows)
        return Estimate(sample.mean, low, high, 1, "exact binomial over the rows of one seed")
    if seeds == 1 and not any(sample.noise):
        return Estimate(sample.mean, *sample.bounds, 1, "one seed: no interval")
    ends = np.quantile(_bootstrap(sample), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    low, high = (float(end) for end in np.clip(ends, *sample.bounds))
    method = "bootstrap over seeds" if seeds > 1 else "normal over the rows of one seed"
    return Estimate(sample.mean, min(low, sample.mean), max(high, sample.mean), seeds, method)


def p_value(sample: Sample) -> float:
    """How surprising the mean would be if the truth were 0: the more careful of Student's test and the rows' noise."""
    seeds, mean = len(sample.seeds), abs(sample.mean)
    if mean == 0:
        return 1.0
    if sample.exact is not None:
        return sample.exact
    by_rows, by_seeds = 0.0, 0.0
    if rows := math.sqrt(float(np.mean(np.square(sample.noise))) / seeds):
        by_rows = 2 * NormalDist().cdf(-mean / rows)
    if seeds > 1 and (error := float(np.std(sample.values, ddof=1)) / math.sqrt(seeds)) > 0:
        by_seeds = 1 - student_within(mean / error, seeds - 1)
    if seeds == 1 and not rows:
        return 1.0
    return max(by_rows, by_seeds, 0.0)


def difference(a: Sample, b: Sample) -> Sample | None:
    """a − b, seed by seed; None where they share no seed. Rows of the two count as independent, which is careful."""
    seeds = [seed for seed in a.seeds if seed in b.seeds]
    if not seeds:
        return None
    a, b = a.of(seeds), b.of(seeds)
    values = tuple(x - y for x, y in zip(a.values, b.values, strict=True))
    noise = tuple(math.hypot(x, y) for x, y in zip(a.noise, b.noise, strict=True))
    counted = len(seeds) == 1 and all(one.rows and one.bounds == (0, 1) for one in (a, b))
    exact = fisher(a.values[0] * a.rows, a.rows, b.values[0] * b.rows, b.rows) if counted else None
    return Sample(tuple(seeds), values, noise, 0, (a.bounds[0] - b.bounds[1], a.bounds[1] - b.bounds[0]), exact)


def average(samples: Sequence[Sample]) -> Sample | None:
    """The mean of several, such as one for each task, over the seeds that all of them have."""
    seeds = [seed for seed in samples[0].seeds if all(seed in sample.seeds for sample in samples)] if samples else []
    if not seeds:
        return None
    parts = [sample.of(seeds) for sample in samples]
    values = tuple(np.mean([part.values for part in parts], axis=0).tolist())
    noise = tuple((np.sqrt(np.square([part.noise for part in parts]).sum(axis=0)) / len(parts)).tolist())
    bounds = (min(part.bounds[0] for part in parts), max(part.bounds[1] for part in parts))
    return Sample(tuple(seeds), values, noise, sum(part.rows for part in parts), bounds)


def holm(chances: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the smallest times m, the next times m − 1, never falling."""
    adjusted, largest = [1.0] * len(chances), 0.0
    for rank, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[i]))
        adjusted[i] = largest
    return adjusted


# --------------------------------------------------------------------------------------------------------- ranks


def reciprocal_ranks(values: Floats) -> Floats:
    """1 / rank along the last axis, the largest value first. Who ties shares the mean of the places they take up."""
    closer = 1e-12
    above = (values[..., None, :] > values[..., :, None] + closer).sum(-1)
    level = (np.abs(values[..., None, :] - values[..., :, None]) <= closer).sum(-1)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, values.shape[-1] + 1))])
    return (harmonic[above + level] - harmonic[above]) / level


def mean_reciprocal_rank(tasks: Sequence[Mapping[str, Sample]]) -> dict[str, Estimate]:
    """For each entry, over the tasks it took part in; larger is better. Its interval draws tasks, seeds and rows anew.

    Noise can only pull a first place down, so the draws lean towards the middle: the interval is opened to hold the
    value itself.
    """
    names = sorted({name for task in tasks for name in task})
    exact = np.full((len(tasks), len(names)), np.nan)
    drawn = np.full((DRAWS, len(tasks), len(names)), np.nan)
    seeds = dict.fromkeys(names, 0)
    for t, task in enumerate(tasks):
        shared = _shared_seeds(task)
        if not shared:
            continue
        columns = [names.index(name) for name in task]
        parts = [sample.of(shared) for sample in task.values()]
        exact[t, columns] = reciprocal_ranks(np.array([part.mean for part in parts]))
        draws = [_bootstrap(part, 1 + t, 1 + t * len(names) + at) for part, at in zip(parts, columns, strict=True)]
        drawn[:, t, columns] = reciprocal_ranks(np.stack(draws, -1))
        seeds |= {name: max(seeds[name], len(shared)) for name in task}
    weights = _random(1, len(tasks)).multinomial(len(tasks), [1 / len(tasks)] * len(tasks), DRAWS) if tasks else None
    estimates: dict[str, Estimate] = {}
    for n, name in enumerate(names):
        took_part = ~np.isnan(exact[:, n])
        if weights is None or not took_part.any():
            continue
        value, of = float(exact[took_part, n].mean()), weights[:, took_part]
        some = of.sum(1) > 0
        means = (of * drawn[:, took_part, n])[some].sum(1) / of[some].sum(1)
        low, high = (float(end) for end in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        method = f"bootstrap over {int(took_part.sum())} tasks, seeds and rows"
        estimates[name] = Estimate(value, min(low, value), max(high, value), seeds[name], method)
    return estimates


def _shared_seeds(task: Mapping[str, Sample]) -> list[int]:
    first = next(iter(task.values()), None)
    if first is None:
        return []
    return [seed for seed in first.seeds if all(seed in sample.seeds for sample in task.values())]
