"""GGUF files: what they hold is read as transformers and the gguf package read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers.integrations.gguf.dequant import dequantize as their_dequantize

import vantage as vt
from tests.checkpoints import tiny
from vantage.checkpoints.gguf import CHUNK_NUMBERS, GGUF, KINDS
from vantage.checkpoints.gguf_names import GGUFTensors
from vantage.errors import CheckpointError
from vantage.model.packed import packed_weights

BENCH = Path(__file__).parents[2] / "bench" / ".venv" / "bin" / "python"
TOKENS = torch.randint(3, 67, (2, 24), generator=torch.Generator().manual_seed(3))


def halves(kind: gguf.GGMLQuantizationType, blocks: int, rng: np.random.Generator) -> np.ndarray:
    """Random blocks of a quantised type whose scales are small, finite numbers."""
    _, width = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (blocks, width), dtype=np.uint8)
    if kind.name == "MXFP4":  # an exponent
        data[:, 0] = rng.integers(100, 140, blocks)
        return data
    scale_at = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    for at in scale_at.get(kind.name, (0, 2) if kind.name.endswith("_1") else (0,)):
        data[:, at : at + 2] = rng.normal(size=(blocks, 1)).astype(np.float16).view(np.uint8)
    return data


@pytest.mark.parametrize("kind", sorted(KINDS), ids=lambda kind: kind.name)
def test_every_kind_of_tensor_is_dequantised_like_the_gguf_package_does_it(kind, tmp_path):
    """Over the length of a slice, so that the seams are seen as well."""
    rng, (block, _) = np.random.default_rng(0), gguf.GGML_QUANT_SIZES[kind]
    columns = 256
    rows = CHUNK_NUMBERS // columns + 5
    if block == 1:
        raw = gguf.quantize(rng.normal(size=(rows, columns)).astype(np.float32), kind)
    else:
        raw = halves(kind, rows * columns // block, rng).reshape(rows, -1)
    path = tiny.write(tmp_path / "x.gguf", "llama", {}, {"x": raw}, {"x": kind})
    got = GGUF(path).get("x")
    wanted = gguf.dequantize(raw, kind)
    assert got.shape == (rows, columns)
    assert torch.equal(got, torch.from_numpy(wanted.astype(np.float32)))
    if kind.name not in ("F32", "F16", "BF16", "Q5_0", "Q5_1", "MXFP4"):  # those transformers reads elsewhere
        theirs = their_dequantize(torch.from_numpy(raw.copy()).flatten(), int(kind)).reshape(rows, columns)
        torch.testing.assert_close(got, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(GGUF(path).get("x", torch.bfloat16), got.bfloat16())


ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma3", "gpt2", "bert"]
NEWER = ["smollm3", "phi3", "longrope", "lfm2", "qwen3moe", "mixtral"]


@pytest.mark.parametrize("arch", [*ARCHITECTURES, *NEWER, "phi3_window"])
@torch.no_grad()
def test_every_architecture_gives_the_numbers_of_transformers(arch, tmp_path):
    theirs = getattr(tiny, arch)(tmp_path / "x.gguf")
    out = theirs(TOKENS)
    wanted = out.last_hidden_state if arch == "bert" else out.logits
    got = vt.load(tmp_path / "x.gguf")(TOKENS)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


LOGITS = """
import json, sys
import llama_cpp as lib, numpy
path, tokens, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
params = lib.llama_context_default_params()
params.n_ctx, params.n_threads, params.n_threads_batch = 64, 1, 1
context = lib.llama_init_from_model(model, params)
batch = lib.llama_batch_init(len(tokens), 0, 1)
batch.n_tokens = len(tokens)
for i, token in enumerate(tokens):
    batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
    batch.seq_id[i][0] = 0
