"""Context parallel: the tokens of a pass over several processes, every one of which has all weights.

A part knows positions, never slots. So a layer's queries stay where they are; keys and values travel, each with its
position, and every encoding, mask and bias is right without knowing that there are other processes. There are two ways.
"gather": every process gets all keys and values of a layer (Llama 3's training). "ring": they go round, and each
process merges what it has seen by the log-sum-exp (Liu et al. 2023), so that none ever holds all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vantage.cache import ModelCache
from vantage.errors import BadInput, Refused
from vantage.model import Model
from vantage.model.pass_inputs import check_source
from vantage.parallel.cut import Cut, joined
from vantage.parallel.parts_attention import choosing
from vantage.parallel.ring_attention import RingKernel
from vantage.parallel.spread_cache import PromptCache, PromptViews, SpreadCache
from vantage.parallel.states import HandedStates
from vantage.parallel.wire import Wire
from vantage.spec.parts import Cache, Context, EncoderOutput, Kernel, Need, View
from vantage.spec.positions import Positions

EXCHANGES = GATHER, RING = "gather", "ring"


class ContextShare(NamedTuple):
    """What a pass gave for this process's share of the tokens."""

    hidden: Tensor  # (B, t, D), normed, before the head
    positions: Positions  # (B, t)
    cut: Cut
    wire: Wire

    def take(self, x: Tensor, fill: float = 0) -> Tensor:
        """This process's share of something that has all columns: (B, T, …) to (B, t, …). ``fill`` is for padding."""
        return self.cut.take(x, self.wire.rank, fill=fill)

    def whole(self, x: Tensor) -> Tensor:
        """All columns (B, T, …) of what every process has a share of. Gradients flow back to where it came from."""
        x, sequence = self.wire.gather(x, 1), self.cut.sequence()
        return (x if sequence is None else x.index_select(1, sequence.to(x.device)))[:, : self.cut.width]


