"""GGUF files that we write: the same model again, in the types that were asked for, with its tokenizer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.checkpoints import tiny
from vantage.checkpoints.gguf import GGUF
from vantage.checkpoints.gguf_quantise import quantise
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.training.text.vocabulary import BPE, Characters

TOKENS = torch.randint(3, 67, (2, 24), generator=torch.Generator().manual_seed(3))
WIDE = {"hidden_size": 256, "intermediate_size": 288, "num_attention_heads": 4, "vocab_size": 67}
BENCH = Path(__file__).parents[2] / "bench" / ".venv" / "bin" / "python"


@pytest.mark.parametrize("arch", ["llama", "smollm3", "qwen2", "qwen3", "gemma3", "gpt2", "bert"])
def test_every_architecture_comes_back_to_the_bit(arch, tmp_path):
    getattr(tiny, arch)(tmp_path / "a.gguf")
    model = vt.load(tmp_path / "a.gguf")
    vt.save_gguf(model, tmp_path / "b.gguf", "F32")
    again = vt.load(tmp_path / "b.gguf")
    for (name, a), (_, b) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
@torch.no_grad()
def test_frequency_rules_come_back(rope, tmp_path):
    theirs = tiny.made("LlamaForCausalLM", "LlamaConfig", **tiny.BASE, rope_parameters=rope)
    model = vt.load(theirs)
    vt.save_gguf(model, tmp_path / "a.gguf", "F32")
    again = vt.load(tmp_path / "a.gguf")
    assert again.spec.layers[0].qk == model.spec.layers[0].qk
    assert torch.equal(again(TOKENS), model(TOKENS))


@torch.no_grad()
def test_a_mix_holds_what_quantising_each_tensor_gives(tmp_path):
    tiny.llama(tmp_path / "a.gguf", **WIDE)
    model = vt.load(tmp_path / "a.gguf")
    vt.save_gguf(model, tmp_path / "b.gguf", "Q4_K_M")
    plain, file = GGUF(tmp_path / "a.gguf"), GGUF(tmp_path / "b.gguf")
    kinds = {name: stored.kind.name for name, stored in file.tensors.items()}
    assert kinds["output.weight"] == "Q6_K"
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    assert kinds["blk.1.ffn_down.weight"] in ("Q5_0", "Q8_0")  # 288 is no multiple of 256
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    for name, stored in file.tensors.items():
        blocks = quantise(plain.get(name), stored.kind.name)
        if len(stored.shape) == 2:
            assert torch.equal(file.rows(name), blocks), name
    assert file.metadata["general.file_type"] == 15
    # the same logits as from a file without blocks that holds what they stand for
    metadata = {key: value for key, value in plain.metadata.items() if key.startswith("llama.")}
    unpacked = {name: file.get(name).numpy() for name in file.tensors}
    tiny.write(tmp_path / "c.gguf", "llama", metadata, unpacked)
    logits = vt.load(tmp_path / "b.gguf")(TOKENS)
    assert torch.equal(logits, vt.load(tmp_path / "c.gguf")(TOKENS))
    assert not torch.equal(logits, model(TOKENS))


def test_a_model_that_was_built_like_llama_is_one(tmp_path):
    torch.manual_seed(0)
    model = vt.build(vt.decoder(vocab=67, width=64, layers=2, heads=4, position="rope"))
    vt.save_gguf(model, tmp_path / "a.gguf", "F32")
    again = vt.load(tmp_path / "a.gguf")
    assert torch.equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    ("position", "what"), [("alibi", "RoPE"), (vt.Rope(pairing="adjacent"), "pairing is 'adjacent'")], ids=str
)
def test_a_model_that_no_architecture_holds_is_refused_by_name(position, what, tmp_path):
    model = vt.build(vt.decoder(vocab=67, width=64, layers=2, heads=4, position=position))
    with pytest.raises(BadInput, match=what):
        vt.save_gguf(model, tmp_path / "a.gguf")
    assert list(tmp_path.iterdir()) == []


def test_a_family_without_an_architecture_is_refused_by_name(tmp_path):
    theirs = tiny.made("Phi3ForCausalLM", "Phi3Config", **tiny.BASE)
    with pytest.raises(BadInput, match="family 'phi3' cannot be written"):
        vt.save_gguf(vt.load(theirs), tmp_path / "a.gguf")


@torch.no_grad()
def test_mistral_is_a_llama_there_unless_it_has_a_window(tmp_path):
    model = vt.load(tiny.made("MistralForCausalLM", "MistralConfig", **tiny.BASE, sliding_window=None))
    vt.save_gguf(model, tmp_path / "a.gguf", "F32")
    assert torch.equal(vt.load(tmp_path / "a.gguf")(TOKENS), model(TOKENS))
    model = vt.load(tiny.made("MistralForCausalLM", "MistralConfig", **tiny.BASE, sliding_window=9))
    with pytest.raises(BadInput, match=r"mask.*Window"):
        vt.save_gguf(model, tmp_path / "b.gguf", "F32")


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path):
    tiny.llama(tmp_path / "a.gguf")
    model = vt.load(tmp_path / "a.gguf")
    with torch.no_grad():
        model.get_parameter("head.linear.weight")[3, 3] = float("nan")
    with pytest.raises(BadInput, match=r"output\.weight: a weight is NaN"):
        vt.save_gguf(model, tmp_path / "b.gguf", "Q4_0")
    assert not (tmp_path / "b.gguf").exists()


# ---- tokenizers

TEXT = "The cat's 1234 naïve friends\n\n  sat — quietly, 😀 on the mat."


def small(tokenizer) -> vt.Model:
    torch.manual_seed(0)
    model = vt.build(vt.decoder(vocab=512, width=32, layers=1, heads=2, position="rope"))
    model.tokenizer = tokenizer
    return model


def test_a_byte_level_vocabulary_comes_back(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    tokenizer = BPE(size=400, special=("<s>", "</s>")).build([tmp_path / "text.txt"])
    vt.save_gguf(small(tokenizer), tmp_path / "a.gguf", "F16")
    again = vt.load(tmp_path / "a.gguf").tokenizer
    assert again is not None
    for text in (TEXT, TEXT + "</s>" + TEXT, "x"):
        assert again.encode(text) == tokenizer.encode(text)
    assert (again.bos, again.eos) == (tokenizer.bos, tokenizer.eos)
    # and from a file to a file as it was
    vt.save_gguf(vt.load(tmp_path / "a.gguf"), tmp_path / "b.gguf", "F16")
    first, second = GGUF(tmp_path / "a.gguf").metadata, GGUF(tmp_path / "b.gguf").metadata
    for key in first:
        if key.startswith("tokenizer."):
            a, b = first[key], second[key]
            assert a == b if isinstance(a, (str, int, float)) else list(a) == list(b), key


def test_a_vocabulary_that_gguf_has_no_name_for_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    model = small(Characters().build([tmp_path / "text.txt"]))
    with pytest.raises(BadInput, match="WordLevel, which GGUF has no name for"):
        vt.save_gguf(model, tmp_path / "a.gguf", "F16")


# ---- the command


def test_convert_writes_gguf(tmp_path, capsys):
    tiny.llama(tmp_path / "x.gguf", **WIDE)
    source, target = str(tmp_path / "x.gguf"), str(tmp_path / "y.gguf")
    assert main(["convert", source, target, "--type", "Q6_K", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"source": source, "file": target, "type": "Q6_K"}
    assert GGUF(target).tensors["blk.0.attn_q.weight"].kind.name == "Q6_K"
    assert main(["convert", source, target]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["convert", source, target, "--overwrite"]) == 0
    assert GGUF(target).tensors["blk.0.attn_q.weight"].kind.name == "Q4_K"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["y.gguf", "--type", "Q4_K_X"], "Q4_K_M"),
        (["y.gguf", "--dtype", "float16"], "--dtype is for folders"),
        (["folder", "--type", "Q4_K_M"], "does not end in .gguf"),
    ],
)
def test_bad_flags_are_refused(more, what, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny.llama(tmp_path / "x.gguf")
    assert main(["convert", "x.gguf", *more]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert err.count("\n") == 1


# ---- llama.cpp itself

QUANTISE = """
import sys, llama_cpp as lib
plain, to, number = sys.argv[1:4]
params = lib.llama_model_quantize_default_params()
params.nthread, params.ftype = 1, int(number)
if params.ftype == lib.LLAMA_FTYPE_MOSTLY_MXFP4_MOE:  # its mix of that name has nothing but experts in MXFP4
    params.pure, params.output_tensor_type, params.token_embedding_type = True, 8, 8
