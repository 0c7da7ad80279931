"""What the course material says about generalisation (P14), each claim with what this study measured of it.

*Generalises*, *extrapolates*: from the training lengths to those beyond, a model loses less than ``TOLERANCE``: a tenth
of the rows, or a tenth of the perplexity. A claim **holds** where the whole interval of the paired difference says so,
**does not hold** where the whole interval says the contrary, and is **not distinguishable** where the interval holds
both. A model that did not learn the task within its range is no evidence either way: that is **not measured**. It has
learned a text if its loss is ``TOLERANCE`` below that of the frequencies of the tokens, which need no context.

Differences are taken seed by seed and averaged over the tasks of the study, each of which counts the same; tasks that
are scored by accuracy and those scored by loss are not mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vantage.compare.cells import Part, View, plain
from vantage.compare.results import Result
from vantage.compare.statistics import Estimate, Sample, average, difference, estimate
from vantage.compare.verdicts import Verdict, chance_of, worded

TOLERANCE = 0.1
LEARNED = 0.5  # of the way from chance to perfect, within the training lengths: less has not learned the task
SLIGHTLY = 0.1
RELATIVE = ("t5", "shaw", "xl", "kerple", "fire")
_SEEN = {"accuracy": "by accuracy", "loss": "by perplexity"}
MULTI, GROUPED = "multi-query", "grouped-query"
# what would measure a claim that was not
MISSING_LEARNED = "This study has not both of them at a training length: add --positions learned sinusoidal"
MISSING_MULTI = "This study has not both attentions: add --attention multi-head multi-query"
MISSING_GROUPED = "This study has not all three attentions: add --attention multi-head multi-query grouped-query"
UNLEARNED = "They learned no task within its range: give more --steps"


@dataclass(frozen=True)
class Claim:
    """``test`` gives a verdict for each encoding (or attention) that the claim is about."""

    says: str
    source: str
    test: Callable[[Claim, View, str, Mapping[str, float]], list[Verdict]]
    about: tuple[str, ...]

    def verdict(self, name: str, word: str, why: str, effect: Estimate | None = None) -> Verdict:
        what = f"{self.says}: {name}" if len(self.about) > 1 else self.says
        return Verdict(what, word, f"{why}.", effect, source=self.source)


def measure_claims(
    results: Sequence[Result],
    train_length: int | Mapping[str, int],
    measures: Mapping[str, str] | None = None,
    chance: Mapping[str, float] | None = None,
) -> list[Verdict]:
    """Every claim. Where a study has both accuracy and perplexity, once for each that says something."""
    view = View(tuple(results), train_length, measures or {})
    kinds = sorted({"loss" if view.measure(task) == "loss" else "accuracy" for task in view.tasks}) or ["accuracy"]
    found: list[Verdict] = []
    for claim in CLAIMS:
        for one in zip(*(claim.test(claim, view, kind, chance or {}) for kind in kinds), strict=True):
            told = [v for v in zip(kinds, one, strict=True) if v[1].word != "not measured"] or [(kinds[0], one[0])]
            found += [v if len(told) == 1 else replace(v, what=f"{v.what} ({_SEEN[kind]})") for kind, v in told]
    return found


# ---------------------------------------------------------------------------------------------------- measurements


def _tasks(view: View, kind: str) -> list[str]:
    return [task for task in view.counted if (view.measure(task) == "loss") == (kind == "loss")]


def _unit(kind: str) -> str:
    return "nats" if kind == "loss" else "of accuracy"


def _entries(view: View, task: str, position: str, attention: str) -> list[str]:
    """Of an encoding (any, where it is empty) with an attention, each run's key asked."""
    keys = {run.key.entry: run.key for entry in view.entries(task) for run in view.runs(task, entry)}
    return [e for e, key in keys.items() if position in ("", plain(key.position)) and key.attention == attention]


def _sample(view: View, task: str, position: str, part: Part) -> Sample | None:
    """Larger is better, with the plain attention."""
    there = view.ranked(task, part)
    return next((there[entry] for entry in _entries(view, task, position, "multi-head") if entry in there), None)


def _learned(view: View, task: str, sample: Sample, chance: Mapping[str, float]) -> bool:
    """Whether the task was learned at the training lengths. Larger is better in a sample: a loss is below 0."""
    floor = chance_of(task, chance)
    if view.measure(task) == "loss":
        return floor is None or -sample.mean <= floor - TOLERANCE
    return sample.mean >= (floor or 0.0) + LEARNED * (1 - (floor or 0.0))


