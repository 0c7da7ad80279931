"""I1: the heads that look like induction heads are those that carry a repetition."""

from __future__ import annotations

import torch

from vantage.figures import Figure, Heat
from vantage.inspect import Atlas, atlas
from vantage.interventions import Edit, patch
from vantage.interventions.sweeps import BaseRun
from vantage.interventions.targets import Target
from vantage.model import Model
from vantage.studies.a17_head_atlas import STORY
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars
from vantage.studies.shared.models import smollm2
from vantage.studies.shared.repetition import Head, other_heads, repeated_words
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
READ = 64  # tokens of the story that the atlas reads, twice


def run(values: Values, progress: Progress) -> Result:
    model = smollm2()
    prompts, length = int(values["prompts"]), int(values["length"])
    progress(0.02, "reading the text")
    head_atlas = atlas(model, STORY, longest=READ)
    named = [(head.layer, head.head) for head in head_atlas.of("induction")]
    if not named:
        nothing = torch.zeros(len(model.blocks), max(head.head for head in head_atlas.heads) + 1)
        missing = held("some heads look for what came after last time", False)
        return conclude("", [missing], [_grids(head_atlas, nothing)])
    others = other_heads(named, model, seed=0)
    effects, losses = list[torch.Tensor](), dict[str, list[float]]()
    for n in range(prompts):
        clean, corrupted, answer = repeated_words(model, length, seed=n)
        progress(0.1 + 0.85 * n / prompts, f"patching, prompt {n + 1} of {prompts}")
        effects.append(patch(model, clean, corrupted, activation="heads", positions=[-1], target=answer).effects)
        for name, heads in (("induction", named), ("others", others)):
            losses.setdefault(name, []).append(_without(model, clean, answer, heads))
    mean_effect = torch.stack(effects).mean(0)
    of_named, of_others = (
        [mean([float(effect[head]) for head in heads]) for effect in effects] for heads in (named, others)
    )
    order = mean_effect.flatten().argsort(descending=True)[: len(named)].tolist()
    heads = mean_effect.shape[1]
    common = len({(n // heads, n % heads) for n in order} & set(named))
    chance = len(named) ** 2 / mean_effect.numel()
    right = [
        held("heads of the atlas recover more than others of their layers", more_in_pairs(of_named, of_others)),
        held("among the heads that recover most are more of the atlas than by chance", common > 3 * chance),
        held(
            "a repetition suffers more without them than without others",
            more_in_pairs(losses["others"], losses["induction"]),
        ),
    ]
    also = [
        Number("induction heads by the atlas", len(named)),
        Number("share recovered by one of them", mean(of_named), interval=interval(of_named)),
        Number("share recovered by one other head", mean(of_others), interval=interval(of_others)),
        Number(f"of the {len(named)} that recover most, in the atlas", common),
        Number("the same by chance", chance),
        Number(
            "log-probability lost without all of them",
            -mean(losses["induction"]),
            interval=_turned(losses["induction"]),
        ),
        Number(
            "log-probability lost without as many others", -mean(losses["others"]), interval=_turned(losses["others"])
        ),
    ]
    words = TEXT.conclusion(
        count=len(named), common=common, chance=chance, share=mean(of_named), other=mean(of_others),
        lost=-mean(losses["induction"]), few=-mean(losses["others"]),
    )  # fmt: skip
    return conclude(words, [*right, *also], [_grids(head_atlas, mean_effect), _bars(of_named, of_others, losses)])


def _without(model: Model, clean: list[int], answer: int, heads: list[Head]) -> float:
    """What the log-probability of the answer changes by without these heads, at every token."""
    base, target = BaseRun.of(model, clean, []), Target(answer)
    edits = [Edit(f"layers.{layer}.heads", 0.0, heads=head) for layer, head in heads]
    without, _ = base.rerun(0, 1, lambda some: edits, target)
    return float(without[0]) - base.measured(target)


def _turned(samples: list[float]) -> tuple[float, float]:
    low, high = interval(samples)
    return -high, -low


def _grids(head_atlas: Atlas, effect: torch.Tensor) -> Figure:
    grid: list[list[float | None]] = [[None] * effect.shape[1] for _ in range(effect.shape[0])]
    for head in head_atlas.heads:
        grid[head.layer][head.head] = head.measures["induction"]
    panels = (
        Heat("Weight on what came after last time", "head", "layer", grid),
        Heat("Share of the answer that the head brings", "head", "layer", effect.tolist(), diverging=True),
    )
    return Figure("grids", TEXT.caption("grids"), panels)


def _bars(of_named: list[float], of_others: list[float], losses: dict[str, list[float]]) -> Figure:
    lost = {"in the atlas": [-x for x in losses["induction"]], "others": [-x for x in losses["others"]]}
    return Figure(
        "controls",
        TEXT.caption("controls"),
        (
            mean_bars("One head patched", "share recovered", {"in the atlas": of_named, "others": of_others}),
            mean_bars("All of them taken away", "log-probability lost", lost),
        ),
    )


STUDY = TEXT.study(
    "I1",
    run,
    (TEXT.parameter("prompts", 4, 2, 32), TEXT.parameter("length", 6, 3, 24)),
    seconds=25.0,
    needs=("smollm2",),
)
