"""I2: a trained model rests on the first token, and is lost without it."""

from __future__ import annotations

import torch

from vantage.figures import Figure, Lines
from vantage.figures.chart import Line
from vantage.interventions import Edit, trace
from vantage.model import Model
from vantage.studies.a17_head_atlas import STORY
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
FIRST = 6  # tokens at the beginning that stay as they are: the cut is made for those that come later
CONTROLS = (1, 2, 3)  # the other keys that are hidden, one at a time
Losses = dict[int | None, list[float]]  # by the key that is hidden


def run(values: Values, progress: Progress) -> Result:
    model, count = smollm2(), int(values["texts"])
    length = int(values["tokens"])
    tokens = model.tokenizer.encode(STORY)
    step = max(1, (len(tokens) - length) // max(1, count - 1))
    texts = [tokens[n * step : n * step + length] for n in range(count)]
    weight, moved, losses, early = list[float](), list[float](), Losses(), list[float]()
    for n, text in enumerate(texts):
        progress(n / count, f"text {n + 1} of {count}")
        weight.append(_weight(model, text, 0, []))
        for key in (None, 0, *CONTROLS):
            losses.setdefault(key, []).append(_loss(model, text, _hidden(text, key)))
        from_all = _hidden(text, 0, since=1)
        early.append(_loss(model, text, from_all) - losses[None][n])
        moved.append(_weight(model, text, 1, from_all) - _weight(model, text, 1, []))
    extra = {key: [a - b for a, b in zip(losses[key], losses[None], strict=True)] for key in (0, *CONTROLS)}
    controls = [mean([extra[key][n] for key in CONTROLS]) for n in range(count)]
    right = [
        held("the first token gets more weight than its share", interval(weight)[0] > 1 / FIRST),
        held("hiding it from late tokens costs more than hiding another", more_in_pairs(extra[0], controls)),
        held("hidden from all, its part is taken by the second token", interval(moved)[0] > 0),
        held("which costs less", more_in_pairs(extra[0], early)),
    ]
    also = [
        Number("mean weight on the first token", mean(weight), interval=interval(weight)),
        Number("loss of the texts as they are", mean(losses[None])),
        Number("more loss, the first token hidden from late ones", mean(extra[0]), interval=interval(extra[0])),
        Number("more loss, one other token hidden from late ones", mean(controls), interval=interval(controls)),
        Number("more loss, the first token hidden from all", mean(early), interval=interval(early)),
        Number("weight that the second token gains then", mean(moved), interval=interval(moved)),
    ]
    words = TEXT.conclusion(
        weight=mean(weight), extra=mean(extra[0]), other=mean(controls), early=mean(early), moved=mean(moved)
    )
    return conclude(words, [*right, *also], [_bars(extra, early), _layers(model, texts[:2], progress)])


def _hidden(text: list[int], key: int | None, since: int = FIRST, layer: int | None = None) -> list[Edit]:
    """One key hidden from the queries that come ``since``, in one layer or in all."""
    name = "layers.*.scores" if layer is None else f"layers.{layer}.scores"
    return [] if key is None else [Edit(name, float("-inf"), positions=range(since, len(text)), keys=key)]


def _weight(model: Model, text: list[int], key: int, edits: list[Edit]) -> float:
    """The mean weight of late queries on a key."""
    seen = trace(model, text, read="layers.*.weights", edits=edits)
    return mean([float(seen[name][0, :, FIRST:, key].mean()) for name in seen.passes])


def _loss(model: Model, text: list[int], edits: list[Edit]) -> float:
    """The mean loss after late tokens."""
    logits = trace(model, text, edits=edits).logits[0, FIRST:-1]
    return float(torch.nn.functional.cross_entropy(logits.float(), torch.tensor(text[FIRST + 1 :])))


def _bars(extra: dict[int, list[float]], early: list[float]) -> Figure:
    shown = {"the first" if key == 0 else f"token {key}": some for key, some in extra.items()}
    shown["the first, from all"] = early
    bars = mean_bars("One key hidden in every layer", "more loss, nats", shown)
    return Figure("hidden", TEXT.caption("hidden"), (bars,))


def _layers(model: Model, texts: list[list[int]], progress: Progress) -> Figure:
    layers = range(0, len(model.blocks), 3)
    losses = list[float]()
    for layer in layers:
        progress(0.9, f"hidden in layer {layer} alone")
        losses.append(mean([_loss(model, text, _hidden(text, 0, layer=layer)) for text in texts]))
    whole = mean([_loss(model, text, []) for text in texts])
    line = Line("hidden in one layer", [float(n) for n in layers], [loss - whole for loss in losses])
    return Figure("layers", TEXT.caption("layers"), (Lines("Layer by layer", "layer", "more loss, nats", (line,)),))


STUDY = TEXT.study(
    "I2",
    run,
    (TEXT.parameter("texts", 6, 2, 24), TEXT.parameter("tokens", 32, 12, 128)),
    seconds=20.0,
    needs=("smollm2",),
)
