"""``vantage inspect cache``: what is held, what was let go of, and where two prompts part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.generation import zoo
from tests.generation.folder import chat_folder, chat_model, tokenizer
from vantage.cache.saved import Fingerprint, save_cache
from vantage.cli.inspect import _text, described, parting
from vantage.cli.main import main
from vantage.generation.cached_sequence import CachedSequence
from vantage.generation.conversation import Conversation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("inspect") / "model")


def as_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["inspect", "cache", *args, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def test_a_saved_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(chat_model(), kind="paged")
    talk.ask("the cat", max_tokens=5)
    talk.save(tmp_path / "talk")
    n = len(talk.tokens)
    said = as_json(capsys, str(tmp_path / "talk"))
    assert said["model"].startswith("llama, 2 layers")
    assert len(said["layers"]) == 2
    assert said["layers"][0]["rows"] == [
        {"held": [[0, n - 1]], "positions": [[0, n - 1]], "tokens": n, "shared": 0, "evicted": 0, "why": None}
    ]
    assert main(["inspect", "cache", str(tmp_path / "talk")]) == 0
    shown = capsys.readouterr().out
    assert "layer 0..1: paged" in shown
    assert f"row 0: holds 0..{n - 1} ({n} tokens)" in shown


def test_what_left_a_window_and_what_is_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = zoo.model("mixed")
    cache = zoo.cache(model, "ring", draft=2)
    with torch.no_grad():
        model(zoo.tokens(30), cache=cache)
    save_cache(cache, tmp_path / "ring", fingerprint=Fingerprint("mixed", "0"))
    said = as_json(capsys, str(tmp_path / "ring"))
    local, wide = (layer["rows"][0] for layer in said["layers"])
    assert (local["held"], local["evicted"], local["why"]) == ([[19, 29]], 19, "left the window")
    assert (wide["held"], wide["evicted"]) == ([[0, 29]], 0)
    assert main(["inspect", "cache", str(tmp_path / "ring")]) == 0
    assert "holds 19..29 (11 tokens); 19 evicted: left the window" in capsys.readouterr().out
    paged = zoo.cache(zoo.model("plain"), "paged")
    with torch.no_grad():
        zoo.model("plain")  # another model: caches belong to the one that made them
        row = CachedSequence(owner := zoo.model("plain"), owner.new_cache(kind="paged"))
        row.feed(zoo.tokens(20)[0].tolist())
    fork = row.cache.fork()
    assert [r["shared"] for r in described(fork)["layers"][0]["rows"]] == [20]
    assert "20 shared" in _text(described(fork))
    assert described(paged)["layers"][0]["rows"][0]["tokens"] == 0


def test_why_a_prefix_missed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = as_json(capsys, "--model", str(folder), "--prompt", "the cat sat", "--against", "the cat said")["against"]
    assert said["common"] == said["reused"] == 2
    assert said["after"] == "the cat"
    assert said["here"].strip().startswith("sa")
    assert said["here"] != said["there"]
    assert said["why"] == "they part at token 2"
    longer = as_json(capsys, "--model", str(folder), "--prompt", "the cat", "--against", "the cat said")["against"]
    assert (longer["here"], longer["why"]) == (None, "the second continues the first")
    same = as_json(capsys, "--model", str(folder), "--prompt", "the cat sat", "--against", "the cat sat")["against"]
    assert (same["common"], same["reused"], same["there"]) == (3, 2, None)
    assert "last token" in same["why"]
    chat = as_json(capsys, "--model", str(folder), "--chat", "--prompt", "the cat", "--against", "no!")["against"]
    assert chat["after"].endswith("<|im_start|>user\n")
    assert main(["inspect", "cache", "--model", str(folder), "--prompt", "the cat sat", "--against", "the dog"]) == 0
    assert "after 'the': ' cat' in the first, ' do" in capsys.readouterr().out


def test_why_a_prefix_missed_behind_a_window() -> None:
    model = zoo.model("window")
    row = CachedSequence(model, model.new_cache(kind="ring"))
    with torch.inference_mode():
        row.feed(zoo.tokens(30)[0].tolist())
    other = (*zoo.tokens(30)[0].tolist()[:12], 0, 1)
    tok = tokenizer()
    from vantage.cli.inspect import _why

    said = parting(tok, tuple(zoo.tokens(30)[0].tolist()), other) | {"reused": row.match(other)}
    assert "window had evicted" in _why(said)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give a FILE, or a --prompt"),
        (["x", "--prompt", "y"], "give a FILE, or a --prompt"),
        (["nowhere"], "nowhere"),
        (["nowhere", "--against", "y"], "--against"),
    ],
)
def test_bad_input_is_one_line(args: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "cache", *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert says in shown.err
