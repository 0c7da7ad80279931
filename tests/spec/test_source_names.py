"""What is read off the sources is what the registries and classes say when they are imported."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import pytest

from vantage import parts
from vantage.compare import entries, names
from vantage.errors import BadInput
from vantage.parts import KINDS, check_part_name, registry
from vantage.spec import source_names
from vantage.spec.source_names import (
    Unreadable,
    declared_classes,
    declared_fields,
    declared_hints,
    declared_registry,
    declared_types,
)
from vantage.studies.exercises.registry import exercises, shown_text, tags, texts
from vantage.studies.registry import declared_studies, declared_study, find, studies
from vantage.studies.study import silent
from vantage.training.models import MODELS
from vantage.training.optimise import AdamW, Muon
from vantage.training.settings import LoopSettings, TrainSettings
from vantage.training.sources import SOURCES


@pytest.mark.parametrize("kind", KINDS)
def test_a_registry_is_read_as_it_is(kind: str) -> None:
    real, read = registry(kind), declared_registry(KINDS[kind])
    outside = {entry.name for entry in real.from_outside()}
    own = [entry for entry in real.entries() if entry.name not in outside]
    assert [entry.name for entry in read.entries] == [entry.name for entry in own]
    assert read.what == real.what
    for entry, declared in zip(own, read.entries, strict=True):
        assert declared.config.endswith(f":{entry.config.__name__}")
        assert (declared.compared, declared.randomised) == (entry.compared, entry.randomised)


@pytest.mark.parametrize("section", [*MODELS, *SOURCES, AdamW, Muon, LoopSettings, TrainSettings])
def test_a_dataclass_has_the_fields_that_are_read(section: type) -> None:
    read = declared_fields(f"{section.__module__}:{section.__name__}")
    assert read == {field.name for field in fields(section)}  # pyright: ignore[reportArgumentType] (each is a dataclass)


def test_classes_and_hints_are_followed() -> None:
    assert [one.partition(":")[2] for one in declared_classes("vantage.training.models:MODELS")] == [
        model.__name__ for model in MODELS
    ]
    hints = declared_hints("vantage.training.settings:TrainSettings")
    assert [hint.partition(":")[2] for hint in hints["schedule"]] == ["Constant", "Cosine", "WSD"]
    assert [hint.partition(":")[2] for hint in hints["average"]] == ["Average"]  # or None


def test_the_texts_of_exercises_are_theirs() -> None:
    assert tags() == list(exercises())
    for tag, exercise in exercises().items():
        text = shown_text(tag)
        assert text.title == texts()[tag].title
        words = (text.title, text.task, text.starter, text.answer, text.explanation)
        assert words == (exercise.title, exercise.task, exercise.starter, exercise.answer, exercise.words)


def test_studies_are_declared_as_they_are() -> None:
    """All that is listed of one, read without running its file; and that finds the code when it runs."""
    for tag, study in studies().items():
        declared = declared_study(tag)
        assert declared.run is not study.run, f"{tag} had to be imported"
        assert replace(declared, run=study.run) == study
    assert list(declared_studies()) == list(studies())
    plain = declared_study("A2")
    assert plain.run(plain.values({}), silent).numbers == find("A2").run(plain.values({}), silent).numbers


@pytest.mark.parametrize("section", [*MODELS, *SOURCES, AdamW, Muon])
def test_plain_fields_have_the_types_that_are_read(section: type) -> None:
    read = declared_types(f"{section.__module__}:{section.__name__}")
    hints = get_type_hints(section)
    assert read == {name: hints[name] for name in read}
    assert read


def test_names_of_an_experiment_are_those_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "known_entries", lambda kind: declared_registry(KINDS[kind]).entries)
    names.check_names(positions=[*entries.all_positions(), "all", "plain"], attentions=entries.attentions())
    for name in ("randomised-none-bidirectional", "rpoe"):
        with pytest.raises(BadInput, match="no position is called"):
            names.check_names(positions=[name])


def test_what_is_written_otherwise_is_left_to_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "vantage"
    package.mkdir()
    (package / "odd.py").write_text('ODD = Registry("thing", make_entries())\nPLAIN = Registry("thing", ())\n')
    monkeypatch.setattr(source_names, "ROOT", package)
    source_names._declarations.cache_clear()
    try:
        assert declared_registry("vantage.odd:PLAIN").entries == ()
        for home in ("vantage.odd:ODD", "vantage.odd:MISSING", "vantage.nowhere:ODD", "elsewhere.odd:ODD"):
            with pytest.raises(Unreadable):
                declared_registry(home)
    finally:
        source_names._declarations.cache_clear()
        declared_registry.cache_clear()


def test_a_part_from_outside_is_asked_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where parts are to come from outside, no name of ours is all there is."""
    assert len(registry("position"))  # whatever comes from outside in this process has come
    monkeypatch.setenv("VANTAGE_PARTS", "somebody.parts")
    monkeypatch.delitem(sys.modules, "vantage.position")
    assert parts.known_entries("position") is None
    monkeypatch.undo()
    monkeypatch.setenv("VANTAGE_PARTS", "somebody.parts")
    with pytest.raises(BadInput, match=r"no position encoding is called 'rpoe'\. Did you mean 'rope'"):
        check_part_name("position", "rpoe")
