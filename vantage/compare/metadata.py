"""What a report says of its experiment besides the results, and what starts and repeats one: the command line and the
studio say the same."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vantage.compare import text as texts
from vantage.compare.experiment import Experiment, experiment_of
from vantage.compare.published import paper
from vantage.compare.run import EXPERIMENT_FILE
from vantage.compare.setups import notes
from vantage.errors import BadInput

TITLE = "Which encoding holds beyond the training length?"


def report_metadata(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """For ``write_report``. A resumed experiment says the same."""
    papers = "; ".join(paper(name).title for name in experiment.published)
    return {
        "title": f"Beside the paper: {papers}" if papers else TITLE,
        "train_length": experiment.train_length,
        "settings": asdict(experiment),
        "versions": json.loads((folder / EXPERIMENT_FILE).read_text())["versions"],
        "command": command(experiment),
        "entries": list(experiment.positions),
        "published": experiment.published,
        "notes": notes(experiment),
        "chance": _chance(experiment),
    }


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
    for name in ("rates", "search", "test_examples", "equal", "text", "vocabulary", "published"):
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
        raise BadInput(f"there is no experiment in {folder} to go on with ({e})") from e
    return experiment_of(fields, str(folder / EXPERIMENT_FILE))


def budget_seconds(budget: str) -> float:
    """ "90s", "30m" or "2h"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"a budget of {budget[:40]!r}: write it as 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
