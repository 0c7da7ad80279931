"""The folder a model is saved to: replaced whole or not at all, and only where we wrote it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.checkpoints import tiny
from tests.generation.folder import chat_model
from vantage.checkpoints.model_folder import check_model_folder
from vantage.cli.main import main
from vantage.errors import BadInput

ROOT = Path(__file__).parents[2]
TOKENS = torch.tensor([[1, 2, 3, 4]])


def built(seed: int) -> vt.Model:
    return vt.build(vt.decoder(vocab=8, width=16, layers=1, heads=2), seed=seed).eval()


@torch.no_grad()
def answers(folder: Path) -> torch.Tensor:
    return vt.load(folder)(TOKENS)


@torch.no_grad()
def test_a_model_is_saved_over_another(tmp_path: Path) -> None:
    vt.save(built(0), tmp_path / "model", shard_bytes=1000)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    with pytest.raises(BadInput, match=r"already holds safetensors files.*overwrite=True"):
        vt.save(built(1), tmp_path / "model")
    vt.save(built(1), tmp_path / "model", overwrite=True)
    assert torch.equal(answers(tmp_path / "model"), built(1)(TOKENS))
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "model.safetensors"]  # no shard is left
    assert os.listdir(tmp_path) == ["model"]
    vt.save(built(2), tmp_path / "new", overwrite=True)  # where nothing is, it is written
    assert torch.equal(answers(tmp_path / "new"), built(2)(TOKENS))


@torch.no_grad()
def test_a_model_is_saved_over_the_one_it_was_loaded_from(tmp_path: Path) -> None:
    """Its weights are mapped from the very files that are replaced."""
    vt.save(chat_model(), tmp_path / "model")
    model = vt.load(tmp_path / "model")
    wanted = model(TOKENS)
    vt.save(model, tmp_path / "model", overwrite=True)
    assert torch.equal(model(TOKENS), wanted)
    assert torch.equal(answers(tmp_path / "model"), wanted)
    assert vt.load(tmp_path / "model").tokenizer is not None


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    vt.save(built(0), tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    vt.save(built(1), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert torch.equal(answers(tmp_path / "model"), built(1)(TOKENS))


@pytest.mark.parametrize("stranger", ["notes.txt", "optimizer.pt", "classifier.safetensors", "logs/"])
def test_what_is_no_model_of_ours_is_never_deleted(tmp_path: Path, stranger: str) -> None:
    vt.save(built(0), tmp_path / "model")
    path = tmp_path / "model" / stranger
    path.mkdir() if stranger.endswith("/") else path.write_text("work of years")
    before = answers(tmp_path / "model")
    with pytest.raises(BadInput, match=stranger.rstrip("/")):
        vt.save(built(1), tmp_path / "model", overwrite=True)
    assert path.exists()
    assert torch.equal(answers(tmp_path / "model"), before)


def test_a_model_that_others_saved_is_not_replaced(tmp_path: Path) -> None:
    theirs = tiny.llama(tmp_path / "x.gguf")
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(BadInput, match="was not saved by Vantage"):
        vt.save(vt.load(tmp_path / "x.gguf"), tmp_path / "theirs", overwrite=True)
    with pytest.raises(BadInput, match="is a file"):
        check_model_folder(tmp_path / "x.gguf", overwrite=True)
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "config.json").write_text("{}")  # of whatever it is
    for overwrite in (False, True):
        with pytest.raises(BadInput, match=r"config\.json|not saved by Vantage"):
            vt.save(built(0), tmp_path / "settings", overwrite=overwrite)


CRASH = """
import os, sys
import vantage as vt
from vantage import files
from vantage.checkpoints import folder, model_folder

where, stage = sys.argv[1:]
model = vt.build(vt.decoder(vocab=8, width=16, layers=1, heads=2), seed=1)
write, count = folder.write_tensors, 0

def killed(*args):
    os._exit(9)

def second_shard(*args):
    global count
    count += 1
    killed() if count == 2 else write(*args)

if stage == "while it is written":
    folder.write_tensors = second_shard
elif stage == "before the exchange":
    files.exchange = killed
else:
    files.remove_folder = killed
vt.save(model, where, overwrite=True, shard_bytes=1000)
"""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("stage", "seed"), [("while it is written", 0), ("before the exchange", 0), ("after the exchange", 1)]
)
def test_whatever_kills_the_writer_leaves_a_whole_model(tmp_path: Path, stage: str, seed: int) -> None:
    vt.save(built(0), tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path / "model"), stage],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 9
    assert torch.equal(answers(tmp_path / "model"), built(seed)(TOKENS).detach())
    vt.save(built(2), tmp_path / "model", overwrite=True)  # what the kill left behind is in nobody's way
    assert torch.equal(answers(tmp_path / "model"), built(2)(TOKENS).detach())


def test_an_error_leaves_the_old_model_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vt.save(built(0), tmp_path / "model")
    other = chat_model()
    monkeypatch.setattr(type(other.tokenizer), "save", lambda self, folder: 1 / 0)
    for where in ("model", "new"):
        with pytest.raises(ZeroDivisionError):
            vt.save(other, tmp_path / where, overwrite=True)
    assert os.listdir(tmp_path) == ["model"]
    assert torch.equal(answers(tmp_path / "model"), built(0)(TOKENS).detach())


def test_convert_overwrites_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.llama(tmp_path / "x.gguf")
    where = str(tmp_path / "a")
    assert main(["convert", str(tmp_path / "x.gguf"), where]) == 0
    assert main(["convert", str(tmp_path / "x.gguf"), where]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "x.gguf"), where, "--overwrite", "--dtype", "bfloat16"]) == 0
    assert '"bfloat16"' in (tmp_path / "a" / "config.json").read_text()
    (tmp_path / "a" / "notes.txt").touch()
    assert main(["convert", str(tmp_path / "x.gguf"), where, "--overwrite"]) == 2
    assert "notes.txt" in capsys.readouterr().err


def test_without_an_exchange_of_names_the_old_folder_steps_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vantage.files.exchange", lambda a, b: False)
    vt.save(built(0), tmp_path / "model")
    vt.save(built(1), tmp_path / "model", overwrite=True)
    assert os.listdir(tmp_path) == ["model"]
    assert torch.equal(answers(tmp_path / "model"), built(1)(TOKENS).detach())
    shutil.rmtree(tmp_path / "model")
