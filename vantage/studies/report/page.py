"""The page itself: a table of contents with verdicts, then each study with its numbers and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from vantage.figures import Histogram
from vantage.figures.drawing import svg
from vantage.figures.palette import report_css
from vantage.figures.tables import PanelTable, table
from vantage.studies.registry import LETTERS
from vantage.studies.runner import Outcome, format_value
from vantage.studies.sources import SOURCES
from vantage.studies.study import Study

VERDICTS = {"agrees": "agrees", "erratum": "erratum", "mixed": "agrees in part"}
MOST_ROWS = 60  # of a figure's numbers in the page; longer tables are in the JSON


@dataclass(frozen=True)
class ShownFigure:
    """A figure as the page shows it."""

    caption: str
    panels: tuple[Markup, ...]
    tables: tuple[PanelTable, ...]
    long: bool  # some of its tables are too long for the page


@dataclass(frozen=True)
class StudySection:
    outcome: Outcome
    figures: tuple[ShownFigure, ...]


def page(
    outcomes: Sequence[Outcome], failed: Sequence[tuple[Study, str]], versions: Mapping[str, str], command: str
) -> str:
    """The whole page, as text."""
    files = resources.files("vantage.studies.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"format_value": format_value, "prose": _prose, "paragraphs": paragraphs, "cell": _cell}
    template = environment.from_string(files.joinpath("page.html").read_text(encoding="utf-8"))
    tags = [outcome.tag for outcome in outcomes] + [study.tag for study, _ in failed]
    return template.render(
        style=Markup(_css()),
        parts=[StudySection(outcome, _figures(outcome)) for outcome in outcomes],
        failed=failed,
        letters={letter: name for letter, name in LETTERS.items() if any(tag.startswith(letter) for tag in tags)},
        counts=_counts(outcomes),
        verdicts=VERDICTS,
        sources=SOURCES,
        versions=versions,
        command=command,
        seconds=sum(outcome.seconds for outcome in outcomes),
    )


def _counts(outcomes: Sequence[Outcome]) -> str:
    """How many agree, how many errata there are."""
    phrases = []
    for verdict, (one, more) in {
        "agrees": ("agrees", "agree"),
        "erratum": ("erratum", "errata"),
        "mixed": ("agrees in part", "agree in part"),
    }.items():
        n = sum(outcome.verdict == verdict for outcome in outcomes)
        phrases += [f"{n} {one if n == 1 else more}"] if n else []
    return ", ".join(phrases)


def paragraphs(text: str) -> Markup:
    """Text with empty lines between its paragraphs."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    return Markup("").join(Markup("<p>{}</p>").format(_prose(part)) for part in parts)


def _prose(text: str) -> Markup:
    """Escaped, with `code` in its own type."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _figures(outcome: Outcome) -> tuple[ShownFigure, ...]:
    shown = []
    for figure in outcome.result.figures:
        panels = tuple(
            Markup(svg(panel, name=f"{outcome.tag}-{figure.name}-{i}", label=panel.title))
            for i, panel in enumerate(figure.panels)
        )
        tables = [
            one
            for panel, one in zip(figure.panels, table(figure), strict=True)
            if len(one.rows) <= MOST_ROWS and not isinstance(panel, Histogram)
        ]
        shown.append(ShownFigure(figure.caption, panels, tuple(tables), len(tables) < len(figure.panels)))
    return tuple(shown)


def _cell(value: str | float | None) -> str:
    return "–" if value is None else value if isinstance(value, str) else format_value(value)


def _css() -> str:
    """The style of our reports, and what a page of studies adds to it."""
    return report_css() + resources.files("vantage.studies.report").joinpath("style.css").read_text(encoding="utf-8")
