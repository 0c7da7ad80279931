"""``vantage generate`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from PIL import Image

import vantage as vt
from tests.generation.folder import chat_folder, chat_model
from tests.generation.vision_chat import pixels, vision_chat_model
from vantage.cli.main import main

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(chat_folder(tmp_path_factory.mktemp("model") / "tiny"))


def process(*args, given=None):
    command = [sys.executable, "-m", "vantage", "generate", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, input=given)


@pytest.fixture
def vantage(capsys):
    """The same without a process of its own, which would take seconds to import torch."""

    def run(*args):
        try:
            code = main(["generate", *args])
        except SystemExit as e:
            code = e.code
        said = capsys.readouterr()
        return subprocess.CompletedProcess(args, code, said.out, said.err)

    return run


def test_a_prompt_goes_on(folder):
    done = process(folder, TEXT, "--max-tokens", "8")
    assert done.returncode == 0, done.stderr
    text = vt.generate(chat_model(), TEXT, max_tokens=8).text
    assert done.stdout == text.replace("\r", "\n") + "\n"  # as a text stream reads it


@pytest.mark.sampled
def test_a_prompt_from_standard_input_with_numbers_and_json(folder):
    options = [
        "--max-tokens",
        "8",
        "--temperature",
        "1",
        "--seed",
        "3",
        "--logprobs",
        "1",
        "--stats",
        "--json",
        "--chat",
    ]
    done = process(folder, "-", *options, "--batch-invariant", "--stop", "xyz", given=TEXT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    wanted = vt.generate(chat_model(), TEXT, max_tokens=8, temperature=1.0, seed=3, chat=True)
    assert told["text"] == wanted.text
    assert told["tokens"] == list(wanted.tokens)
    assert told["seed"] == 3
    assert told["stats"]["generated"] == len(told["tokens"]) == len(told["logprobs"])


def test_samples_and_stats(folder, vantage):
    done = vantage(folder, TEXT, "--max-tokens", "4", "-n", "2", "--temperature", "1", "--stats", "--no-cache")
    assert done.returncode == 0
    assert done.stdout.count("--- sample") == 2
    assert "recomputed" in done.stderr
    streamed = vantage(folder, TEXT, "--max-tokens", "4", "--stats")
    assert "projections" in streamed.stderr


def test_a_schema_from_a_file_and_a_pattern(folder, vantage, tmp_path):
    (tmp_path / "schema.json").write_text('{"enum": [12, 3]}')
    done = vantage(folder, TEXT, "--schema", f"@{tmp_path / 'schema.json'}")
    assert json.loads(done.stdout) in (12, 3)
    assert vantage(folder, TEXT, "--regex", "(cat)+s", "--max-tokens", "400").stdout.startswith("cat")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["a", "b", "c"], "3 words"),
        ([""], "empty prompt"),
        (["nowhere", "hello"], "nowhere does not exist"),
        (["x", "--temperature", "-1"], "temperature=-1.0"),
        (["x", "--max-tokens", "many"], "invalid int value"),
        (["x", "--logprobs", "2"], "--json"),
        (["x", "--schema", "@nowhere.json"], "cannot be read"),
        ([], "required"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_line(args, says, vantage):
    done = vantage(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_guessing_ahead_and_searching(vantage, folder):
    plain = vantage(folder, TEXT, "--max-tokens", "8")
    ahead = vantage(folder, TEXT, "--max-tokens", "8", "--lookup", "--stats")
    assert (ahead.returncode, ahead.stdout) == (0, plain.stdout)
    assert "accepted" in ahead.stderr
    assert "projections" in ahead.stderr
    one = json.loads(vantage(folder, TEXT, "--max-tokens", "8", "--beams", "1", "--json").stdout)
    three = json.loads(vantage(folder, TEXT, "--max-tokens", "8", "--beams", "3", "--json").stdout)
    assert one["text"] == plain.stdout.rstrip("\n")  # one beam is greedy
    assert three["score"] >= one["score"] - 1e-4
    assert vantage(folder, TEXT, "--beams", "3", "--stats", "--max-tokens", "4").stderr.endswith("calls\n")
    for option in (["--lookup"], ["-n", "2"], ["--stop", "x"], ["--schema", "{}"], ["--top-p", "0.5"], ["--no-cache"]):
        refused = vantage(folder, TEXT, "--beams", "3", *option)
        assert refused.returncode == 2
        assert "do not go together" in refused.stderr
    assert vantage(folder, TEXT, "--beams", "0").returncode == 2


@pytest.mark.sampled
def test_weights_in_fewer_bits(vantage, folder):
    done = vantage(folder, TEXT, "--max-tokens", "4", "--dtype", "float32")
    assert done.returncode == 0
    assert vantage(folder, TEXT, "--max-tokens", "4", "--dtype", "int8").returncode == 0
    assert vantage(folder, TEXT, "--dtype", "int3").returncode == 2


def test_an_image_from_a_file(vantage, folder, tmp_path):
    model, image = vision_chat_model(), tmp_path / "a.png"
    vt.save(model, tmp_path / "eyes")
    Image.fromarray(pixels().permute(1, 2, 0).numpy()).save(image)
    asked = ("hello", "--chat", "--max-tokens", "8", "--image", str(image), "--json")
    done = vantage(str(tmp_path / "eyes"), *asked)
    assert done.returncode == 0, done.stderr
    wanted = vt.generate(vt.load(tmp_path / "eyes", dtype="auto"), "hello", images=pixels(), chat=True, max_tokens=8)
    assert json.loads(done.stdout)["text"] == wanted.text
    for args, says in (
        ((folder, *asked), "this model reads no images"),
        ((str(tmp_path / "eyes"), *asked, "--image", "gone.png"), "the image gone.png cannot be read"),
        ((str(tmp_path / "eyes"), *asked, "--beams", "2"), "--image"),
    ):
        refused = vantage(*args)
        assert refused.returncode == 2
        assert says in refused.stderr
