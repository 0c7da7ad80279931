"""Damaged and hostile files: a typed error or a model, whatever they say; no crash, no hang, no big allocation."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vantage as vt
from tests.checkpoints import tiny
from vantage.errors import VantageError

SMALL = {
    "vocab_size": 12,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}
VOCABULARY = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "c", "d", "cd", "e"],
    "tokenizer.ggml.scores": [float(-i) for i in range(12)],
    "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 9],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}
ROOM = 32 * 2**20  # what the process may grow by in one case: the files have a few kilobytes
EXTREME = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A sound GGUF file and a sound folder, and how long their headers are."""
    folder = tmp_path_factory.mktemp("fuzz")
    model = tiny.made("LlamaForCausalLM", "LlamaConfig", **SMALL)
    tensors = tiny.renamed(model, tiny.NAMES + tiny.PRE)
    tiny.write(folder / "sound.gguf", "llama", {**tiny.shape("llama", model.config), **VOCABULARY}, tensors)
    model.save_pretrained(folder / "sound")
    sound = (folder / "sound.gguf").read_bytes()
    header = len(sound) - sum(-(-t.nbytes // 32) * 32 for t in tensors.values())
    assert vt.load(folder / "sound.gguf").tokenizer.encode("ab")
    vt.load(folder / "sound")
    return folder, sound, header


@contextlib.contextmanager
def bounded():
    """An allocation beyond the room fails at once instead of filling the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


EDIT = st.one_of(
    st.tuples(st.just("byte"), st.floats(0, 1), st.integers(0, 255)),
    st.tuples(st.just("word"), st.floats(0, 1), st.sampled_from(EXTREME)),
    st.tuples(st.just("half"), st.floats(0, 1), st.sampled_from([0, 1, 2**31 - 1, 2**32 - 1, 7, 8, 9])),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("drop"), st.floats(0, 1), st.integers(1, 40)),
    st.tuples(st.just("twice"), st.floats(0, 1), st.integers(1, 40)),
)
EDITS = st.lists(EDIT, min_size=1, max_size=4)


def edited(sound: bytes, header: int, edits) -> bytes:
    data = bytearray(sound)
    for kind, where, value in edits:
        at = min(int(where * header), max(len(data) - 1, 0))
        if kind == "byte" and data:
            data[at] = value
        elif kind == "word":
            data[at : at + 8] = value.to_bytes(8, "little")
        elif kind == "half":
            data[at : at + 4] = value.to_bytes(4, "little")
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + value]
        elif kind == "twice":
            data[at:at] = data[at : at + value]
    return bytes(data)


def survives(path: Path) -> None:
    """A model that computes, or an error that says so."""
    began = time.process_time()
    with bounded(), contextlib.suppress(VantageError):
        model = vt.load(path)
        if model.tokenizer is not None:
            model.tokenizer.encode("ab c")
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]) % model.spec.vocab)
    assert time.process_time() - began < 5.0  # nothing blows up: a good file takes 0.05


def gguf_survives(files, edits):
    folder, sound, header = files
    path = folder / "edited.gguf"
    path.write_bytes(edited(sound, header, edits))
    survives(path)


def folder_survives(files, edits):
    folder, _, _ = files
    other = folder / "edited"
    if not other.exists():
        shutil.copytree(folder / "sound", other)
    sound = (folder / "sound" / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(sound[:8], "little")
    (other / "model.safetensors").write_bytes(edited(sound, header, edits))
    survives(other)


def config_survives(files, key, value):
    folder, _, _ = files
    other = folder / "config"
    if not other.exists():
        shutil.copytree(folder / "sound", other)
    config = json.loads((folder / "sound" / "config.json").read_text())
    keys = sorted(config)
    config[keys[key % len(keys)]] = value
    (other / "config.json").write_text(json.dumps(config))
    survives(other)


VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from(EXTREME),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(
        st.sampled_from(["rope_type", "factor", "x"]), st.integers(-2, 3) | st.text(max_size=4), max_size=2
    ),
)
RARE = [HealthCheck.too_slow]


@settings(max_examples=200, suppress_health_check=RARE)
@given(edits=EDITS)
def test_gguf_headers(files, edits):
    gguf_survives(files, edits)


@settings(max_examples=120, suppress_health_check=RARE)
@given(edits=EDITS)
def test_safetensors_headers(files, edits):
    folder_survives(files, edits)


@settings(max_examples=80, suppress_health_check=RARE)
@given(key=st.integers(0, 1000), value=VALUE)
def test_configs(files, key, value):
    config_survives(files, key, value)


@pytest.mark.slow
@settings(max_examples=10_000, suppress_health_check=RARE)
@given(edits=EDITS)
def test_many_gguf_headers(files, edits):
    gguf_survives(files, edits)


@pytest.mark.slow
@settings(max_examples=6_000, suppress_health_check=RARE)
@given(edits=EDITS)
def test_many_safetensors_headers(files, edits):
    folder_survives(files, edits)


@pytest.mark.slow
@settings(max_examples=4_000, suppress_health_check=RARE)
@given(key=st.integers(0, 1000), value=VALUE)
def test_many_configs(files, key, value):
    config_survives(files, key, value)
