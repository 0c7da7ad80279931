"""Settings: read and checked as a whole, before anything is allocated."""

from __future__ import annotations

import re
import tomllib
import tracemalloc
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

import vantage as vt
from tests.training.runs import tiny
from vantage.errors import BadInput
from vantage.position import Alibi, Rope
from vantage.training import read_settings, recipes
from vantage.training.models import Decoder, Encoder, EncoderDecoder, Recurrent
from vantage.training.optimise import WSD, AdamW, Average, Constant, Cosine, Muon
from vantage.training.settings import TrainSettings, settings_of
from vantage.training.sources import TaskExamples, Text


def refused(said: dict[str, Any]) -> str:
    with pytest.raises(BadInput) as caught:
        settings_of(said)
    return str(caught.value)


# ---- what is wrong is said with its whole path


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("model", "widht", "width"),
        ("data", "length", "lengths"),
        ("loop", "batchs", "batch"),
        ("optimiser", "learning", None),
        ("optimiser", "weight_decy", "weight_decay"),
        ("schedule", "warm_up", "warmup"),
        ("evaluate", "evry", "every"),
        ("save", "keeps", "keep"),
        ("guard", "spikes", "spike"),
        ("average", "dcay", "decay"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest(section: str, key: str, near: str | None) -> None:
    kinds = {"schedule": {"is": "constant"}}
    said = refused(tiny(**{section: kinds.get(section, {}) | {key: 1}}))
    assert said.startswith(f"settings.{section}: ")
    assert repr(key) in said
    assert near is None or f"mean {near!r}" in said


def test_an_unknown_section_is_refused_with_the_nearest() -> None:
    assert "mean 'optimiser'" in refused({**tiny(), "optimizer": {}})


@pytest.mark.parametrize("section", ["model", "data"])
def test_a_section_that_must_be_there_is_asked_for(section: str) -> None:
    said = tiny()
    del said[section]
    assert f"needs {section!r}" in refused(said)


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"model": {"width": "wide"}}, "settings.model.width is 'wide'; wanted int"),
        ({"model": {"width": 16.5}}, "settings.model.width"),
        ({"model": {"tied": 1}}, "settings.model.tied is 1; wanted bool"),
        ({"model": {"position": 7}}, "settings.model.position"),
        ({"model": {"layers": True}}, "settings.model.layers"),
        ({"data": {"lengths": 5}}, "settings.data.lengths"),
        ({"data": {"lengths": [1, 2, 3]}}, "settings.data.lengths has 3 entries; wanted 2"),
        ({"data": {"lengths": [1, "2"]}}, "settings.data.lengths[1]"),
        ({"loop": {"precision": "float16"}}, "settings.loop.precision is 'float16'; wanted 'float32' or 'bfloat16'"),
        ({"loop": {"compile": "yes"}}, "settings.loop.compile"),
        ({"optimiser": {"lr": "fast"}}, "settings.optimiser.lr"),
        ({"optimiser": {"betas": [0.9]}}, "settings.optimiser.betas has 1 entries; wanted 2"),
        ({"seed": "1"}, "settings.seed"),
        ({"loop": [1]}, "settings.loop is [1]; wanted LoopSettings"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_path(changed: dict[str, Any], path: str) -> None:
    assert refused(tiny(**changed)).startswith(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": {"position": {"is": "rpoe"}}}, "mean 'rope'"),
        ({"model": {"position": {"base": 3.0}}}, "settings.model.position"),
        ({"model": {"position": "rpoe"}}, "rope"),
        ({"model": {"width": 15}}, "15"),  # not divisible among the heads
        ({"model": {"heads": 0}}, "settings.model: heads=0: give at least 1"),
        ({"model": {"heads": -2}}, "settings.model: heads=-2: give at least 1"),
        ({"model": {"layers": -1}}, "settings.model: layers=-1: give at least 1"),
        ({"model": {"width": -4}}, "settings.model: width=-4: give at least 1"),
        ({"model": {"kv_heads": 0}}, "settings.model: kv_heads=0: give at least 1"),
        ({"model": {"max_length": -1}}, "settings.model: max_length=-1: give at least 1"),
        ({"model": {"is": "encoder", "layers": -1}, "data": {"task": "parity"}}, "layers=-1: give at least 1"),
        ({"model": {"is": "encoder_decoder", "width": -4}}, "width=-4: give at least 1"),
        ({"model": {"is": "recurrent", "layers": -1}}, "layers=-1"),
        ({"data": {"is": "text", "files": __file__, "length": 0}}, "settings.data: length=0: give at least 1"),
        (
            {"data": {"is": "text", "files": __file__, "valid": 1.5}},
            "settings.data: valid=1.5: give files, or the share",
        ),
        ({"data": {"is": "text", "files": __file__, "valid": 0}}, "settings.data: valid=0: give files, or the share"),
        ({"data": {"is": "text", "files": __file__, "test_windows": 0}}, "test_windows=0: give at least 1"),
        ({"data": {"is": "text", "files": __file__, "test_lengths": [8, 0]}}, "test_lengths=[8, 0]: give at least 1"),
        ({"data": {"is": "text", "files": __file__, "hidden": 1.5}}, "hidden=1.5: give the share of tokens to hide"),
        (
            {"data": {"is": "text", "files": __file__, "valid": "nowhere.txt"}},
            "data.valid: there is no file 'nowhere.txt'",
        ),
        (
            {"data": {"is": "labels", "files": __file__, "valid": "nowhere.tsv"}},
            "data.valid: there is no file 'nowhere",
        ),
        ({"data": {"is": "labels", "files": __file__, "valid": 1.0}}, "settings.data: valid=1.0"),
        ({"data": {"is": "labels", "files": __file__, "length": 0}}, "settings.data: length=0"),
        ({"data": {"is": "prompts", "files": __file__, "valid": "nowhere"}}, "data.valid: there is no file 'nowhere'"),
        ({"data": {"is": "prompts", "files": __file__, "valid": -0.5}}, "settings.data: valid=-0.5"),
        ({"data": {"is": "prompts", "files": __file__, "length": -1}}, "settings.data: length=-1"),
        ({"data": {"is": "prompts", "files": __file__}}, "load one (model.is = 'loaded')"),
        (
            {"model": {"is": "loaded", "source": "nowhere"}, "data": {"is": "text", "files": __file__}},
            "model.source: nowhere does not exist",
        ),
        ({"model": {"is": "loaded", "source": "nowhere"}}, "train it on text, prompts or labels (data.is)"),
        ({"model": {"is": "decodr"}}, "mean 'decoder'"),
        ({"model": {"position": "learned"}}, "max_length"),
        ({"data": {"is": "task", "task": "copi"}}, "copy"),
        ({"data": {"is": "task", "task": {"is": "copi"}}}, "mean 'copy'"),
        ({"data": {"lengths": [6, 5]}}, "lengths=[6, 5]"),
        ({"data": {"test_examples": 0}}, "test_examples=0"),
        ({"loop": {"batch": 9, "accumulate": 2}}, "9"),
        ({"loop": {"steps": 0}}, "steps=0"),
        ({"loop": {"smoothing": 1.0}}, "smoothing=1.0"),
        ({"loop": {"clip": 0.0}}, "clip=0.0"),
        ({"optimiser": {"is": "sgd"}}, "adamw"),
        ({"optimiser": {"lr": float("inf")}}, "settings.optimiser.lr"),
        ({"optimiser": {"lr": -1.0}}, "lr=-1.0"),
        ({"schedule": {"is": "cosine", "warmup": 7}}, "warmup=7"),  # longer than the run
        ({"schedule": {"is": "wsd", "shape": "round"}}, "'linear'"),
        ({"evaluate": {"goal": 0.5}}, "evaluate.every"),
        ({"evaluate": {"every": 1, "goal": 2.0}}, "goal=2.0"),
        ({"save": {"keep": 0}}, "keep=0"),
        ({"guard": {"spike": -1.0}}, "spike=-1.0"),
        ({"average": {"decay": 1.0}}, "decay=1.0"),
        ({"seed": -1}, "seed=-1"),
        ({"model": {"is": "recurrent"}, "data": {"is": "text", "files": __file__}}, "no source and target"),
        ({"model": {"is": "decoder"}, "data": {"is": "text", "files": __file__, "hidden": 0.15}}, "hidden"),
        ({"data": {"is": "text", "files": "nowhere-*.txt"}}, "nowhere-*.txt"),
        ({"data": {"is": "prompts", "files": "nowhere.jsonl"}}, "nowhere.jsonl"),
        ({"model": {"is": "encoder"}, "data": {"task": "sort"}}, "one symbol"),
        ({"model": {"is": "encoder_decoder", "position": "cope"}}, "CoPE"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], says: str) -> None:
    assert says in refused(tiny(**changed))


# ---- parts, as words and as tables


def test_parts_are_said_by_name_or_as_tables() -> None:
    word = settings_of(tiny(model={"position": "alibi"}))
    table = settings_of(tiny(model={"position": {"is": "Alibi"}}))
    deep = settings_of(
        tiny(model={"position": {"is": "rope", "base": 5e5, "scaling": {"is": "linear", "factor": 2.0}}})
    )
    assert isinstance(word.model, Decoder)
    assert word.model.spec(9) == table.model.spec(9)  # pyright: ignore[reportAttributeAccessIssue]
    assert table.model.position == Alibi()  # pyright: ignore[reportAttributeAccessIssue]
    assert deep.model.position == Rope(base=5e5, scaling=vt.scaling.Linear(2.0))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("changed", "made"),
    [
        ({"optimiser": "muon"}, ("optimiser", Muon())),
        ({"optimiser": {"is": "muon", "adamw": {"lr": 1e-3}}}, ("optimiser", Muon(adamw=AdamW(lr=1e-3)))),
        ({"schedule": "constant"}, ("schedule", Constant())),
        ({"schedule": "cosine"}, ("schedule", Cosine(total=6))),
        ({"schedule": {"is": "wsd", "total": 40}}, ("schedule", WSD(total=40))),
        ({"average": {"decay": 0.5}}, ("average", Average(0.5))),
        ({"model": "recurrent"}, ("model", Recurrent())),
        ({"model": {"is": "encoder", "pool": "first"}, "data": {"task": "parity"}}, ("model", Encoder(pool="first"))),
        ({"model": {"is": "encoder-decoder"}}, ("model", EncoderDecoder())),
    ],
)
def test_every_section_takes_its_parts(changed: dict[str, Any], made: tuple[str, Any]) -> None:
    assert getattr(settings_of(tiny(**changed)), made[0]) == made[1]


