"""LoRA (Hu et al. 2021): a frozen linear map plus a trained product of two thin matrices.

``add_lora`` puts it around linear maps of a model, ``merge`` adds the product to the weights and takes it off again.
B starts at 0, so a model with fresh adapters gives the logits it gave before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isfinite, sqrt
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.model.linear import replace_module
from vantage.model.maps import LINEAR, LinearMap, LinearWrapper, linear_maps, size_of
from vantage.model.packed import PackedLinear
from vantage.model.transformer import Model
from vantage.model.wide import WideLinear

HAS_SOME = "this model has adapters already: merge(model) adds them to the weights and takes them off"
ROLES = ("attention", "ffn", "router", "head")


@dataclass(frozen=True)
class Lora:
    """W x + (alpha / rank) · B A x.

    ``targets`` say which linear maps: "attention", "ffn", "router" or "head" for all of a kind; one map's own name
    ("q", "v", "out", "gate", "up", "down"; q, k and v count as maps of their own although they share a weight);
    or a pattern of whole names, such as "blocks.0.*" or "encoder.*.qkv".
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("attention", "ffn")

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BadInput(f"rank={self.rank}: a product of thin matrices needs a rank of at least 1")
        if not (isfinite(self.alpha) and self.alpha > 0):
            raise BadInput(f"alpha={self.alpha}: give a positive number; alpha / rank scales the product")
        if not 0 <= self.dropout < 1:
            raise BadInput(f"dropout={self.dropout}: give a share from 0 up to, not including, 1")
        if isinstance(self.targets, str) or not self.targets:
            raise BadInput(f"targets={self.targets!r}: give one or more names in a tuple, such as ('attention', 'ffn')")


@final
class LoraPart(nn.Module):
    """B A x, scaled, for some rows of a linear map."""

    def __init__(self, a_rK: Tensor, b_Nr: Tensor, alpha: float, dropout: float, start: int):
        super().__init__()
        self.a, self.b = nn.Parameter(a_rK), nn.Parameter(b_Nr)
        self.alpha, self.start = alpha, start
        self.dropout = nn.Dropout(dropout)

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.b.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(self.dropout(x.to(self.a.dtype)), self.a), self.b) * self.scale

    def product(self) -> Tensor:
        """What is added to the weight's rows (N, K)."""
        return (self.b.detach() @ self.a.detach()) * self.scale


