"""NCCL with one rank: that it starts, and that what is sent over it goes through. One process, started anew."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

import vantage as vt
from vantage.parallel import Wire
from vantage.parallel.experts import AllToAll
from vantage.parallel.group import join_group, leave_group
from vantage.training.distributed import mesh_of
from vantage.training.optimise import AdamW, clip
from vantage.training.sections import ParallelSettings

DEVICE = torch.device("cuda", 0)


def collectives() -> None:
    """Every operation that a ``Wire`` makes use of."""
    x = torch.arange(6.0, device=DEVICE).view(3, 2)
    gathered = [torch.empty_like(x)]
    dist.all_gather(gathered, x)
    scattered = torch.empty_like(x)
    dist.reduce_scatter(scattered, [x])
    collected = [torch.empty_like(x)]
    dist.gather(x, collected, 0)
    summed = x.clone()
    dist.all_reduce(summed)
    dist.broadcast(summed, 0)
    exchanged = Wire().exchange(x.requires_grad_(), [3], [3])
    exchanged.sum().backward()
    assert all(torch.equal(y, x) for y in (*gathered, *collected, scattered, summed, exchanged))
    assert x.grad is not None
    assert bool((x.grad == 1).all())


def experts() -> None:
    """Rows to their experts and back, some of which get none."""

    def doubled_by_number(rows: Tensor, numbers: Tensor) -> Tensor:
        return rows * (numbers[:, None] + 1)

    rows, numbers = torch.randn(7, 3, device=DEVICE), torch.tensor([3, 0, 0, 3, 1, 3, 0], device=DEVICE)
    out = AllToAll(Wire(), 4)(rows, numbers, doubled_by_number)
    torch.testing.assert_close(out, doubled_by_number(rows, numbers))


def losses(shared: bool) -> list[float]:
    """A few steps of a small model, whole or with its weights shared out over the mesh of one."""
    model = vt.build(vt.decoder(vocab=31, width=32, layers=2, heads=4)).to(DEVICE)
    if shared:
        mesh = mesh_of("cuda", 1, ParallelSettings())
        for block in model.blocks:
            fully_shard(block, mesh=mesh.shards)
        fully_shard(model, mesh=mesh.shards)
    optimiser = AdamW(lr=1e-2).build(model)
    tokens = torch.randint(31, (4, 16), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    values = []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        clip(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        values.append(float(loss))
    return values


if __name__ == "__main__":
    torch.cuda.set_device(DEVICE)
    join_group("cuda")
    assert dist.get_backend() == "nccl"
    collectives()
    experts()
    torch.testing.assert_close(losses(shared=True), losses(shared=False), rtol=1e-4, atol=1e-5)
    leave_group()
    print("nccl: started")
