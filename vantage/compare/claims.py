"""What the course material says about generalisation (P14), each claim with what this experiment measured of it.

*Generalises*, *extrapolates*: from the training lengths to those beyond, a model loses less than ``TOLERANCE``: a tenth
of the rows, or a tenth of the perplexity. A claim **holds** where the whole interval of the paired difference says so,
**does not hold** where the whole interval says the contrary, and is **not distinguishable** where the interval holds
both. A model that did not learn the task within its range (``learning``) is no evidence either way: that is **not
measured**.

Differences are taken seed by seed and averaged over the tasks of the experiment, each of which counts the same; tasks
that are scored by accuracy and those scored by loss are not mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vantage.compare.learning import guess_level, is_learned
from vantage.compare.result_table import Part, ResultTable, normalise_name
from vantage.compare.results import RunResult
from vantage.compare.statistics import Estimate, Sample, average, difference, estimate
from vantage.compare.verdicts import Verdict, format_effect

TOLERANCE = 0.1
SLIGHTLY = 0.1
RELATIVE = ("t5", "shaw", "xl", "kerple", "fire")
_SEEN = {"accuracy": "by accuracy", "loss": "by perplexity"}
MULTI, GROUPED = "multi-query", "grouped-query"
# what would measure a claim that was not
MISSING_LEARNED = "This experiment has not both of them at a training length: add --positions learned sinusoidal"
MISSING_MULTI = "This experiment has not both attentions: add --attention multi-head multi-query"
MISSING_GROUPED = "This experiment has not all three attentions: add --attention multi-head multi-query grouped-query"
UNLEARNED = "They learned no task within its range: give more --steps"


@dataclass(frozen=True)
class Claim:
    """``test`` gives a verdict for each encoding (or attention) that the claim is about."""

    says: str
    source: str
    test: Callable[[Claim, ResultTable, str, Mapping[str, float]], list[Verdict]]
    about: tuple[str, ...]

    def verdict(self, name: str, word: str, why: str, effect: Estimate | None = None) -> Verdict:
        what = f"{self.says}: {name}" if len(self.about) > 1 else self.says
        return Verdict(what, word, f"{why}.", effect, source=self.source)


def measure_claims(
    results: Sequence[RunResult],
    train_length: int | Mapping[str, int],
    measures: Mapping[str, str] | None = None,
    chance: Mapping[str, float] | None = None,
) -> list[Verdict]:
    """Every claim. Where an experiment has both accuracy and perplexity, once for each that says something."""
    table = ResultTable(tuple(results), train_length, measures or {})
    kinds = sorted({"loss" if table.measure(task) == "loss" else "accuracy" for task in table.tasks}) or ["accuracy"]
    verdicts: list[Verdict] = []
    for claim in CLAIMS:
        for one in zip(*(claim.test(claim, table, kind, chance or {}) for kind in kinds), strict=True):
            measured = [v for v in zip(kinds, one, strict=True) if v[1].word != "not measured"] or [(kinds[0], one[0])]
            verdicts += [
                v if len(measured) == 1 else replace(v, what=f"{v.what} ({_SEEN[kind]})") for kind, v in measured
            ]
    return verdicts


# ---------------------------------------------------------------------------------------------------- measurements


def _tasks(table: ResultTable, kind: str) -> list[str]:
    return [task for task in table.counted if (table.measure(task) == "loss") == (kind == "loss")]


def _unit(kind: str) -> str:
    return "nats" if kind == "loss" else "of accuracy"


def _entries(table: ResultTable, task: str, position: str, attention: str) -> list[str]:
    """Of an encoding (any, where it is empty) with an attention, each run's key asked."""
    keys = {run.key.entry: run.key for entry in table.entries(task) for run in table.runs(task, entry)}
    return [
        e for e, key in keys.items() if position in ("", normalise_name(key.position)) and key.attention == attention
    ]


def _sample(table: ResultTable, task: str, position: str, part: Part) -> Sample | None:
    """Larger is better, with the plain attention."""
    samples = table.ranked(task, part)
    return next((samples[entry] for entry in _entries(table, task, position, "multi-head") if entry in samples), None)


def _learned(table: ResultTable, task: str, sample: Sample, chance: Mapping[str, float]) -> bool:
    return is_learned(sample, guess_level(table, task, chance), table.measure(task))


def _apart(
    table: ResultTable, task: str, a: Sample | None, b: Sample | None, chance: Mapping[str, float]
) -> Sample | None:
    """One less another, if at least one of them learned the task: two that did not are equally good at nothing."""
    if a is None or b is None or not (_learned(table, task, a, chance) or _learned(table, task, b, chance)):
        return None
    return difference(a, b)


def _word(effect: Estimate, bar: float) -> str:
    """Whether an effect is above a bar."""
    if effect.low > bar:
        return "holds"
    return "does not hold" if effect.high < bar else "not distinguishable"


