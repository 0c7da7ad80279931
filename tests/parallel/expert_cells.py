"""Models whose experts lie over processes, each of which has rows of its own, against one process in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.tensor_cells import spec_of
from vantage.conformance.factors import LENGTH, VOCAB
from vantage.conformance.scenarios import sharpen
from vantage.model import Model, build
from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import Experts, TopK
from vantage.model.feed_forward import FeedForward
from vantage.model.routers import GroupLimited
from vantage.parallel import ContextParallel, ExpertParallel, TensorParallel
from vantage.spec.model import ModelSpec

WIDTH = 9  # tokens of a row; each process has one
EXPERT = FeedForward(12, bias=True)


@dataclass(frozen=True)
class OneExpert:
    """A router that sends every token to the same few: the other processes get none."""

    k: int
    first: int = 0

    def build(self, width: int, experts: int) -> nn.Module:
        return _OneExpert(self, width)


class _OneExpert(nn.Module):
    def __init__(self, config: OneExpert, width: int):
        super().__init__()
        self.config, self.weigh = config, nn.Linear(width, config.k)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.arange(self.config.k, device=x_ND.device) + self.config.first
        return self.weigh(x_ND).sigmoid(), chosen.expand(len(x_ND), -1)


@dataclass(frozen=True)
class InTurn:
    """A router that gives every expert as many tokens, whatever they are."""

    k: int

    def build(self, width: int, experts: int) -> nn.Module:
        return _InTurn(self.k, experts, width)


class _InTurn(nn.Module):
    def __init__(self, k: int, experts: int, width: int):
        super().__init__()
        self.k, self.experts, self.weigh = k, experts, nn.Linear(width, k)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(len(x_ND), device=x_ND.device)[:, None]
        return self.weigh(x_ND).sigmoid(), (at + torch.arange(self.k, device=x_ND.device)) % self.experts


KINDS: dict[str, Experts] = {
    "top": Experts(EXPERT, 4, TopK(2), shared=FeedForward(8)),
    "weighed": Experts(EXPERT, 8, TopK(1, score="sigmoid", renormalise=False), weigh_input=True, scale=0.5),
    "grouped": Experts(FeedForward(12), 8, GroupLimited(3, 4, 2, bias=True), shared=FeedForward(8), shared_gate=True),
    "clamped": Experts(ClampedSwiGLU(12), 4, TopK(2, bias=True)),
    "first alone": Experts(EXPERT, 4, OneExpert(1)),  # every process but the first gets no token
    "last alone": Experts(EXPERT, 4, OneExpert(1, 3)),
}
EVEN = Experts(EXPERT, 4, InTurn(2))  # by a token's place among those of its process: not what one process gives


def with_experts(kind: str) -> ModelSpec:
    experts = EVEN if kind == "even" else KINDS[kind]
    spec = spec_of(("rope", "grouped", "gated"))
    first, *rest = spec.layers  # one layer stays dense
    return replace(spec, layers=(first, *(replace(layer, ffn=experts) for layer in rest)))


def rows_of(processes: int) -> Tensor:
    return torch.randint(VOCAB, (processes, WIDTH), generator=torch.Generator().manual_seed(7))


def loss_of(logits: Tensor, first_row: int) -> Tensor:
    """A number that every logit has its own part in, so that no gradient is lost in a sum."""
    weights = torch.randn(64, WIDTH, VOCAB, generator=torch.Generator().manual_seed(8), dtype=logits.dtype)
    return (logits * weights[first_row : first_row + len(logits)]).sum()


def gaps(kinds: list[str]) -> list[tuple[float, float, list[str]]]:
    """How far logits and gradients (as a share of the largest) are off; the experts that are held here."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tokens, found = rows_of(size), []
    for kind in kinds:
        model = sharpen(build(with_experts(kind), kernel="reference")).double()
        wanted = model(tokens, length=LENGTH)
        loss_of(wanted, 0).backward()
        parallel = ExpertParallel(model.spec)
        share = parallel.cut(model)
        logits = share(tokens[rank : rank + 1], length=LENGTH)
        loss_of(logits, rank).backward()
        parallel.sum_gradients(share)
        off = float((logits - wanted[rank : rank + 1]).detach().abs().max())
        held = [name for name, _ in share.named_parameters() if parallel.is_expert(name)]
        found.append((off, gradient_gap(dict(share.named_parameters()), model), held))
    return found


def gradient_gap(parameters: dict[str, Any], model: Model) -> float:
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    worst = 0.0
    for name, p in parameters.items():
        wanted = model.get_parameter(name).grad
        got = torch.zeros_like(p) if p.grad is None else p.grad
        worst = max(worst, float((got - (torch.zeros_like(got) if wanted is None else wanted)).abs().max()))
    return worst / max(largest, 1.0)


def with_others(kind: str, experts: int, context: int, tensor: int) -> tuple[float, float]:
    """Experts, tokens and heads over one mesh, in float64."""
    names = ("experts", "context", "tensor")
    mesh = init_device_mesh("cpu", (experts, context, tensor), mesh_dim_names=names)
    model = sharpen(build(with_experts(kind), kernel="reference")).double()
    row = mesh.get_local_rank("experts")
    tokens = rows_of(experts)
    wanted = model(tokens, length=LENGTH)
    loss_of(wanted, 0).backward()
    over_experts = ExpertParallel(model.spec, mesh.get_group("experts"))
    held = over_experts.cut(model)
    over_heads = TensorParallel(held.spec, mesh.get_group("tensor"))
    over_tokens = ContextParallel(mesh.get_group("context"))
    share = over_experts.connect(over_heads.cut(held))
    part = over_tokens.hidden(share, tokens[row : row + 1], length=LENGTH)
    logits = part.whole(share.head(part.hidden))
    (loss_of(logits, row) / context).backward()  # every process of a row has the whole of its loss
    for parallel in (over_heads, over_tokens, over_experts):
        parallel.sum_gradients(share)
    off = float((logits - wanted[row : row + 1]).detach().abs().max())
    whole: dict[str, Any] = {}
    for name, p in share.named_parameters():
        whole[name] = nn.Parameter(over_heads.whole_tensor(name, p.detach()))
        whole[name].grad = over_heads.whole_tensor(name, torch.zeros_like(p) if p.grad is None else p.grad)
    return off, gradient_gap(whole, model)