def test_a_task_takes_parameters() -> None:
    settings = settings_of(tiny(data={"task": {"is": "copy"}}))
    assert isinstance(settings.data, TaskExamples)
    assert (
        settings.data._sequences("line", 0)
        .batch([0])
        .tokens.equal(
            settings_of(tiny()).data._sequences("line", 0).batch([0]).tokens  # pyright: ignore[reportAttributeAccessIssue]
        )
    )


# ---- changes


OWN = """
[model]
is = "decoder"
width = 16
heads = 2
position = "rope"
[data]
is = "task"
task = "copy"
lengths = [1, 5]
[schedule]
is = "cosine"
warmup = 5
"""


def changed(*changes: str) -> TrainSettings:
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(OWN)
        file.flush()
        return read_settings(file.name, changes)[0]


def test_changes_reach_every_depth() -> None:
    made = changed(
        "loop.steps=7",
        "optimiser.betas=[0.8, 0.9]",
        "model.position.is=rope",
        "model.position.scaling.is=yarn",
        "model.position.scaling.factor=4.0",
        "model.position.scaling.original=16",
        "data.task=reverse",
        "seed=3",
        "average={decay = 0.9}",
    )
    assert made.loop.steps == 7
    assert made.optimiser.betas == (0.8, 0.9)  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(made.model.position, Rope)  # pyright: ignore[reportAttributeAccessIssue]
    assert made.model.position.scaling.factor == 4.0  # pyright: ignore[reportAttributeAccessIssue]
    assert made.data.task == "reverse"  # pyright: ignore[reportAttributeAccessIssue]
    assert (made.seed, made.average) == (3, Average(0.9))
    assert made.schedule == Cosine(total=7, warmup=5)  # it lasts as long as the run


