"""I5: what each head adds to the logit of an answer, and what the logit loses without those that add most."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat
from vantage.interventions import Edit, attribute, trace
from vantage.model import Model
from vantage.studies.shared.findings import checked, conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars
from vantage.studies.shared.models import smollm2
from vantage.studies.shared.repetition import Head, other_heads, repeated_words
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
LENGTH = 6  # words before the repetition
EXACT = 1e-2  # of a logit: what float32 may lose over all parts
Samples = dict[str, list[float]]


def run(values: Values, progress: Progress) -> Result:
    model, count = smollm2(), int(values["prompts"])
    by_head, errors = list[Tensor](), list[float]()
    for n in range(count):
        progress(0.4 * n / count, f"choosing heads, text {n + 1} of {count}")
        clean, _, answer = repeated_words(model, LENGTH, seed=n)
        parts = attribute(model, clean, target=answer, groups=1)
        by_head.append(parts.by_layer("head"))
        errors.append(parts.error)
    table = torch.stack(by_head).mean(0)
    order = table.flatten().argsort(descending=True)[: int(values["heads"])].tolist()
    chosen = [(n // table.shape[1], n % table.shape[1]) for n in order]
    others = other_heads(chosen, model, seed=0)
    added, lost = Samples(), Samples()
    for n in range(count):
        progress(0.4 + 0.6 * n / count, f"trying them, text {n + 1} of {count}")
        clean, unrepeated, answer = repeated_words(model, LENGTH, seed=count + n)
        of_heads = attribute(model, clean, target=answer, groups=1).by_layer("head")
        behind = attribute(model, unrepeated, target=answer, groups=1).by_layer("head")
        for name, heads in (("chosen", chosen), ("others", others)):
            added.setdefault(name, []).append(_sum(of_heads, heads))
            added.setdefault(f"{name}, other words", []).append(_sum(behind, heads))
            lost.setdefault(name, []).append(_lost(model, clean, answer, heads))
    right = [
        held("the chosen heads add more than others of their layers", more_in_pairs(added["chosen"], added["others"])),
        held("they add more than behind other words", more_in_pairs(added["chosen"], added["chosen, other words"])),
        held("without them the answer loses more than without others", more_in_pairs(lost["chosen"], lost["others"])),
        held("it loses less than they had added", more_in_pairs(added["chosen"], lost["chosen"])),
        checked("the parts miss the logit by at most", max(errors), 0.0, within=EXACT),
    ]
    also = [Number(f"added to the logit, {name}", mean(some), interval=interval(some)) for name, some in added.items()]
    also += [Number(f"lost without, {name}", mean(some), interval=interval(some)) for name, some in lost.items()]
    words = TEXT.conclusion(
        heads=len(chosen), added=mean(added["chosen"]), others_added=mean(added["others"]),
        unrepeated=mean(added["chosen, other words"]), lost=mean(lost["chosen"]), others_lost=mean(lost["others"]),
        error=max(errors),
    )  # fmt: skip
    return conclude(words, [*right, *also], [_grid(table), _bars(added, lost)])


def _sum(table: Tensor, heads: list[Head]) -> float:
    return sum(float(table[head]) for head in heads)


def _lost(model: Model, tokens: list[int], answer: int, heads: list[Head]) -> float:
    """How far the logit of the answer, less the mean of all, falls with these heads at zero at the last token."""

    def logit(edits: list[Edit]) -> float:
        logits = trace(model, tokens, edits=edits).logits[0, -1].float()
        return float(logits[answer] - logits.mean())

    zero = [Edit(f"layers.{layer}.heads", 0.0, heads=head, positions=len(tokens) - 1) for layer, head in heads]
    return logit([]) - logit(zero)


def _grid(table: Tensor) -> Figure:
    panel = Heat("Added to the logit of the answer", "head", "layer", table.tolist(), diverging=True)
    return Figure("heads", TEXT.caption("heads"), (panel,))


def _bars(added: Samples, lost: Samples) -> Figure:
    panels = (mean_bars("Added directly", "logit", added), mean_bars("Lost without them", "logit", lost))
    return Figure("controls", TEXT.caption("controls"), panels)


STUDY = TEXT.study(
    "I5",
    run,
    (TEXT.parameter("prompts", 8, 2, 32), TEXT.parameter("heads", 8, 1, 32)),
    seconds=20.0,
    needs=("smollm2",),
)
