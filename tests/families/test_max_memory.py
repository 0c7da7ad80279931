"""vt.load with max_memory: the same bits in less memory, or a refusal that says what would fit."""

import json
import os
import subprocess
import sys

import pytest
import torch

import vantage as vt
from tests.cli.running import exit_code
from tests.families.test_packing import quantised
from vantage.errors import BadInput, Refused
from vantage.families import memory_plan, placing
from vantage.families.adapters import save_adapter
from vantage.families.memory_need import free_bytes, resident_bytes
from vantage.model.lora import Lora, add_lora
from vantage.model.mapped import MappedLayers

TOKENS = torch.arange(1, 40)[None]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = vt.decoder(vocab=512, width=256, layers=12, heads=4, kv_heads=2, position="rope", max_length=512)
    path = tmp_path_factory.mktemp("memory") / "model"
    vt.save(vt.build(spec, seed=1), path)
    return path


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Scratch files have no name: nothing may be left of them."""
    monkeypatch.setattr(placing, "home", lambda: tmp_path / "home")  # not VANTAGE_HOME, where compiled kernels are
    yield
    left = list((tmp_path / "home" / "offload").glob("*"))
    assert not left


def limit_for(source, off, context=64, **options):
    """A limit under which about so many of the layers are kept elsewhere."""
    plan = memory_plan(source, max_memory="100TiB", context=context, **options)
    return plan.need.with_layers_off(tuple(range(off)), context) + plan.need.layers[0] // 2


@LINUX
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
def test_the_same_bits_from_a_file(folder, dtype):
    kept = dtype if dtype.startswith("int") else getattr(torch, dtype)
    fits = vt.load(folder, dtype=kept)
    other = vt.load(folder, dtype=kept, max_memory=limit_for(folder, 8, 256, dtype=kept), context=256)
    assert isinstance(other.placement, MappedLayers)
    assert 3 <= len(other.placement.layers) <= 12
    with torch.no_grad():
        assert torch.equal(other(TOKENS), fits(TOKENS))
    prompts = [[1, 2, 3], [7] * 20]
    want, got = (vt.generate(model, prompts, max_tokens=16, stats=True) for model in (fits, other))
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert got[0].stats.paths == want[0].stats.paths


@LINUX
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_blocks_of_a_gguf_file(kind, tmp_path, monkeypatch):
    file = quantised(tmp_path / "model.gguf", "llama", kind, monkeypatch, num_hidden_layers=6)
    fits = vt.load(file, dtype="auto")
    other = vt.load(file, dtype="auto", max_memory=limit_for(file, 5, dtype="auto"), context=64)
    assert other.placement.layers
    with torch.no_grad():
        assert torch.equal(other(TOKENS[:, :8]), fits(TOKENS[:, :8]))


@LINUX
def test_an_adapter_goes_on_it(folder, tmp_path):
    fits = vt.load(folder)
    add_lora(fits, Lora(rank=2))
    with torch.no_grad():
        for name, p in fits.named_parameters():
            if name.endswith(".b"):
                p.normal_()
    save_adapter(fits, tmp_path / "adapter")
    other = vt.load(folder, adapter=tmp_path / "adapter", max_memory=limit_for(folder, 8), context=64)
    with torch.no_grad():
        assert torch.equal(other(TOKENS), fits(TOKENS))


@LINUX
def test_looking_inside(folder):
    fits, other = vt.load(folder), vt.load(folder, max_memory=limit_for(folder, 8), context=64)
    want, got = (vt.capture(model, TOKENS, layers=[3, 7], heads=[0]) for model in (fits, other))
    for layer in (3, 7):
        assert torch.equal(got.weights(layer), want.weights(layer))


@LINUX
def test_the_engine_holds_no_more_than_was_planned(folder):
    other = vt.load(folder, max_memory=limit_for(folder, 8), context=64)
    with pytest.raises(BadInput, match="119 tokens of cache, more than"):
        vt.generate(other, [[1] * 60], max_tokens=60)


def test_what_would_fit_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr(placing, "fill_by_layers", None)
    with pytest.raises(Refused, match=r"max_memory=976\.6 KiB is too little .* What would fit: .*max_memory of"):
        vt.load(folder, max_memory="1MB")


def test_weights_that_are_too_large_are_refused_without_a_limit_as_well(folder, monkeypatch):
    monkeypatch.setattr(placing, "free_bytes", lambda device: 20 * 2**20)
    with pytest.raises(Refused, match=r"34\.\d+ MiB, and 20 MiB are free on cpu.*dtype='bfloat16'.*max_memory"):
        vt.load(folder)
    vt.load(folder, dtype="int8")  # which fits


def test_a_plan_for_a_gpu_needs_none(folder):
    plan = memory_plan(folder, max_memory="290MiB", context=128, device="cuda", dtype=torch.float32)
    assert plan.off
    assert sum(plan.parts.values()) <= 290 * 2**20
    assert plan.off_bytes == sum(plan.need.layers[i] for i in plan.off)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "int8", "int4"], ids=str)
def test_planned_weights_are_what_a_loaded_model_has(folder, dtype):
    need = memory_plan(folder, max_memory="100TiB", dtype=dtype).need
    model = vt.load(folder, dtype=dtype)
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    held = sum(t.nbytes for t in tensors)
    assert held <= need.weights <= held + 256 * len(tensors)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"max_memory": "lots"}, BadInput, "6GiB"),
        ({"max_memory": "1GiB", "context": 0}, BadInput, "context=0"),
        ({"context": 64}, BadInput, "give that as well"),
        ({"max_memory": "1GiB", "tensor_parallel": True}, Refused, "processes"),
    ],
)
def test_what_is_no_limit(folder, options, error, match):
    with pytest.raises(error, match=match):
        vt.load(folder, **options)


def test_auto_is_what_is_free(folder):
    assert vt.load(folder, max_memory="auto").placement.layers == ()
    assert free_bytes(torch.device("cpu")) is None or free_bytes(torch.device("cpu")) > resident_bytes() / 100


def test_the_command_line_says_which_layers(folder, capsys):
    words = ["inspect", "cost", str(folder), "--context", "128", "--max-memory", "290MiB", "--device", "cuda"]
    assert exit_code([*words, "--weights", "float32", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["memory"]
    assert plan["off"]
    assert plan["brought"] > 0
    assert exit_code(["generate", str(folder), "x", "--max-memory", "lots"]) == 2
    assert "6GiB" in capsys.readouterr().err


PROGRAM = """
import sys, torch, vantage as vt, vantage.families, vantage.generation
from vantage.families.memory_need import resident_bytes

