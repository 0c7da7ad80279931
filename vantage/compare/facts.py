"""What a report says of its study besides the results, and what starts and repeats one: the command line and the
studio say the same."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vantage.compare import text as texts
from vantage.compare.conduct import STUDY
from vantage.compare.published import paper
from vantage.compare.setups import notes
from vantage.compare.study import Study, study_of
from vantage.errors import BadInput

TITLE = "Which encoding holds beyond the training length?"


def facts(study: Study, folder: Path) -> dict[str, Any]:
    """For ``write_report``. A resumed study says the same."""
    papers = "; ".join(paper(name).title for name in study.published)
    return {
        "title": f"Beside the paper: {papers}" if papers else TITLE,
        "train_length": study.train_length,
        "settings": asdict(study),
        "versions": json.loads((folder / STUDY).read_text())["versions"],
        "command": command(study),
        "entries": list(study.positions),
        "published": study.published,
        "notes": notes(study),
        "chance": _chance(study),
    }


def _chance(study: Study) -> dict[str, float]:
    """Of a text: the loss of a model that looks at no context."""
    if not study.text:
        return {}
    return dict.fromkeys(texts.READINGS, texts.guess(texts.shards(study.text, study.vocabulary)))


def command(study: Study) -> str:
    """What repeats it, with the number of steps that the budget came to."""
    words = ["vantage compare", "--tasks", *study.tasks, "--positions", *study.positions]
    words += ["--attention", *study.attention, "--train-length", str(study.train_length), "--test-lengths"]
    words += [*map(str, study.test_lengths), "--seeds", str(study.seeds), "--steps", str(study.steps)]
    words += ["--batch", str(study.batch), "--width", str(study.shape.width), "--layers", str(study.shape.layers)]
    words += ["--heads", str(study.shape.heads)]
    for name in ("rates", "search", "test_examples", "equal", "text", "vocabulary", "published"):
        value = getattr(study, name)
        if value and (study.published or value != getattr(Study, name)):  # a paper's set-up has defaults of its own
            given = value if isinstance(value, tuple) else (value,)
            words += [f"--{name.replace('_', '-')}", *(shlex.quote(str(one)) for one in given)]
    return " ".join(words)


def study_in(folder: Path) -> Study:
    """The study that a folder holds: to go on with it, nothing need be said again."""
    try:
        said = json.loads((folder / STUDY).read_text())["study"]
    except (OSError, ValueError, KeyError) as e:
        raise BadInput(f"there is no study in {folder} to go on with ({e})") from e
    return study_of(said, str(folder / STUDY))


def seconds(budget: str) -> float:
    """ "90s", "30m" or "2h"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"a budget of {budget[:40]!r}: write it as 90s, 30m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
