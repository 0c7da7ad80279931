"""What an earlier version wrote still loads, and means the same.

``v0.1/`` was written by version 0.1.0 before its parts were given registries and new names. It is never written anew.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vantage as vt
from vantage.cache.saved import read_cache
from vantage.cli.main import main
from vantage.families.adapters import load_adapter
from vantage.families.recurrent import load_recurrent
from vantage.generation.saved_conversation import fingerprint_of

SAVED = Path(__file__).parent / "v0.1"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
VOCAB = 40
MODELS = sorted(name.removeprefix("models/") for name in EXPECTED if name.startswith("models/"))
CACHES = sorted(name.removeprefix("caches/") for name in EXPECTED if name.startswith("caches/"))


def tokens(n: int, rows: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))


def assert_same(logits: torch.Tensor, name: str, atol: float = 1e-9) -> None:
    expected = torch.tensor(EXPECTED[name], dtype=torch.float64)
    torch.testing.assert_close(logits.flatten()[: len(expected)], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_the_same_logits(name):
    model = vt.load(SAVED / "models" / name).double()
    source = {} if model.encoder is None else {"source": tokens(5, seed=2)}
    with torch.no_grad():
        assert_same(model(tokens(9), **source), f"models/{name}")


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_written_as_it_was(name, tmp_path):
    vt.save(vt.load(SAVED / "models" / name), tmp_path / "again")
    ours, theirs = (json.loads((f / "config.json").read_text()) for f in (tmp_path / "again", SAVED / "models" / name))
    assert ours == theirs


def test_a_saved_adapter_goes_onto_its_model():
    model = vt.load(SAVED / "models" / "decoder")
    load_adapter(model, SAVED / "adapter")
    with torch.no_grad():
        assert_same(model.double()(tokens(9)), "adapter", atol=1e-6)


def test_a_saved_recurrent_model_loads():
    model = load_recurrent(SAVED / "recurrent")
    assert sum(p.numel() for p in model.parameters()) == sum(
        t.numel() for t in load_file(SAVED / "recurrent" / "model.safetensors").values()
    )


@pytest.mark.parametrize("name", CACHES)
def test_a_saved_cache_is_gone_on_with(name):
    of, kind = name.rsplit("-", 1)
    model = vt.load(SAVED / "models" / of).double()
    saved = read_cache(
        SAVED / "caches" / f"{name}.safetensors", like=model.new_cache(2), fingerprint=fingerprint_of(model)
    )
    assert saved.extra == {"note": "kept"}
    assert saved.cache.tokens == (9, 9), kind
    with torch.no_grad():
        assert_same(model(tokens(3, 2, seed=7), cache=saved.cache), f"caches/{name}")


def test_a_saved_conversation_is_gone_on_with():
    model = vt.load(SAVED / "models" / "chat")
    conversation = vt.Conversation.load(
        SAVED / "conversation.safetensors", model, max_tokens=12, sampling=vt.Sampling(temperature=0.0)
    )
    before, after = EXPECTED["conversation"]
    assert conversation.messages[-1]["content"] == before
    assert conversation.ask("the cat sat").text == after


def test_a_run_that_was_interrupted_is_finished_as_it_would_have_been(tmp_path):
    folder = shutil.copytree(SAVED / "run", tmp_path / "run")
    settings = tmp_path / "run.toml"
    settings.write_text((SAVED / "run.toml").read_text())
    assert main(["train", str(settings), "--out", str(folder), "--resume", "loop.steps=6"]) == 0
    log, expected = (
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
        for lines in ((f / "log.jsonl").read_text().splitlines() for f in (folder, SAVED / "finished"))
    )
    assert [line["step"] for line in log] == [line["step"] for line in expected]
    assert [line["kind"] for line in log] == [line["kind"] for line in expected]
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (folder, SAVED / "finished"))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():  # another processor adds in another order
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-5)


def test_a_trained_model_loads():
    model = vt.load(SAVED / "finished" / "model")
    assert model.spec.layers[0].bias == vt.Kerple("power")


@pytest.mark.sampled
def test_a_comparison_is_reported_as_it_was(tmp_path, capsys):
    folder = shutil.copytree(SAVED / "experiment", tmp_path / "experiment")
    for file in ("scores.csv", "verdicts.csv", "report.json"):
        (folder / file).unlink()
    assert main(["compare", "--resume", "--out", str(folder)]) == 0
    capsys.readouterr()
    for file in ("scores.csv", "verdicts.csv"):
        before = (SAVED / "experiment" / file).read_text()
        assert (folder / file).read_text() == before.replace("This study has", "This experiment has")  # our word now
    assert (folder / "index.html").exists()
