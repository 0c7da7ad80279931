"""What studies found, as one self-contained page and as JSON; and one of them for a notebook."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vantage.compare.report import machine
from vantage.errors import BadInput
from vantage.figures.drawing import notebook_html
from vantage.files import write_text
from vantage.studies.report.page import page, paragraphs
from vantage.studies.runner import Outcome, format_value
from vantage.studies.study import Study, describe_study

PAGE, JSON = "index.html", "studies.json"


@dataclass(frozen=True)
class FailedStudy:
    """A study that could not run, and why."""

    study: Study
    why: str


def write_report(
    folder: str | Path, outcomes: Sequence[Outcome], failed: Sequence[FailedStudy] = (), *, command: str = ""
) -> Path:
    """Writes the page and the JSON, and gives the page's path. ``command`` is what repeats it all."""
    if not outcomes:
        raise BadInput("no outcomes: a report needs at least one study that ran")
    versions = machine()
    text = page(outcomes, [(one.study, one.why) for one in failed], versions, command)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(
        folder / JSON, json.dumps(data(outcomes, failed, command, versions), ensure_ascii=False, allow_nan=False)
    )
    write_text(folder / PAGE, text)
    return folder / PAGE


def data(
    outcomes: Sequence[Outcome],
    failed: Sequence[FailedStudy],
    command: str = "",
    versions: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Everything as plain data."""
    return {
        "command": command,
        "versions": machine() if versions is None else versions,
        "studies": [outcome.to_dict() for outcome in outcomes],
        "failed": [{**describe_study(one.study), "why": one.why} for one in failed],
    }


def fragment(outcome: Outcome) -> str:
    """One study for a notebook: pictures as PNG, which every notebook shows."""
    study, result = outcome.study, outcome.result
    rows = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in _cells(number)) + "</tr>"
        for number in result.numbers
    )
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("what", "ours", "document", ""))
    pictures = "".join(notebook_html(figure) for figure in result.figures)
    return (
        f"<div><h3>{study.tag} {html.escape(study.title)}: {result.verdict}</h3>{paragraphs(study.statement)}"
        f"<p><b>{html.escape(result.words)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"{pictures}{paragraphs(study.explanation)}</div>"
    )


def _cells(number: Any) -> tuple[str, ...]:
    around = (
        "" if number.interval is None else f" [{format_value(number.interval[0])}, {format_value(number.interval[1])}]"
    )
    document = "" if number.document is None else format_value(number.document)
    return (
        number.what,
        format_value(number.ours) + around,
        document,
        {None: "", True: "agrees", False: "does not agree"}[number.agrees],
    )
