"""``vantage convert``: what comes out is what went in, for us and for transformers."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaForCausalLM

import vantage as vt
from tests.checkpoints import tiny
from vantage.cli.main import main

TOKENS = torch.randint(3, 67, (2, 24), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_gguf_to_folder_and_folder_to_shards(tmp_path, capsys):
    theirs = tiny.llama(tmp_path / "x.gguf")
    wanted = theirs(TOKENS).logits
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "a")]) == 0
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--shard-bytes", "20000", "--json"]) == 0
    assert '"dtype": "float32"' in capsys.readouterr().out
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 1
    for name in ("a", "b"):
        assert torch.equal(LlamaForCausalLM.from_pretrained(tmp_path / name).eval()(TOKENS).logits, wanted)
    ours = vt.load(tmp_path / "b")
    for (name, a), (_, b) in zip(ours.named_parameters(), vt.load(tmp_path / "a").named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_another_dtype(tmp_path):
    tiny.llama(tmp_path / "x.gguf")
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "a"), "--dtype", "bfloat16"]) == 0
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    first = next(iter(vt.load(tmp_path / "a", dtype=torch.float32).parameters()))
    assert torch.equal(first, first.bfloat16().float())
    assert not torch.equal(first, next(iter(vt.load(tmp_path / "x.gguf").parameters())))


@pytest.mark.parametrize("more", [["--shard-bytes", "0"], ["--dtype", "int3"]])
def test_bad_input_is_one_line(more, tmp_path, capsys):
    tiny.llama(tmp_path / "x.gguf")
    try:
        code = main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "a"), *more])
    except SystemExit as e:
        code = e.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_in_use_is_not_written_to(tmp_path, capsys):
    tiny.llama(tmp_path / "x.gguf")
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "a")]) == 0
    assert main(["convert", str(tmp_path / "x.gguf"), str(tmp_path / "a")]) == 2
    assert "already holds safetensors" in capsys.readouterr().err
