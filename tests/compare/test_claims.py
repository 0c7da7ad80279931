"""Each claim on results that were made to bear it out, to contradict it, or to leave it open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compare.synthetic import experiment, falls
from vantage.compare.claims import CLAIMS, measure_claims
from vantage.compare.entries import all_positions
from vantage.compare.entries import attentions as attention_names
from vantage.compare.results import RunResult
from vantage.compare.verdicts import Verdict


def of(results: list[RunResult], what: str) -> Verdict:
    found = [verdict for verdict in measure_claims(results, 20) if verdict.what.startswith(what)]
    assert len(found) == 1
    return found[0]


def keeps(length: int) -> float:
    return 0.97


@pytest.mark.parametrize(
    ("position", "what"),
    [
        ("t5", "Relative encodings generalise over length: t5"),
        ("rope", "Rotary encodings generalise over length"),
        ("sinusoidal", "Sinusoidal encodings can extrapolate"),
        ("alibi", "ALiBi extrapolates well"),
    ],
)
def test_who_generalises(position: str, what: str) -> None:
    assert of(experiment({position: keeps}), what).word == "holds"
    lost = of(experiment({position: falls(5)}), what)
    assert lost.word == "does not hold"
    assert lost.effect is not None
    assert lost.effect.high < -0.1
    assert "ordering to 5 times" in lost.why
    near = of(experiment({position: lambda n: 0.97 if n <= 20 else 0.87}, scatter=0.05, rows=40), what)
    assert near.word == "not distinguishable"
    assert of(experiment({"none": keeps}), what).word == "not measured"


def test_who_never_learned_the_task_is_no_evidence() -> None:
    """Half right is chance in this task: it loses nothing beyond the training length, and that says nothing."""
    found = of(experiment({"rope": lambda n: 0.5}), "Rotary")
    assert found.word == "not measured"
    assert "did not learn ordering" in found.why


def test_a_text_of_which_only_the_frequencies_were_learned_is_no_evidence() -> None:
    """It loses nothing at any length, having nothing to lose."""
    results = experiment({"rope": lambda n: 3.0, "alibi": lambda n: 2.5}, tasks=("text",), losses=True)
    found = {v.what: v for v in measure_claims(results, 20, chance={"text": 3.05})}
    assert found["Rotary encodings generalise over length"].word == "not measured"
    assert "did not learn text" in found["Rotary encodings generalise over length"].why
    assert found["ALiBi extrapolates well"].word == "holds"


def test_two_that_learned_nothing_are_not_compared() -> None:
    skills: dict[str, Callable[[int], float]] = {"learned": lambda n: 0.56, "sinusoidal": lambda n: 0.50}
    found = of(experiment(skills, rows=20_000, scatter=0.001), "Learned")
    assert found.word == "not measured"
    assert "learned no task" in found.why


@pytest.mark.parametrize(
    ("learned", "word"), [(0.93, "holds"), (0.87, "does not hold"), (0.901, "not distinguishable")]
)
def test_learned_within_range(learned: float, word: str) -> None:
    skills: dict[str, Callable[[int], float]] = {"learned": lambda n: learned, "sinusoidal": lambda n: 0.90}
    found = of(experiment(skills, rows=20_000, scatter=0.001), "Learned")
    assert found.word == word
    assert "more than slightly" not in found.why


def test_learned_by_more_than_slightly_says_so() -> None:
    skills: dict[str, Callable[[int], float]] = {"learned": lambda n: 0.95, "sinusoidal": lambda n: 0.60}
    assert "more than slightly" in of(experiment(skills, rows=2000), "Learned").why


def attentions(multi: float, grouped: float, head: float) -> list[RunResult]:
    each = {"multi-query": multi, "grouped-query": grouped, "multi-head": head}
    return [
        run
        for name, share in each.items()
        for run in experiment({"rope": lambda n, s=share: s}, attention=name, rows=5000)
    ]


def test_queries_that_share_keys() -> None:
    worse = attentions(0.7, 0.8, 0.9)
    assert of(worse, "Multi-query").word == "holds"
    assert of(worse, "Grouped-query").word == "holds"
    turned = attentions(0.9, 0.8, 0.7)
    assert of(turned, "Multi-query").word == "does not hold"
    assert of(turned, "Grouped-query").word == "does not hold"
    assert of(attentions(0.7, 0.9, 0.9), "Grouped-query").word == "not distinguishable"
    assert of(experiment({"rope": keeps}), "Multi-query").word == "not measured"


def test_accuracy_and_perplexity_are_told_apart() -> None:
    results = experiment({"alibi": falls(5)}) + experiment({"alibi": lambda n: 3.0}, tasks=("text",), losses=True)
    found = {v.what: v.word for v in measure_claims(results, 20) if v.what.startswith("ALiBi")}
    assert found == {
        "ALiBi extrapolates well (by accuracy)": "does not hold",
        "ALiBi extrapolates well (by perplexity)": "holds",
    }


def test_claims_are_about_what_an_experiment_can_have() -> None:
    assert {name for claim in CLAIMS for name in claim.about} <= {*all_positions(), *attention_names()}
    missing = {verdict.what: verdict.why for verdict in measure_claims(experiment({"none": keeps}), 20)}
    assert "--positions alibi" in missing["ALiBi extrapolates well"]
    assert "--attention multi-head multi-query" in missing["Multi-query attention loses quality"]


def test_every_claim_has_a_verdict_even_of_nothing() -> None:
    found = measure_claims([], 20)
    assert len(found) == sum(len(claim.about) for claim in CLAIMS)
    assert {verdict.word for verdict in found} == {"not measured"}