assert lib.llama_model_quantize(plain.encode(), to.encode(), params) == 0
"""
LOGITS = """
import sys, json, numpy, llama_cpp as lib
model = lib.Llama(sys.argv[1], n_ctx=64, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1)
model.eval(json.loads(sys.argv[2]))
numpy.save(sys.argv[3], numpy.asarray(model.scores[: len(json.loads(sys.argv[2]))], dtype=numpy.float32))
"""


def run_llama_cpp(script: str, *words: str) -> None:
    done = subprocess.run([str(BENCH), "-c", script, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(not BENCH.exists(), reason="llama.cpp is in the bench environment: make bench makes it")
@pytest.mark.parametrize(
    "kind",
    [
        *("Q2_K", "Q3_K_M", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "MXFP4"),
    ],
)
@torch.no_grad()
def test_llama_cpp_loads_it_and_mixes_alike(kind, tmp_path):
    import numpy as np

    from vantage.checkpoints.gguf_mixes import MIXES

    (tmp_path / "text.txt").write_text(TEXT * 20)
    torch.manual_seed(0)
    model = vt.build(vt.decoder(vocab=512, width=512, layers=8, heads=8, position="rope")).eval()
    model.tokenizer = BPE(size=400).build([tmp_path / "text.txt"])
    plain, ours, theirs = (str(tmp_path / f"{name}.gguf") for name in ("plain", "ours", "theirs"))
    vt.save_gguf(model, plain, "F32")
    vt.save_gguf(model, ours, kind)
    run_llama_cpp(QUANTISE, plain, theirs, str(MIXES[kind].number))
    kinds = [{name: stored.kind.name for name, stored in GGUF(path).tensors.items()} for path in (ours, theirs)]
    assert kinds[0] == kinds[1]
    wanted, errors = model(TOKENS[:1])[0], []
    for path in (ours, theirs):
        run_llama_cpp(LOGITS, path, json.dumps(TOKENS[0].tolist()), str(tmp_path / "logits.npy"))
        errors.append((torch.from_numpy(np.load(tmp_path / "logits.npy")) - wanted).pow(2).mean().sqrt())
    assert errors[0] < 1.1 * errors[1]
    mine = vt.load(ours)(TOKENS[:1])[0]
    assert (mine - wanted).pow(2).mean().sqrt() < 1.1 * errors[1]
