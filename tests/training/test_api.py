"""``vt.train``: from settings to a model that can be loaded, used and trained further."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
import vantage.training
from tests.training.runs import losses, tiny
from vantage.errors import BadInput, CheckpointError
from vantage.families.adapters import load_adapter
from vantage.families.recurrent import load_recurrent
from vantage.model.lora import merge
from vantage.training.saved_model import load_classifier
from vantage.training.settings import settings_of
from vantage.training.sources import OpenOptions

TEXT = "the quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return str(file)


def language_model(folder: Path, text: str, steps: int = 60) -> Any:
    data = {"is": "text", "files": text, "length": 24}
    said = tiny(data=data, model={"width": 32}, loop={"steps": steps}, optimiser={"lr": 1e-2})
    return vt.train(said, out=folder)


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens)


def following(said: str, after: str) -> Any:
    """What comes of the call that a refusal names, of a function by its whole name with one word."""
    name, word = said.split(after)[1].removesuffix(")").split("(", 1)
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)(ast.literal_eval(word))


# ---- ways to say it


def test_a_mapping_a_file_and_settings_train_the_same(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nis = "decoder"\nwidth = 16\nlayers = 2\nheads = 2\n'
        '[data]\nis = "task"\ntask = "copy"\nlengths = [1, 5]\ntest_lengths = [5]\ntest_examples = 8\n'
        "[loop]\nsteps = 99\nbatch = 8\nthreads = 1\n[optimiser]\nlr = 3e-3\n"
    )
    said = tiny()
    given = json.loads(json.dumps(said))
    trained = vt.train(said, out=tmp_path / "mapping")
    vt.train(file, ["loop.steps=6"], out=tmp_path / "file")
    vt.train(settings_of(tiny()), out=tmp_path / "settings")
    assert said == given  # the caller's mapping is as it was
    assert losses(tmp_path / "mapping") == losses(tmp_path / "file") == losses(tmp_path / "settings")
    assert json.loads((tmp_path / "mapping" / "settings.json").read_text()) == said
    assert (trained.step, trained.finished, trained.folder) == (6, True, tmp_path / "mapping")
    assert trained.kept == tmp_path / "mapping" / "model"
    assert [s.set for s in trained.scores] == ["length 5"]
    first, second = str(trained).splitlines()  # and no modules, which are pages long
    assert first == f"done after 6 steps; the model is in {trained.kept}"
    assert second.startswith(f"length 5: loss {trained.scores[0].loss:.4f}, ")
    assert isinstance(trained.model, vt.Model)
    assert not trained.model.training


def test_a_recipe_is_trained_by_its_name_in_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["loop.steps=2", "loop.batch=4", "loop.threads=1", "schedule={}", "data.test_examples=2", "model.width=16"]
    trained = vt.train("copy", short)
    assert trained.folder == Path("runs/copy")
    assert (tmp_path / "runs" / "copy" / "model" / "config.json").exists()


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="change the mapping itself"):
        vt.train(tiny(), ["loop.steps=3"], out=tmp_path / "run")
    with pytest.raises(BadInput, match="mean 'copy'"):
        vt.train("copi", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"settings": 5}, "settings=5: give a TOML file"),
        ({"settings": None}, "settings=None: give a TOML file"),
        ({"settings": ["copy"]}, "the name of a recipe"),
        ({"settings": "copy", "changes": [5]}, "changes=[5]: give a list of words, as in ['loop.steps=500']"),
        ({"settings": "copy", "changes": 5}, "changes=5: give a list of words"),
        ({"settings": "copy", "changes": "loop.steps=5"}, "changes='loop.steps=5': give a list of words"),
        ({"settings": "copy", "out": 5}, "out=5: give the name of a folder"),
    ],
)
def test_what_is_no_setting_at_all_is_refused(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    for function in (vt.train, vantage.training.train):
        with pytest.raises(BadInput, match=re.escape(says)):
            function(**{"out": tmp_path / "run"} | given)
    assert not (tmp_path / "run").exists()


def test_changes_may_be_any_row_of_words(tmp_path: Path) -> None:
    short = ["loop.steps=1", "loop.batch=4", "loop.threads=1", "schedule={}", "data.test_examples=2", "model.width=16"]
    assert vt.train("copy", (change for change in short), out=tmp_path / "run").step == 1


# ---- what comes of it


def test_the_kept_model_is_the_trained_one_and_writes_text(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = language_model(tmp_path / "run", text, steps=120)
    monkeypatch.undo()  # native kernels are kept at home: they need not be compiled again
    loaded = vt.load(trained.kept)
    tokens = torch.tensor([loaded.tokenizer.encode("the quick ")])
    assert logits(loaded, tokens).equal(logits(trained.model, tokens))
    for model in (loaded, trained.model):
        [said] = vt.generate(model, ["the quick brown "], max_tokens=8, temperature=0)
        assert said.text.startswith("fox")


def test_with_an_average_the_kept_model_is_the_one_that_comes_back(tmp_path: Path) -> None:
    trained = vt.train(tiny(average={"decay": 0.9}), out=tmp_path / "run")
    tokens = torch.randint(4, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    assert logits(vt.load(trained.kept), tokens).equal(logits(trained.model, tokens))


def test_a_recurrent_model_is_kept(tmp_path: Path) -> None:
    said = tiny(model={"is": "recurrent", "width": 16, "attention": "dot"})
    trained = vt.train(said, out=tmp_path / "run")
    assert trained.kept is not None
    loaded = load_recurrent(trained.kept).eval()
    tokens = torch.randint(4, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert loaded(tokens, source=tokens).equal(trained.model(tokens, source=tokens))
    with pytest.raises(CheckpointError, match=re.escape(f"load_recurrent({str(trained.kept)!r})")) as caught:
        vt.load(trained.kept)
    assert following(str(caught.value), "load it with ")(tokens, source=tokens).shape[:2] == tokens.shape


def test_a_classifier_of_a_task_is_kept_with_its_classes(tmp_path: Path) -> None:
    model = {"is": "encoder", "width": 16, "layers": 1, "heads": 2}
    trained = vt.train(tiny(model=model, data={"task": "parity"}), out=tmp_path / "run")
    assert trained.kept is not None
    loaded, labels = load_classifier(trained.kept)
    batch = settings_of(tiny(model=model, data={"task": "parity"})).data._sequences("label", 0).batch(range(5))  # pyright: ignore[reportAttributeAccessIssue]
    with torch.no_grad():
        assert loaded(batch).equal(trained.learner(batch))
    assert len(labels) == loaded.classes.out_features
    assert set(labels) == {"0", "1"}


def labelled(folder: Path) -> str:
    file = folder / "labelled.jsonl"
    rows = [{"text": f"{word} {i}", "label": word} for i in range(20) for word in ("good", "bad")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_texts_with_labels_are_told_apart(tmp_path: Path, kind: str) -> None:
    model = {"is": kind, "width": 16, "layers": 1, "heads": 2}
    data = {"is": "labels", "files": labelled(tmp_path), "length": 16}
    trained = vt.train(tiny(model=model, data=data, loop={"steps": 25}, optimiser={"lr": 1e-2}), out=tmp_path / "run")
    assert trained.scores[0].exact == 1.0
    assert trained.kept is not None
    loaded, labels = load_classifier(trained.kept)
    assert sorted(labels) == ["bad", "good"]
    assert loaded.core.tokenizer is not None


# ---- going on from a model


@pytest.fixture
def base(tmp_path: Path, text: str) -> Path:
    return language_model(tmp_path / "base", text, steps=3).kept


def prompts(folder: Path) -> str:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+", "answer": "yes"}) + "\n" for n in range(30)))
    return str(file)


def test_a_loaded_model_is_tuned_on_prompts_with_lora(tmp_path: Path, base: Path) -> None:
    model = {"is": "loaded", "source": str(base), "lora": {"rank": 2, "targets": ["attention"]}}
    data = {"is": "prompts", "files": prompts(tmp_path), "length": 16}
    said = tiny(model=model, data=data, loop={"steps": 40}, optimiser={"lr": 2e-2})
    trained = vt.train(said, out=tmp_path / "run")
    assert losses(tmp_path / "run")[-1] < 0.9 * losses(tmp_path / "run")[0]
    assert trained.kept is not None
    assert sorted(p.name for p in trained.kept.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((trained.kept / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    with pytest.raises(BadInput, match=r"model\.source: .* holds an adapter"):
        settings_of(tiny(model={"is": "loaded", "source": str(trained.kept)}, data=data))
    tuned = vt.load(base)
    tokens = torch.tensor([tuned.tokenizer.encode("12+")])
    before = logits(tuned, tokens)
    load_adapter(tuned, trained.kept)
    tuned.eval()
    assert torch.equal(logits(vt.load(trained.kept), tokens), logits(tuned, tokens))
    assert torch.equal(logits(vt.load(base, adapter=tmp_path / "run"), tokens), logits(tuned, tokens))
    assert logits(tuned, tokens).equal(logits(trained.model, tokens))
    assert not logits(tuned, tokens).equal(before)
    merge(tuned)
    torch.testing.assert_close(logits(tuned, tokens), logits(trained.model, tokens), atol=1e-5, rtol=1e-5)
    again = vt.train(said, out=tmp_path / "run", resume=True)  # the adapter that is there is no obstacle
    assert again.kept == trained.kept


def test_a_loaded_model_is_tuned_fully_and_as_a_classifier(tmp_path: Path, base: Path, text: str) -> None:
    data = {"is": "text", "files": text, "length": 24}
    loop = {"steps": 2, "batch": 4}
    full = vt.train(tiny(model={"is": "loaded", "source": str(base)}, data=data, loop=loop), out=tmp_path / "full")
    assert full.kept is not None
    was, now = vt.load(base).state_dict(), vt.load(full.kept).state_dict()
    assert was.keys() == now.keys()
    assert any(not was[name].equal(now[name]) for name in was)

    model = {"is": "loaded", "source": str(base), "lora": {"rank": 2}}
    data = {"is": "labels", "files": labelled(tmp_path), "length": 16}
    trained = vt.train(tiny(model=model, data=data, loop=loop), out=tmp_path / "classes")
    assert trained.kept is not None
    loaded, labels = load_classifier(trained.kept)
    assert sorted(labels) == ["bad", "good"]
    rows = (
        settings_of(tiny(model=model, data=data))
        .data.open(OpenOptions("line", 0, 4, loaded.core.tokenizer))
        .data.batch(range(4))
    )
    with torch.no_grad():
        assert loaded(rows).equal(trained.learner(rows))


# ---- who may read it


@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_what_is_kept_is_as_open_as_any_new_file(tmp_path: Path, base: Path, mask: int, mode: int) -> None:
    lora = {"is": "loaded", "source": str(base), "lora": {"rank": 2}}
    labels = {"is": "labels", "files": labelled(tmp_path), "length": 16}
    before = os.umask(mask)
    try:
        vt.train(tiny(loop={"steps": 1}), out=tmp_path / "plain")
        vt.train(tiny(model=lora, data=labels, loop={"steps": 1, "batch": 4}), out=tmp_path / "adapter")
    finally:
        os.umask(before)
    files = [path for name in ("plain", "adapter") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert {"model.safetensors", "adapter_model.safetensors", "classifier.safetensors"} <= {p.name for p in files}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in files} == {path.name: oct(mode) for path in files}
