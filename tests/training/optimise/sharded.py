"""Two processes with sharded parameters against one with whole ones. Run by test_sharded.py, once a process."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import vantage as vt
from vantage.training.optimise import AdamW, Average, Muon, clip
from vantage.training.optimise.tensors import like

TOKENS = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
CONFIGS = {"adamw": AdamW(lr=0.01), "muon": Muon(lr=0.02, weight_decay=0.1, adamw=AdamW(lr=0.01))}


def model(sharded: bool) -> vt.Model:
    # an odd number of rows in some weights, so that shards differ in size
    m = vt.build(vt.decoder(vocab=51, width=30, layers=2, heads=3, ffn=vt.FeedForward(17))).double()
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))  # a machine's GPUs are left alone
        for block in m.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(m, mesh=mesh)
    return m


def train(m, optimiser, average, steps: range) -> list[float]:
    norms = []
    for step in steps:
        optimiser.zero_grad()
        (m(TOKENS.roll(step, 1)) - step).square().mean().backward()
        norms.append(float(clip(m.parameters(), 0.5)))
        optimiser.step(1 / (1 + step))
        average.update()
    return norms


def whole(tensors) -> dict[str, torch.Tensor]:
    return {n: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for n, t in tensors.items()}


@torch.no_grad()
def fill(optimiser, saved) -> None:
    """As a checkpoint is read: into the tensors themselves."""
    for name, value in optimiser.state_tensors().items():
        value.copy_(like(value, saved[name]))


def everything(m, optimiser, average) -> dict[str, torch.Tensor]:
    found = whole(dict(m.named_parameters())) | whole(optimiser.state_tensors())
    return found | {f"average of {n}": t for n, t in whole(average.state_tensors()).items()}


def check(config) -> None:
    runs = {}
    for sharded in (False, True):
        m = model(sharded)
        optimiser, average = config.build(m), Average(0.9).build(m)
        norms = train(m, optimiser, average, range(3))
        kept = whole(optimiser.state_tensors())
        m(TOKENS)  # leaves gathered parameters behind, and so does the next one
        with average.swap():
            logits = m(TOKENS).detach()
        runs[sharded] = everything(m, optimiser, average), norms, kept, optimiser, logits
    (one, norms_1, kept_1, optimiser_1, logits_1), (two, norms_2, kept_2, optimiser_2, logits_2) = runs.values()
    assert any(isinstance(t, DTensor) for t in optimiser_2.state_tensors().values())
    assert one.keys() == two.keys()
    torch.testing.assert_close(norms_1, norms_2, rtol=1e-9, atol=0)
    torch.testing.assert_close(logits_1, logits_2, rtol=1e-7, atol=1e-9)
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
    fill(optimiser_1, optimiser_2.state_tensors())  # from shards to whole, to the bit
    assert all(torch.equal(t, kept_2[n]) for n, t in optimiser_1.state_tensors().items())
    fill(optimiser_2, kept_1)  # and back
    assert all(torch.equal(t, kept_1[n]) for n, t in whole(optimiser_2.state_tensors()).items())


def main(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for config in CONFIGS.values():
            check(config)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