class ContextParallel:
    """Passes whose tokens lie over the processes of a group.

    Every process calls the same with the same tokens, and gets its share of the hidden states. Weights are whole
    everywhere: after ``backward`` on a share of the loss, ``sum_gradients`` gives every process the gradient of it all.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, cut: str = "contiguous", exchange: str = "gather"):
        if exchange not in EXCHANGES:
            raise BadInput(f"exchange={exchange!r}: use {' or '.join(map(repr, EXCHANGES))}")
        self.wire, self.exchange, self.kind = Wire(group), exchange, cut
        Cut(1, 1, cut)  # which refuses a kind that is not one

    def hidden(
        self,
        model: Model,
        tokens: Tensor,
        *,
        positions: Positions | Tensor | None = None,
        cache: ModelCache | SpreadCache | None = None,
        mask: Tensor | None = None,
        length: int | None = None,
        source: Tensor | EncoderOutput | None = None,
        types: Tensor | None = None,
    ) -> ContextShare:
        """As ``model.hidden``: all tokens go in, the hidden states of this process's share come out.

        ``cache`` holds all of it afterwards, on every process: each can go on by itself. One of ``new_cache`` holds
        what this process computed; all of them go on together (``cache.logits``).
        """
        wire = self.wire
        rows, own = (cache.rows, cache.own) if isinstance(cache, SpreadCache) else (cache, cache)
        whole = model.place(tokens, positions, rows, mask, length)
        cut = Cut(tokens.shape[1], wire.size, self.kind)
        pos = cut.positions(whole, wire.rank)
        memory = model.encode(source) if isinstance(source, Tensor) else source
        check_source(memory, own, len(tokens), reads=model.encoder is not None)
        ctx = model.context(pos, own, memory)
        handed: list[HandedStates] = []
        ctx = self._shared(ctx, cut, cache, handed)
        with self._pass(cache, whole, pos, cut):
            own_types = None if types is None else cut.take(types, wire.rank)
            hidden = model.run(model.embed(cut.take(tokens, wire.rank), pos, own_types), ctx)
        for states in handed:
            hidden = states.attach(hidden)
        return ContextShare(hidden, pos, cut, wire)

    def new_cache(self, model: Model, batch: int = 1, *, length: int | None = None) -> SpreadCache:
        """An empty cache whose tokens lie over the processes, for ``hidden`` to fill. Every process makes one."""
        return SpreadCache(model, self.wire, batch, length=length)

    def sum_gradients(self, module: nn.Module) -> None:
        """The gradient of the whole loss, where each process has that of its share."""
        for p in module.parameters():
            if p.requires_grad:
                p.grad = self.wire.sum(torch.zeros_like(p) if p.grad is None else p.grad)

    # ---- inside

    def _everybody(self, pos: Positions, cut: Cut) -> Positions:
        """Where the tokens of all processes stand: positions travel with keys, once for all layers."""
        return pos.once("everybody", lambda: joined(self._shares(pos), cut.sequence()))

    def _shares(self, pos: Positions) -> list[Positions]:
        def travel() -> list[Positions]:
            gather = self.wire.gather_parts
            orders = gather(pos.order)
            segments = [None] * self.wire.size if pos.segment is None else gather(pos.segment)
            axes = [None] * self.wire.size if pos.axes is None else gather(pos.axes)
            shares = [
                Positions.of(p, order=o, segment=s) for p, o, s in zip(gather(pos.pos), orders, segments, strict=True)
            ]
            wide = pos.known.pos
            facts = [replace(s.known, pos=wide, same_rows=s.known.same_rows and pos.axes is None) for s in shares]
            return [
                replace(s, known=known, axes=axis, length=pos.length)
                for s, known, axis in zip(shares, facts, axes, strict=True)
            ]

        return pos.once("shares", travel)

    def _pass(
        self, cache: ModelCache | SpreadCache | None, whole: Positions, pos: Positions, cut: Cut
    ) -> contextlib.AbstractContextManager[object]:
        """A pass that is kept as a whole, or not at all."""
        if isinstance(cache, SpreadCache):
            return cache.prompt(whole, pos, cut)
        return contextlib.nullcontext() if cache is None else cache.step(self._everybody(pos, cut))

    def _shared(
        self, ctx: Context, cut: Cut, cache: ModelCache | SpreadCache | None, handed: list[HandedStates]
    ) -> Context:
        """The same pass over caches that exchange what they are given."""
        if self.exchange == RING and isinstance(cache, ModelCache):
            raise Refused(
                "a ring never holds all keys, so it fills no cache that has them all: use exchange='gather', or a "
                "cache whose tokens lie over the processes (parallel.new_cache)"
            )

        def everybody(pos: Positions) -> Positions:
            return self._everybody(pos, cut)

        views = PromptViews(self.wire, ctx.pos.length, gathers=self.exchange == GATHER)

        def exchanged(inner: Cache) -> Cache:
            states = HandedStates(inner, self.wire, cut, everybody if cache is not None else None)
            handed.append(states)
            if isinstance(cache, SpreadCache):
                return PromptCache(inner, states, views)
            gathers = self.exchange == GATHER
            return GatheredCache(inner, states, self.wire, cut, everybody) if gathers else OwnCache(inner, states)

        def shares(at: Positions) -> Sequence[Positions] | None:
            if isinstance(cache, SpreadCache):
                return views.of_all(at)
            return self._shares(ctx.pos) if at is ctx.pos else None

        choose = ctx.choose if self.exchange == GATHER else self._ring(shares, ctx.choose)
        if isinstance(cache, SpreadCache):  # what could not be attended to later is refused now
            choose = choosing(choose, lambda at: views.of_all(at) is not None, None)
        return replace(ctx, caches=[exchanged(inner) for inner in ctx.caches], choose=choose)

    def _ring(
        self, shares: Callable[[Positions], Sequence[Positions] | None], choose: Callable[[Need, Tensor, View], Kernel]
    ) -> Callable[[Need, Tensor, View], Kernel]:
        """``shares``: for where a process's own keys stand, where those of all do."""
        rank = self.wire.rank

        def chosen(need: Need, q: Tensor, view: View) -> Kernel:
            every = shares(view.pos)
            if every is None:  # an encoder's keys, which every process has
                return choose(need, q, view)
            kernel = RingKernel(self.wire, [*every[rank:], *every[:rank]], choose)
            if (why := kernel.refuses(need, q, view)) is not None:
                raise Refused(f"{why}; use exchange='gather'")
            return kernel

        return chosen


@final
class GatheredCache:
    """The cache of a layer that is given the tokens of all processes, in their order."""

    def __init__(
        self, inner: Cache, states: HandedStates, wire: Wire, cut: Cut, everybody: Callable[[Positions], Positions]
    ):
        self.inner, self.states, self.late = inner, states, inner.late
        self._wire, self._everybody = wire, everybody
        self._sequence, self._own = cut.sequence(), torch.tensor(cut.columns(wire.rank))

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        k, v, *kept = (self._all(x) for x in (k_BGTd, v_BGTe, *streams))
        view = self.inner.append(self._everybody(pos), k, v, *kept)
        if view.selected is not None:
            raise Refused(
                "a cache that forgets chooses by what every query sees, and here each process has some of them"
            )
        return view._replace(own=tuple(x.index_select(2, self._own.to(x.device)) for x in view.own))

    def view(self) -> View:
        return self.inner.view()

    def _all(self, x_BGtd: Tensor) -> Tensor:
        x = self._wire.gather(x_BGtd, 2)
        return x if self._sequence is None else x.index_select(2, self._sequence.to(x.device))


@final
class OwnCache:
    """For a ring: keys stay where they are until a kernel sends them round."""

    late = False

    def __init__(self, inner: Cache, states: HandedStates):
        self.inner, self.states = inner, states

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        if streams:
            raise Refused(
                "this layer keeps more of each token than its key and value, and a ring sends those round alone; "
                "use exchange='gather'"
            )
        return self.inner.append(pos, k_BGTd, v_BGTe)

    def view(self) -> View:
        return self.inner.view()
