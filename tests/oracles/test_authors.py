"""Against the authors' own code, for parts that transformers does not have. `make authors` installs it.

Not here: gated output, the relative bank, M-RoPE and short convolutions, which transformers has; H2O and TOVA,
whose authors' code is in no package (kvpress scores a prompt once and by averages, which is another rule; theirs is
written out in `tests/cache/forgetting_rules.py`); MoBA, DAPE and selective RoPE, whose authors' code is in no package
(theirs is written out in the tests of these parts).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import vantage as vt
from vantage.attention.delta import unit
from vantage.attention.delta_rule import delta_rule
from vantage.attention.indexer import KeyChoice
from vantage.conformance.scenarios import sharpen
from vantage.spec.indexing import IndexerInputs
from vantage.spec.masks import Causal
from vantage.spec.normalisers import Entmax15, Sparsemax, StickBreaking
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "bench" / ".authors" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="the authors' code is not here: make authors"),
]
F64 = torch.float64
HEADS, KV_HEADS, DIM = 4, 2, 8
ATTENTION = "blocks.0.steps.0.sublayer"
CHUNKS = (23,), (9, 1, 1, 5, 7)


def by_authors(job: str, inputs: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    source, target = folder / "inputs.safetensors", folder / "outputs.safetensors"
    save_file({name: t.contiguous() for name, t in inputs.items()}, source)
    command = [str(PYTHON), str(Path(__file__).with_name("authors_run.py")), job, str(source), str(target)]
    env = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(target)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@contextmanager
def watched(model: vt.Model) -> Iterator[dict[str, list[Tensor]]]:
    """What goes into the only attention layer, its queries, keys and values, and what its heads say."""
    attention = model.get_submodule(ATTENTION)
    seen: dict[str, list[Tensor]] = {"x": [], "qkv": [], "heads": []}

    def projected(module: torch.nn.Module, x: tuple[Tensor, ...], y: Tensor) -> None:
        seen["x"].append(x[0])
        seen["qkv"].append(y)

    def ended(module: torch.nn.Module, x: tuple[Tensor, ...]) -> None:
        seen["heads"].append(x[0])

    qkv, out = attention.get_submodule("qkv"), attention.get_submodule("out")
    hooks = [qkv.register_forward_hook(projected), out.register_forward_pre_hook(ended)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def through_one_layer(model: vt.Model, chunks: tuple[int, ...]) -> dict[str, Tensor]:
    """The same for 23 tokens that arrive in these chunks, joined."""
    tokens = torch.randint(19, (2, sum(chunks)), generator=torch.Generator().manual_seed(3))
    cache = model.new_cache(2, kind="paged", length=sum(chunks)) if len(chunks) > 1 else None
    with watched(model) as seen, torch.no_grad():
        for part in tokens.split(chunks, dim=1):
            model(part, cache=cache)
    return {name: torch.cat(parts, 1) for name, parts in seen.items()}


def queries_keys_values(qkv: Tensor) -> dict[str, Tensor]:
    q, k, v = qkv.split((HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM), -1)
    return {name: t.unflatten(-1, (-1, DIM)) for name, t in (("q", q), ("k", k), ("v", v))}


def one_layer(**options) -> vt.Model:
    spec = vt.decoder(vocab=19, width=HEADS * DIM, layers=1, **options)
    return sharpen(vt.build(spec, kernel="reference").double())


@pytest.mark.parametrize("chunks", CHUNKS, ids=["whole", "cached"])
def test_forgetting_attention(chunks: tuple[int, ...], tmp_path: Path):
    model = one_layer(heads=HEADS, kv_heads=KV_HEADS, position="fox")
    got = through_one_layer(model, chunks)
    gate = model.get_submodule(f"{ATTENTION}.scorer.bias.gate")
    inputs = queries_keys_values(got["qkv"]) | {"g": torch.nn.functional.logsigmoid(gate(got["x"])).detach()}
    want = by_authors("forgetting", inputs, tmp_path)["out"]
    torch.testing.assert_close(got["heads"], want.flatten(2).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunks", CHUNKS, ids=["whole", "cached"])
def test_path_attention(chunks: tuple[int, ...], tmp_path: Path):
    """w as torch's own convolution has it, the product as the authors have it, which they compute in float32."""
    model = one_layer(heads=HEADS, kv_heads=KV_HEADS, position=vt.PaTH(rank=6))
    got = through_one_layer(model, chunks)
    part: Any = model.get_submodule(f"{ATTENTION}.scorer.bias")
    with torch.no_grad():
        made, share = part.keep(got["x"], Positions.arange(2, 23))
        line = torch.nn.functional.pad(made.transpose(2, 3).flatten(1, 2), (2, 0))
        mixed = torch.nn.functional.conv1d(line, part.filters[:, None], groups=KV_HEADS * DIM)
        w = torch.nn.functional.silu(mixed).unflatten(1, (KV_HEADS, DIM)).permute(0, 3, 1, 2)
    inputs = queries_keys_values(got["qkv"]) | {"w": unit(w), "beta": share[..., 0].transpose(1, 2)}
    want = by_authors("path", inputs, tmp_path)["out"]
    torch.testing.assert_close(got["heads"], want.flatten(2).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunks", CHUNKS, ids=["whole", "cached"])
def test_stick_breaking_attention(chunks: tuple[int, ...], tmp_path: Path):
    attention = vt.GroupedQuery(HEADS, kv_heads=KV_HEADS, scores=vt.Scores(normalise=StickBreaking()))
    got = through_one_layer(one_layer(attention=attention, position="none"), chunks)
    want = by_authors("stick_breaking", queries_keys_values(got["qkv"]), tmp_path)["out"]
    torch.testing.assert_close(got["heads"], want.flatten(2).double(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunks", CHUNKS, ids=["whole", "cached"])
def test_native_sparse_attention(chunks: tuple[int, ...], tmp_path: Path):
    """Blocks as one and chosen blocks as flash-linear-attention has them, in float32, a near window as torch has it."""
    size, keep, near = 3, 4, 5
    config = vt.NativeSparse(HEADS, KV_HEADS, near=near, blocks=vt.BlockChooser(size, keep))
    model = one_layer(attention=config, position="none")
    got = through_one_layer(model, chunks)
    inputs = queries_keys_values(got["qkv"])
    want = by_authors("native_sparse", inputs | {"size": torch.tensor(size), "keep": torch.tensor(keep)}, tmp_path)
    assert int((want["chosen"][:, -1] >= 0).sum(-1).min()) == keep  # of 8 blocks, at the end
    q, k, v = (inputs[name].transpose(1, 2) for name in "qkv")
    at = torch.arange(q.shape[2])
    apart = at[:, None] - at
    of_near = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, (apart >= 0) & (apart < near), enable_gqa=True
    ).transpose(1, 2)
    gates = model.get_submodule(f"{ATTENTION}.scorer.normaliser.map")(got["x"]).detach().sigmoid()
    gates = gates.unflatten(-1, (HEADS, 3))[..., None]
    total = gates[..., 0, :] * want["of_blocks"] + gates[..., 1, :] * want["of_chosen"] + gates[..., 2, :] * of_near
    torch.testing.assert_close(got["heads"], total.flatten(2), rtol=1e-5, atol=1e-5)


def delta_inputs(channels: bool) -> dict[str, Tensor]:
    B, T, H, d, e = 2, 37, 3, 8, 8
    q, k = (unit(draw(B, T, H, d, seed=seed)) for seed in (1, 2))
    g = -draw(B, T, H, d, seed=4).abs() if channels else -draw(B, T, H, seed=4).abs()
    return {"q": q, "k": k, "v": draw(B, T, H, e, seed=3), "g": g, "beta": draw(B, T, H, seed=5).sigmoid()}


@pytest.mark.parametrize("job", ["gated_delta", "kimi_delta"])
def test_delta_rules(job: str, tmp_path: Path):
    x = delta_inputs(job == "kimi_delta")
    state = torch.zeros(2, 3, 8, 8, dtype=F64)
    out, states = delta_rule(x["q"], x["k"], x["v"], x["g"], x["beta"], state, Positions.arange(2, 37), (36,))
    want = by_authors(job, x, tmp_path)
    torch.testing.assert_close(out, want["out"].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states[0], want["state"].double(), rtol=1e-5, atol=1e-5)
    if "chunked" in want:
        torch.testing.assert_close(out, want["chunked"].double(), rtol=1e-5, atol=1e-5)


def test_the_indexer_chooses_the_same_keys(tmp_path: Path):
    keep, heads, dim, T = 5, 16, 8, 21  # so many heads that no score is 0, where all would be equal
    part = KeyChoice(vt.TopKIndexer(keep, heads, dim), 16).double()
    x, keys = draw(2, T, 16, seed=6), draw(2, T, dim, seed=7)
    pos = Positions.arange(2, T)
    chosen = part.choose(IndexerInputs(x, None, (keys[:, None],), pos.against(pos), Causal()))
    assert chosen is not None
    inputs = {
        "q": part.q(x).detach().unflatten(-1, (heads, dim)),
        "k": keys,
        "w": part.weights(x).detach(),
        "keep": torch.tensor(keep),
    }
    want = by_authors("indexer", inputs, tmp_path)["chosen"]
    for b in range(2):
        for t in range(T):
            mine, theirs = (sorted(j for j in columns[b, t].tolist() if 0 <= j <= t) for columns in (chosen, want))
            assert mine == theirs, (b, t)
            assert len(mine) == min(keep, t + 1)


def test_sparse_normalisers_and_their_gradients(tmp_path: Path):
    scores, towards = 2 * draw(2, 3, 5, 17, seed=8), draw(2, 3, 5, 17, seed=9)
    want = by_authors("normalisers", {"scores": scores, "towards": towards}, tmp_path)
    for name, normaliser in (("sparsemax", Sparsemax()), ("entmax15", Entmax15())):
        mine = scores.clone().requires_grad_()
        weights, _ = normaliser(mine)
        weights.backward(towards)
        torch.testing.assert_close(weights.detach(), want[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine.grad, want[f"{name}_gradient"], rtol=1e-7, atol=1e-9)


def test_polar_positions(tmp_path: Path):
    """As x-transformers has them, with as many key heads as heads."""
    shape = Shape(32, HEADS, HEADS, DIM, DIM, rotary_dim=DIM)
    part = vt.PoPE().build(shape).double()
    with torch.no_grad():
        part.delta.copy_(3 * draw(HEADS, DIM, seed=1) - 3)  # some beyond the bounds on either side
    q, k = (draw(2, HEADS, 9, DIM, seed=seed) for seed in (2, 3))
    pos = Positions.arange(2, 9)
    inputs = {"q": q, "k": k, "delta": part.delta.detach(), "positions": torch.arange(9)}
    want = by_authors("polar", inputs, tmp_path)["scores"]
    with torch.no_grad():
        got = part.query(q, pos) @ part.key(k, pos).mT
    torch.testing.assert_close(got, want.double(), rtol=1e-5, atol=1e-5)


def test_value_residual(tmp_path: Path):
    """The second of two layers, given what goes into it and the first one's values."""
    spec = vt.decoder(vocab=19, width=HEADS * DIM, layers=2, attention=vt.ValueResidual(HEADS), position="none")
    model = sharpen(vt.build(spec, kernel="reference").double())
    first, second = (block.sublayers[0] for block in model.blocks)
    seen: dict[str, Tensor] = {}
    first.qkv.register_forward_hook(lambda module, x, y: seen.update(first=y.chunk(3, -1)[2]))
    second.qkv.register_forward_hook(lambda module, x, y: seen.update(x=x[0]))
    second.out.register_forward_hook(lambda module, x, y: seen.update(out=y))
    with torch.no_grad():
        model(torch.randint(19, (2, 11), generator=torch.Generator().manual_seed(3)))
    q, k, v = second.qkv.weight.detach().chunk(3)
    of_first = seen["first"].unflatten(-1, (HEADS, DIM)).transpose(1, 2)
    inputs = {"x": seen["x"], "first": of_first, "q": q, "k": k, "v": v, "out": second.out.weight.detach()}
    want = by_authors("value_residual", inputs, tmp_path)["out"]
    torch.testing.assert_close(seen["out"], want, rtol=1e-4, atol=1e-5)  # their softmax is of float32


def test_caches_that_forget(tmp_path: Path):
    """One layer, so that what queries of the prompt saw changes no key. The prompt is as long as decides once."""
    import transformers

    sinks, window, pool, size, observing = 2, 9, 3, 11, 5
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=1, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.4)
    theirs.save_pretrained(tmp_path / "model")
    prompt = torch.randint(64, (1, size + observing), generator=torch.Generator().manual_seed(1))
    last = torch.tensor([[7]])
    numbers = {"size": size, "sinks": sinks, "window": observing, "pool": pool}
    folder = torch.tensor(list(str(tmp_path / "model").encode()), dtype=torch.uint8)
    inputs = {"prompt": prompt, "last": last, "folder": folder} | {k: torch.tensor(n) for k, n in numbers.items()}
    want = by_authors("forgetting_caches", inputs, tmp_path)
    model = vt.load(tmp_path / "model", dtype=torch.float32).double()
    kinds = {
        "streaming": vt.SinkCache(sinks, window + 1),  # the window of the next query counts itself
        "by_place": vt.SinkCache(sinks, window + 1, by_place=True),
        "snapkv": vt.SnapKVCache(size, observing, pool),
    }
    for name, kind in kinds.items():
        cache = model.new_cache(1, kind=kind, length=64)
        with torch.no_grad():
            model(prompt, cache=cache)
            got = model(last, cache=cache)[0, 0]
        torch.testing.assert_close(got, want[name].double(), rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
