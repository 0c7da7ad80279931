"""Models whose heads lie over processes and whose experts lie whole on one of them, against one process in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import vantage as vt
from tests.parallel.expert_cells import EXPERT, KINDS, with_experts
from tests.parallel.tensor_cells import ROWS, WIDTH, gradients, inputs
from vantage.conformance.factors import LENGTH
from vantage.conformance.scenarios import sharpen
from vantage.errors import CheckpointError
from vantage.model import Model, build
from vantage.model.experts import Experts, TopK
from vantage.parallel import TensorParallel

UNEVEN = Experts(EXPERT, 5, TopK(2))  # over two or four processes one has more than the others


def model_of(kind: str) -> Model:
    if kind != "uneven":
        return sharpen(build(with_experts(kind), kernel="reference")).double()
    spec = with_experts("top")
    layers = [replace(layer, ffn=UNEVEN) if layer.ffn is KINDS["top"] else layer for layer in spec.layers]
    return sharpen(build(replace(spec, layers=tuple(layers)), kernel="reference")).double()


def gaps(kinds: list[str]) -> list[tuple[float, float, float, float, list[str]]]:
    """How far logits, gradients (as a share of the largest), their norm and cached steps are off; the experts here."""
    found = []
    for kind in kinds:
        model = model_of(kind)
        wanted, wanted_grads = gradients(model, ("", "", ""))
        parallel = TensorParallel(model.spec, whole_experts=True)
        share = parallel.cut(model)
        got, grads = gradients(share, ("", "", ""))
        whole = {name: parallel.whole_tensor(name, grads.get(name)) for name in parallel.cuts}
        largest = max(1.0, *(float(g.abs().max()) for g in wanted_grads.values()))
        worst = max(float((whole[name] - g).abs().max()) for name, g in wanted_grads.items()) / largest
        exact = float(torch.stack([g.square().sum() for g in wanted_grads.values()]).sum().sqrt())
        norm = abs(float(parallel.norm(grads)) / exact - 1)
        again = dict(parallel.whole(share).named_parameters())
        assert all(torch.equal(p, again[name]) for name, p in model.named_parameters())
        off = float((got - wanted).abs().max())
        held = [name for name, _ in share.named_parameters() if ".experts." in name]
        found.append((off, worst, norm, _stepped(share, model), held))
    return found


@torch.no_grad()
def _stepped(share: Model, model: Model) -> float:
    tokens, _, _ = inputs(model.spec)
    cache = share.new_cache(ROWS, length=LENGTH)
    parts = [share(tokens[:, :6], cache=cache)]
    parts += [share(tokens[:, t : t + 1], cache=cache) for t in range(6, WIDTH)]
    return float((torch.cat(parts, 1) - model(tokens, length=LENGTH)).abs().max())


def loaded(source: str, out: str) -> tuple[float, int, int, bool]:
    """Load the experts of this process, run and save them; the difference, the bytes of experts here and in all, and
    whether the same tokens are generated."""
    share = vt.load(source, tensor_parallel=True, whole_experts=True)
    whole = vt.load(source)
    tokens = torch.arange(12)[None] % whole.spec.vocab
    with torch.no_grad():
        gap = float((share(tokens) - whole(tokens)).abs().max())
    prompt = [1, 2, 3]
    same = vt.generate(share, prompt, max_tokens=8).tokens == vt.generate(whole, prompt, max_tokens=8).tokens
    vt.save(share, out)
    dist.barrier()
    again = vt.load(out)
    assert all(torch.equal(p, again.get_parameter(name)) for name, p in whole.named_parameters())
    assert sorted(p.name for p in Path(out).iterdir()) == sorted(p.name for p in Path(source).iterdir())
    mine, every = (
        sum(p.nbytes for name, p in model.named_parameters() if ".experts." in name) for model in (share, whole)
    )
    return gap, mine, every, same


def damaged(source: str) -> str:
    """What a process says of a folder one expert of which is damaged."""
    try:
        vt.load(source, tensor_parallel=True, whole_experts=True)
    except CheckpointError as e:
        return str(e)
    return ""
