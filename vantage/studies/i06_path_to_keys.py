"""I6: which earlier heads an induction head's keys depend on, by path patching."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from vantage.figures import Figure, Heat
from vantage.inspect import atlas
from vantage.interventions import patch_path
from vantage.model import Model
from vantage.studies.a17_head_atlas import STORY
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars
from vantage.studies.shared.models import smollm2
from vantage.studies.shared.repetition import Head, common_words, other_heads
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
READ = 64  # tokens of the story that the atlas reads, twice
LENGTH = 6  # words before the repetition
SEED = 100  # of the first text: those of 0 to 5 were used up by a first form of the study
ENTRIES = ("keys", "queries", "values")  # each begins with the letter of its activation
OTHER_SENDERS, OTHER_RECEIVERS = "keys, from other heads", "keys of other heads"
Samples = dict[str, list[float]]


def run(values: Values, progress: Progress) -> Result:
    model, count = smollm2(), int(values["prompts"])
    progress(0.02, "reading the text")
    head_atlas = atlas(model, STORY, longest=READ)
    receivers = [(head.layer, head.head) for head in head_atlas.of("induction")[: int(values["receivers"])]]
    before = min((layer for layer, _ in receivers), default=0)
    previous = [(head.layer, head.head) for head in head_atlas.of("previous") if head.layer < before]
    if not previous:
        return conclude("", [held("heads that look one token back come before induction heads", False)], [])
    senders = {"previous": previous, "others": other_heads(previous, model, seed=0)}
    induction = {(head.layer, head.head) for head in head_atlas.of("induction")}
    beside = [_beside(model, induction, receiver, seed=n) for n, receiver in enumerate(receivers)]
    effects, grids = Samples(), list[Tensor]()
    for n in range(count):
        progress(0.1 + 0.9 * n / count, f"text {n + 1} of {count}")
        text = _prompt(model, seed=SEED + n)
        by_entry = {name: [_paths(model, text, one, name[0], previous) for one in receivers] for name in ENTRIES}
        elsewhere = [_paths(model, text, one, "k", previous) for one in beside]
        for name, tables in by_entry.items():
            effects.setdefault(name, []).append(_mean(tables, senders["previous"]))
        effects.setdefault(OTHER_SENDERS, []).append(_mean(by_entry["keys"], senders["others"]))
        effects.setdefault(OTHER_RECEIVERS, []).append(_mean(elsewhere, senders["previous"]))
        grids.append(by_entry["keys"][0])
    return _result(effects, torch.stack(grids).mean(0), previous, receivers)


def _result(effects: Samples, grid: Tensor, previous: list[Head], receivers: list[Head]) -> Result:
    keys = effects["keys"]
    right = [
        held("more comes from them into keys than from other heads", more_in_pairs(keys, effects[OTHER_SENDERS])),
        held("more than into queries", more_in_pairs(keys, effects["queries"])),
        held("more than into values", more_in_pairs(keys, effects["values"])),
        held("more than into the keys of other heads", more_in_pairs(keys, effects[OTHER_RECEIVERS])),
    ]
    strongest = int(grid.nan_to_num(-1.0).argmax())
    sender = (strongest // grid.shape[1], strongest % grid.shape[1])
    also = [Number(f"nats by a path, {name}", mean(some), interval=interval(some)) for name, some in effects.items()]
    also.append(Number(f"strongest path, {_name(sender)} to {_name(receivers[0])}", float(grid[sender])))
    words = TEXT.conclusion(
        keys=mean(keys), paths=len(previous) * len(receivers), others=mean(effects[OTHER_SENDERS]),
        queries=mean(effects["queries"]), values=mean(effects["values"]), elsewhere=mean(effects[OTHER_RECEIVERS]),
        sender=_name(sender), receiver=_name(receivers[0]), strongest=float(grid[sender]),
    )  # fmt: skip
    layers = sorted({layer for layer, _ in previous})
    return conclude(words, [*right, *also], [_bars(effects), _senders(grid, layers, receivers[0])])


def _prompt(model: Model, seed: int) -> tuple[list[int], list[int], int]:
    """Words and the same again but for the last, the answer; and with another word before it in the first half."""
    *words, other = random.Random(seed).sample(common_words(model), LENGTH + 1)
    return [*words, *words[:-1]], [*words[:-2], other, words[-1], *words[:-1]], words[-1]


def _paths(
    model: Model, text: tuple[list[int], list[int], int], receiver: Head, entry: str, senders: list[Head]
) -> Tensor:
    """(layers, heads): nats that each path into one head adds, from the layers that have a sender; others are nan."""
    clean, corrupted, answer = text
    layers = sorted({layer for layer, _ in senders})
    swept = patch_path(model, clean, corrupted, receiver=receiver, through=entry, layers=layers, target=answer)
    table = torch.full((len(model.blocks), len(swept.cells)), float("nan"))
    table[layers] = swept.values - swept.before
    return table


def _mean(tables: list[Tensor], senders: list[Head]) -> float:
    return mean([float(table[head]) for table in tables for head in senders])


def _beside(model: Model, induction: set[Head], receiver: Head, seed: int) -> Head:
    """A head of the nearest layer, that of the receiver if possible, whose keys no induction head shares."""

    def free(layer: int) -> list[Head]:
        shape = model.spec.layers[layer].attention.shape(model.spec.width)
        shared = {head * shape.kv_heads // shape.heads for at, head in induction if at == layer}
        return [(layer, head) for head in range(shape.heads) if head * shape.kv_heads // shape.heads not in shared]

    nearest = sorted(range(receiver[0], len(model.blocks)), key=lambda layer: layer - receiver[0])
    return random.Random(seed).choice(next(heads for layer in nearest if (heads := free(layer))))


def _name(head: Head) -> str:
    return f"{head[0]}·{head[1]}"


def _bars(effects: Samples) -> Figure:
    panel = mean_bars("One path", "log-probability gained, nats", effects)
    return Figure("paths", TEXT.caption("paths"), (panel,))


def _senders(grid: Tensor, layers: list[int], receiver: Head) -> Figure:
    panel = Heat(
        f"Into the keys of {_name(receiver)}", "head", "layer", grid[layers].tolist(),
        y_ticks=tuple(map(str, layers)), diverging=True,
    )  # fmt: skip
    return Figure("senders", TEXT.caption("senders"), (panel,))


STUDY = TEXT.study(
    "I6",
    run,
    (TEXT.parameter("prompts", 8, 2, 32), TEXT.parameter("receivers", 1, 1, 6)),
    seconds=25.0,
    needs=("smollm2",),
)
