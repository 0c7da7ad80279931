"""Runs a lowered model on the caches that it would have used anyway."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.cache.codecs import Codec, HalfCodec, Int8Codec, PlainCodec
from vantage.cache.layer_cache import LayerCache
from vantage.cache.ledger import Layout, Ledger
from vantage.cache.stores import Store
from vantage.kernels.native import (
    MAX_ROWS_AS_ONE,
    AngleTable,
    Buffer,
    Kept,
    LayerStore,
    Native,
    Op,
    ProgramCall,
    RowLocation,
    StepsCall,
)
from vantage.kernels.native.huge_pages import use_huge_pages_later
from vantage.model.lowered.locations import extended_locations, layer_locations
from vantage.model.lowered.lower import lower, lower_head
from vantage.model.lowered.native_steps import PlainEmbedding, StepResults, StepsDone, takes_steps
from vantage.model.lowered.program import NativeProgram
from vantage.model.lowered.shown import ShownWeights, WeightsWatcher
from vantage.model.lowered.watch import ModelWatch
from vantage.model.placement import AllOnDevice, Placement
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.sampling import RowChoice

NATIVE, NATIVE_FAST = "native", "native fast"  # paths: whole steps, and those that round a prompt to 8 bits
MAX_OWN_PRODUCT_ROWS = 8  # rows up to which our product with plain float32 weights is as fast as torch's


class Lowered:
    """A model's blocks and head as programs. ``stale`` says when the model has changed under it."""

    def __init__(self, model: Any, native: Native):
        self._native = native
        self._body = Prepared(lower(model.blocks, model.norm, model.spec.width), model.placement)
        self._head = _head(model)
        self._has_fast = any(native.has_fast(weight) for weight in self._body.program.quantised)
        self._last_stores: tuple[list[tuple[weakref.ref[Store], int]], ctypes.Array[LayerStore]] | None = None
        self._memory: tuple[Tensor, Tensor, Tensor] | None = None  # of steps without anybody in between
        self._embedding, self._max_positions = PlainEmbedding.of(model.embed), model.max_positions
        head = () if self._head is None else self._head.program.tensors
        self._watch = ModelWatch(model, [*self._body.program.tensors, *head], self._body.program.learned)
        self._shown = ShownWeights(self._body.program.attentions)

    @property
    def dense(self) -> bool:
        """Whether some weights are plain float32."""
        return self._body.program.dense

    def stale(self) -> bool:
        """Whether a weight has moved or a module was exchanged."""
        return self._watch.changed()

    def watched(self) -> bool:
        """Whether somebody's hook waits for a module to run."""
        return self._watch.hooked()

    def hidden(
        self, x_BTD: Tensor, pos: Positions, cache: ModelCache, *, fast: bool, watcher: WeightsWatcher | None = None
    ) -> Tensor | None:
        """The hidden states, with the cache written, inside an open pass; ``None``: not for this call.

        ``fast``: a prompt may go another way than a step does. ``watcher``: is shown the weights that were used.
        """
        program = self._body.program
        B, T = pos.shape
        layouts = self._layouts(pos, cache)
        if layouts is None or (program.dense and B * T > MAX_OWN_PRODUCT_ROWS):
            return None
        fast = fast and self._has_fast and B * T > MAX_ROWS_AS_ONE
        angles = [module.tables(pos, torch.float32) for module in program.rotations]
        stores = self._stores(pos, cache, NATIVE_FAST if fast else NATIVE)
        locations, _keep = layer_locations(layouts, B)  # the tables of blocks must live until the program has run
        show = None
        if watcher is not None:
            keys = tuple(held + T for held in layouts[0].held)
            show = partial(self._shown.request, layers=watcher.layers, keys=keys)
        hidden = self._body.run(self._native, x_BTD, angle_tables(angles), stores, locations, fast=fast, show=show)
        if watcher is not None:
            self._shown.give(watcher, pos.order[:, -1].expand(B).tolist())
        return hidden

    def _stores(self, pos: Positions, cache: ModelCache, path: str) -> ctypes.Array[LayerStore]:
        """Make room in every layer's store, and say where its keys and values are. Mostly that is where they were."""
        steps = {ledger: ledger.place(pos) for ledger in cache.ledgers}
        tokens = pos.shape[0] * pos.shape[1]
        layers = [cache.layers[attention.index] for attention in self._body.program.attentions]
        buffers = [layer.store.enter(steps[layer.ledger], tokens, path) for layer in layers]
        if any(step.deferred for step in steps.values()):
            entered = zip(layers, buffers, strict=True)
            return (LayerStore * len(layers))(*(_layer_store(layer.store, own) for layer, own in entered))
        return self._where(layers)

    def _where(self, layers: Sequence[LayerCache]) -> ctypes.Array[LayerStore]:
        now = [layer.store for layer in layers]
        if self._last_stores is None or any(
            ref() is not store or version != store.version
            for (ref, version), store in zip(self._last_stores[0], now, strict=True)
        ):
            where = (LayerStore * len(now))(*(_layer_store(store, store.tensors) for store in now))
            use_huge_pages_later(*(tensor for store in now for tensor in store.tensors))
            self._last_stores = [(weakref.ref(store), store.version) for store in now], where
        return self._last_stores[1]

    def logits(self, hidden_BTD: Tensor) -> Tensor | None:
        head = self._head
        if head is None or (head.program.dense and hidden_BTD.shape[0] * hidden_BTD.shape[1] > MAX_OWN_PRODUCT_ROWS):
            return None
        return head.run(self._native, hidden_BTD, None, None, None)

    def ahead(
        self, tokens: Sequence[int], caches: Sequence[ModelCache], steps: int, choices: Sequence[RowChoice]
    ) -> StepsDone | None:
        """So many steps of rows that each have a cache of their own, which holds the tokens from then on.

        ``tokens``: the last of every row. ``None`` comes back, and nothing has changed, where this cannot be done.
        """
        body, head, embedding, one, rows = self._body, self._head, self._embedding, caches[0], len(caches)
        if head is None or embedding is None or not takes_steps(caches):
            return None
        if (body.program.dense or head.program.dense) and rows > MAX_OWN_PRODUCT_ROWS:
            return None
        layers = [one.layers[attention.index] for attention in body.program.attentions]
        if any(_kept_form(layer.store.codec) is None for layer in layers):
            return None
        extensions = [cache.extend(steps, NATIVE) for cache in caches]
        ledgers = list(one.ledgers)
        locations, _keep = extended_locations(extensions, [ledgers.index(layer.ledger) for layer in layers])
        first = [row[0].first + row[0].layout.held[0] for row in extensions]
        limits = [n for n in (self._max_positions, body.program.max_positions, one.length) if n is not None]
        if any(max(first) + steps > n for n in limits):  # what lies beyond is refused elsewhere, in words
            for cache, start in zip(caches, first, strict=True):
                cache.crop(start)
            return None
        same = len(set(first)) == 1
        pos = Positions.arange(1, steps, first[0]) if same else Positions.onward(torch.tensor(first), steps)
        angles = [module.tables(pos.declare(one.length), torch.float32) for module in body.program.rotations]
        tables, results = angle_tables(angles), StepResults(tokens, steps, choices)
        x, hidden, logits = self._step_memory(rows)
        call = StepsCall()
        call.body = body.call(x, hidden, (rows, 1), tables, self._where(layers), locations)
        call.head = head.call(hidden, logits, (rows, 1), None, None, None)
        call.locations, call.n_locations = ctypes.addressof(locations), len(locations)
        call.embeddings, call.scale, call.steps = ctypes.addressof(embedding.table), embedding.scale, steps
        results.write_to(call)
        self._native.steps(call)
        return StepsDone(results.chosen())

    def _step_memory(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """What goes into a step, its hidden states and logits, which nobody else sees. Kept: memory that is new costs a
        fault for every page of the logits."""
        body, head = self._body.program, self._head
        assert head is not None
        if self._memory is None or len(self._memory[0]) != rows:
            x = torch.empty((rows, body.widths[0]))
            hidden = x if body.out == 0 else torch.empty((rows, body.widths[body.out]))
            self._memory = x, hidden, torch.empty((rows, head.program.widths[head.program.out]))
        return self._memory

    def _layouts(self, pos: Positions, cache: ModelCache) -> list[Layout] | None:
        """Where each layer's tokens stand, if all of them stand where the kernels can go."""
        if pos.known.empty or pos.segment is not None:
            return None
        by_ledger: dict[Ledger, Layout | None] = {ledger: ledger.layout() for ledger in cache.ledgers}
        layouts, seen = [], [] if self._last_stores is None else self._last_stores[0]
        for i, attention in enumerate(self._body.program.attentions):
            layer = cache.layers[attention.index]
            layout = by_ledger[layer.ledger]
            if layout is None or (attention.needs_run and not layout.run):
                return None
            known = i < len(seen) and seen[i][0]() is layer.store  # the form of a store stays what it is
            if not known and _kept_form(layer.store.codec) is None:
                return None
            layouts.append(layout)
        return layouts


class Prepared:
    """A program with its steps laid out for the kernels, and buffers that grow with the number of rows."""

    def __init__(self, program: NativeProgram, placement: Placement = AllOnDevice()):
        self.program, self._placement = program, placement
        self._ops = (Op * len(program.ops))(*program.ops)
        self._buffers = (Buffer * len(program.widths))()
        self._memory: list[Tensor] = []
        self._rows = 0
        self._out = program.out

    def run(
        self,
        native: Native,
        x_BTD: Tensor,
        tables: ctypes.Array[AngleTable] | None,
        stores: ctypes.Array[LayerStore] | None,
        locations: ctypes.Array[RowLocation] | None,
        *,
        fast: bool = False,
        show: Callable[[ProgramCall], None] | None = None,
    ) -> Tensor:
        """``show``: asks for weights as well."""
        B, T, _ = x_BTD.shape
        # what comes in is written over, and what goes out belongs to the caller
        x = x_BTD.contiguous().clone() if self.program.attentions else x_BTD.contiguous()
        out = x if self._out == 0 else x.new_empty((B, T, self.program.widths[self._out]))
        call = self.call(x, out, (B, T), tables, stores, locations, fast=fast)
        if show is not None:
            show(call)
        if self._placement.layers:
            self._run_by_layers(native, call)
        else:
            native.run(call)
        return out

    def _run_by_layers(self, native: Native, call: ProgramCall) -> None:
        """The same steps, with what is done about each layer's weights before and after it."""
        first = 0
        for layer, end in enumerate(self.program.layer_ends):
            self._placement.begin(layer)
            self._run_steps(native, call, first, end)
            self._placement.end(layer)
            first = end
        self._run_steps(native, call, first, len(self._ops))

    def _run_steps(self, native: Native, call: ProgramCall, first: int, end: int) -> None:
        call.ops, call.n_ops = ctypes.addressof(self._ops) + first * ctypes.sizeof(Op), end - first
        native.run(call)

    def call(
        self,
        x: Tensor,
        out: Tensor,
        size: tuple[int, int],
        tables: ctypes.Array[AngleTable] | None,
        stores: ctypes.Array[LayerStore] | None,
        locations: ctypes.Array[RowLocation] | None,
        *,
        fast: bool = False,
    ) -> ProgramCall:
        """What runs it for (rows, tokens), over tensors that the caller keeps until it has run."""
        rows, tokens = size
        self._reserve(rows * tokens)
        self._buffers[0].data = x.data_ptr()
        self._buffers[self._out].data = out.data_ptr()
        addresses = [None if a is None else ctypes.addressof(a) for a in (tables, stores, locations)]
        steps = ctypes.addressof(self._ops), ctypes.addressof(self._buffers)
        return ProgramCall(*steps, *addresses, len(self._ops), rows, tokens, fast, 0, None, 0)

    def _reserve(self, rows: int) -> None:
        if rows > self._rows:
            self._memory = [torch.empty((rows, width)) for width in self.program.widths]
            for buffer, width in zip(self._buffers, self.program.widths, strict=True):
                buffer.width = width
            self._rows = rows
        for buffer, memory in zip(self._buffers, self._memory, strict=True):
            buffer.data = memory.data_ptr()


def angle_tables(angles: list[tuple[Tensor, Tensor]]) -> ctypes.Array[AngleTable]:
    """Cosines and signed sines (R, 1, T, turned), which must outlive it."""
    tables = (AngleTable * len(angles))()
    for table, (cos, sin) in zip(tables, angles, strict=True):
        table.cos, table.sin, table.row = cos.data_ptr(), sin.data_ptr(), 0 if len(cos) == 1 else cos.stride(0)
    return tables


def _head(model: Any) -> Prepared | None:
    try:
        return Prepared(lower_head(model.head, model.spec.width))
    except CannotLower:
        return None


def _kept_form(codec: Codec) -> Kept | None:
    """The kernels' name for the form of keys and values; ``None``: not one of theirs."""
    if not isinstance(codec.exact, PlainCodec) or codec.exact.dtype is not torch.float32:
        return None
    forms = {PlainCodec: Kept.FLOATS, HalfCodec: Kept.HALVES, Int8Codec: Kept.BYTES}
    return forms.get(type(codec))


def _layer_store(store: Store, tensors: Sequence[Tensor]) -> LayerStore:
    kept = _kept_form(store.codec)
    assert kept is not None
    k, v = tensors[:: 2 if kept is Kept.BYTES else 1]
    scales = [x.data_ptr() for x in tensors[1::2]] if kept is Kept.BYTES else [None, None]
    rows = (0, 0) if store.pooled else (k.stride(0), v.stride(0))
    sizes = k.stride(-3), v.stride(-3), *rows, k.shape[-1], v.shape[-1]
    return LayerStore(k.data_ptr(), v.data_ptr(), *scales, *sizes, kept, 0)
