"""A1: attention in a recurrent encoder-decoder, against the bottleneck of the last state."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vantage.figures import Bars, Figure, Heat, Line, Lines
from vantage.model.recurrent import RecurrentModel, RecurrentSpec, build_recurrent, same_size
from vantage.model.recurrent import parameters as count_parameters
from vantage.studies.shared.findings import conclude, held, interval
from vantage.studies.shared.runs import TrainingProgress
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText
from vantage.training import train
from vantage.training.batch import Batch
from vantage.training.log import ScoreRecord
from vantage.training.probes import LinearProbe, decoder_count, encoder_position
from vantage.training.sequences import Sequences
from vantage.training.tasks import Example, task

TEXT = StudyText.beside(__file__)

LONGEST = 14  # characters of what is trained on: as many as the document's sentence has
LENGTHS = (1, 2, 4, 6, 8, 10, 12, 14, 17, 20)
EXAMPLES = 200  # of each length
SENTENCE = "I am a student"
NAMES = ("with attention", "without")
PROBED = ("position", "steps done", "steps left")
FALL = 0.5  # the share of exact answers falls by this much or more
STEADY = 0.15  # and is called steady if by no more than this
READABLE = 0.9  # R² from which a number is said to be in the states


@dataclass(frozen=True)
class ModelFindings:
    """One of the two models, trained and looked into."""

    model: RecurrentModel
    scores: dict[int, ScoreRecord]  # by length
    probes: dict[str, LinearProbe]
    fresh: dict[str, LinearProbe]  # the same of a model without training


def run(values: Values, progress: Progress) -> Result:
    steps, width, seed = (int(values[name]) for name in ("steps", "width", "seed"))
    specs = specs_of(width)
    sides: dict[str, ModelFindings] = {}
    for i, (name, spec) in enumerate(specs.items()):
        sides[name] = _train_and_probe(
            spec, steps, seed, TrainingProgress(progress, 0.5 * i, 0.5 * i + 0.45, name), progress
        )
    attending, plain = (sides[name] for name in NAMES)
    weights = _alignment(attending.model, _sentence())
    hits = _on_the_right_one(attending.model, seed)
    fallen = plain.scores[LENGTHS[0]].exact - plain.scores[LONGEST].exact
    kept = attending.scores[LENGTHS[0]].exact - attending.scores[LONGEST].exact
    right = [
        held(f"without attention accuracy falls, from length 1 to {LONGEST}", fallen >= FALL),
        held("with attention it does not, at the lengths that were trained", kept <= STEADY),
        held("the encoder's states tell a token's position", _learned(attending, "position")),
        held("the decoder's states count", _learned(attending, "steps done") and _learned(attending, "steps left")),
    ]
    also = [_exact(name, sides[name].scores[n]) for n in (6, LONGEST, LENGTHS[-1]) for name in NAMES]
    also += [_probe(f"R² of {what}, {name}", sides[name].probes[what]) for what in PROBED for name in NAMES]
    also += [_probe(f"R² of {what}, before any training", attending.fresh[what]) for what in PROBED]
    also.append(Number("answers that looked most at the character they convert", hits))
    also += [Number(f"parameters, {name}", count_parameters(spec)) for name, spec in specs.items()]
    words = TEXT.conclusion(
        longest=LONGEST,
        with_attention=attending.scores[LONGEST].exact,
        without=plain.scores[LONGEST].exact,
        position_r2=attending.probes["position"].r2,
        count_r2=attending.probes["steps done"].r2,
    )
    return conclude(words, [*right, *also], _figures(sides, weights))


def specs_of(width: int) -> dict[str, RecurrentSpec]:
    """Both models; the one without attention is wider, so that it has as many parameters."""
    vocab = _data(0).vocab
    looking = RecurrentSpec(vocab, width, attention="general")
    return dict(zip(NAMES, (looking, same_size(RecurrentSpec(vocab, width), looking)), strict=True))


def _data(seed: int) -> Sequences:
    """Sequences for probes and alignments, of two lengths, so that steps done and steps left are two things."""
    return Sequences(task("case"), "pair", (1, LONGEST), (LONGEST // 2, LONGEST), EXAMPLES // 2, seed=10_000 + seed)


def _train_and_probe(
    spec: RecurrentSpec, steps: int, seed: int, report: TrainingProgress, progress: Progress
) -> ModelFindings:
    settings = {
        "seed": seed,
        "model": {"is": "recurrent", "cell": spec.cell, "width": spec.width}
        | ({} if spec.attention is None else {"attention": spec.attention}),
        "data": {
            "is": "task",
            "task": "case",
            "lengths": [1, LONGEST],
            "test_lengths": list(LENGTHS),
            "test_examples": EXAMPLES,
        },
        "loop": {"steps": steps, "batch": 64},
        "optimiser": {"is": "adamw", "lr": 4e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
        "schedule": {"is": "cosine", "warmup": max(1, steps // 10), "floor": 0.05},
    }
    with tempfile.TemporaryDirectory() as place:
        trained = train(settings, out=Path(place) / "run", device="cpu", report=report)
    progress(report.high, f"{report.what}: probes")
    assert isinstance(trained.model, RecurrentModel)
    scores = {int(score.set.removeprefix("length ")): score for score in trained.scores}
    fresh = build_recurrent(spec, seed=seed + 1)
    return ModelFindings(trained.model, scores, _probed(trained.model, seed), _probed(fresh, seed))


def _probed(model: RecurrentModel, seed: int) -> dict[str, LinearProbe]:
    batches = [batch for some in _data(seed).held_out().values() for batch in some]
    count = decoder_count(model, batches)
    return dict(zip(PROBED, (encoder_position(model, batches), count.step, count.remaining), strict=True))


def _learned(side: ModelFindings, what: str) -> bool:
    """It can be read, and better than a recurrence of random weights has it by itself."""
    now, before = side.probes[what], side.fresh[what]
    return now.r2 >= READABLE and now.interval[0] > before.interval[1]


def _exact(name: str, score: ScoreRecord) -> Number:
    return Number(f"exact answers, {score.set}, {name}", score.exact, interval=_band(score))


def _band(score: ScoreRecord) -> tuple[float, float]:
    good = round(score.exact * score.rows)
    return interval([1.0] * good + [0.0] * (score.rows - good))


def _probe(what: str, probe: LinearProbe) -> Number:
    return Number(what, probe.r2, interval=probe.interval)


# ---- the alignment


def _sentence() -> Batch:
    """The document's sentence, to be put in capitals."""
    names = task("case").symbols
    prompt = (names.index("<U>"), *map(names.index, SENTENCE))
    return _data(0).collate([Example(prompt, tuple(map(names.index, SENTENCE.upper())))])


