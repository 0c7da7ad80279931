"""``vt.trace``: read and replace the activations of a model by name, while it runs.

seen = vt.trace(model, "The cat sat", read="layers.*.weights", edits=vt.Edit("layers.2.heads", 0.0, heads=4))
with vt.tracing(model, edits=vt.Edit("layers.9.residual_after", vector, add=True)):
    vt.generate(model, "I think that", max_tokens=20)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.files import GIB
from vantage.inspect.select import check_length, labels, read_source, read_tokens
from vantage.interventions.activations import Activation, chosen, context_of
from vantage.interventions.edits import Edit
from vantage.interventions.kernel import HIDDEN, ShowingKernel
from vantage.model import Model
from vantage.spec.parts import Context, Kernel, Need, View
from vantage.spec.positions import Positions

LIMIT = GIB  # bytes that may be kept and, for scores and weights, formed at once
SCORE_SIZED_TENSORS = 3  # scores, weights and what edits make of them


@final
@dataclass(eq=False, repr=False)
class Trace:
    """What was read of a run. ``trace["layers.3.heads"]`` puts the passes of one sequence together."""

    dims: dict[str, tuple[str, ...]]
    passes: dict[str, list[Tensor]] = field(default_factory=dict)  # by the activation's name, pass by pass
    switched: dict[str, str] = field(default_factory=dict)  # "layers.3": the kernel that would have run without it
    tokens: Tensor | None = None  # (rows, tokens) of vt.trace
    labels: tuple[str, ...] = ()  # of the first row of vt.trace

    def __getitem__(self, name: str) -> Tensor:
        """The activation over all passes, token after token."""
        if name not in self.passes:
            raise BadInput(f"{name!r} was not read: {', '.join(self.passes) or 'nothing was'}. Name it in read=")
        passes, dims = self.passes[name], self.dims[name]
        if "key" in dims:
            empty = HIDDEN if name.endswith("scores") else 0.0
            width = max(one.shape[-1] for one in passes)
            passes = [F.pad(one, (0, width - one.shape[-1]), value=empty) for one in passes]
        try:
            return passes[0] if len(passes) == 1 else torch.cat(passes, dims.index("token"))
        except RuntimeError:
            raise BadInput(f"the passes of {name} are of several sequences: look at them in passes[{name!r}]") from None

    def __contains__(self, name: str) -> bool:
        return name in self.passes

    @property
    def logits(self) -> Tensor:
        return self["logits"]

    @property
    def bytes(self) -> int:
        """What is kept."""
        return sum(one.nbytes for passes in self.passes.values() for one in passes)

    def __repr__(self) -> str:
        read = f"{len(self.passes)} activations, {self.bytes / 2**20:,.1f} MiB"
        if not self.switched:
            return f"Trace({read})"
        kernels = ", ".join(dict.fromkeys(self.switched.values()))
        return f"Trace({read}; {', '.join(self.switched)} ran the reference kernel in the place of {kernels})"


@torch.inference_mode()
def trace(
    model: Model,
    text: Any,
    *,
    read: str | Iterable[str] = "logits",
    edits: Iterable[Edit] | Edit = (),
    source: Any = None,
    beyond: bool = False,
    limit: int = LIMIT,
) -> Trace:
    """Run a model on a text or tokens with ``edits`` applied, and record the activations named in ``read``.

    ``source``: what an encoder-decoder reads. ``limit``: the bytes that may be kept.
    """
    tokens = read_tokens(model, text, beyond=beyond)
    if model.spec.embedding.source is None:
        check_length(model, tokens.shape[1], beyond=beyond)
    memory = read_source(model, source)
    edits, names = as_edits(edits), list(chosen(model, read))
    with tracing(model, read=names, edits=edits, limit=limit) as seen:
        encoded = None if memory is None else model.encode(memory)
        if "logits" in {*names, *(edit.activation for edit in edits)}:
            model(tokens, source=encoded)
        else:
            model.hidden(tokens, source=encoded)
    if model.spec.embedding.source is None:
        seen.tokens, seen.labels = tokens, tuple(labels(model, tokens[0].tolist()))
    return seen


@contextlib.contextmanager
def tracing(
    model: Model, *, read: str | Iterable[str] = (), edits: Iterable[Edit] | Edit = (), limit: int = LIMIT
) -> Iterator[Trace]:
    """A context manager: inside it every pass of this model has these edits, and records the activations in ``read``.

    Native whole-step programs are not used meanwhile. Other kernels run as usual, except where scores or weights are
    read or replaced: those layers run the reference kernel, and ``Trace.switched`` lists them.
    """
    wanted, edits = chosen(model, read), as_edits(edits)
    if type(limit) is not int or limit < 1:
        raise BadInput(f"limit={limit!r}: give the bytes that may be kept, as a whole number")
    if model.training:
        raise BadInput("the model is in training mode, where dropout changes activations: call model.eval() first")
    every: dict[str, Activation] = dict(wanted)
    edits_of: dict[str, list[Edit]] = {}
    for edit in edits:
        for name, activation in chosen(model, edit.activation).items():
            edit.check(activation)
            every[name] = activation
            edits_of.setdefault(name, []).append(edit)
    seen = Trace({name: one.dims for name, one in wanted.items()})
    run = _TracedRun(seen, edits_of, frozenset(wanted), limit)
    handles = run.listen(model, every)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def as_edits(edits: Iterable[Edit] | Edit) -> list[Edit]:
    several = [edits] if isinstance(edits, Edit) else list(edits)
    for edit in several:
        if not isinstance(edit, Edit):
            raise BadInput(f"edits: {edit!r:.80} is no edit: give vt.Edit(activation, value)")
    return several


@final
class _TracedRun:
    """Hooks on the modules that hold what is wanted."""

    def __init__(self, seen: Trace, edits: dict[str, list[Edit]], read: frozenset[str], limit: int):
        self._seen, self._edits, self._read, self._limit = seen, edits, read, limit
        self._pos: dict[int, Positions] = {}  # of the pass that runs, by the model's id
        self._memory: Positions | None = None  # where the encoder's output stands

    def listen(self, model: Model, every: dict[str, Activation]) -> list[Any]:
        handles = [
            module.register_forward_pre_hook(partial(self._enter, of))
            for of in ([model] if model.encoder is None else [model, model.encoder])
            for module in (of.embed, *of.blocks)
        ]
        kernels: dict[int, list[Activation]] = {}
        for activation in every.values():
            if activation.from_kernel:
                kernels.setdefault(id(activation.module), []).append(activation)
            elif activation.access == "given":
                handles.append(activation.module.register_forward_pre_hook(partial(self._given, activation)))
            else:
                handles.append(activation.module.register_forward_hook(partial(self._returned, activation)))
        for some in kernels.values():
            handles.append(some[0].module.register_forward_pre_hook(partial(self._show, some)))
        return handles

    def _enter(self, model: Model, module: nn.Module, args: tuple[Any, ...]) -> None:
        if module is model.embed:
            self._pos[id(model)] = args[1]
            return
        ctx = context_of(args)
        self._pos[id(model)] = ctx.pos
        if ctx.memory is not None:
            self._memory = ctx.memory.pos

    # ---- what modules are given and return

    def _given(self, activation: Activation, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        edited = self._columns(activation, args[0])
        return None if edited is None else (edited, *args[1:])

    def _returned(self, activation: Activation, module: nn.Module, args: Any, returned: Tensor) -> Tensor | None:
        return self._columns(activation, returned)

    def _columns(self, activation: Activation, whole: Tensor) -> Tensor | None:
        """The activation inside a tensor: edited, and kept if it is wanted. ``None``: nothing changed."""
        columns = activation.columns
        if columns is None:
            return self._replaced(activation, whole, self._order(activation, whole.shape[1]))
        value = whole[..., columns.first : columns.first + columns.width]
        if columns.heads:
            value = value.unflatten(-1, (columns.heads, -1))
        edited = self._replaced(activation, value, self._order(activation, whole.shape[1]))
        if edited is None:
            return None
        edited = edited.flatten(-2) if columns.heads else edited
        end = columns.first + columns.width
        return torch.cat((whole[..., : columns.first], edited, whole[..., end:]), -1)

    def _order(self, activation: Activation, width: int) -> Tensor | None:
        """(rows, tokens): which token of its row each one is; ``None``: not known."""
        pos = self._memory if activation.source else self._pos.get(id(activation.model))
        if pos is None:
            return None
        order = pos.order
        if order.shape[1] == width:
            return order
        return order[:, -1:] if width == 1 else None  # the head is often asked for the last token alone

    # ---- scores and weights

    def _show(self, some: list[Activation], module: nn.Module, args: tuple[Tensor, Context]) -> tuple[Tensor, Context]:
        x, ctx = args
        where, heads = some[0].name.rpartition(".")[0], some[0].heads
        by_access = {activation.access: activation for activation in some}

        def replaced(access: str, value: Tensor, order: Tensor) -> Tensor | None:
            activation = by_access.get(access)
            return None if activation is None else self._replaced(activation, value, order)

        def choose(need: Need, q: Tensor, view: View) -> Kernel:
            kernel = ctx.choose(need, q, view).name
            if kernel != ShowingKernel.name:
                self._seen.switched[where] = kernel
            itemsize = torch.promote_types(q.dtype, torch.float32).itemsize
            self._check(where, SCORE_SIZED_TENSORS * math.prod(q.shape[:3]) * view.k.shape[2] * itemsize)
            return ShowingKernel(heads, replaced)

        return x, replace(ctx, choose=choose)

    # ---- both

    def _replaced(self, activation: Activation, value: Tensor, order: Tensor | None) -> Tensor | None:
        edited: Tensor | None = None
        for edit in self._edits.get(activation.name, ()):
            new = edit.apply(value if edited is None else edited, activation.dims, order)
            edited = edited if new is None else new
        if activation.name in self._read:
            self._keep(activation.name, value if edited is None else edited)
        return edited

    def _keep(self, name: str, value: Tensor) -> None:
        self._check(name, value.nbytes)
        shared = value.untyped_storage().nbytes() > value.nbytes  # a part of something larger, which need not stay
        self._seen.passes.setdefault(name, []).append(value.clone() if shared else value)

    def _check(self, name: str, more: int) -> None:
        if (total := self._seen.bytes + more) > self._limit:
            raise Refused(
                f"{name} would take what is kept to {total / 2**20:,.0f} MiB, and limit= allows "
                f"{self._limit / 2**20:,.0f}: read fewer activations, use a shorter text, or raise limit="
            )
