"""Every kind of bad checkpoint is refused with a typed error that names what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.checkpoints import tiny
from vantage.checkpoints.gguf import GGUF
from vantage.errors import BadInput, CheckpointError


@pytest.fixture
def folder(tmp_path):
    tiny.made("LlamaForCausalLM", "LlamaConfig", **tiny.BASE).save_pretrained(tmp_path / "x")
    return tmp_path / "x"


def changed(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewritten(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


class Trap:
    def __reduce__(self):
        return os.system, ("touch trapped",)


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.safetensors", "model.gguf", "pytorch_model.bin"])
def test_pickles_are_never_opened_whatever_they_are_called(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError):
        vt.load(folder)
    with pytest.raises(CheckpointError):
        vt.load(folder / name)
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mystery"}, r"model_type: no family is called 'mystery'"),
        ({"attention_surprise": 2}, r"'attention_surprise'"),
        ({"auto_map": {"AutoModel": "code.Model"}}, r"'auto_map'.*no code"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config"),
        ({"num_hidden_layers": 2**31 - 1}, r"num_hidden_layers is 2147483647"),
        ({"num_attention_heads": 2**31 - 1}, r"num_attention_heads is 2147483647"),
        ({"num_hidden_layers": "3"}, r"num_hidden_layers is '3'"),
        ({"num_key_value_heads": 3}, r"4 heads over 3"),
        ({"hidden_size": 47}, r"47|width"),
    ],
)
def test_configs(changes, said, folder):
    changed(folder, **changes)
    with pytest.raises(CheckpointError, match=said):
        vt.load(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks 'model.norm.weight'"),
        (lambda t: t.update({"model.extra.weight": torch.ones(2)}), r"'model.extra.weight'"),
        (lambda t: t.update({"model.norm.weight": torch.ones(47)}), r"'model.norm.weight' has shape \(47,\)"),
        (lambda t: t["model.norm.weight"].fill_(float("nan")), r"'model.norm.weight' holds NaN"),
        (lambda t: t["model.norm.weight"].fill_(float("inf")), r"'model.norm.weight' holds NaN or inf"),
        (lambda t: t.update({"model.norm.weight": torch.ones(48).int()}), r"'model.norm.weight' holds torch.int32"),
    ],
)
def test_tensors(change, said, folder):
    rewritten(folder, change)
    with pytest.raises(CheckpointError, match=said):
        vt.load(folder)


def header(entries: dict) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def entry(a, b):
    return {"dtype": "F32", "shape": [(b - a) // 4], "data_offsets": [a, b]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        header({"a": entry(0, 400)}) + b"\0" * 8,
        header({"a": entry(0, 8), "b": entry(4, 12)}) + b"\0" * 12,
        header({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}) + b"\0" * 8,
        header({"a": entry(8, 16)}) + b"\0" * 16,
        b"not a header at all, only words that stand in a file",
    ],
    ids=["empty", "byte", "overflow", "oversized", "truncated", "overlap", "shape", "hole", "words"],
)
def test_safetensors_headers(data, folder):
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        vt.load(folder)


@pytest.mark.parametrize("file", ["../x/model.safetensors", "/etc/passwd", "sub/model.safetensors", "link.safetensors"])
def test_shards_that_lead_out_of_the_folder(file, folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": file}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"leads out of the folder"):
        vt.load(folder)


def test_links_out_of_the_folder(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside.safetensors")
    with pytest.raises(CheckpointError, match=r"leads out of the folder"):
        vt.load(folder)


def test_what_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"does not exist"):
        vt.load(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"does not exist.*smollm2"):
        vt.load("no model of this name")


# ---- GGUF headers, byte by byte


def string(text: str | bytes) -> bytes:
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text)) + text


def gguf_file(*, magic=b"GGUF", version=3, tensors=None, keys=None, body=b"", data=b"\0" * 4096) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors or 0, keys or 0) + body + data


def tensor(name="x", dims=(8,), kind=0, offset=0) -> bytes:
    return string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def nested(depth: int) -> bytes:
    """An array in an array in an array …"""
    return string("deep") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", r"0 bytes"),
        (b"GGUF", r"4 bytes"),
        (gguf_file(magic=b"GGML"), r"begin with 'GGUF'"),
        (gguf_file(version=1), r"version 1"),
        (gguf_file(version=3 << 24), r"big-endian"),
        (gguf_file(tensors=2**64 - 1), r"promises 18446744073709551615"),
        (gguf_file(keys=2**62), r"promises 4611686018427387904"),
        (gguf_file(keys=1, body=struct.pack("<Q", 2**64 - 1)), r"length of 18446744073709551615"),
        (gguf_file(keys=1, body=string("k") + struct.pack("<I", 99)), r"type 99.*'k'"),
        (gguf_file(keys=1, body=string("k") + struct.pack("<IIQ", 9, 4, 2**62)), r"'k'"),
        (gguf_file(keys=1, body=string("k") + struct.pack("<IIQ", 9, 8, 2**61)), r"'k'"),
        (gguf_file(keys=1, body=string("k") + struct.pack("<IB", 7, 2)), r"truth value"),
        (gguf_file(keys=1, body=string(b"\xff\xfe") + struct.pack("<IB", 0, 2)), r"UTF-8"),
        (gguf_file(keys=2, body=(string("k") + struct.pack("<IB", 0, 2)) * 2), r"'k' twice"),
        (gguf_file(keys=1, body=nested(5)), r"deeper"),
        (gguf_file(tensors=1, body=tensor(dims=())), r"0 dimensions"),
        (gguf_file(tensors=1, body=tensor(dims=(1,) * 5)), r"5 dimensions"),
        (gguf_file(tensors=1, body=tensor(dims=(2**63, 2**63))), r"cut short"),
        (gguf_file(tensors=1, body=tensor(dims=(0,))), r"shape \(0,\)"),
        (gguf_file(tensors=1, body=tensor(kind=16, dims=(256,))), r"IQ2_XXS"),
        (gguf_file(tensors=1, body=tensor(kind=4)), r"type 4"),
        (gguf_file(tensors=1, body=tensor(kind=2, dims=(33,))), r"blocks of 32"),
        (gguf_file(tensors=1, body=tensor(offset=7)), r"aligned"),
        (gguf_file(tensors=1, body=tensor(offset=2**64 - 32)), r"cut short"),
        (gguf_file(tensors=1, body=tensor(dims=(2000,))), r"cut short"),
        (gguf_file(tensors=2, body=tensor("x") + tensor("x", offset=32)), r"'x' twice"),
        (gguf_file(tensors=2, body=tensor("x", (64,)) + tensor("y", offset=32)), r"'y' overlap 'x'"),
        (gguf_file(tensors=1, body=tensor("n" * 99)), r"length of 99"),
        (gguf_file(keys=1, body=string("general.alignment") + struct.pack("<II", 4, 0)), r"alignment 0"),
        (gguf_file(keys=1, body=string("general.alignment") + struct.pack("<II", 4, 33)), r"alignment 33"),
    ],
)
def test_gguf_headers(data, said, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=said):
        GGUF(path)
    with pytest.raises(CheckpointError, match=said):
        vt.load(path)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["one"],
        ["", "a", ""],
        ["x" * 255, "y" * 256, "z" * 70000, "w"],
        ["\0" * 20, "a\0\0\0\0\0\0\0b", "\3\0\0\0\0\0\0\0abc"],
        [f"ł{i}" for i in range(9000)],
        [*(f"{i}" for i in range(5000)), "", *(f"{i}" for i in range(5000)), "\0", *(f"{i}" for i in range(5000))],
    ],
)
def test_lists_of_strings_are_read_whatever_they_hold(words, tmp_path):
    body = string("words") + struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(string, words))
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file(keys=2, body=body + string("after") + struct.pack("<II", 4, 77)))
    metadata = GGUF(path).metadata
    strings = metadata["words"]
    assert (len(strings), strings.read(), metadata["after"]) == (len(words), words, 77)
    assert [strings[i] for i in range(0, len(words), 997)] == words[::997]
    with pytest.raises(IndexError):
        strings[len(words)]


def test_a_header_takes_no_more_memory_than_the_file(tmp_path):
    """A list of a hundred thousand short strings would be many times its size as Python objects."""
    words = b"".join(string(f"{i:x}") for i in range(100_000))
    lists = string("words") + struct.pack("<IIQ", 9, 8, 100_000) + words
    numbers = string("numbers") + struct.pack("<IIQ", 9, 0, 10**6) + b"\1" * 10**6
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_file(keys=2, body=lists + numbers))
    tracemalloc.start()
    file = GGUF(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 10
    assert list(file.metadata["words"])[-1] == f"{99_999:x}"
    assert int(np.sum(file.metadata["numbers"], dtype=int)) == 10**6