def _keeps(claim: Claim, table: ResultTable, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Beyond less within: above −TOLERANCE, it generalises."""
    verdicts = []
    for position in claim.about:
        changes, unlearned, far = [], [], []
        for task in _tasks(table, kind):
            within, beyond = _sample(table, task, position, "within"), _sample(table, task, position, "beyond")
            if within is None or beyond is None:
                continue
            if not _learned(table, task, within, chance):
                unlearned.append(task)
            elif (apart := difference(beyond, within)) is not None:
                changes.append(apart)
                far.append(f"{task} to {table.lengths(task, 'beyond')[-1] / table.trained(task):.3g} times")
        change = average(changes)
        if change is None:
            why = (
                f"It did not learn {', '.join(unlearned)} within its range"
                if unlearned
                else f"This experiment has no such run: add --positions {position}"
            )
            verdicts.append(claim.verdict(position, "not measured", why))
            continue
        effect = estimate(change)
        why = f"From the training lengths to those beyond: {format_effect(effect, _unit(kind))} ({', '.join(far)})"
        why += f"; left out, as not learned: {', '.join(unlearned)}" if unlearned else ""
        verdicts.append(claim.verdict(position, _word(effect, -TOLERANCE), why, effect))
    return verdicts


def _better_within(claim: Claim, table: ResultTable, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Learned less sinusoidal, at the training lengths."""
    pairs = {
        task: (_sample(table, task, "learned", "within"), _sample(table, task, "sinusoidal", "within"))
        for task in _tasks(table, kind)
    }
    gains = [_apart(table, task, *pair, chance) for task, pair in pairs.items()]
    gain = average([apart for apart in gains if apart is not None])
    if gain is None:
        both = any(a is not None and b is not None for a, b in pairs.values())
        return [claim.verdict("learned", "not measured", UNLEARNED if both else MISSING_LEARNED)]
    effect = estimate(gain)
    word = _word(effect, 0.0)
    why = f"Learned less sinusoidal within the training lengths: {format_effect(effect, _unit(kind))}"
    if word == "holds" and effect.low > SLIGHTLY:
        why += ", which is more than slightly"
    return [claim.verdict("learned", word, why, effect)]


def _attention(
    table: ResultTable, kind: str, chance: Mapping[str, float], better: str, worse: str
) -> tuple[Sample | None, bool]:
    """One attention less another, over all encodings and tasks that have both, within the training lengths; and
    whether there are any, learned or not."""
    differences = []
    for task in _tasks(table, kind):
        samples = table.ranked(task, "within")
        for position in sorted(
            {normalise_name(run.key.position) for entry in samples for run in table.runs(task, entry)}
        ):
            a, b = (_entries(table, task, position, name) for name in (better, worse))
            if a and b and a[0] in samples and b[0] in samples:
                differences.append(_apart(table, task, samples[a[0]], samples[b[0]], chance))
    return average([apart for apart in differences if apart is not None]), bool(differences)


def _multi_query(claim: Claim, table: ResultTable, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    lost, has_both = _attention(table, kind, chance, "multi-head", MULTI)
    if lost is None:
        return [claim.verdict(MULTI, "not measured", UNLEARNED if has_both else MISSING_MULTI)]
    effect = estimate(lost)
    size = format_effect(effect, _unit(kind))
    why = f"Multi-head less multi-query within the training lengths, at this one size: {size}"
    return [claim.verdict(MULTI, _word(effect, 0.0), why, effect)]


def _grouped(claim: Claim, table: ResultTable, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Between the two: below the one and above the other, both at once."""
    above, over_multi = _attention(table, kind, chance, GROUPED, MULTI)
    below, under_full = _attention(table, kind, chance, "multi-head", GROUPED)
    if above is None or below is None:
        why = UNLEARNED if over_multi and under_full else MISSING_GROUPED
        return [claim.verdict(GROUPED, "not measured", why)]
    over, under = estimate(above), estimate(below)
    words = {_word(over, 0.0), _word(under, 0.0)}
    word = next(word for word in ("does not hold", "not distinguishable", "holds") if word in words)
    why = f"Over multi-query {format_effect(over, _unit(kind))}, under multi-head {format_effect(under, _unit(kind))}"
    return [claim.verdict(GROUPED, word, why, over if abs(over.value) < abs(under.value) else under)]


CLAIMS = (
    Claim("Relative encodings generalise over length", "P14 (S0, S1, S3)", _keeps, RELATIVE),
    Claim("Rotary encodings generalise over length", "P14 (S0, S1, S3)", _keeps, ("rope",)),
    Claim("Sinusoidal encodings can extrapolate", "P14 (S0, S1, S3)", _keeps, ("sinusoidal",)),
    Claim("Learned encodings are slightly better within range", "P14 (S0, S1, S3)", _better_within, ("learned",)),
    Claim("ALiBi extrapolates well", "P14 (S0, S1, S3)", _keeps, ("alibi",)),
    Claim("Multi-query attention loses quality", "P14 (S2)", _multi_query, (MULTI,)),
    Claim("Grouped-query attention is between multi-query and multi-head", "P14 (S2)", _grouped, (GROUPED,)),
)
