"""Weights that stay in the blocks of their file, or are quantised on the way in."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

import vantage as vt
from tests.checkpoints import tiny
from vantage.errors import BadInput, CheckpointError
from vantage.kernels.native import Format
from vantage.model.packed import Packed, PackedLinear, PackedTable, PackedWeight

TOKENS = torch.randint(3, 67, (2, 12), generator=torch.Generator().manual_seed(3))
WIDE = {"hidden_size": 64, "intermediate_size": 96}  # whole blocks


def quantised(path, arch: str, kind: str, monkeypatch, **changes):
    """A tiny model's file with every matrix in blocks, as llama.cpp would write it."""
    plain = tiny.write

    def write(path, arch, metadata, tensors, kinds=None):
        kind_ = gguf.GGMLQuantizationType[kind]
        fits = [name for name, w in tensors.items() if w.ndim == 2 and w.shape[1] % 32 == 0]
        raw = {name: gguf.quantize(w.astype(np.float32), kind_) if name in fits else w for name, w in tensors.items()}
        return plain(path, arch, metadata, raw, dict.fromkeys(fits, kind_))

    monkeypatch.setattr(tiny, "write", write)
    getattr(tiny, arch)(path, **({} if arch in ("qwen3", "gemma3", "gpt2") else WIDE), **changes)
    return path


def packed_of(model) -> dict[str, Packed]:
    return {name: m.packed for name, m in model.named_modules() if isinstance(m, PackedWeight)}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "bert"])
def test_blocks_stay_and_mean_what_they_meant(arch, kind, tmp_path, monkeypatch):
    file = quantised(tmp_path / "x.gguf", arch, kind, monkeypatch)
    kept, plain = vt.load(file, dtype="auto"), vt.load(file)
    weights, parameters = packed_of(kept), dict(plain.named_parameters(remove_duplicate=False))
    assert weights
    for name, packed in weights.items():
        # Q4_0 subtracts 8 before it scales, and we subtract 8 scales
        torch.testing.assert_close(packed.unpack(), parameters[name], rtol=0, atol=1e-7 if kind == "Q4_0" else 0)
    with torch.inference_mode():
        got, want = kept(TOKENS), plain(TOKENS)
    assert float((got - want).abs().max() / want.abs().max()) < 5e-3  # activations of 16 bits, weights far from real


def test_what_is_not_in_simple_blocks_becomes_float32(tmp_path, monkeypatch):
    file = quantised(tmp_path / "x.gguf", "llama", "Q5_0", monkeypatch)
    assert packed_of(vt.load(file, dtype="auto")) == {}


def test_a_tied_head_shares_the_embeddings_blocks(tmp_path, monkeypatch):
    file = quantised(tmp_path / "x.gguf", "llama", "Q8_0", monkeypatch, tie_word_embeddings=True)
    model = vt.load(file, dtype="auto")
    assert isinstance(model.embed.tokens, PackedTable)
    assert isinstance(model.head.linear, PackedLinear)
    assert model.head.linear.weight is model.embed.tokens.weight


def test_damaged_scales_are_refused_by_name(tmp_path, monkeypatch):
    file = quantised(tmp_path / "x.gguf", "llama", "Q8_0", monkeypatch)
    from vantage.checkpoints.gguf import GGUF

    at = GGUF(file).tensors["blk.0.ffn_down.weight"].start
    raw = bytearray(file.read_bytes())
    raw[at : at + 2] = np.float16("nan").tobytes()
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj\.weight' holds NaN"):
        vt.load(file, dtype="auto")


@pytest.mark.parametrize(("dtype", "format"), [("int8", Format.PACK8), ("int4", Format.PACK4)])
def test_any_checkpoint_can_be_quantised(dtype, format, tmp_path):
    model = vt.build(vt.decoder(vocab=70, width=64, layers=2, heads=4))
    vt.save(model, tmp_path)
    small = vt.load(tmp_path, dtype=dtype)
    formats = {name: packed.format for name, packed in packed_of(small).items()}
    assert formats.pop("embed.tokens.weight") == formats.pop("head.linear.weight") == Format.PACK8
    assert set(formats.values()) == {format}
    torch.testing.assert_close(
        small.blocks[0].steps[0].sublayer.qkv.weight.packed.unpack(),
        Packed.quantise(model.blocks[0].steps[0].sublayer.qkv.weight, 8 if dtype == "int8" else 4).unpack(),
    )
    with torch.inference_mode():
        got, want = small.eval()(TOKENS), model.eval()(TOKENS)
    assert float((got - want).abs().max() / want.abs().max()) < (0.03 if dtype == "int8" else 0.4)


def test_bad_input(tmp_path):
    model = vt.build(vt.decoder(vocab=70, width=64, layers=1, heads=4))
    vt.save(model, tmp_path / "a")
    with pytest.raises(BadInput, match=r"dtype='int3': give a torch dtype, or one of 'auto', 'int8', 'int4'"):
        vt.load(tmp_path / "a", dtype="int3")
    with pytest.raises(BadInput, match="weights are packed"):
        vt.save(vt.load(tmp_path / "a", dtype="int8"), tmp_path / "b")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_damaged_weight_is_not_quantised_away(dtype, tmp_path):
    model = vt.build(vt.decoder(vocab=70, width=64, layers=1, heads=4))
    with torch.no_grad():
        model.blocks[0].steps[0].sublayer.out.weight[3, 5] = float("nan")
    vt.save(model, tmp_path)
    with pytest.raises(CheckpointError, match=r"out\.weight' holds NaN"):
        vt.load(tmp_path, dtype=dtype)


def test_without_the_native_kernels_blocks_become_float32(tmp_path, monkeypatch):
    """Unpacking every weight for every token would take longer than anybody waits."""
    file = quantised(tmp_path / "x.gguf", "llama", "Q8_0", monkeypatch)
    monkeypatch.setattr("vantage.families.packing.native", lambda: None)
    model = vt.load(file, dtype="auto")
    assert packed_of(model) == {}
    with torch.inference_mode():
        torch.testing.assert_close(model(TOKENS), vt.load(file)(TOKENS))
