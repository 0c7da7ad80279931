"""Tensor parallel: heads and feed-forward columns over processes, every one of which sees all tokens.

A process builds an ordinary model from a narrower spec. Which part of each parameter it holds follows from the shapes
of the whole and of the narrow model, and from what modules say of maps that lie side by side in one weight; no name of
a parameter is known here. A sublayer gives a sum over heads or columns, so one sum over the processes makes it whole.
So it does where a process has some of the experts whole: it runs those, and gives nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.model import Model, empty_model, fit_buffers, parameter_names
from vantage.model.linear import replace_module
from vantage.parallel.head_probe import check_heads
from vantage.parallel.parameter_cut import ParameterCut, parameter_cuts, sublayers
from vantage.parallel.wire import Wire
from vantage.spec.abilities import DividesByHead, DividesExperts, Divisible, ExchangesTokens, Indivisible
from vantage.spec.model import Layer, ModelSpec


class TensorParallel:
    """A model of this spec over the processes of a group. ``own`` is the spec of what this process has of it."""

    def __init__(self, spec: ModelSpec, group: dist.ProcessGroup | None = None, *, whole_experts: bool = False):
        """``whole_experts``: each process has some of the experts whole, instead of some columns of each."""
        self.wire, self.spec, self.whole_experts = Wire(group), spec, whole_experts
        self.own = divided(spec, self.wire.rank, self.wire.size, whole_experts=whole_experts)
        whole, own = empty_model(spec), empty_model(self.own)
        owners = expert_owners(whole, own, self.wire.size) if whole_experts else {}
        self.cuts = parameter_cuts(whole, own, owners)

    # ---- from the whole to shares

    def has(self, name: str) -> bool:
        """Whether this process has anything of a parameter."""
        return self.cuts[name].owner in (None, self.wire.rank)

    def take(self, name: str, whole: Tensor) -> Tensor:
        """This process's share of a parameter."""
        return self.cuts[name].take(whole, self.wire.rank, self.wire.size)

    def slices(self, name: str) -> tuple[int, list[tuple[int, int]]]:
        """A dimension, and along it for each map of a parameter the first row and how many; none: all of it."""
        cut = self.cuts[name]
        return cut.dim, [(m.start(self.wire.rank, self.wire.size) - m.first, m.own) for m in cut.maps]

    def cut(self, model: Model) -> Model:
        """This process's share of a whole model, which every process has alike."""
        share = empty_model(self.own, model.kernel)
        held = ((name, p.detach()) for name, p in model.named_parameters() if self.has(name))
        put_parameters(share, {name: self.take(name, p).clone() for name, p in held})
        return self.connect(with_companions(share, model))

    def connect(self, share: Model) -> Model:
        """From now on the sublayers of this share sum up with those of the other processes."""
        wire = self.wire

        def enter(module: nn.Module, arguments: Any) -> Any:
            return wire.entered(arguments[0]), *arguments[1:]

        def leave(module: nn.Module, arguments: Any, out: Any) -> Tensor:
            return wire.summed(out)

        for sublayer in sublayers(share):
            sublayer.register_forward_pre_hook(enter)
            sublayer.register_forward_hook(leave)
        if share.encoder is not None:  # what cross-attention reads of it enters every decoder layer
            share.encoder.norm.register_forward_hook(lambda module, arguments, out: wire.entered(cast(Tensor, out)))
        if wire.rank:
            self._add_biases_once(share)
        for module in share.modules() if self.whole_experts else ():
            if isinstance(module, ExchangesTokens) and module.numbered is not None:
                module.exchange_by(experts_here)
        share.parallel = self
        return share

    def _add_biases_once(self, share: Model) -> None:
        """The bias of a map whose inputs are cut would be added by every process: all but the first leave it out."""
        for name, cut in self.cuts.items():
            if cut.dim != 1 or not cut.maps:
                continue
            owner = name.rpartition(".")[0]
            linear = share.get_submodule(owner)
            if isinstance(linear, nn.Linear) and linear.bias is not None:
                replace_module(share, owner, LinearWithoutBias(linear.weight, linear.bias))

    # ---- training

    def sum_gradients(self, share: Model) -> None:
        """Bring together what the processes know of a gradient: of what all have inside a sublayer, or some of them."""
        wire = self.wire
        for name, p in share.named_parameters():
            cut = self.cuts[name]
            if not cut.inside or not p.requires_grad:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            if not cut.maps and cut.owner is None:
                wire.sum(p.grad)
            self.sum_shared(cut, p.grad)

    def sum_shared(self, cut: ParameterCut, gradient: Tensor) -> None:
        """Sum what several processes know of the rows that they all have, in place."""
        wire = self.wire
        for m, own in zip(cut.maps, cut.split(gradient), strict=True):
            if m.shards < wire.size:
                at = m.start(wire.rank, wire.size) - m.first
                every = own.new_zeros([m.whole if d == cut.dim else n for d, n in enumerate(own.shape)])
                every.narrow(cut.dim, at, m.own).copy_(own)
                own.copy_(wire.sum(every).narrow(cut.dim, at, m.own))

    def norm(self, gradients: Mapping[str, Tensor], others: Iterable[Tensor] = ()) -> Tensor:
        """The norm of all gradients together, by the names of the parameters; what several have counts once.

        ``others`` are gradients of what all have alike and is no parameter of the model.
        """
        total = torch.zeros((), dtype=torch.float64)
        for name, gradient in gradients.items():
            cut = self.cuts[name]
            whole = [(gradient, 1 if cut.owner is None else self.wire.size)]
            parts = zip(cut.split(gradient), (m.shards for m in cut.maps), strict=True) if cut.maps else whole
            total += sum(part.double().square().sum().cpu() * (shards / self.wire.size) for part, shards in parts)
        total += sum(g.double().square().sum().cpu() / self.wire.size for g in others)
        return self.wire.sum(total).sqrt()

    # ---- from shares to the whole

    def whole_tensor(self, name: str, share: Tensor | None) -> Tensor:
        """A parameter, or something of its shape, put together from the shares of all processes. ``None``: this one has
        nothing of it."""
        cut = self.cuts[name]
        if cut.owner is not None:
            return self.wire.from_owner(share, cut.shape, cut.owner)
        assert share is not None, f"a share of {name} is missing"
        return self.joined(cut, share) if cut.maps else share

    def joined(self, cut: ParameterCut, share: Tensor) -> Tensor:
        """The whole of what is cut in this way."""
        whole = torch.empty(cut.shape, dtype=share.dtype, device=share.device)
        for rank, part in enumerate(self.wire.gather_parts(share)):
            cut.put(part, whole, rank, self.wire.size)
        return whole

    @torch.no_grad()
    def whole(self, share: Model) -> Model:
        """The whole model, on every process: one that is saved as any other."""
        model = empty_model(self.spec, share.kernel)
        own = {name: p.detach() for name, p in share.named_parameters()}
        put_parameters(model, {name: self.whole_tensor(name, own.get(name)) for name in self.cuts})
        return with_companions(model, share)