def _apart(view: View, task: str, a: Sample | None, b: Sample | None, chance: Mapping[str, float]) -> Sample | None:
    """One less another, if at least one of them learned the task: two that did not are equally good at nothing."""
    if a is None or b is None or not (_learned(view, task, a, chance) or _learned(view, task, b, chance)):
        return None
    return difference(a, b)


def _word(effect: Estimate, bar: float) -> str:
    """Whether an effect is above a bar."""
    if effect.low > bar:
        return "holds"
    return "does not hold" if effect.high < bar else "not distinguishable"


def _keeps(claim: Claim, view: View, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Beyond less within: above −TOLERANCE, it generalises."""
    found = []
    for position in claim.about:
        changes, unlearned, far = [], [], []
        for task in _tasks(view, kind):
            within, beyond = _sample(view, task, position, "within"), _sample(view, task, position, "beyond")
            if within is None or beyond is None:
                continue
            if not _learned(view, task, within, chance):
                unlearned.append(task)
            elif (apart := difference(beyond, within)) is not None:
                changes.append(apart)
                far.append(f"{task} to {view.lengths(task, 'beyond')[-1] / view.trained(task):.3g} times")
        change = average(changes)
        if change is None:
            why = (
                f"It did not learn {', '.join(unlearned)} within its range"
                if unlearned
                else f"This study has no such run: add --positions {position}"
            )
            found.append(claim.verdict(position, "not measured", why))
            continue
        effect = estimate(change)
        why = f"From the training lengths to those beyond: {worded(effect, _unit(kind))} ({', '.join(far)})"
        why += f"; left out, as not learned: {', '.join(unlearned)}" if unlearned else ""
        found.append(claim.verdict(position, _word(effect, -TOLERANCE), why, effect))
    return found


def _better_within(claim: Claim, view: View, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Learned less sinusoidal, at the training lengths."""
    pairs = {
        task: (_sample(view, task, "learned", "within"), _sample(view, task, "sinusoidal", "within"))
        for task in _tasks(view, kind)
    }
    gains = [_apart(view, task, *pair, chance) for task, pair in pairs.items()]
    gain = average([apart for apart in gains if apart is not None])
    if gain is None:
        both = any(a is not None and b is not None for a, b in pairs.values())
        return [claim.verdict("learned", "not measured", UNLEARNED if both else MISSING_LEARNED)]
    effect = estimate(gain)
    word = _word(effect, 0.0)
    why = f"Learned less sinusoidal within the training lengths: {worded(effect, _unit(kind))}"
    if word == "holds" and effect.low > SLIGHTLY:
        why += ", which is more than slightly"
    return [claim.verdict("learned", word, why, effect)]


def _attention(
    view: View, kind: str, chance: Mapping[str, float], better: str, worse: str
) -> tuple[Sample | None, bool]:
    """One attention less another, over all encodings and tasks that have both, within the training lengths; and
    whether there are any, learned or not."""
    found = []
    for task in _tasks(view, kind):
        there = view.ranked(task, "within")
        for position in sorted({plain(run.key.position) for entry in there for run in view.runs(task, entry)}):
            a, b = (_entries(view, task, position, name) for name in (better, worse))
            if a and b and a[0] in there and b[0] in there:
                found.append(_apart(view, task, there[a[0]], there[b[0]], chance))
    return average([apart for apart in found if apart is not None]), bool(found)


def _multi_query(claim: Claim, view: View, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    lost, there = _attention(view, kind, chance, "multi-head", MULTI)
    if lost is None:
        return [claim.verdict(MULTI, "not measured", UNLEARNED if there else MISSING_MULTI)]
    effect = estimate(lost)
    why = f"Multi-head less multi-query within the training lengths, at this one size: {worded(effect, _unit(kind))}"
    return [claim.verdict(MULTI, _word(effect, 0.0), why, effect)]


def _grouped(claim: Claim, view: View, kind: str, chance: Mapping[str, float]) -> list[Verdict]:
    """Between the two: below the one and above the other, both at once."""
    above, over_multi = _attention(view, kind, chance, GROUPED, MULTI)
    below, under_full = _attention(view, kind, chance, "multi-head", GROUPED)
    if above is None or below is None:
        why = UNLEARNED if over_multi and under_full else MISSING_GROUPED
        return [claim.verdict(GROUPED, "not measured", why)]
    over, under = estimate(above), estimate(below)
    words = {_word(over, 0.0), _word(under, 0.0)}
    word = next(word for word in ("does not hold", "not distinguishable", "holds") if word in words)
    why = f"Over multi-query {worded(over, _unit(kind))}, under multi-head {worded(under, _unit(kind))}"
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
