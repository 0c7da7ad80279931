"""An experiment's report: a folder with one self-contained page, a CSV of every score and everything as JSON."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vantage.compare.claims import measure_claims
from vantage.compare.published import compare_with, paper
from vantage.compare.report.data import csv_text, json_text, verdicts_text
from vantage.compare.report.page import page
from vantage.compare.result_table import ResultTable
from vantage.compare.results import RunResult
from vantage.compare.verdicts import Verdict, controls
from vantage.errors import BadInput, unknown
from vantage.files import write_text

PAGE, CSV, VERDICTS, JSON = "index.html", "scores.csv", "verdicts.csv", "report.json"
METADATA: Mapping[str, Any] = {  # what an experiment may say of itself, and what stands where it does not
    "title": "Which encoding holds beyond the training length?",
    "train_length": None,  # a number, or one for each task; the only one that must be there
    "command": "",  # that repeats the experiment
    "settings": {},
    "versions": {},  # of what made it: see ``machine``
    "entries": (),  # in which order they are named and coloured
    "measures": {},  # by task: "exact", "tokens" or "loss"
    "chance": {},  # by task: what a guess gets, where the task itself does not say it
    "published": (),  # names of papers to set beside
    "notes": (),  # sentences for the head of the page
    "cuts": (),  # what a budget had no room for, in sentences
    "reach": "training length",  # what lies beyond which the report is about: or "context"
    "samples": ("seed", "seeds"),  # what is paired across entries: or pieces of text
    "runs": "runs",  # what a result is of: or "readings"
    "claims": True,  # whether the course's claims are about such an experiment
}


def write_report(folder: str | Path, metadata: Mapping[str, Any], results: Sequence[RunResult]) -> Path:
    """Writes the page, the CSV and the JSON, and gives the page's path. The same metadata and results, the same
    bytes."""
    metadata = _checked(metadata)
    if not results:
        raise BadInput("no results: a report needs at least one finished run")
    table = ResultTable(tuple(sorted(results, key=lambda run: run.key)), metadata["train_length"], metadata["measures"])
    where = (table.train_length, table.measures)
    verdicts: dict[str, list[Verdict]] = {
        "controls": controls(table, metadata["chance"]),
        "claims": measure_claims(table.results, *where, metadata["chance"]) if metadata["claims"] else [],
    }
    for name in metadata["published"]:
        verdicts[f"published: {paper(name).name}"] = compare_with(name, table.results, *where)
    metadata["papers"] = {
        f"published: {chosen.name}": {key: value for key, value in asdict(chosen).items() if key != "rows"}
        for chosen in map(paper, metadata["published"])
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CSV, csv_text(table))
    write_text(folder / VERDICTS, verdicts_text(verdicts))
    write_text(folder / JSON, json_text(table, metadata, verdicts))
    write_text(folder / PAGE, page(table, metadata, verdicts))
    return folder / PAGE


def machine() -> dict[str, str]:
    """What is running this: for ``versions``, to be kept with an experiment when it is run."""
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
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "not known"


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    for name in values:
        if name not in METADATA:
            raise BadInput(unknown("metadata of an experiment", name, METADATA))
    metadata = {**METADATA, **values}
    if metadata["train_length"] is None:
        raise BadInput(
            "the metadata of an experiment must have train_length: what lies beyond is what the report is about"
        )
    if isinstance(metadata["published"], str):
        metadata["published"] = (metadata["published"],)
    return metadata