@final
class LoraLinear(LinearWrapper):
    """A frozen linear map and parts, by name, that add to some or all of its rows. The whole of it is named ""."""

    def __init__(self, base: nn.Module, parts: Mapping[str, LoraPart]):
        super().__init__(base)
        self.outputs, self.inputs = size_of(base)
        self.names = tuple(sorted(parts, key=lambda name: parts[name].start))
        self.parts = nn.ModuleList(parts[name] for name in self.names)

    def named_parts(self) -> dict[str, LoraPart]:
        return {name: part for name, part in zip(self.names, self.parts, strict=True) if isinstance(part, LoraPart)}

    def forward(self, x: Tensor) -> Tensor:
        out = _Packed.apply(x, self.base) if isinstance(self.base, PackedLinear) else self.base(x)
        return out + self._added(x).to(out.dtype)

    def _added(self, x: Tensor) -> Tensor:
        """What all parts add, 0 where there is none."""
        pieces, at = list[Tensor](), 0
        for part in self.named_parts().values():
            added = part(x)
            pieces += [added.new_zeros((*added.shape[:-1], part.start - at)), added] if part.start > at else [added]
            at = part.rows.stop
        if at < self.outputs:
            pieces.append(pieces[-1].new_zeros((*x.shape[:-1], self.outputs - at)))
        return torch.cat(pieces, -1) if len(pieces) > 1 else pieces[0]

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The linear map with the products in its weight; a packed one becomes dense."""
        if isinstance(self.base, PackedLinear):
            weight = self.base.weight.unpack(torch.float32)
            base: nn.Module = nn.Linear(self.inputs, self.outputs, bias=False, device="meta")
            base.weight = nn.Parameter(weight)
            if self.base.bias is not None:
                base.bias = self.base.bias
        else:
            base = self.base
        for part in self.named_parts().values():
            rows = base.get_parameter("weight")[part.rows]
            rows.copy_(rows.to(part.a.dtype) + part.product())
        return base


class _Packed(torch.autograd.Function):
    """A packed product whose weights are unpacked again for the backward pass, not kept in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, base: PackedLinear) -> Tensor:
        ctx.base = base
        return base(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad @ ctx.base.weight.unpack(grad.dtype), None


def add_lora(model: Model, config: Lora, *, seed: int = 0) -> list[str]:
    """Put adapters around the maps that ``config`` names and freeze all else. Returns the names of what was adapted.

    A is drawn as in the paper's code (Kaiming uniform, from ``seed`` alone) and B is 0.
    """
    if adapted(model):
        raise BadInput(HAS_SOME)
    chosen = _choose(linear_maps(model), config.targets)
    check_bases(model, list(chosen))
    random = torch.Generator().manual_seed(seed)

    def fresh(inputs: int, rows: int, start: int, dtype: torch.dtype, device: torch.device) -> LoraPart:
        a = torch.empty(config.rank, inputs, dtype=dtype)
        nn.init.kaiming_uniform_(a, a=sqrt(5), generator=random)
        b = torch.zeros(rows, config.rank, dtype=dtype, device=device)
        return LoraPart(a.to(device), b, config.alpha, config.dropout, start)

    adapters: dict[str, dict[str, LoraPart]] = {}
    for name, spans in chosen.items():
        base = model.get_submodule(name)
        outputs, inputs = size_of(base)
        parts = spans or {"": (0, outputs)}
        adapters[name] = {
            part: fresh(inputs, stop - start, start, *place_of(base)) for part, (start, stop) in parts.items()
        }
    put_lora(model, adapters)
    return [f"{name}.{part}" if part else name for name, parts in adapters.items() for part in parts]


def check_bases(model: Model, names: Sequence[str]) -> None:
    """Refuse what cannot be adapted, before anything is."""
    held = Counter(id(m.weight) for m in model.modules() if isinstance(m, (*LINEAR, nn.Embedding)))
    for name in names:
        module = model.get_submodule(name)
        if isinstance(module, LINEAR) and held[id(module.weight)] > 1:
            raise Refused(f"{name!r} shares its weight with another part (tied): it cannot be adapted by itself")


def put_lora(model: Model, adapters: Mapping[str, Mapping[str, LoraPart]]) -> None:
    """Put these parts around the model's linear maps and freeze all else."""
    model.requires_grad_(False)
    for name, parts in adapters.items():
        replace_module(model, name, LoraLinear(model.get_submodule(name), parts))
    _look_again(model)


def merge(model: Model) -> list[str]:
    """Add every adapter to its weight and give the plain linear maps back; all parameters can be trained again.

    A packed weight becomes a dense one, as its steps are too coarse for what was learned.
    """
    adapters = adapted(model)
    if not adapters:
        raise BadInput("this model has no adapters: there is nothing to merge")
    for name, module in adapters.items():
        replace_module(model, name, module.merged())
    packed = {id(m.bias) for m in model.modules() if isinstance(m, PackedLinear)}
    for p in model.parameters():
        p.requires_grad_(id(p) not in packed)
    _look_again(model)
    return list(adapters)


def adapted(model: nn.Module) -> dict[str, LoraLinear]:
    """The adapted linear maps by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def place_of(base: nn.Module) -> tuple[torch.dtype, torch.device]:
    """The dtype, at least float32 as small steps would be lost in less, and device of a map's adapters."""
    assert isinstance(base, (nn.Linear, WideLinear, PackedLinear))
    return torch.promote_types(base.weight.dtype, torch.float32), base.weight.device


Spans = dict[str, tuple[int, int]]  # pieces of a map by name: first row, and the one after the last


def _choose(maps: Sequence[LinearMap], targets: Sequence[str]) -> dict[str, Spans]:
    """The chosen maps, and their pieces where they have any. Every target must find something."""
    chosen: dict[str, Spans] = {}
    hit_targets: set[str] = set()
    for m in maps:
        spans = spans_of(m)
        for piece in spans or [""]:
            names = {m.name, f"{m.name}.{piece}"} if piece else {m.name}
            own = piece or m.name.rpartition(".")[2]
            hits = {t for t in targets if _hits(t, m.role, own, names)}
            hit_targets |= hits
            if hits:
                chosen.setdefault(m.name, {}).update({piece: spans[piece]} if piece else {})
    if lost := [t for t in targets if t not in hit_targets]:
        owns = sorted({piece for m in maps for piece in spans_of(m)} | {m.name.rpartition(".")[2] for m in maps})
        raise BadInput(
            f"the target {lost[0]!r} is none of this model's linear maps: use {', '.join(map(repr, ROLES))}, "
            f"one of {', '.join(owns)}, or a pattern such as 'blocks.0.*'"
        )
    return chosen


def spans_of(m: LinearMap) -> Spans:
    spans, at = Spans(), 0
    for piece, rows in m.pieces:
        spans[piece] = (at, at + rows)
        at += rows
    return spans


def _hits(target: str, role: str, own: str, names: set[str]) -> bool:
    if target in ROLES:
        return target == role
    inside = role in ("attention", "ffn")  # a plain name means a layer's map; a pattern can mean any
    return (inside and target == own) or any(fnmatchcase(name, target) for name in names)


def _look_again(model: Model) -> None:
    """What a model remembers of whether it has a native form holds no longer."""
    model.placement.adopt(model)
    for part in (model, model.encoder):
        if part is not None:
            part.kernel = part.kernel