assert lib.llama_decode(context, batch) == 0
numpy.save(out, [[lib.llama_get_logits_ith(context, i)[j] for j in range(67)] for i in range(len(tokens))])
"""


@pytest.mark.slow
@pytest.mark.skipif(not BENCH.exists(), reason="llama.cpp is in the bench environment: make bench makes it")
@pytest.mark.parametrize("arch", ["llama", *NEWER])
@torch.no_grad()
def test_llama_cpp_reads_the_same_model(arch, tmp_path):
    """Its keys and values are in 16 bits."""
    getattr(tiny, arch)(tmp_path / "x.gguf")
    command = [str(BENCH), "-c", LOGITS, str(tmp_path / "x.gguf"), str(TOKENS[0].tolist()), str(tmp_path / "out.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted, got = torch.from_numpy(np.load(tmp_path / "out.npy")), vt.load(tmp_path / "x.gguf")(TOKENS[:1])[0]
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 5e-3


@pytest.mark.parametrize("arch", ["qwen3moe", "lfm2", "phi3"])
@torch.no_grad()
def test_blocks_of_the_newer_ones_run_as_they_are(arch, tmp_path, monkeypatch):
    """Experts are parts of one tensor in the file."""
    whole = tiny.write

    def quantised(path, arch, metadata, tensors, kinds=None):
        Q8_0 = gguf.GGMLQuantizationType.Q8_0
        some = [
            name for name, x in tensors.items() if x.ndim > 1 and x.shape[-1] % 32 == 0 and "shortconv.conv" not in name
        ]
        packed = {name: gguf.quantize(tensors[name].astype(np.float32), Q8_0) for name in some}
        return whole(path, arch, metadata, {**tensors, **packed}, dict.fromkeys(some, Q8_0))

    monkeypatch.setattr(tiny, "write", quantised)
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    getattr(tiny, arch)(tmp_path / "x.gguf", **sizes, **({"moe_intermediate_size": 32} if arch == "qwen3moe" else {}))
    wanted = vt.load(tmp_path / "x.gguf")(TOKENS)
    model = vt.load(tmp_path / "x.gguf", dtype="auto")
    assert packed_weights(model)
    got = model(TOKENS)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 0.05


@torch.no_grad()
def test_biases_and_tied_heads_are_seen_in_the_tensors(tmp_path):
    theirs = tiny.llama(tmp_path / "x.gguf", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    got = vt.load(tmp_path / "x.gguf")(TOKENS)
    wanted = theirs(TOKENS).logits
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


@torch.no_grad()
def test_a_saved_gguf_is_a_folder_for_transformers(tmp_path):
    theirs = tiny.llama(tmp_path / "x.gguf")
    vt.save(vt.load(tmp_path / "x.gguf"), tmp_path / "folder")
    back = type(theirs).from_pretrained(tmp_path / "folder").eval()
    for (name, a), (_, b) in zip(theirs.named_parameters(), back.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(back(TOKENS).logits, theirs(TOKENS).logits)


def llama_file(tmp_path, *, more=None, tensors=None):
    """A tiny LLaMA with other metadata or tensors."""
    model = tiny.llama(tmp_path / "plain.gguf")
    file = GGUF(tmp_path / "plain.gguf")
    metadata = {k: v for k, v in file.metadata.items() if k != "general.architecture"}
    kept = {name: file.get(name).numpy() for name in file.tensors}
    return model, tiny.write(tmp_path / "x.gguf", "llama", {**metadata, **(more or {})}, {**kept, **(tensors or {})})


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 32,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope_scalings(more, wanted, tmp_path):
    _, path = llama_file(tmp_path, more=more)
    said = GGUFTensors(path).config["rope_parameters"]
    assert {key: said[key] for key in wanted} == wanted
    vt.load(path)


def test_the_rule_behind_llama3s_divisors_is_found(tmp_path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = tiny.made("LlamaForCausalLM", "LlamaConfig", **tiny.BASE, rope_parameters=rope).config
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 5e5 ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    divisors = (plain / frequencies).numpy()
    _, path = llama_file(tmp_path, more={"llama.rope.freq_base": 5e5}, tensors={"rope_freqs.weight": divisors})
    assert GGUFTensors(path).config["rope_parameters"] == rope
    _, path = llama_file(tmp_path, tensors={"rope_freqs.weight": divisors + 1})
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight.*no rule"):
        GGUFTensors(path)


@pytest.mark.parametrize(
    ("more", "tensors", "said"),
    [
        ({"llama.attention.surprise": 3}, {}, r"attention.surprise"),
        ({"llama.expert_count": 8}, {}, r"'expert_used_count' is missing"),
        ({"llama.rope.scaling.type": "su"}, {}, r"rope.scaling.type is 'su'"),
        ({"llama.block_count": "three"}, {}, r"block_count is 'three'"),
        ({"llama.block_count": 4}, {}, r"lacks 'model.layers.3"),
        ({"llama.block_count": 2**31 - 1}, {}, r"block_count is 2147483647"),
        ({"llama.attention.head_count_kv": 2**31 - 1}, {}, r"attn_k.weight.*2147483647"),
        ({"llama.attention.head_count_kv": 3}, {}, r"4 heads over 3 key/value heads"),
        ({}, {"blk.0.mystery.weight": np.ones((4, 4), np.float32)}, r"blk.0.mystery.weight"),
        ({}, {"output_norm.weight": np.ones(47, np.float32)}, r"model.norm.weight.*shape"),
        ({}, {"output_norm.weight": np.full(48, np.nan, np.float32)}, r"model.norm.weight.*NaN"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(more, tensors, said, tmp_path):
    _, path = llama_file(tmp_path, more=more, tensors=tensors)
    with pytest.raises(CheckpointError, match=said):
        vt.load(path)


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    path = tiny.write(tmp_path / "x.gguf", "mamba", {}, {"x": np.ones((2, 2), np.float32)})
    with pytest.raises(CheckpointError, match=r"mamba.*There are: llama"):
        vt.load(path)
