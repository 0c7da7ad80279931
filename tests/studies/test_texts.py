"""The texts beside studies and exercises: each has one, nothing is unused, and the numbers it names are computed."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

from vantage.studies import registry
from vantage.studies.exercises import registry as exercise_registry
from vantage.studies.exercises.text import ExerciseText
from vantage.studies.text import StudyText, read_sections, unwrap

FOLDER = Path(registry.__file__).parent
TASKS = Path(exercise_registry.__file__).parent / "tasks"
STEMS = sorted(registry.tags().values())
GOOD = "# A title\n\nSources: S0, S1\n\n## Statement\n\none\ntwo\n\n## Explanation\n\nthree\n\nfour\n"


def test_every_study_has_its_text_and_every_text_its_study() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == STEMS


def _placeholders(body: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(body) if name is not None}


def _uses(stem: str) -> dict[str, set[str]]:
    """The passages that the code of a study asks for, with the names of the numbers it fills in."""
    tree = ast.parse((FOLDER / f"{stem}.py").read_text(encoding="utf-8"))
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="TEXT"), attr=kind)) if kind not in (
                "study",
                "parameter",
            ):
                name = node.args[0].value if node.args else ""  # type: ignore[attr-defined]
                key = {"conclusion": "Conclusion", "caption": f"Captions/{name}", "passage": name}[kind]
                assert key not in uses, f"{stem}.py asks twice for {key}"
                uses[key] = {str(keyword.arg) for keyword in node.keywords}
    return uses


@pytest.mark.parametrize("stem", STEMS)
def test_the_code_asks_for_every_passage_and_fills_in_every_number(stem: str) -> None:
    text = StudyText.beside(str(FOLDER / f"{stem}.py"))
    passages = {
        key: _placeholders(body)
        for key, body in text.sections.items()
        if key not in ("Statement", "Explanation", "Parameters") and body
    }
    assert _uses(stem) == passages


def test_lines_are_joined_and_paragraphs_kept() -> None:
    assert unwrap("one\ntwo\n\nthree\n\n\nfour") == "one two\n\nthree\n\nfour"
    assert unwrap("") == ""


def test_a_text_is_read_by_its_headings(tmp_path: Path) -> None:
    path = tmp_path / "k90_some.md"
    path.write_text(
        GOOD + "\n## Parameters\n\n- size: how\nlarge\n- kind: which\n\n## Captions\n\n### one\n\nSee {n}.\n"
    )
    assert read_sections(path)[1]["Statement"] == "one\ntwo"
    text = StudyText.beside(str(path.with_suffix(".py")))
    assert (text.title, text.sources) == ("A title", ("S0", "S1"))
    assert text.parameters == {"size": "how large", "kind": "which"}
    assert text.caption("one", n=3) == "See 3."
    size, kind = text.parameter("size", 1.0, 0.0, 2.0), text.parameter("kind", "a", choices=("a",))
    study = text.study("K90", lambda values, progress: None, (size, kind), seconds=2.0)  # type: ignore[arg-type]
    assert (study.statement, study.explanation, study.seconds) == ("one two", "three\n\nfour", 2.0)
    assert [parameter.help for parameter in study.parameters] == ["how large", "which"]
    with pytest.raises(ImportError, match=r"\['size', 'kind'\]; the study has \['size'\]"):
        text.study("K90", lambda values, progress: None, (size,))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no section 'Captions/two'"):
        text.caption("two")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("no title", "no title"),
        (GOOD + "\n## Statement\n", "two sections"),
        (GOOD + "\n## Conclusions\n", "'Conclusions'; there may be"),
    ],
)
def test_a_text_that_is_not_well_formed_is_refused(body: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "k90_some.md").write_text(body)
    with pytest.raises(ImportError, match=why):
        StudyText.beside(str(tmp_path / "k90_some.py"))


# ---- exercises


def test_every_exercise_has_its_four_files_and_no_other() -> None:
    for folder in TASKS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            files = {path.name for path in folder.iterdir() if path.name != "__pycache__"}
            assert files == {"__init__.py", "text.md", "starter.py", "answer.py"}, folder.name
            assert folder.name in exercise_registry.folders()


@pytest.mark.parametrize("name", exercise_registry.folders())
def test_the_checks_use_all_feedback_and_fill_in_every_number(name: str) -> None:
    text = ExerciseText.beside(str(TASKS / name / "__init__.py"))
    uses = {
        (str(node.args[0].value), frozenset(str(keyword.arg) for keyword in node.keywords))  # type: ignore[attr-defined]
        for node in ast.walk(ast.parse((TASKS / name / "__init__.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "feedback"
    }
    assert uses == {(key, frozenset(_placeholders(body))) for key, body in text.messages.items()}


def test_feedback_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="has no feedback 'none'"):
        ExerciseText.beside(str(TASKS / "a04_attention" / "__init__.py")).feedback("none")
