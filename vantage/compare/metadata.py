"""What a report says of its experiment besides the results, and what starts and repeats one: the command line and the
studio say the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vantage.compare import text as texts
from vantage.compare.experiment import Experiment, kept_experiment, trained_on
from vantage.compare.names import EXPERIMENT_FILE
from vantage.compare.published import paper
from vantage.compare.results import RunResult
from vantage.compare.setups import notes
from vantage.errors import BadInput

TITLE = "Which encoding holds beyond the training length?"


def report_metadata(experiment: Experiment, folder: Path, results: Sequence[RunResult] | None = None) -> dict[str, Any]:
    """For ``write_report``. A resumed experiment says the same. ``results``: what there is, if that may not be all."""
    kept = json.loads((folder / EXPERIMENT_FILE).read_text())
    papers = "; ".join(paper(name).title for name in experiment.published)
    return {
        "title": f"Beside the paper: {papers}" if papers else TITLE,
        "train_length": experiment.train_length,
        "settings": asdict(experiment),
        "versions": kept["versions"],
        "command": command(experiment),
        "entries": list(experiment.positions),
        "published": experiment.published,
        "notes": notes(experiment),
        "cuts": [*kept.get("cuts", ()), *_missing(experiment, results)],
        "measures": experiment.measures(),
        "chance": _chance(experiment),
    }


def _missing(experiment: Experiment, results: Sequence[RunResult] | None) -> list[str]:
    """What a budget ended before it was trained, in words."""
    if results is None or len(results) == len(experiment.wanted()):
        return []
    finished = {name: {r.key.seed for r in results if trained_on(r.key) == name} for name in experiment.tasks}
    seeds = ", ".join(f"{name} {len(of)}" for name, of in finished.items())
    return [
        f"The budget ended before all {experiment.seeds} seeds were trained. Reported are, of each entry: {seeds}. "
        "--resume trains the others."
    ]


def _chance(experiment: Experiment) -> dict[str, float]:
    """Of a text: the loss of a model that looks at no context."""
    if not experiment.text:
        return {}
    return dict.fromkeys(texts.READINGS, texts.unigram_loss(texts.shards(experiment.text, experiment.vocabulary)))


def command(experiment: Experiment) -> str:
    """What repeats it, with the number of steps that the budget came to."""
    words = ["vantage compare", "--tasks", *experiment.tasks, "--positions", *experiment.positions]
    words += ["--attention", *experiment.attention, "--train-length", str(experiment.train_length), "--test-lengths"]
    words += [*map(str, experiment.test_lengths), "--seeds", str(experiment.seeds), "--steps", str(experiment.steps)]
    words += [
        "--batch",
        str(experiment.batch),
        "--width",
        str(experiment.shape.width),
        "--layers",
        str(experiment.shape.layers),
    ]
    words += ["--heads", str(experiment.shape.heads)]
    for name in ("rates", "search", "test_examples", "equal", "text", "vocabulary", "published", "score", "first_seed"):
        value = getattr(experiment, name)
        if value and (
            experiment.published or value != getattr(Experiment, name)
        ):  # a paper's set-up has defaults of its own
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *(shlex.quote(str(one)) for one in values)]
    return " ".join(words)


def experiment_in(folder: Path) -> Experiment:
    """The experiment that a folder holds: to go on with it, nothing has to be given again."""
    try:
        fields = json.loads((folder / EXPERIMENT_FILE).read_text())["study"]
    except (OSError, ValueError, KeyError) as e:
        raise BadInput(f"there is no experiment to continue in {folder} ({e})") from e
    return kept_experiment(fields, str(folder / EXPERIMENT_FILE))
