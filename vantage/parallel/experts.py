"""Experts over processes: each has some whole, and tokens go where their experts are (Lepikhin et al. 2020, GShard).

Every process has tokens of its own, a router over all experts, and everything outside of the experts. Which layers have
experts is read from the spec. How many tokens an expert gets is known when the router has chosen: processes first tell
each other how many rows they send, then the rows. No token is dropped, and an expert may get none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.model import Model, empty_model
from vantage.parallel.tensor import put_parameters, with_companions
from vantage.parallel.wire import Wire
from vantage.spec.abilities import ExchangesTokens, SpreadsExperts
from vantage.spec.model import Layer, ModelSpec


class ExpertParallel:
    """A model of this spec whose experts lie over the processes of a group. ``own``: what this process has of it."""

    def __init__(self, spec: ModelSpec, group: dist.ProcessGroup | None = None):
        self.wire, self.spec = Wire(group), spec
        self.own = spread(spec, self.wire.rank, self.wire.size)
        self.counts = expert_counts(empty_model(self.own), self.wire.size)

    # ---- from the whole to shares

    def cut(self, model: Model) -> Model:
        """This process's experts, and all that is not one, of a whole model that every process has alike."""
        share = empty_model(self.own, model.kernel)
        put_parameters(
            share, {name: model.get_parameter(name).detach().clone() for name, _ in share.named_parameters()}
        )
        return self.connect(with_companions(share, model))

    def connect(self, share: Model) -> Model:
        """From now on the tokens of this share go to the experts of the other processes as well."""
        for name, module in share.named_modules():
            if isinstance(module, ExchangesTokens) and name in self.counts:
                module.exchange_by(AllToAll(self.wire, self.counts[name]))
        return share

    # ---- training

    def sum_gradients(self, share: nn.Module) -> None:
        """The gradient of the whole loss, where each process has that of its tokens. An expert has met all of them."""
        for name, p in share.named_parameters():
            if p.requires_grad and not self.is_expert(name):
                p.grad = self.wire.sum(torch.zeros_like(p) if p.grad is None else p.grad)

    # ---- names

    def is_expert(self, name: str) -> bool:
        """Whether a parameter of this name is one of an expert."""
        return any(name.startswith(f"{layer}.experts.") for layer in self.counts)

    def of_rank(self, name: str, rank: int) -> str:
        """What the parameter of an expert is called that has this one's place in another process."""
        layer = next(layer for layer in self.counts if name.startswith(f"{layer}.experts."))
        before = f"{layer}.experts."
        number, _, rest = name.removeprefix(before).partition(".")
        each = self.counts[layer] // self.wire.size
        return f"{before}{int(number) % each + rank * each}.{rest}"


@final
class AllToAll:
    """Rows to the processes that have their experts, and what these make of them back."""

    def __init__(self, wire: Wire, experts: int):
        self.wire, self.each = wire, experts // wire.size

    def __call__(self, x_MD: Tensor, expert_M: Tensor, experts: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        wire = self.wire
        order = expert_M.argsort(stable=True)
        counts = torch.bincount(expert_M, minlength=wire.size * self.each)
        theirs = wire.exchange_parts(counts, [self.each] * wire.size, [self.each] * wire.size)  # (process, own expert)
        sent = counts.view(wire.size, -1).sum(1).tolist()
        received = theirs.view(wire.size, -1).sum(1).tolist()
        first = wire.rank * self.each
        numbers = torch.arange(first, first + self.each, device=x_MD.device).repeat(wire.size)
        rows = wire.exchange(x_MD[order], sent, received)
        done = experts(rows, numbers.repeat_interleave(theirs))
        back = wire.exchange(done, received, sent)
        return torch.zeros_like(back).index_copy(0, order, back)


def spread(spec: ModelSpec, rank: int, ranks: int) -> ModelSpec:
    """What one of so many processes has of a model whose experts lie over them."""
    if ranks == 1:
        return spec
    if not _has_experts(spec):
        raise Refused("no layer of this model has experts: there is nothing to spread over processes")
    layers = tuple(_spread_layer(i, layer, rank, ranks) for i, layer in enumerate(spec.layers))
    encoder = spec.encoder
    if encoder is not None and _has_experts(encoder):
        encoder = spread(encoder, rank, ranks)
    return replace(spec, layers=layers, encoder=encoder)


def _has_experts(spec: ModelSpec) -> bool:
    own = any(isinstance(layer.ffn, SpreadsExperts) for layer in spec.layers)
    return own or (spec.encoder is not None and _has_experts(spec.encoder))


def _spread_layer(index: int, layer: Layer, rank: int, ranks: int) -> Layer:
    part: Any = layer.ffn
    if not isinstance(part, SpreadsExperts):
        return layer
    if part.count % ranks:
        raise Refused(f"layer {index}: {part.count} experts do not divide among {ranks} processes")
    each = part.count // ranks
    return replace(layer, ffn=part.of_experts(rank * each, each))


def expert_counts(share: nn.Module, ranks: int) -> dict[str, int]:
    """For every module that has some of the experts, how many there are in all."""
    return {
        name: len(module.numbered) * ranks
        for name, module in share.named_modules()
        if isinstance(module, ExchangesTokens) and module.numbered is not None
    }
