"""P6: a learned table ends; and a row that training never reached is as good as none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vantage.compare.stack import Recipe, Stack
from vantage.errors import BadInput
from vantage.figures import Bars, Figure, Line, Lines
from vantage.model import Model, build, decoder
from vantage.position import Learned
from vantage.spec.model import ModelSpec
from vantage.studies.shared.findings import checked, conclude, judged
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText
from vantage.training.evaluate import evaluate
from vantage.training.log import ScoreRecord
from vantage.training.sequences import Sequences
from vantage.training.tasks import task

TEXT = StudyText.beside(__file__)

TABLE = "embed.inputs.0.table"
TOKENS = 4
EXAMPLES = 128
RATE, BATCH = 1e-2, 32
CPU = torch.device("cpu")


@dataclass(frozen=True)
class TrainedTable:
    """A model with a table for the longest test, trained at the shorter lengths only."""

    spec: ModelSpec
    data: Sequences
    weights: dict[str, Tensor]
    moved: Tensor  # (rows,): how far training took each row
    used: int  # rows that some training example reads


def run(values: Values, progress: Progress) -> Result:
    length, steps = int(values["length"]), int(values["steps"])
    table = train_table(length, steps, progress)
    ways = {
        "longer table, rows untrained": table.spec,
        "last row repeated": _with(table.spec, Learned(table.used, extend="last")),
        "starts again": _with(table.spec, Learned(table.used, extend="wrap")),
    }
    scores = {name: _scores(table, spec) for name, spec in ways.items()}
    refusal = _refusal(table)
    untrained = {n: score.exact for n, score in scores["longer table, rows untrained"].items()}
    inside = [at for at in untrained if at <= length]
    beyond = [at for at in untrained if at > length]
    trained_rows = int((table.moved > 0).sum())
    numbers = [
        judged("a position past the table", refusal or "accepted", "past the end" in refusal, "no extrapolation"),
        judged(
            f"rows that training moved (its examples have {table.used} tokens at most)",
            trained_rows,
            trained_rows == table.used,
        ),
        checked("largest change of a row never trained", float(table.moved[table.used :].max()), 0.0),
        judged(
            "right within the training lengths, the least",
            min(untrained[n] for n in inside),
            min(untrained[n] for n in inside) > 0.9,
        ),
        judged(
            "right beyond them, on untrained rows, the most",
            max(untrained[n] for n in beyond),
            max(untrained[n] for n in beyond) < 0.1,
        ),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_rows(table), _ways(scores)])


def train_table(length: int, steps: int, progress: Progress) -> TrainedTable:
    """Copying one repeated token: all there is to do is to count, which a table can learn in a second."""
    tests = (length // 2, length, length + 2, 2 * length)
    data = Sequences(task("copy", kind="one", tokens=TOKENS), "line", (1, length), tests, EXAMPLES)
    longest = 2 * tests[-1] + 2  # <s> prompt = answer
    spec = decoder(vocab=data.vocab, width=32, layers=1, heads=2, position=Learned(longest), max_length=longest)
    stack = Stack(spec, [0], [data], [RATE], Recipe(steps, BATCH), CPU)
    first = stack.weights[TABLE].detach().clone()
    stack.train(lambda step, _: progress(0.9 * step / steps, "training a model of one layer"))
    weights = {name: weight.detach()[0] for name, weight in stack.weights.items()}
    moved = (stack.weights[TABLE].detach() - first)[0].norm(dim=-1)
    return TrainedTable(spec, data, weights, moved, 2 * length + 2)


def _with(spec: ModelSpec, table: Learned) -> ModelSpec:
    return replace(spec, embedding=replace(spec.embedding, inputs=(table,)))


def _filled(table: TrainedTable, spec: ModelSpec) -> Model:
    model = build(spec)
    rows = len(model.state_dict()[TABLE])
    model.load_state_dict({**table.weights, TABLE: table.weights[TABLE][:rows]})
    return model.eval()


def _scores(table: TrainedTable, spec: ModelSpec) -> dict[int, ScoreRecord]:
    """By length."""
    model = _filled(table, spec)
    with torch.no_grad():
        scores = evaluate(model, lambda batch: model(batch.tokens), table.data.held_out(), 0, CPU)
    return dict(zip(table.data.test_lengths, scores, strict=True))


def _refusal(table: TrainedTable) -> str:
    """What the model says of a table without rows for the longer tests. Empty: it took them."""
    model = _filled(table, _with(table.spec, Learned(table.used)))
    try:
        with torch.no_grad():
            model(torch.ones(1, table.used + 1, dtype=torch.long))
    except BadInput as refused:
        return str(refused)
    return ""


def _rows(table: TrainedTable) -> Figure:
    line = Line("row", list(range(len(table.moved))), table.moved.tolist(), look="dots")
    panel = Lines("how far training moved each row", "position", "‖after − before‖", (line,))
    return Figure("rows", TEXT.caption("rows", last_used=table.used - 1), (panel,))


def _ways(scores: dict[str, dict[int, ScoreRecord]]) -> Figure:
    lengths = next(iter(scores.values()))
    series = tuple((name, [score.tokens for score in by_length.values()]) for name, by_length in scores.items())
    labels = tuple(f"length {n}" for n in lengths)
    return Figure("beyond", TEXT.caption("beyond"), (Bars("copying, by length", "tokens right", labels, series),))


STUDY = TEXT.study(
    "P6",
    run,
    (
        TEXT.parameter("length", 8, 4, 12),
        TEXT.parameter("steps", 200, 50, 1000),
    ),
    seconds=2.0,
)
