"""Models whose heads and columns lie over processes, against one process in float64."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.parallel.context_cells import ROWS, WIDTH, loss_of
from vantage.conformance.factors import LENGTH, VOCAB
from vantage.conformance.scenarios import sharpen, spec_for
from vantage.errors import VantageError
from vantage.generation.stats import paths_of
from vantage.model import Model, build
from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.recipes import decoder
from vantage.parallel import TensorParallel
from vantage.spec.model import ModelSpec

FEEDS: dict[str, Any] = {
    "gated": FeedForward(24),
    "plain": FeedForward(24, "gelu", gated=False, bias=True),
    "clamped": ClampedSwiGLU(12),
    "experts": Experts(FeedForward(12, bias=True), 4, TopK(2), shared=FeedForward(8)),
}


def spec_of(cell: tuple[str, str, str]) -> ModelSpec:
    """Encoding, attention and feed-forward layer. Maps have biases, which must be added once."""
    encoding, attention, feed = cell
    spec = spec_for((encoding, attention, "causal", "none", "reference", "full"))
    layers = []
    for layer in spec.layers:
        own = layer.attention
        biased = replace(own, bias=True, out_bias=True) if type(own).__name__ == "GroupedQuery" else own
        layers.append(replace(layer, attention=biased, ffn=FEEDS[feed]))
    return replace(spec, layers=tuple(layers))


def inputs(spec: ModelSpec) -> tuple[Tensor, Tensor | None, Tensor]:
    gen = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCAB, (ROWS, WIDTH), generator=gen)
    source = None if spec.encoder is None else torch.randint(VOCAB, (ROWS, 5), generator=gen)
    return tokens, source, torch.randn(ROWS, WIDTH, VOCAB, generator=gen, dtype=torch.float64)


def gradients(model: Model, cell: tuple[str, str, str]) -> tuple[Tensor, dict[str, Tensor]]:
    tokens, source, weights = inputs(model.spec)
    logits = model(tokens, source=source, length=LENGTH)
    loss_of(logits, weights, torch.ones(ROWS, WIDTH, dtype=torch.bool)).backward()
    if model.parallel is not None:
        model.parallel.sum_gradients(model)
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    return logits.detach(), found


def gaps(cells: list[tuple[str, str, str]]) -> list[tuple[float, float, float, str]]:
    """How far logits, gradients (as a share of the largest) and their norm are off; or the refusal."""
    found = []
    for cell in cells:
        model = sharpen(build(spec_of(cell), kernel="reference")).double()
        wanted, wanted_grads = gradients(model, cell)
        try:
            parallel = TensorParallel(model.spec)
            share = parallel.cut(model)
        except VantageError as e:
            found.append((0.0, 0.0, 0.0, str(e)))
            continue
        got, grads = gradients(share, cell)
        norm = float(parallel.norm(grads))
        whole = {name: parallel.whole_tensor(name, g) for name, g in grads.items()}
        largest = max(1.0, *(float(g.abs().max()) for g in wanted_grads.values()))
        worst = max(float((whole[name] - g).abs().max()) for name, g in wanted_grads.items()) / largest
        exact = float(torch.stack([g.square().sum() for g in wanted_grads.values()]).sum().sqrt())
        same = all(torch.equal(p, model.get_parameter(name)) for name, p in parallel.whole(share).named_parameters())
        found.append((float((got - wanted).abs().max()), worst, abs(norm / exact - 1) if same else 9.0, ""))
    return found


def decoded(cells: list[tuple[str, str, str]]) -> list[float]:
    """Token by token through a cache that holds this process's heads alone, against one pass of the whole model."""
    worst = []
    for cell in cells:
        model = sharpen(build(spec_of(cell), kernel="reference")).double()
        tokens, source, _ = inputs(model.spec)
        share = TensorParallel(model.spec).cut(model)
        with torch.no_grad():
            cache, whole_cache = share.new_cache(ROWS, length=LENGTH), model.new_cache(ROWS, length=LENGTH)
            parts = [share(tokens[:, :6], cache=cache, source=source)]
            parts += [share(tokens[:, t : t + 1], cache=cache) for t in range(6, WIDTH)]
            whole = model(tokens, cache=whole_cache, source=source)
        assert cache.bytes < whole_cache.bytes or "latent" in cell[1]
        worst.append(float((torch.cat(parts, 1) - whole).abs().max()))
    return worst


def paths_of_steps() -> tuple[dict[str, int], dict[str, int], float]:
    """How steps ran in one process and over several, and how far their logits are apart. In float32, where a CPU has
    native steps."""
    os.environ["VANTAGE_NATIVE"] = "1"  # it is off in these processes, which compare with modules
    model = build(decoder(vocab=64, width=64, layers=2, heads=4, kv_heads=2)).eval()
    share = TensorParallel(model.spec).cut(model).eval()
    tokens = torch.arange(8)[None]
    found, logits = [], []
    for one in (model, share):
        cache = one.new_cache(1, capacity=16)
        with torch.inference_mode():
            logits.append(torch.cat([one(tokens[:, t : t + 1], cache=cache) for t in range(8)], 1))
        found.append(paths_of(cache))
    return found[0], found[1], float((logits[0] - logits[1]).abs().max())


def loaded(source: str, out: str) -> tuple[float, int, int]:
    """Load a share of a folder, run it, save it whole; the difference, and the bytes of parameters here and in all."""
    import vantage as vt

    share = vt.load(source, tensor_parallel=True)
    whole = vt.load(source)
    tokens = torch.arange(12)[None] % whole.spec.vocab
    with torch.no_grad():
        gap = float((share(tokens) - whole(tokens)).abs().max())
    vt.save(share, out)
    dist.barrier()
    again = vt.load(out)
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in whole.named_parameters())
    assert sorted(p.name for p in Path(out).iterdir()) == sorted(p.name for p in Path(source).iterdir())
    mine, every = (sum(p.nbytes for p in model.parameters()) for model in (share, whole))
    return gap, mine, every
