"""Which studies there are: a file each, named by its tag (``a02_worked_context.py`` is A2)."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vantage.errors import BadInput, nearest
from vantage.studies.study import Progress, Result, Study, Values, check_parameter_names
from vantage.studies.text import StudyText

FILE = re.compile(r"([aptki])(\d\d)_[a-z0-9_]+\.py")
LETTERS = {  # in this order
    "A": "Attention",
    "P": "Position",
    "T": "Transformer",
    "K": "Cached generation",
    "I": "Interventions",
}
TAG = re.compile(rf"([{''.join(LETTERS)}])0*(\d+)")


def tags() -> dict[str, str]:
    """Every tag in its natural order, with the module that holds it. Nothing is imported."""
    stems: dict[str, str] = {}
    for path in Path(__file__).parent.glob("*.py"):
        if match := FILE.fullmatch(path.name):
            tag = f"{match[1].upper()}{int(match[2])}"
            if tag in stems:
                raise ImportError(f"two files are study {tag}: {stems[tag]}.py and {path.name}")
            stems[tag] = path.stem
    return {tag: stems[tag] for tag in sorted(stems, key=_natural_order)}


def studies() -> dict[str, Study]:
    """All of them by tag: A1, A2, …, P1, …, T1, …, K1, …"""
    return {tag: _read(tag, stem) for tag, stem in tags().items()}


def check_tag(tag: str) -> str:
    """The tag as it is written here. One that no study has is refused; no study is imported."""
    known, wanted = tags(), str(tag).strip().upper()
    if match := TAG.fullmatch(wanted):
        wanted = f"{match[1]}{int(match[2])}"
    if wanted not in known:
        near = _near(wanted, known)
        hint = f" Did you mean {near}?" if near else ""
        raise BadInput(f"there is no study {tag!r}.{hint} There are {spans(list(known))}; see `vantage study list`")
    return wanted


def check_values(tag: str, values: Mapping[str, str]) -> None:
    """Refuse what the study would refuse of these parameters; no study is imported."""
    declared = {parameter.name: parameter for parameter in declared_study(tag).parameters}
    check_parameter_names(tag, values, declared)
    for name, value in values.items():
        declared[name].read(value)


def declared_studies() -> dict[str, Study]:
    """All of them by tag, as their sources declare them: none is imported before it runs."""
    return {tag: declared_study(tag) for tag in tags()}


def declared_study(tag: str) -> Study:
    """A study as the end of its source has it, ``STUDY = TEXT.study("A2", run, …)``: from plain values and constants of
    the file. One that is declared otherwise is imported."""
    stem = tags()[tag]
    text = StudyText.beside(str(Path(__file__).parent / f"{stem}.py"))
    source = text.path.with_suffix(".py")
    names: dict[str, Any] = {"TEXT": text, "run": functools.partial(_run, tag), "len": len, "tuple": tuple}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name("STUDY")], value=value):
                with contextlib.suppress(NameError):
                    return eval(compile(ast.Expression(value), str(source), "eval"), {"__builtins__": {}, **names})
            case ast.Assign(targets=[target], value=value):
                with contextlib.suppress(ValueError):  # not a plain value
                    names |= _bound(target, ast.literal_eval(value))
    return _read(tag, stem)


def _bound(target: ast.expr, value: Any) -> dict[str, Any]:
    """What an assignment binds: ``KINDS = …``, or ``DIM, COUNT = …``."""
    match target:
        case ast.Name(name):
            return {name: value}
        case ast.Tuple(elts=targets):
            return {
                name: one for part, each in zip(targets, value, strict=True) for name, one in _bound(part, each).items()
            }
    return {}


def _run(tag: str, values: Values, progress: Progress) -> Result:
    return find(tag).run(values, progress)


def find(tag: str) -> Study:
    """The study of a tag, such as "A2". Upper or lower case; a tag that is not there is refused."""
    wanted = check_tag(tag)
    return _read(wanted, tags()[wanted])


def _near(wanted: str, known: dict[str, str]) -> str | None:
    """The same letter and the nearest number; or else whose file has a name like that."""
    letter, digits = next((c for c in wanted if c in LETTERS), None), re.search(r"\d+", wanted)
    if digits and letter:
        same = [tag for tag in known if tag[0] == letter]
        return min(same, key=lambda tag: abs(int(tag[1:]) - int(digits[0])), default=None)
    names = {stem[4:]: tag for tag, stem in known.items()}
    inside = [tag for name, tag in names.items() if len(wanted) > 2 and wanted.lower() in name]
    close = nearest(wanted, names)
    return inside[0] if inside else names[close] if close else None


def spans(of: list[str]) -> str:
    """Tags in few words: A1 to A17, P1, P3."""
    runs: list[list[str]] = []
    for tag in of:
        last = runs[-1][-1] if runs else ""
        if last[:1] == tag[0] and int(last[1:]) + 1 == int(tag[1:]):
            runs[-1].append(tag)
        else:
            runs.append([tag])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "none"


def _natural_order(tag: str) -> tuple[int, int]:
    return list(LETTERS).index(tag[0]), int(tag[1:])


def _read(tag: str, stem: str) -> Study:
    module = importlib.import_module(f"vantage.studies.{stem}")
    study = vars(module).get("STUDY")
    if not isinstance(study, Study) or study.tag != tag:
        got = "no STUDY" if not isinstance(study, Study) else f"a STUDY with the tag {study.tag}"
        raise ImportError(f"{stem}.py has {got}: it must end with STUDY = Study(tag={tag!r}, …)")
    return study
