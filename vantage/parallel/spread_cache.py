"""A cache whose tokens lie over processes: each keeps the keys and values of its own, and none ever holds them all.

A prompt is read by ``ContextParallel.hidden``, which leaves with every process what it computed. After that all
processes run the same tokens: a query attends to the keys of each process there, and what that gives is merged by the
log-sum-exp. Positions are kept with keys, so no encoding and no mask knows of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, final

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.cache import LayerCache, LayerPlan, ModelCache, make_cache
from vantage.cache.stores import MODULES
from vantage.errors import Refused
from vantage.model import Model
from vantage.model.pass_inputs import check_source
from vantage.parallel.cut import Cut, joined
from vantage.parallel.parts_attention import PartsKernel, choosing
from vantage.parallel.wire import Wire
from vantage.spec.kept import StateCache
from vantage.spec.masks import Everything
from vantage.spec.parts import Cache, EncoderOutput, View
from vantage.spec.positions import EMPTY, Positions

PADDING = -1  # a column that belongs to no token of any row


@final
class SpreadCache:
    """Made by ``ContextParallel.new_cache``, in every process alike. ``own`` is what this process keeps.

    A new token's keys go to the process that has fewest (the first of these), so all have as many but for one.
    States of constant size are the same everywhere; so is what cross-attention looks at.
    """

    def __init__(self, model: Model, wire: Wire, batch: int = 1, *, length: int | None = None):
        self.wire, self.own = wire, model.new_cache(batch, length=length)
        if any(layer.store.streams for layer in self.own.layers):
            raise Refused(
                "a layer of this model keeps more of each token than its key and value, and what it makes of them "
                "needs those of all tokens in one place: use a cache of the model's own (model.new_cache)"
            )
        nothing = LayerPlan(0, 0, 0, Everything())
        # where all tokens stand, and no keys: it says where rows go on, and what may follow
        length, owner = self.own.length, self.own.owner
        self.rows = make_cache([nothing], batch=batch, length=length, owner=owner, device=model.device)
        self.rows.masks = self.own.masks
        self.columns = [0] * wire.size  # that each process has, padding included
        self._numbers: list[int] = []  # of the columns that are here, among those of ``rows``

    # ---- running

    @torch.no_grad()
    def logits(self, model: Model, tokens: Tensor, **inputs: Any) -> Tensor:
        """As ``model(tokens, cache=…)``: every process gives the same tokens (B, T), and gets all logits (B, T, V)."""
        return model.head(self.hidden(model, tokens, **inputs))

    @torch.no_grad()
    def hidden(
        self,
        model: Model,
        tokens: Tensor,
        *,
        positions: Positions | Tensor | None = None,
        mask: Tensor | None = None,
        source: Tensor | EncoderOutput | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states (B, T, D) of tokens that follow, the same in every process."""
        pos = model.place(tokens, positions, self.rows, mask, None)
        memory = model.encode(source) if isinstance(source, Tensor) else source
        check_source(memory, self.own, len(tokens), reads=model.encoder is not None)
        counts = even_shares(self.columns, pos.shape[1])
        first, n = sum(counts[: self.wire.rank]), counts[self.wire.rank]
        kept = pos.narrow(first, n) if n else None
        with self.rows.step(pos), self.own.step(kept):
            ctx = model.context(pos, self.own, memory)
            widest = max(have + new for have, new in zip(self.columns, counts, strict=True))
            parts = KeyParts(kept, slice(first, first + n), pos, widest)
            caches = [PartCache(inner, parts) if isinstance(inner, LayerCache) else inner for inner in ctx.caches]
            choose = choosing(ctx.choose, parts.shown, PartsKernel(self.wire, ctx.choose))
            hidden = model.run(model.embed(tokens, pos, types), replace(ctx, caches=caches, choose=choose))
        self._arrive(range(first, first + n), counts, pos.shape[1])
        return hidden

    @contextlib.contextmanager
    def prompt(self, whole: Positions, own: Positions, cut: Cut) -> Iterator[None]:
        """A pass of a prompt that is cut over the processes, of which this one has and keeps ``own``."""
        with self.rows.step(whole), self.own.step(own):
            yield
        held = [column if column < cut.width else PADDING for column in cut.columns(self.wire.rank)]
        self._arrive(held, [cut.padded // cut.ranks] * cut.ranks, cut.width)

    def _arrive(self, own: Sequence[int], counts: Sequence[int], width: int) -> None:
        before = self.rows.ledgers[0].used - width
        self._numbers += [column if column == PADDING else before + column for column in own]
        self.columns = [have + new for have, new in zip(self.columns, counts, strict=True)]

    # ---- between passes

    def crop(self, to: int | Sequence[int]) -> None:
        """Keep only tokens with an order below ``to`` (one for all rows, or one a row), in every process."""
        self.own.crop(to)
        self.rows.crop(to)
        self._trim()

    def reorder(self, index: Sequence[int] | Tensor) -> None:
        """Row i becomes what row index[i] was, in every process."""
        self.own.reorder(index)
        self.rows.reorder(index)
        self._trim()

    def _trim(self) -> None:
        """Columns that no row needs any more may have been given back."""
        ledger, every = self.own.ledgers[0], self.rows.ledgers[0].used
        self._numbers = [n if n < every else PADDING for n in self._numbers[: ledger.used]]
        here = torch.tensor([ledger.used], device=ledger.device)
        self.columns = [int(n) for n in self.wire.gather_parts(here)]

    # ---- what it holds

    def belongs_to(self, owner: object) -> NoReturn:
        """What a model asks of its cache first."""
        raise Refused("the tokens of this cache lie over processes: use cache.logits(model, tokens) in each of them")

    @property
    def batch(self) -> int:
        return self.rows.batch

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of each row, in all processes together."""
        return self.rows.tokens

    @property
    def bytes(self) -> int:
        """What this process keeps."""
        return self.own.bytes

    # ---- in one process

    def gathered(self, rank: int | None = None) -> ModelCache | None:
        """A cache of the model's own with all tokens, to go on alone: in the process of this rank, and ``None`` in the
        others; without a rank in each. All processes call it. One tensor of a layer is brought together at a time."""
        fresh = self.own.fresh(self.batch)
        cross = [layer.fork(layer.ledger.fork()) for layer in self.own.cross]
        whole, wanted = self.own.like([*fresh.layers, *cross]), rank in (None, self.wire.rank)
        if self.rows.ledgers[0].holding:
            where, at = self.rows.ledgers[0].look().view_pos, self._sequence()
            with whole.step(where if wanted else None):
                for layer, into in zip(self.own.layers, whole.layers, strict=True):
                    self._bring(layer, into, where if wanted else None, at, rank)
        for states, own in zip(whole.states, self.own.states, strict=True):
            states.rows = list(own.rows)
        whole.ahead = self.rows.ahead
        return whole if wanted else None

    def _sequence(self) -> Tensor:
        """(n,): where each column stands among those of all processes, one after the other, each padded to the most."""
        most, ledger = max(self.columns), self.rows.ledgers[0]
        numbers = torch.tensor(self._numbers + [PADDING] * (most - len(self._numbers)), device=ledger.device)
        every = torch.cat(self.wire.gather_parts(numbers))
        at = torch.zeros(ledger.used, dtype=torch.int64, device=ledger.device)  # an empty column may be nobody's
        held = (every != PADDING).nonzero()[:, 0]
        return at.index_copy(0, every[held], held)

    def _bring(
        self, layer: LayerCache, into: LayerCache, where: Positions | None, at: Tensor, rank: int | None
    ) -> None:
        """What all processes keep of a layer, as it is kept, into the cache of one, which takes it at ``where``."""
        tensors, used = layer.store.tensors, layer.ledger.used
        if not tensors:
            return
        buffers: Sequence[Tensor | None] = [None] * len(tensors)
        if where is not None:
            buffers = into.store.enter(into.ledger.place(where), len(at) * self.batch, MODULES)
        for x, buffer in zip(tensors, buffers, strict=True):
            padded = F.pad(x.narrow(2, 0, used), (0, 0, 0, max(self.columns) - used))
            parts = self.wire.gather_parts(padded) if rank is None else self.wire.gather_at(padded, rank)
            if buffer is not None and parts is not None:
                buffer.narrow(2, 0, len(at)).copy_(torch.cat(parts, 2).index_select(2, at))


class KeyParts:
    """What this process keeps of one pass, and where the keys stand that it shows to the layers of it."""

    def __init__(self, kept: Positions | None, columns: slice, pos: Positions, widest: int):
        self.kept, self.columns, self.widest = kept, columns, widest
        self._pos = pos
        self._shown: dict[int, tuple[Positions, Positions]] = {}
        self._none: Positions | None = None

    def shown(self, at: Positions) -> bool:
        """Whether keys that stand there are such as others have more of."""
        return at is self._none or any(at is declared for _, declared in self._shown.values())

    def declared(self, at: Positions) -> Positions:
        """The same positions in the context of this pass; one object for all layers that show the same."""
        if id(at) not in self._shown:
            self._shown[id(at)] = at, at.declare(self._pos.length)
        return self._shown[id(at)][1]

    def none(self) -> Positions:
        """One place, which is empty: for a process that keeps nothing yet."""
        if self._none is None:
            empty = torch.full_like(self._pos.order[:, :1], EMPTY)
            segment = None if self._pos.segment is None else empty
            self._none = Positions.of(empty, segment=segment).declare(self._pos.length)
        return self._none


@final
class PartCache:
    """The cache of a layer that takes in this process's columns of a pass, and shows what is kept here."""

    late = False

    def __init__(self, inner: LayerCache, parts: KeyParts):
        self.inner, self._parts = inner, parts

    @property
    def states(self) -> StateCache:
        return self.inner.states

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        parts = self._parts
        if parts.kept is None and not self.inner.holding:
            return View(k_BGTd[:, :, :1], v_BGTe[:, :, :1], parts.none(), widest=parts.widest)
        if parts.kept is None:
            view = self.inner.view()
        else:
            view = self.inner.append(parts.kept, k_BGTd[:, :, parts.columns], v_BGTe[:, :, parts.columns])
        return view._replace(pos=parts.declared(view.pos), widest=parts.widest)

    def view(self) -> View:
        return self.inner.view()


@final
class PromptViews:
    """While a prompt is read: what all processes keep of a layer, as each of them shows it, padded to the widest.

    ``gathers``: every process sees all of it. Otherwise each sees its own, and a ring brings the rest.
    """

    def __init__(self, wire: Wire, length: int | None, *, gathers: bool):
        self._wire, self._length, self._gathers = wire, length, gathers
        # of the ledgers of this pass: where their keys stand here, where those of all do, and what is shown
        self._ledgers: dict[int, tuple[Positions, list[Positions], Positions]] = {}

    def of_all(self, shown: Positions) -> list[Positions] | None:
        """Where the keys of each process stand, of a view that stands there; ``None``: it is none of these."""
        return next((parts for _, parts, at in self._ledgers.values() if at is shown), None)

    def shown(self, own: View) -> View:
        """From what is kept here to what a layer sees."""
        if id(own.pos) not in self._ledgers:
            parts = self._parts(own.pos)
            together = joined(parts, None) if self._gathers else parts[self._wire.rank]
            self._ledgers[id(own.pos)] = own.pos, parts, together
        _, parts, at = self._ledgers[id(own.pos)]
        k, v = (F.pad(x, (0, 0, 0, parts[0].shape[1] - x.shape[2])) for x in (own.k, own.v))
        return View(self._wire.gather(k, 2), self._wire.gather(v, 2), at) if self._gathers else View(k, v, at)

    def _parts(self, own: Positions) -> list[Positions]:
        """Positions travel with keys, once for all layers that keep the same."""
        gather, width = self._wire.gather_parts, own.shape[1]
        most = max(int(n) for n in gather(torch.tensor([width], device=own.device)))

        def padded(x: Tensor) -> list[Tensor]:
            return gather(F.pad(x, (0, most - width), value=EMPTY))

        segments = [None] * self._wire.size if own.segment is None else padded(own.segment)
        every = zip(padded(own.pos), padded(own.order), segments, strict=True)
        return [Positions.of(p, order=o, segment=s).declare(self._length) for p, o, s in every]


@final
class PromptCache:
    """While a prompt is read: the cache of a layer that keeps this process's share of it, and shows what all have."""

    late = False

    def __init__(self, inner: Cache, states: StateCache, views: PromptViews):
        self.inner, self.states, self._views = inner, states, views

    def append(self, pos: Positions, k_BGTd: Tensor, v_BGTe: Tensor, *streams: Tensor) -> View:
        return self._views.shown(self.inner.append(pos, k_BGTd, v_BGTe, *streams))

    def view(self) -> View:
        return self.inner.view()


def even_shares(have: Sequence[int], width: int) -> list[int]:
    """How many of so many new columns each process takes: those that have fewest come first."""
    total, new = list(have), [0] * len(have)
    for _ in range(width):
        rank = total.index(min(total))
        total[rank] += 1
        new[rank] += 1
    return new
