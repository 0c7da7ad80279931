"""Adapters on the command line: ``--adapter`` wherever a model is loaded, whoever wrote them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import peft
import pytest
import torch
from transformers import LlamaForCausalLM

import vantage as vt
from tests.generation.folder import chat_folder
from vantage.cli.main import main
from vantage.errors import BadInput, CheckpointError
from vantage.families.adapters import save_adapter
from vantage.model.lora import Lora, adapted, add_lora

TEXT = "the cat sat on a mat"
TOKENS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return chat_folder(tmp_path / "base")


def shake(parameters: object) -> None:
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in parameters:  # pyright: ignore[reportGeneralTypeIssues] (parameters of a module)
            p.copy_(torch.randn(p.shape, generator=random) * 0.3)


@pytest.fixture
def ours(tmp_path: Path, base: Path) -> Path:
    """An adapter as our training saves it."""
    model = vt.load(base)
    add_lora(model, Lora(4))
    shake(p for p in model.parameters() if p.requires_grad)
    save_adapter(model, tmp_path / "run" / "model", base=str(base))
    return tmp_path / "run" / "model"


@pytest.fixture
def pefts(tmp_path: Path, base: Path) -> Path:
    """One that the peft library saved, of the same model in transformers."""
    theirs = LlamaForCausalLM.from_pretrained(base)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    shake(p for name, p in theirs.named_parameters() if "lora_" in name)
    theirs.save_pretrained(tmp_path / "peft")
    return tmp_path / "peft"


@pytest.mark.parametrize("writer", ["ours", "pefts"])
@torch.no_grad()
def test_generate_convert_and_load_with_an_adapter(
    writer: str, base: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter: Path = request.getfixturevalue(writer)
    model = vt.load(base, adapter=adapter)
    assert adapted(model)
    theirs = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), adapter).eval()
    torch.testing.assert_close(model(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-3)
    options = ["--max-tokens", "8", "--json"]
    assert main(["generate", str(base), TEXT, "--adapter", str(adapter), *options]) == 0
    tuned = json.loads(capsys.readouterr().out)["tokens"]
    assert tuned == list(vt.generate(model, TEXT, max_tokens=8).tokens)
    assert main(["generate", str(base), TEXT, *options]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] != tuned
    assert main(["convert", str(base), str(tmp_path / "merged"), "--adapter", str(adapter)]) == 0
    merged = LlamaForCausalLM.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(merged(TOKENS).logits, theirs(TOKENS).logits, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_an_adapters_own_folder_is_a_model(ours: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the model below it; the run that wrote it stands for it."""
    wanted = vt.load(base, adapter=ours)(TOKENS)
    assert torch.equal(vt.load(ours)(TOKENS), wanted)
    assert torch.equal(vt.load(base, adapter=ours.parent)(TOKENS), wanted)
    assert main(["generate", str(ours), TEXT, "--max-tokens", "4"]) == 0
    assert capsys.readouterr().err == ""
    with pytest.raises(BadInput, match="holds an adapter itself"):
        vt.load(ours, adapter=ours)
    config = json.loads((ours / "adapter_config.json").read_text())
    (ours / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "gone/away"}))
    with pytest.raises(CheckpointError, match=r"whose base model is missing: gone/away does not exist.*--adapter"):
        vt.load(ours)
    (ours / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(CheckpointError, match="does not say which model"):
        vt.load(ours)


def test_the_other_verbs_take_one(
    ours: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = ["inspect", "attention", str(base), "--text", TEXT, "--layer", "1", "--head", "0", "--json"]
    assert main([*attention, "--adapter", str(ours)]) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert main(attention) == 0
    assert json.loads(capsys.readouterr().out) != tuned
    for rest in (["atlas", str(base), "--text", TEXT], ["scores", str(base), "--text", TEXT, "--layer", "0"]):
        assert main(["inspect", *rest, "--adapter", str(ours), "--json"]) == 0
    assert main(["inspect", "cost", str(base), "--adapter", str(ours), "--json"]) == 0
    assert main(["inspect", "cache", "--model", str(base), "--prompt", TEXT, "--adapter", str(ours)]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    assert main(["chat", str(base), "--adapter", str(ours), "--max-tokens", "2"]) == 0
    assert main(["chat", str(base), "--adapter", str(tmp_path)]) == 2
    assert "holds no adapter" in capsys.readouterr().err


def test_training_goes_on_with_an_adapter(ours: Path, base: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(f"{TEXT}. " * 200)
    changes = ["model.is=loaded", f"model.source={base}", f"model.adapter={ours}", "data.is=text", "data.length=16"]
    changes += [f"data.files={tmp_path / 'book.txt'}", "loop.steps=2", "loop.batch=2", "optimiser.lr=0.001"]
    (tmp_path / "tune.toml").write_text("[model]\n[data]\n")
    out = tmp_path / "tuned"
    assert main(["train", str(tmp_path / "tune.toml"), *changes, "--out", str(out), "--device", "cpu"]) == 0
    before, after = vt.load(base, adapter=ours), vt.load(base, adapter=out)
    pairs = zip(adapted(before).values(), adapted(after).values(), strict=True)
    moved = [not torch.equal(a.named_parts()[n].b, b.named_parts()[n].b) for a, b in pairs for n in a.names]
    assert all(moved)
    both = [*changes, "model.lora.rank=2"]
    assert main(["train", str(tmp_path / "tune.toml"), *both, "--out", str(tmp_path / "x")]) == 2
