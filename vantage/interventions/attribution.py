"""Direct logit attribution: what the embedding, every head and every group of neurons adds to a logit.

The residual stream is a sum, and the head is a linear map of it once the last norm's scale is held at what it was. So a
logit (or the difference of two) is a sum over everything that was added. It is exact for what goes straight to the
head: what a part does by way of later parts is theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.figures.html import page_table
from vantage.inspect.select import labels
from vantage.interventions.activations import activations
from vantage.interventions.targets import read_token
from vantage.interventions.trace import LIMIT, Trace, trace
from vantage.model import Model
from vantage.model.block import Chain, Residual
from vantage.model.norms import norm_form
from vantage.spec.attention import HasActivations

CHUNK = 512  # inputs of a linear map that are asked about at once


class Part(NamedTuple):
    """What one part adds to the logit."""

    kind: str  # "embedding", "head", "attention", "neurons", "feed-forward" or "constant"
    layer: int | None
    number: int | None  # of the head, or of the group of neurons
    value: float

    @property
    def name(self) -> str:
        if self.layer is None:
            return self.kind
        return f"{self.layer} {self.kind}" if self.number is None else f"{self.layer}.{self.number} {self.kind}"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Attribution:
    """A logit as a sum."""

    measure: str
    parts: tuple[Part, ...]
    logit: float  # as the model has it
    groups: int  # of neurons in a layer
    layers: int
    heads: int  # of the layer that has most

    @property
    def error(self) -> float:
        """By how much the parts miss the logit."""
        return abs(sum(part.value for part in self.parts) - self.logit)

    def by_layer(self, kind: str) -> Tensor:
        """(layers, heads or groups): of "head" or "neurons"; (layers, 1) of the other kinds."""
        width = {"head": self.heads, "neurons": self.groups}.get(kind, 1)
        table = torch.zeros(self.layers, width)
        for part in self.parts:
            if part.kind == kind and part.layer is not None:
                table[part.layer, part.number or 0] += part.value
        return table

    def total(self, layer: int, *kinds: str) -> float:
        """What a layer adds by parts of these kinds; all of them if none is named."""
        return sum(part.value for part in self.parts if part.layer == layer and (not kinds or part.kind in kinds))

    @property
    def header(self) -> list[str]:
        return ["part", "adds"]

    def rows(self) -> list[list[Any]]:
        return [[part.name, round(part.value, 4)] for part in sorted(self.parts, key=lambda part: -abs(part.value))]

    def to_dict(self) -> dict[str, Any]:
        parts = [part._asdict() for part in self.parts]
        return {"measure": self.measure, "logit": self.logit, "error": self.error, "parts": parts}

    def __repr__(self) -> str:
        return f"attribution of the {self.measure}, {self.logit:.3f}, to {len(self.parts)} parts"

    def _repr_html_(self) -> str:
        from vantage.interventions.plots import plot_attribution

        return page_table(repr(self), self.header, self.rows()[:50], plot_attribution(self))


@torch.inference_mode()
def attribute(
    model: Model,
    text: Any,
    *,
    target: Any = None,
    against: Any = None,
    position: int = -1,
    groups: int = 8,
    source: Any = None,
    limit: int = LIMIT,
) -> Attribution:
    """What each part adds to the logit of ``target`` less that of ``against`` after the token at ``position``.

    Without ``against``, less the mean of all logits; without ``target``, of the token that the model would write.
    Neurons of a feed-forward layer come in so many ``groups`` of neighbours. A softcap at the end is left out.
    """
    if type(groups) is not int or groups < 1:
        raise BadInput(f"groups={groups!r}: give into how many groups the neurons of a layer are put, 1 or more")
    _check_sums(model)
    known = activations(model)
    inside = [name for name in known if name.rpartition(".")[2] in ("heads", "neurons") and "encoder" not in name]
    added = [
        f"layers.{n}.{kind}"
        for n in range(len(model.blocks))
        for kind in ("attention", "cross.attention", "feed_forward")
    ]
    last = f"layers.{len(model.blocks) - 1}.residual_after"
    names = ["embedding", *inside, *(name for name in added if name in known), last, "hidden"]
    seen = trace(model, text, read=names, source=source, limit=limit)
    if seen.tokens is None or len(seen.tokens) != 1:
        raise BadInput("give one text, or the tokens of one")
    count = seen.tokens.shape[1]
    if not -count <= position < count:
        raise BadInput(f"there is no position {position}: the text has {count} tokens")
    direction, constant, measure = _wanted(model, seen, position, target, against)
    logit = float(seen["hidden"][0, position].double() @ direction + constant)
    through, shift = frozen(model.norm, seen[last][0, position], direction)
    parts = [Part("embedding", None, None, float(seen["embedding"][0, position].double() @ through))]
    for layer, block in enumerate(model.blocks):
        parts += _of_block(seen, layer, block, position, through, groups)
    parts.append(Part("constant", None, None, float(constant + shift)))
    heads = max((known[name].heads for name in inside if name.endswith(".heads")), default=1)
    return Attribution(measure, tuple(parts), logit, groups, len(model.blocks), heads)


def _check_sums(model: Model) -> None:
    """Refuse models whose residual stream or head is no sum."""
    if model.spec.head is None:
        raise BadInput("this model has no head: there is no logit to attribute")
    if model.placement.layers and model.device.type != "cpu":
        raise Refused(
            f"weights of {len(model.placement.layers)} layers are in host memory (max_memory), and attribution reads "
            "them beside a pass: load the model on a CPU, or where all of it fits"
        )
    if not isinstance(model.head.transform, nn.Identity):
        raise Refused(
            "this model's head transforms what it is given before its last map: its logits are no sum of parts"
        )
    if model.spec.altup is not None:
        raise Refused("this model has several residual streams (AltUp), which every layer mixes: its logits are no sum")
    for n, block in enumerate(model.blocks):
        for step in block.steps if isinstance(block, Chain) else ():
            assert isinstance(step, Residual)
            norms = step.normed or not isinstance(step.outer, nn.Identity)
            if norms or step.kept != 1.0:
                does = "norms" if norms else "scales"
                raise Refused(f"layer {n} {does} the residual stream itself: its logits are no sum of what layers add")


def _wanted(model: Model, seen: Trace, position: int, target: Any, against: Any) -> tuple[Tensor, Tensor, str]:
    """The direction of the wanted logit in the normed hidden state, what is added to it, and its name."""
    hidden = seen["hidden"][:, position][:, None]
    head: Any = model.head
    token = int(head(hidden)[0, 0].argmax()) if target is None else read_token(model, target, "target")
    other = None if against is None else read_token(model, against, "against")
    shown = [repr(label) for label in labels(model, [n for n in (token, other) if n is not None])]

    def pick(logits: Tensor) -> Tensor:
        return logits[..., token] - (logits.mean(-1) if other is None else logits[..., other])

    constant = pick(head.linear(torch.zeros_like(hidden))[0, 0].double()) * head.config.scale
    direction = _adjoint(head.linear, hidden.shape[-1], pick, hidden) * head.config.scale
    return (
        direction,
        constant,
        f"logit of {shown[0]} less {'the mean of all' if other is None else f'that of {shown[1]}'}",
    )


def _of_block(seen: Trace, layer: int, block: nn.Module, position: int, through: Tensor, groups: int) -> list[Part]:
    if isinstance(block, Chain):
        steps: list[tuple[Any, Any]] = [(step.sublayer, step.after) for step in block.steps]
    else:
        steps = [(sublayer, None) for sublayer in block.sublayers]  # pyright: ignore[reportGeneralTypeIssues] (of a Side)
    parts: list[Part] = []
    for module, after in steps:
        inside = module.activations() if isinstance(module, HasActivations) else {}
        crosses = bool(getattr(module, "crosses", False))
        prefix = f"layers.{layer}.cross." if crosses else f"layers.{layer}."
        kind = "heads" if "heads" in inside else "neurons" if "neurons" in inside else None
        feeds = module is steps[-1][0]
        whole = seen[f"{prefix}{'feed_forward' if feeds else 'attention'}"][0, position].double() @ through
        if kind is None:
            parts.append(Part("feed-forward" if feeds else "attention", layer, None, float(whole)))
            continue
        child = getattr(module, inside[kind].child)
        given = seen[f"{prefix}{kind}"][0, position].double()
        own = through
        if after is not None and not isinstance(after, nn.Identity):
            own, _ = frozen(after, child(given.flatten().to(seen["hidden"].dtype)[None])[0], through)
        weights = _adjoint(child, given.numel(), lambda out, own=own: out.double() @ own, seen["hidden"])
        each = (given.flatten() * weights).reshape(given.shape if kind == "heads" else -1)
        sums = each.sum(-1) if kind == "heads" else torch.stack([one.sum() for one in each.tensor_split(groups)])
        name = "cross head" if crosses else "head" if kind == "heads" else "neurons"
        parts += [Part(name, layer, n, value) for n, value in enumerate(sums.tolist())]
        rest = float(whole - sums.sum())  # biases of the last map and of a norm behind it
        parts.append(Part("feed-forward" if feeds else "attention", layer, None, rest))
    return parts


def frozen(norm: nn.Module, x_D: Tensor, direction_D: Tensor) -> tuple[Tensor, float]:
    """A direction behind a norm as one before it, with the norm's scale held at what it is for ``x``; and what its
    bias adds."""
    if isinstance(norm, nn.Identity):
        return direction_D, 0.0
    form = norm_form(norm)
    if form is None:
        raise Refused(f"{type(norm).__name__} does not say what it computes (norm_form): its scale cannot be held")
    x = x_D.double()
    weighted = direction_D * (form.weight.double() + form.offset)
    shift = 0.0 if form.bias is None else float(form.bias.double() @ direction_D)
    if form.centred:
        scale = (x.var(correction=0) + form.eps).rsqrt()
        return (weighted - weighted.mean()) * scale, shift
    return weighted * (x.square().mean() + form.eps).rsqrt(), shift


def _adjoint(linear: nn.Module, inputs: int, pick: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """(inputs,): what each input of a linear map, of whatever kind, adds to what is picked of its output."""
    if isinstance(linear, nn.Linear):
        return pick(linear.weight.T).double()
    zero = pick(linear(like.new_zeros(1, inputs))).double()
    columns = []
    for low in range(0, inputs, CHUNK):
        rows = torch.zeros(min(CHUNK, inputs - low), inputs, dtype=like.dtype, device=like.device)
        rows[torch.arange(len(rows)), low + torch.arange(len(rows))] = 1.0
        columns.append(pick(linear(rows)).double() - zero)
    return torch.cat(columns)
