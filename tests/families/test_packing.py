"""Weights that stay in the blocks of their file, or are quantised on the way in."""

from __future__ import annotations

from collections.abc import Callable

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


def quantised(path, arch: str, kind: str | Callable[[str], str], monkeypatch, **changes):
    """A tiny model's file with every matrix in blocks, as llama.cpp would write it; ``kind`` may ask for the name."""
    plain = tiny.write

    def write(path, arch, metadata, tensors, kinds=None):
        of = {
            name: gguf.GGMLQuantizationType[kind if isinstance(kind, str) else kind(name)]
            for name, w in tensors.items()
            if w.ndim == 2 and w.shape[1] % 32 == 0
        }
        raw = {name: blocks(w.astype(np.float32), of[name]) if name in of else w for name, w in tensors.items()}
        return plain(path, arch, metadata, raw, of)

    monkeypatch.setattr(tiny, "write", write)
    getattr(tiny, arch)(path, **({} if arch in ("qwen3", "gemma3", "gpt2") else WIDE), **changes)
    return path


def blocks(weights: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The ``gguf`` package quantises no K kinds: there any numbers do, with scales that make them as large."""
    if not kind.name.endswith("_K"):
        return gguf.quantize(weights, kind)
    size, width = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(len(weights))
    raw = rng.integers(0, 256, (len(weights), weights.shape[1] // size, width), dtype=np.uint8)
    first, count, largest = {"Q4_K": (0, 2, 15 * 63), "Q6_K": (208, 1, 32 * 127)}[kind.name]
    scale = np.full((*raw.shape[:2], count), 0.1 / largest, np.float16)
    raw[..., first : first + 2 * count] = scale.view(np.uint8)
    return raw.reshape(len(weights), -1)


def packed_of(model) -> dict[str, PackedWeight]:
    modules = model.named_modules(remove_duplicate=False)
    return {name: m for name, m in modules if isinstance(m, PackedWeight)}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "bert"])
def test_blocks_stay_and_mean_what_they_meant(arch, kind, tmp_path, monkeypatch):
    file = quantised(tmp_path / "x.gguf", arch, kind, monkeypatch)
    kept, plain = vt.load(file, dtype="auto"), vt.load(file)
    weights, parameters = packed_of(kept), dict(plain.named_parameters(remove_duplicate=False))
    assert weights
    for name, packed in weights.items():
        torch.testing.assert_close(packed.unpack(torch.float32), parameters[name], rtol=0, atol=0)
    with torch.inference_mode():
        got, want = kept(TOKENS), plain(TOKENS)
    assert float((got - want).abs().max() / want.abs().max()) < 5e-3  # activations of 16 bits, weights far from real


def mixed(name: str) -> str:
    """As in a Q4_K_M file."""
    return "Q6_K" if "attn_v" in name or "ffn_down" in name or name.startswith("token_embd") else "Q4_K"


def test_a_file_of_several_kinds_stays_in_its_blocks(tmp_path, monkeypatch):
    """q and k in 4 bits and v in 6 are one map here: every row is where it would be in float32."""
    monkeypatch.setitem(WIDE, "hidden_size", 256)
    monkeypatch.setitem(WIDE, "intermediate_size", 512)
    file = quantised(tmp_path / "x.gguf", "llama", mixed, monkeypatch, tie_word_embeddings=True)
    kept, plain = vt.load(file, dtype="auto"), vt.load(file)
    weights, parameters = packed_of(kept), dict(plain.named_parameters(remove_duplicate=False))
    linear = [name for name, w in parameters.items() if w.ndim == 2]
    assert sorted(weights) == sorted(linear)
    assert {tuple(w.formats) for name, w in weights.items() if "qkv" in name} == {(Format.Q4_K, Format.Q6_K)}
    for name, packed in weights.items():
        torch.testing.assert_close(packed.unpack(torch.float32), parameters[name], rtol=0, atol=0)
    with torch.inference_mode():
        got, want = kept(TOKENS), plain(TOKENS)
        cache = kept.new_cache(batch=len(TOKENS))
        steps = torch.cat([kept(TOKENS[:, i : i + 1], cache=cache) for i in range(TOKENS.shape[1])], 1)
    assert float((got - want).abs().max() / want.abs().max()) < 5e-3
    assert torch.equal(steps, got)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_folders_16_bits_stay_and_run_natively(dtype, tmp_path):
    """The folder's numbers to the bit, no float32 copy of them, and the same bits however tokens arrive."""
    vt.save(vt.build(vt.decoder(vocab=70, width=64, layers=2, heads=4, kv_heads=2)).to(dtype), tmp_path)
    kept, plain = vt.load(tmp_path, dtype="auto"), vt.load(tmp_path)
    weights, parameters = packed_of(kept), dict(plain.named_parameters(remove_duplicate=False))
    assert sorted(weights) == sorted(name for name, w in parameters.items() if w.ndim == 2)
    for name, packed in weights.items():
        assert packed.formats == [Format.F16 if dtype is torch.float16 else Format.BF16]
        assert torch.equal(packed.unpack(torch.float32), parameters[name])
        assert sum(data.nbytes for data in packed.buffers()) <= 2 * -(-packed.outputs // 16) * 16 * packed.inputs
    kept.kernel, kept.kv_dtype = "native", None  # it refuses what it cannot run; nothing else is rounded
    with torch.inference_mode():
        got, want = kept(TOKENS), plain(TOKENS)
        cache = kept.new_cache(batch=len(TOKENS))
        steps = torch.cat([kept(part, cache=cache) for part in TOKENS.split([5, 1, 1, 5], 1)], 1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert torch.equal(steps, got)


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


@pytest.mark.parametrize(("dtype", "format"), [("int8", Format.Q8_0), ("int4", Format.Q4_1)])
def test_any_checkpoint_can_be_quantised(dtype, format, tmp_path):
    model = vt.build(vt.decoder(vocab=70, width=64, layers=2, heads=4))
    vt.save(model, tmp_path)
    small = vt.load(tmp_path, dtype=dtype)
    formats = {name: packed.formats for name, packed in packed_of(small).items()}
    assert formats.pop("embed.tokens.weight") == formats.pop("head.linear.weight") == [Format.Q8_0]
    assert all(kinds == [format] for kinds in formats.values())
    torch.testing.assert_close(
        small.blocks[0].steps[0].sublayer.qkv.weight.unpack(torch.float32),
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
