"""A study's report: a folder with one self-contained page, a CSV of every score and everything as JSON."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vantage.compare.cells import View
from vantage.compare.claims import measure_claims
from vantage.compare.published import compare_with, paper
from vantage.compare.report.data import csv_text, json_text, verdicts_text
from vantage.compare.report.page import page
from vantage.compare.results import Result
from vantage.compare.verdicts import Verdict, controls
from vantage.errors import BadInput, unknown
from vantage.files import write_text

PAGE, CSV, VERDICTS, JSON = "index.html", "scores.csv", "verdicts.csv", "report.json"
FACTS: Mapping[str, Any] = {  # what a study may say of itself, and what stands where it does not
    "title": "Which encoding holds beyond the training length?",
    "train_length": None,  # a number, or one for each task; the only one that must be there
    "command": "",  # that repeats the study
    "settings": {},
    "versions": {},  # of what made it: see ``machine``
    "entries": (),  # in which order they are named and coloured
    "measures": {},  # by task: "exact", "tokens" or "loss"
    "chance": {},  # by task: what a guess gets, where the task itself does not say it
    "published": (),  # names of papers to set beside
    "notes": (),  # sentences for the head of the page
    "reach": "training length",  # what lies beyond which the report is about: or "context"
    "samples": ("seed", "seeds"),  # what is paired across entries: or pieces of text
    "runs": "runs",  # what a result is of: or "readings"
    "claims": True,  # whether the course's claims are about such a study
}


def write_report(folder: str | Path, study_facts: Mapping[str, Any], results: Sequence[Result]) -> Path:
    """Writes the page, the CSV and the JSON, and gives the page's path. The same facts and results, the same bytes."""
    facts = _checked(study_facts)
    if not results:
        raise BadInput("no results: a report needs at least one finished run")
    view = View(tuple(sorted(results, key=lambda run: run.key)), facts["train_length"], facts["measures"])
    where = (view.train_length, view.measures)
    verdicts: dict[str, list[Verdict]] = {
        "controls": controls(view, facts["chance"]),
        "claims": measure_claims(view.results, *where, facts["chance"]) if facts["claims"] else [],
    }
    for name in facts["published"]:
        verdicts[f"published: {paper(name).name}"] = compare_with(name, view.results, *where)
    facts["papers"] = {
        f"published: {chosen.name}": {key: value for key, value in asdict(chosen).items() if key != "rows"}
        for chosen in map(paper, facts["published"])
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CSV, csv_text(view))
    write_text(folder / VERDICTS, verdicts_text(verdicts))
    write_text(folder / JSON, json_text(view, facts, verdicts))
    write_text(folder / PAGE, page(view, facts, verdicts))
    return folder / PAGE


def machine() -> dict[str, str]:
    """What is running this: for ``versions``, to be kept with a study when it is run."""
    import numpy
    import torch

    from vantage import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "vantage": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "accelerator": gpu,
    }


def _processor() -> str:
    said = Path("/proc/cpuinfo")
    if sys.platform == "linux" and said.exists():
        for line in said.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "not known"


def _checked(said: Mapping[str, Any]) -> dict[str, Any]:
    for name in said:
        if name not in FACTS:
            raise BadInput(unknown("fact", name, FACTS))
    facts = {**FACTS, **said}
    if facts["train_length"] is None:
        raise BadInput("the facts of a study must have train_length: what lies beyond is what the report is about")
    if isinstance(facts["published"], str):
        facts["published"] = (facts["published"],)
    return facts