@torch.no_grad()
def _alignment(model: RecurrentModel, batch: Batch) -> Tensor:
    """(B, T, S) under teacher forcing."""
    assert batch.source is not None
    return model.align(batch.tokens, source=batch.source, source_mask=batch.source_mask)[1]


def _on_the_right_one(model: RecurrentModel, seed: int) -> float:
    """The share of characters whose greatest weight is on the one they convert: after the mark, in order."""
    hits: list[float] = []
    for batch in _data(seed).held_out()[f"length {LONGEST}"]:
        best = _alignment(model, batch)[:, :LONGEST].argmax(-1)
        hits += (best == torch.arange(1, LONGEST + 1)).double().flatten().tolist()
    return sum(hits) / len(hits)


# ---- pictures


def _figures(sides: dict[str, ModelFindings], weights: Tensor) -> list[Figure]:
    x = [float(n) for n in LENGTHS]

    def line(name: str) -> Line:
        scores = [sides[name].scores[n] for n in LENGTHS]
        low, high = zip(*map(_band, scores), strict=True)
        return Line(name, x, [score.exact for score in scores], low, high)

    exact = Lines("Exact answers", "characters", "share", tuple(line(name) for name in NAMES))
    lines = tuple(Line(name, x, [sides[name].scores[n].tokens for n in LENGTHS]) for name in NAMES)
    letters = Lines("Right characters", "characters", "share", lines)
    aligned = Heat(
        "Alignment",
        "input",
        "output",
        weights[0].tolist(),
        x_ticks=("<U>", *SENTENCE),
        y_ticks=(*SENTENCE.upper(), "end"),
    )
    series = [(name, sides[name].probes) for name in NAMES] + [("untrained", sides[NAMES[0]].fresh)]
    probes = Bars(
        "What a linear probe reads",
        "R²",
        PROBED,
        tuple((name, [probed[what].r2 for what in PROBED]) for name, probed in series),
        tuple([probed[what].interval[0] for what in PROBED] for _, probed in series),
        tuple([probed[what].interval[1] for what in PROBED] for _, probed in series),
    )
    return [
        Figure("length", TEXT.caption("length", longest=LONGEST), (exact, letters)),
        Figure("alignment", TEXT.caption("alignment", sentence=SENTENCE), (aligned,)),
        Figure("probes", TEXT.caption("probes"), (probes,)),
    ]


STUDY = TEXT.study(
    "A1",
    run,
    (
        TEXT.parameter("steps", 1000, 20, 5000),
        TEXT.parameter("width", 96, 8, 256),
        TEXT.parameter("seed", 0, 0, 1000),
    ),
    seconds=120.0,
    trains=True,
)
