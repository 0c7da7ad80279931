"""A model that does not fit a GPU: the bits of the one that does. Needs a GPU."""

import pytest
import torch

import vantage as vt
from vantage.families.memory_need import free_bytes
from vantage.model.experts import Experts, TopK
from vantage.model.lora import Lora, add_lora
from vantage.model.streamed import stream_layers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SPECS = {
    "rope": {"position": "rope", "kv_heads": 2},  # lowered
    "fox": {"position": "fox"},  # sums beside keys and values
    "dape": {"position": vt.DAPE(vt.Kerple())},  # a graph of its modules
}
EXPERTS = {"position": "rope", "ffn": Experts(vt.FeedForward(256), 8, TopK(2))}  # module by module
PROMPTS = [[1, 2, 3, 4, 5], [7] * 30, list(range(60))]


def pair(name, dtype=torch.bfloat16, layers=9, off=(0, 1, 3, 4, 6, 8)):
    spec = vt.decoder(vocab=211, width=256, layers=layers, heads=4, **{**SPECS, "experts": EXPERTS}[name])
    fits = vt.build(spec, seed=1).eval().to(dtype).cuda()
    other = vt.build(spec, seed=1).eval().to(dtype)
    stream_layers(other, "cuda", off)
    return fits, other


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", [*SPECS, "experts"])
@torch.no_grad()
def test_module_by_module(name, dtype):
    fits, other = pair(name, dtype)
    tokens = torch.arange(1, 100, device="cuda").view(3, 33)
    for _ in range(5):
        assert torch.equal(other(tokens), fits(tokens))


@pytest.mark.parametrize("off", [(2,), (1, 5), (0, 4, 8), (0, 1, 3, 4, 6, 8), tuple(range(9))], ids=len)
@pytest.mark.parametrize("name", SPECS)
def test_steps_as_graphs(name, off):
    fits, other = pair(name, off=off)
    for _ in range(2):  # graphs are there already, the second time
        want = vt.generate(fits, PROMPTS, max_tokens=40, logprobs=1, stats=True)
        got = vt.generate(other, PROMPTS, max_tokens=40, logprobs=1, stats=True)
        assert [a.tokens for a in got] == [a.tokens for a in want]
        assert [a.logprobs for a in got] == [a.logprobs for a in want]
        assert got[0].stats.paths == want[0].stats.paths
        assert any("graph" in path for path in got[0].stats.paths)
        ahead = [[a.tokens for a in vt.generate(one, PROMPTS, max_tokens=40)] for one in (fits, other)]
        assert ahead[0] == ahead[1]


def test_one_row_and_passes_of_modules_in_between():
    """A single row's kernels begin before the one before has ended: not before their weights are there."""
    fits, other = pair("rope", off=tuple(range(9)))
    tokens = torch.arange(1, 40, device="cuda")[None]
    for length in (3, 17, 39):
        want = vt.generate(fits, [list(range(1, length))], max_tokens=30, logprobs=1)
        got = vt.generate(other, [list(range(1, length))], max_tokens=30, logprobs=1)
        assert got[0].tokens == want[0].tokens
        assert got[0].logprobs == want[0].logprobs
        with torch.no_grad():
            assert torch.equal(
                other.hidden_from(torch.ones(1, 3, 256, device="cuda", dtype=other.dtype), 5),
                (fits.hidden_from(torch.ones(1, 3, 256, device="cuda", dtype=fits.dtype), 5)),
            )
            assert torch.equal(other(tokens), fits(tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, "int8", "int4"], ids=str)
def test_loading_keeps_to_its_memory(tmp_path, dtype):
    spec = vt.decoder(vocab=5000, width=1024, layers=24, heads=8, position="rope", max_length=1024)
    vt.save(vt.build(spec, seed=2).eval(), tmp_path / "model")
    fits = vt.load(tmp_path / "model", device="cuda", dtype=dtype)
    want = vt.generate(fits, PROMPTS, max_tokens=20)
    del fits
    torch.cuda.empty_cache()
    before, limit = torch.cuda.memory_allocated(), 2**20 * 480
    torch.cuda.reset_peak_memory_stats()
    model = vt.load(tmp_path / "model", device="cuda", dtype=dtype, max_memory=limit, context=512)
    got = vt.generate(model, PROMPTS, max_tokens=20)
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert torch.cuda.max_memory_allocated() - before <= limit
    assert model.placement.layers


def test_experts_come_when_tokens_go_to_them():
    fits, other = pair("experts", off=tuple(range(9)))
    for prompts in (PROMPTS, [[5, 6]]):
        want, got = (vt.generate(model, prompts, max_tokens=20, logprobs=1) for model in (fits, other))
        assert [a.tokens for a in got] == [a.tokens for a in want]
        assert [a.logprobs for a in got] == [a.logprobs for a in want]


def test_adapters_of_layers_that_are_elsewhere():
    fits, other = pair("rope")
    for model in (fits, other):
        add_lora(model, Lora(rank=4))
        generator = torch.Generator().manual_seed(1)
        for name, p in sorted(model.named_parameters()):
            if name.endswith(".b"):
                p.data.copy_(torch.randn(p.shape, generator=generator))
    want, got = (vt.generate(model, PROMPTS, max_tokens=20, logprobs=1) for model in (fits, other))
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert [a.logprobs for a in got] == [a.logprobs for a in want]


def test_what_is_free_is_asked_for():
    assert 0 < free_bytes(torch.device("cuda")) <= torch.cuda.get_device_properties(0).total_memory