class LinearWithoutBias(nn.Module):
    """A linear map that keeps its bias and does not add it: another process does."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = weight, bias  # parameters, both

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


def experts_here(x_MD: Tensor, expert_M: Tensor, experts: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """All processes have all rows: each runs those of its own experts, which leave 0 for the others."""
    return experts(x_MD, expert_M)


def divided(spec: ModelSpec, rank: int, ranks: int, *, whole_experts: bool = False) -> ModelSpec:
    """What one of so many processes has of a model."""
    if ranks == 1:
        return spec
    if whole_experts and not _has_experts(spec):
        raise Refused("no layer of this model has experts: there are none to lie whole on one process")
    layers = tuple(
        _divided_layer(i, layer, spec.width, rank, ranks, whole_experts) for i, layer in enumerate(spec.layers)
    )
    encoder = spec.encoder
    if encoder is not None:
        encoder = divided(encoder, rank, ranks, whole_experts=whole_experts and _has_experts(encoder))
    return replace(spec, layers=layers, encoder=encoder)


def _has_experts(spec: ModelSpec) -> bool:
    own = any(isinstance(layer.ffn, DividesExperts) for layer in spec.layers)
    return own or (spec.encoder is not None and _has_experts(spec.encoder))


def _some_experts(index: int, part: DividesExperts, width: int, rank: int, ranks: int) -> Any:
    if part.count < ranks:
        raise Refused(
            f"layer {index}: {part.count} experts are fewer than {ranks} processes: divide them by columns "
            "(without whole_experts)"
        )
    first, end = _held(part.count, rank, ranks)
    return part.with_experts(first, end - first, ranks, width)


def _held(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first of so many experts that a process has, and the first that it has no more."""
    return rank * count // ranks, (rank + 1) * count // ranks