def test_a_part_said_by_name_keeps_it_when_a_field_of_it_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(OWN)
    made, said = read_settings(file, ["model.position.base=500.0"])
    assert made.model.position == Rope(base=500.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert said["model"]["position"] == {"is": "rope", "base": 500.0}


def test_a_word_need_not_be_quoted_and_may_be() -> None:
    assert changed("model.position=alibi") == changed('model.position="alibi"') == changed("model.position = 'alibi'")
    assert changed("optimiser=muon").optimiser == Muon()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("loop.steps", "KEY=VALUE"),
        ("=5", "KEY=VALUE"),
        ("loop..steps=5", "KEY=VALUE"),
        ("loop.stesp=5", "mean 'steps'"),
        ("lop.steps=5", "mean 'loop'"),
        ("loop.steps=many", "settings.loop.steps is 'many'; wanted int"),
        ("loop.steps=[1", "settings.loop.steps"),
        ("loop.steps=5.0", "settings.loop.steps"),
        ("loop.steps=2000-01-01", "settings.loop.steps"),
        ("model.width.more=5", "settings.model.width"),
    ],
)
def test_bad_changes_are_refused(change: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        changed(change)


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"[model\n")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for source, says in (
        (bad, "not TOML"),
        (binary, "not TOML"),
        (tmp_path / "none.toml", "cannot read"),
        ("copi", "mean 'copy'"),
    ):
        with pytest.raises(BadInput, match=says):
            read_settings(source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy").mkdir()  # a folder of that name does not hide the recipe
    assert read_settings("copy")[0].data.task == "copy"  # pyright: ignore[reportAttributeAccessIssue]


# ---- nothing is allocated


def test_reading_allocates_nothing_whatever_the_size(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text")
    huge = {"is": "decoder", "width": 1 << 40, "layers": 64, "heads": 1 << 20}
    settings_of(tiny(model=huge))  # imports and caches
    tracemalloc.start()
    try:
        made = settings_of(tiny(model=huge, data={"is": "text", "files": str(text)}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(made.data, Text)
    assert made.model.width == 1 << 40  # pyright: ignore[reportAttributeAccessIssue]
    assert peak < 4 << 20
    assert "heads" in refused(tiny(model=huge | {"heads": 3}))


def test_the_fingerprint_says_what_is_computed() -> None:
    base = settings_of(tiny()).fingerprint()
    assert settings_of(tiny()).fingerprint() == base
    for alike in ({"loop": {"steps": 9}}, {"loop": {"threads": 2}}, {"save": {"every": 2}}):
        assert settings_of(tiny(**alike)).fingerprint() == base
    others = [{"seed": 1}, {"model": {"width": 32}}, {"data": {"task": "reverse"}}, {"loop": {"batch": 4}}]
    others += [{"optimiser": {"lr": 1e-3}}, {"schedule": "cosine"}, {"average": {}}, {"evaluate": {"every": 1}}]
    assert len({settings_of(tiny(**other)).fingerprint() for other in others} | {base}) == len(others) + 1


FILES = ("files", "valid", "source", "target", "valid_source", "valid_target")


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipes()[name].read_text()
    assert text.startswith("# ")  # what `vantage train --list` shows
    monkeypatch.chdir(tmp_path)
    data = tomllib.loads(text)["data"]
    for key in FILES:  # what it reads need not be on this machine
        said = data.get(key)
        for file in [said] if isinstance(said, str) else said if isinstance(said, list) else []:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("text\n")
    settings, said = read_settings(name)
    assert settings.loop.steps >= 1
    assert said["data"] == data
