"""The words of a study: a Markdown file beside its code, with the same name.

``a02_worked_context.md`` has the title (``# …``), the line ``Sources: S0, S2``, and the sections Statement,
Explanation, Parameters (``- name: what it is``), Conclusion, and Captions with one ``### name`` for each figure.
``{name}`` in a conclusion or caption is a number that the study computes. Lines may be broken anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vantage.studies.study import Parameter, Progress, Result, Study, Value, Values

HEADING = re.compile(r"(#{1,3}) +(.+)")
PARAMETER = re.compile(r"- (\w+): (.+)", re.DOTALL)
SECTIONS = {"Statement", "Explanation", "Parameters", "Conclusion", "Captions", "Sample text"}


def read_sections(path: Path) -> tuple[str, dict[str, str]]:
    """The title, and the text under each heading as it stands; "### b" below "## a" is under "a/b"."""
    title, section, key = "", "", ""
    lines: dict[str, list[str]] = {"": []}
    for line in path.read_text(encoding="utf-8").splitlines():
        heading = HEADING.fullmatch(line)
        if heading is None:
            lines[key].append(line)
            continue
        level, name = len(heading[1]), heading[2]
        if level == 1:
            title = name
            continue
        section = name if level == 2 else section
        key = section if level == 2 else f"{section}/{name}"
        if key in lines:
            raise ImportError(f"{path.name} has two sections {key!r}")
        lines[key] = []
    if not title:
        raise ImportError(f"{path.name} has no title: it begins with '# …'")
    return title, {key: "\n".join(body).strip("\n") for key, body in lines.items()}


def unwrap(text: str) -> str:
    """Paragraphs as one line each, with an empty line between them."""
    return "\n\n".join(" ".join(part.split("\n")) for part in re.split(r"\n\n+", text)) if text else ""


@dataclass(frozen=True)
class StudyText:
    path: Path
    title: str
    sources: tuple[str, ...]
    sections: Mapping[str, str]

    @classmethod
    def beside(cls, file: str) -> Self:
        """The text of the study in this file: ``StudyText.beside(__file__)``."""
        path = Path(file).with_suffix(".md")
        title, sections = read_sections(path)
        sources = sections.pop("").strip().removeprefix("Sources: ")
        if unknown := sorted({key.partition("/")[0] for key in sections} - SECTIONS):
            raise ImportError(f"{path.name} has a section {unknown[0]!r}; there may be {', '.join(sorted(SECTIONS))}")
        return cls(path, title, tuple(sources.split(", ")), {key: unwrap(body) for key, body in sections.items()})

    @property
    def parameters(self) -> dict[str, str]:
        """What each parameter is, by name."""
        items = re.split(r" (?=- \w+: )", self.sections.get("Parameters", ""))
        matches = [PARAMETER.fullmatch(item) for item in items if item]
        return {match[1]: match[2] for match in matches if match is not None}

    def parameter(
        self,
        name: str,
        default: Value,
        low: float | None = None,
        high: float | None = None,
        choices: tuple[str, ...] = (),
    ) -> Parameter:
        """A parameter with what the text says of it."""
        return Parameter(name, default, self.parameters.get(name, ""), low, high, choices)

    def conclusion(self, **values: Any) -> str:
        """What is said where everything came out as expected."""
        return self.passage("Conclusion", **values)

    def caption(self, figure: str, /, **values: Any) -> str:
        return self.passage(f"Captions/{figure}", **values)

    def passage(self, key: str, /, **values: Any) -> str:
        """A section with its numbers filled in."""
        if key not in self.sections:
            raise KeyError(f"{self.path.name} has no section {key!r}")
        return self.sections[key].format(**values)

    def study(
        self,
        tag: str,
        run: Callable[[Values, Progress], Result],
        parameters: tuple[Parameter, ...] = (),
        *,
        seconds: float = 1.0,
        trains: bool = False,
        needs: tuple[str, ...] = (),
    ) -> Study:
        """The study itself. Its parameters are those of the text."""
        names = [parameter.name for parameter in parameters]
        if names != list(self.parameters):
            raise ImportError(f"{self.path.name} names the parameters {list(self.parameters)}; the study has {names}")
        statement, explanation = self.sections["Statement"], self.sections["Explanation"]
        return Study(tag, self.title, self.sources, statement, explanation, run, parameters, seconds, trains, needs)