def expert_owners(whole: nn.Module, own: nn.Module, ranks: int) -> dict[str, int]:
    """Which process has a parameter, for those of experts that lie whole on one."""
    owners: dict[str, int] = {}
    for layer, module in own.named_modules():
        if not isinstance(module, ExchangesTokens) or module.numbered is None:
            continue
        children = own.get_submodule(layer).named_children()
        inner = next(name for name, child in children if child is module.numbered)
        experts = whole.get_submodule(f"{layer}.{inner}")
        count = len(list(experts.children()))
        rank_of = {e: r for r in range(ranks) for e in range(*_held(count, r, ranks))}
        for number, expert in experts.named_children():
            for name, _ in expert.named_parameters(f"{layer}.{inner}.{number}"):
                owners[name] = rank_of[int(number)]
    return owners


def _divided_layer(index: int, layer: Layer, width: int, rank: int, ranks: int, whole_experts: bool) -> Layer:
    parts: dict[str, Any] = {"attention": layer.attention, "ffn": layer.ffn}
    if layer.cross is not None:
        parts["cross"] = layer.cross
    experts = None
    if whole_experts and isinstance(layer.ffn, DividesExperts):
        experts = _some_experts(index, cast(DividesExperts, parts.pop("ffn")), width, rank, ranks)
    for name, part in parts.items():
        if not isinstance(part, Divisible):
            why = (
                part.indivisible if isinstance(part, Indivisible) else "it does not say how it divides among processes"
            )
            raise Refused(f"layer {index}: {type(part).__name__} ({name}) has no tensor parallel form: {why}")
    shares = {name: cast(Divisible, part).divided(ranks, width) for name, part in parts.items()}
    shares |= {} if experts is None else {"ffn": experts}
    heads, own = layer.attention.shape(width).heads, shares["attention"].shape(width).heads
    check_heads(index, layer, width)

    def of_heads(part: Any) -> Any:
        return part.of_heads(rank * own, own, heads) if isinstance(part, DividesByHead) else part

    return replace(
        layer,
        **shares,
        bias=of_heads(layer.bias),
        value_bias=of_heads(layer.value_bias),
        qk=tuple(of_heads(part) for part in layer.qk),
        output=tuple(of_heads(part) for part in layer.output),
    )


def with_companions(model: Model, other: Model) -> Model:
    """The model, with what stands beside the parameters of another one that is the same."""
    model.tokenizer, model.config, model.image_processor = other.tokenizer, other.config, other.image_processor
    fit_buffers(model, other.dtype, other.device)
    return model.train(other.training)


def put_parameters(
    model: nn.Module, values: Mapping[str, Tensor], wrap: Callable[[Tensor], Any] = nn.Parameter
) -> None:
    """Put these where a model without weights has parameters of their names, tied ones everywhere."""
    for first, names in parameter_names(model).items():
        parameter = wrap(values[first].contiguous())
        for name in names:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, parameter)
