"""T3: pre-train on text without labels, then adapt: by a few labels, or by asking in the right way."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vantage.figures import Bars, Figure, Line, Lines
from vantage.studies.shared.findings import conclude, interval, judged, mean
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText
from vantage.training import Run, ScoreRecord, StepRecord, Trained
from vantage.training.settings import settings_of

TEXT = StudyText.beside(__file__)

GOOD = ["good", "great", "lovely", "kind", "warm", "bright", "fresh", "tasty", "quick", "quiet", "clean", "fine"]
BAD = ["bad", "awful", "nasty", "rude", "cold", "dark", "stale", "bland", "slow", "loud", "dirty", "poor"]
THINGS = ["food", "room", "staff", "soup", "bread", "view", "tea", "place"]
LABELLED = 4  # of each kind of words: the labels never show the model the others
SHAPE = {"width": 64, "layers": 2, "heads": 4}
LENGTH, SENTENCES, TESTS, FINE_STEPS = 64, 6000, 200, 60
CHANCE = 0.5
END = " so i "  # where a reader has to have made up its mind


def run(values: Values, progress: Progress) -> Result:
    steps, labels, seeds = (int(values[name]) for name in ("steps", "labels", "seeds"))
    scratch: list[float] = []
    tuned: list[float] = []
    prompted: list[float] = []
    curves: list[list[tuple[int, float]]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory(prefix="vantage-study-") as folder:
            here, share = Path(folder), 1 / seeds

            def report_progress(done: float, doing: str, seed: int = seed, share: float = share) -> None:
                progress(share * (seed + done), f"seed {seed + 1} of {seeds}: {doing}")

            _write(here, seed, labels)
            reading = _Watch(lambda part: report_progress(0.8 * part, "reading text"))
            before = _pretrained(here, steps, seed, reading)
            curves.append(reading.losses)
            prompted.append(_score_by_prompt(before, here))
            few = _Watch(lambda part: report_progress(0.8 + 0.1 * part, "a few labels"))
            tuned.append(_classified(here, "tuned", {"is": "loaded", "source": str(before.kept)}, seed, few))
            again = _Watch(lambda part: report_progress(0.9 + 0.1 * part, "a few labels, and no text before"))
            scratch.append(_classified(here, "scratch", {"is": "decoder", **SHAPE}, seed, again))
    progress(1.0, "done")
    won = [a - b for a, b in zip(tuned, scratch, strict=True)]
    numbers = [
        _share("right after text and labels", tuned),
        _share("right after labels alone", scratch),
        judged("gained by reading text first", mean(won), mean(won) > 0.1, "more than nothing"),
        judged("right without any label, by asking", mean(prompted), mean(prompted) > CHANCE + 0.2, "more than chance"),
        Number("loss of the first step of pre-training, nats a byte", mean([c[0][1] for c in curves])),
        Number("loss of the last step of pre-training, nats a byte", mean([c[-1][1] for c in curves])),
        Number("labelled examples", labels),
    ]
    words = TEXT.conclusion(labels=labels, scratch=mean(scratch), tuned=mean(tuned), asked=mean(prompted))
    return conclude(words, numbers, _figures(curves[0], scratch, tuned, prompted))


def _share(what: str, shares: list[float]) -> Number:
    return Number(what, mean(shares), interval=interval(shares) if len(shares) > 1 else None)


# ---- the text


def _sentence(source: random.Random, words: list[str]) -> str:
    """One that is all praise, or all blame."""
    first, second = source.sample(THINGS, 2)
    one, two = source.sample(words, 2)
    return f"the {first} was {one} and the {second} was {two}"


def _write(folder: Path, seed: int, labels: int) -> None:
    """Text without labels, in which a sentence ends as people would end it; labelled sentences; and a test."""
    kinds = ((GOOD, "liked", "yes"), (BAD, "hated", "no"))
    source, lines = random.Random(0), []  # the same text for every seed
    for _ in range(SENTENCES):
        words, verb, _ = source.choice(kinds)
        lines.append(f"{_sentence(source, words)}{END}{verb} it.")
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = random.Random(seed + 1)
    for name, count, part in (("few", labels, slice(LABELLED)), ("test", TESTS, slice(LABELLED, None))):
        rows = [
            (f"{_sentence(source, words[part])}{END}", label)
            for i in range(count)
            for words, _, label in (kinds[i % 2],)
        ]
        (folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")


# ---- training


class _Watch:
    """Listens to a run: its losses, and how far it is."""

    def __init__(self, moved: Callable[[float], None]):
        self.losses: list[tuple[int, float]] = []
        self._moved, self._steps = moved, 1

    def begun(self, step: int, steps: int, about: str) -> None:
        self._steps = steps

    def stepped(self, record: StepRecord) -> None:
        self.losses.append((record.step, record.loss))
        self._moved(record.step / self._steps)

    def scored(self, records: list[ScoreRecord]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...


def _pretrained(folder: Path, steps: int, seed: int, watch: _Watch) -> Trained:
    """The next byte, again and again: nobody has to say what is right."""
    return _trained(
        folder / "text",
        {
            "seed": seed,
            "model": {"is": "decoder", **SHAPE},
            "data": {"is": "text", "files": str(folder / "text.txt"), "length": LENGTH, "test_windows": 8},
            "loop": {"steps": steps, "batch": 32, "threads": 1},
            "optimiser": {"is": "adamw", "lr": 3e-3},
            "save": {"every": 0},
        },
        watch,
    )


def _classified(folder: Path, name: str, model: dict[str, Any], seed: int, watch: _Watch) -> float:
    """The share of the test that is right after a few labels: the same steps whatever came before."""
    trained = _trained(
        folder / name,
        {
            "seed": seed,
            "model": model,
            "data": {
                "is": "labels",
                "files": str(folder / "few.tsv"),
                "valid": str(folder / "test.tsv"),
                "length": 2 * LENGTH,
            },
            "loop": {"steps": FINE_STEPS, "batch": 16, "threads": 1},
            "optimiser": {"is": "adamw", "lr": 1e-3},
            "save": {"every": 0},
        },
        watch,
    )
    return trained.scores[0].exact


def _trained(folder: Path, settings: dict[str, Any], watch: _Watch) -> Trained:
    before = torch.get_num_threads()
    try:  # so small a model is no faster on two cores, and much slower where others work on them too
        return Run(settings_of(settings), folder, device="cpu", report=watch).go()
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def _score_by_prompt(before: Trained, folder: Path) -> float:
    """The share that is right by prompting: after "so i", is the next byte more likely that of liked or of hated?"""
    model: Any = before.model
    right = 0
    rows = (folder / "test.tsv").read_text(encoding="utf-8").splitlines()
    yes, no = (model.tokenizer.encode(letter, special=False)[0] for letter in "lh")
    for row in rows:
        text, label = row.split("\t")
        logits = model(torch.tensor([model.tokenizer.encode(text, special=False)]))[0, -1]
        right += (label == "yes") == bool(logits[yes] > logits[no])
    return right / len(rows)


def _figures(
    curve: list[tuple[int, float]], scratch: list[float], tuned: list[float], prompted: list[float]
) -> list[Figure]:
    names = ("labels alone", "text, then labels", "text, then a prompt")
    groups = (scratch, tuned, prompted)
    around = [interval(of) if len(of) > 1 else (of[0], of[0]) for of in groups]
    steps = [step for step, _ in curve]
    return [
        Figure(
            "adapted",
            TEXT.caption("adapted"),
            (
                Bars(
                    "Right on the test",
                    "share",
                    names,
                    (("right", [mean(of) for of in groups]),),
                    low=([low for low, _ in around],),
                    high=([high for _, high in around],),
                ),
                Lines(
                    "Reading text",
                    "step",
                    "loss, nats a byte",
                    (Line("next byte", steps, [loss for _, loss in curve]),),
                ),
            ),
        )
    ]


STUDY = TEXT.study(
    "T3",
    run,
    (
        TEXT.parameter("steps", 250, 20, 2000),
        TEXT.parameter("labels", 16, 4, 128),
        TEXT.parameter("seeds", 2, 1, 5),
    ),
    seconds=60.0,
    trains=True,
)
