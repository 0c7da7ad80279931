"""A training step over one mesh of rows, tokens, heads and experts, in float64: its gradients, and all that is sent.

What is sent is counted below torch.distributed, so that FSDP2's messages count as ours do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.parallel.expert_cells import with_experts
from tests.parallel.tensor_cells import spec_of
from vantage.conformance.factors import VOCAB
from vantage.conformance.scenarios import sharpen
from vantage.model import build
from vantage.parallel import ContextParallel, Cut
from vantage.spec.model import ModelSpec
from vantage.training.batch import Batch
from vantage.training.context_tokens import ContextTokens
from vantage.training.distributed import World, blocks_of, mesh_of, shard, unshared
from vantage.training.learners import TokenLearner
from vantage.training.mesh_shares import MeshShares, share_of
from vantage.training.optimise.tensors import local, whole
from vantage.training.sections import ParallelSettings

NOTHING_SENT = ("recv_", "barrier", "wait_tensor", "_wrap_tensor_autograd")
ROWS, CONTEXT = 2, 12  # of each process that has rows of its own


def mesh_spec(name: str) -> ModelSpec:
    """ "even" and the kinds of experts, or encoding, attention and feed-forward layer."""
    first, *rest = name.split("/")
    return with_experts(first) if not rest else spec_of((first, *rest))  # pyright: ignore[reportArgumentType]


class Sent(TorchDispatchMode):
    """Bytes that this process sends to others, by operation, as rings send them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        namespace, _, name = str(func).removesuffix(".default").partition(".")
        if namespace in ("c10d", "_c10d_functional"):
            self._count(name, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Sequence[Any]) -> None:
        def group() -> Any:
            return next(dist.ProcessGroup.unbox(x) for x in args if isinstance(x, torch.ScriptObject) and _is_group(x))

        if name == "allgather_":  # a list for each tensor, the tensors, the group
            self.bytes["gather"] += (len(args[0][0]) - 1) * args[1][0].nbytes
        elif name == "_allgather_base_":  # all of it, this process's
            self.bytes["gather"] += args[0].nbytes - args[1].nbytes
        elif name == "all_gather_into_tensor":  # DTensor's: this process's, how many there are
            self.bytes["gather"] += (args[1] - 1) * args[0].nbytes
        elif name == "reduce_scatter_":
            self.bytes["scatter"] += (len(args[1][0]) - 1) * args[0][0].nbytes
        elif name == "_reduce_scatter_base_":
            self.bytes["scatter"] += args[1].nbytes - args[0].nbytes
        elif name == "allreduce_":
            size = group().size()
            self.bytes["sum"] += sum(2 * (size - 1) * x.nbytes // size for x in args[0])
        elif name == "alltoall_base_":  # received, sent, the group, and the sizes of the parts of each
            own = args[1][: args[4][group().rank()]].nbytes
            self.bytes["exchange"] += args[1].nbytes - own
        elif name == "send":
            self.bytes["state"] += sum(x.nbytes for x in args[0])
        else:
            assert name in NOTHING_SENT, f"{name} is not counted"


def _is_group(value: torch.ScriptObject) -> bool:
    return "ProcessGroup" in str(value._type())


def one_step(name: str, data: int, experts: int, context: int, tensor: int, cut: str = "contiguous") -> dict[str, Any]:
    """Bytes of a training step and of the weights here; how far logits, gradients and their norm are off."""
    parallel = ParallelSettings(tensor, context, experts, cut)  # pyright: ignore[reportArgumentType]
    rows = data * experts
    world = World(dist.get_rank(), rows, 0, tensor, context, experts, mesh_of("cpu", rows, parallel))
    model = sharpen(build(mesh_spec(name), kernel="reference")).double()
    gen = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCAB, (ROWS * rows, CONTEXT), generator=gen)
    weights = torch.randn(ROWS * rows, CONTEXT, VOCAB, generator=gen, dtype=torch.float64)
    own = slice(world.part * ROWS, (world.part + 1) * ROWS)
    wanted = torch.cat([model(some) for some in tokens.split(ROWS)])  # as each has them: a router may go by places
    (wanted * weights).sum().backward()
    gradients = {f"model.core.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)  # some of it is trained in place
    share = share_of(model.spec, world) if world.cut else None
    learner = TokenLearner(model if share is None else share.cut(model))
    shares = None if share is None else MeshShares(learner, share, world)
    shard(learner, unshared(blocks_of(learner)), world, None)
    passes = None
    if context > 1:
        passes = ContextTokens(learner, ContextParallel(world.group("context"), cut=cut), 0.0)
    mine = weights[own] if passes is None else Cut(CONTEXT, context, cut).take(weights[own], passes.parallel.wire.rank)
    with Sent() as sent:
        logits = learner(Batch(tokens[own], tokens[own]))
        ((logits * mine).sum() * world.shards).backward()
        gathered = {} if shares is None else shares.sum_gradients()
    assert shares is None or set(gathered) <= {n for n, _ in learner.named_parameters()}
    every = logits if passes is None else passes._last().whole(logits)
    held = {f"model.{n}": p.grad for n, p in learner.named_parameters() if p.grad is not None}
    full = {n: whole(g) for n, g in held.items()} if shares is None else shares.whole(held)
    answer = {
        "sent": dict(sent.bytes),
        "weights": sum(local(p.detach()).nbytes for p in learner.parameters()),
        "logits": float((every - wanted[own]).detach().abs().max()),
        "gradients": _gap(full, gradients) if world.first else 0.0,
        "norm": 0.0,
    }
    if shares is not None:
        wanted_norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        answer["norm"] = float(abs(_norm_again(shares, gathered) / wanted_norm - 1))
    return answer


def _norm_again(shares: MeshShares, gathered: dict[str, Tensor]) -> Tensor:
    named = {n: p.grad for n, p in shares.learner.named_parameters() if p.grad is not None}
    total = torch.stack([shares._squares(n, g, gathered.get(n)) for n, g in named.items()]).sum()
    dist.all_reduce(total)
    return total.sqrt()


def _gap(full: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    largest = max(1.0, *(float(g.abs().max()) for g in wanted.values()))
    assert set(wanted) <= set(full)
    return max(float((full[n] - g).abs().max()) for n, g in wanted.items()) / largest