vantage.families.families()
folder, limit = sys.argv[1], sys.argv[2]
tokens = torch.arange(1, 30)[None]
import vantage.generation.engine, vantage.model.lowered.run, vantage.kernels.native as native
native.native()
torch.ones(64, 64) @ torch.ones(64, 64)
before = resident_bytes()
model = vt.load(folder, **({} if limit == "none" else {"max_memory": before + int(limit), "context": 64}))
answer = vt.generate(model, [[1, 2, 3, 4]], max_tokens=8)[0]
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(model.placement.layers), peak - before, sum(answer.tokens))
"""


@pytest.mark.slow
@LINUX
def test_resident_memory_stays_below_the_limit(tmp_path):
    """238 MiB of weights in 128 MiB: all that is resident, pages of the checkpoint and of the scratch file included."""
    spec = vt.decoder(vocab=1000, width=640, layers=12, heads=5, position="rope", max_length=64)
    vt.save(vt.build(spec, seed=1), tmp_path / "model")
    limit = 128 * 2**20
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    results = []
    for asked in ("none", str(limit)):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "model"), asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        results.append([int(word) for word in done.stdout.split()])
    (none, whole, tokens), (off, peak, off_tokens) = results
    assert none == 0
    assert off > 3
    assert off_tokens == tokens
    assert peak <= limit < whole
