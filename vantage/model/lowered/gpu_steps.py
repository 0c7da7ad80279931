"""Runs a lowered model on a GPU, a token for every row, as CUDA graphs that serve every cache.

What a step needs to know stands on the device: the last token of every row, how many it holds, where its keys and
values are. So steps follow each other without the host, and tokens are read when there are several.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vantage.cache import ModelCache, Paged, Static
from vantage.cache.codecs import Int8Codec, PlainCodec, SingleCodec
from vantage.cache.contiguous import Contiguous
from vantage.cache.layer_cache import LayerCache
from vantage.cache.ledger import Layout
from vantage.cache.stores import Store
from vantage.kernels.gpu import decode, gate_sums, head_vectors
from vantage.kernels.gpu.choose import Searches
from vantage.kernels.gpu.query_table import QueryTable
from vantage.model.lowered.chunk_graph import ChunkBuffers, ChunkGraph
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, LatentStep, Turn, lower_for_gpu
from vantage.model.lowered.module_step import ModuleProgram, ModuleStep, uncaptured
from vantage.model.lowered.pass_sizes import MIN_TOKENS, bucket_for
from vantage.model.lowered.query_tables import QueryBiases, TableRoom, query_tables, table_numbers
from vantage.model.lowered.step_graph import MAX_AHEAD, GraphShape, Pending, RowPlaces, StepGraph
from vantage.model.lowered.watch import ModelWatch
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.sampling import PendingSteps, RowChoice

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # rows that a graph is made for
LEAST_ANGLES = 4096  # positions of the first tables of rotations
MOST_TABLE_NUMBERS = 2**27  # of the queries of a pass for every distance: 512 MiB
LEAST_BLOCKS, LEAST_CHUNK_BLOCKS = 64, 1024  # of a row's table; a chunk's graph has one row, and lives longer
# how tokens were computed, in a cache's counts
GRAPH, MODULE_GRAPH, CHUNK_GRAPH = "graph", "graph of modules", "graph of a chunk"


class GpuSteps:
    """A model's step as graphs, one for each number of rows. Made anew when the model changes under it."""

    def __init__(self, model: Any):
        self._model = model
        self.modules: ModuleProgram | None = None  # where the model cannot be lowered
        try:
            self.program = lower_for_gpu(model)
        except CannotLower as why:
            self.program, self.modules = GpuProgram(dtype=model.dtype), ModuleProgram.of(model, str(why))
        self.path = GRAPH if self.modules is None else MODULE_GRAPH
        self._attentions = self.program.attentions
        self.why_not = None if self.modules is None else uncaptured(model)  # why its modules make no graph
        tensors = self.program.tensors if self.modules is None else self.modules.tensors
        self._watch = ModelWatch(model, tensors, self.program.learned)
        self._graphs: dict[GraphShape, StepGraph] = {}
        self._chunk_graphs: dict[GraphShape, ChunkGraph] = {}
        self._chunk_buffers: ChunkBuffers | None = None
        self._angles: dict[tuple[int, int | None], dict[int, head_vectors.RopeTables]] = {}
        self._tables: tuple[int, dict[int, QueryTable]] | None = None  # for so many positions
        self._room = TableRoom(model.device)
        self._watched_stores: set[int] = set()
        self._last_stores: tuple[list[tuple[weakref.ref[Store], int]], np.ndarray] | None = None

    def stale(self) -> bool:
        return self._watch.changed()

    def watched(self) -> bool:
        return self._watch.hooked()

    def takes(self, cache: ModelCache) -> bool:
        """Whether the kernels can read and write this cache where it lies."""
        if self.modules is not None:
            return self.why_not is None and self.modules.takes(cache)
        int8 = self._in_8_bits(cache)
        for layer, step in zip(self._layers(cache), self._attentions, strict=True):
            codec = layer.store.codec
            if int8 and isinstance(codec, Int8Codec) and isinstance(step, AttendStep):
                codec = codec.exact  # latents have no form in 8 bits
            wanted = SingleCodec if isinstance(step, LatentStep) else PlainCodec
            if not isinstance(codec, wanted) or codec.dtype is not self.program.dtype:
                return False
            if not _takes_streams(step, layer.store):
                return False
        return all(isinstance(ledger, (Contiguous, Paged, Static)) for ledger in cache.ledgers)

    def _in_8_bits(self, cache: ModelCache) -> bool:
        """Whether all of its layers keep keys and values so."""
        return self.modules is None and all(isinstance(layer.store.codec, Int8Codec) for layer in self._layers(cache))

    def _layers(self, cache: ModelCache) -> list[LayerCache]:
        """Those whose keys and values a step writes."""
        if self.modules is not None:
            return list(cache.layers)
        return [cache.layers[attention.index] for attention in self._attentions]

    # ---- steps

    def logits(self, tokens_B1: Tensor, pos: Positions, cache: ModelCache) -> Tensor | None:
        """The logits (B, 1, V) after one token a row, inside an open pass; ``None``: not for this pass."""
        layouts = self._layouts(pos, cache)
        if layouts is None or pos.known.pos is None:
            return None
        places = [RowPlaces(one.held, one.blocks, one.block, one.gone) for one in layouts]
        steps, layers = {ledger: ledger.place(pos) for ledger in cache.ledgers}, self._layers(cache)
        for layer in layers:
            layer.store.reserve(steps[layer.ledger].places)
        graph = self._graph(places, pos.known.pos[1], cache)
        if graph is None:
            return None
        rows = len(tokens_B1)
        for layer in layers:
            layer.store.enter(steps[layer.ledger], rows, self.path)
        graph.place(places, self._stores(cache))
        graph.set_positions(pos.pos[:, 0])
        graph.tokens[:rows].copy_(tokens_B1[:, 0])
        graph.run()
        return graph.logits[:rows].clone()[:, None]

    def hidden(self, x_BTD: Tensor, pos: Positions, cache: ModelCache) -> Tensor | None:
        """The last hidden states (B, T, D) of the next tokens of rows, which the cache takes in, inside an open pass;
        ``None``: not for this pass."""
        rows, tokens, last = *x_BTD.shape[:2], pos.known.pos
        if self.modules is not None or tokens < MIN_TOKENS or last is None or x_BTD.dtype is not self.program.dtype:
            return None
        bucket = _bucket(rows)
        layouts = self._layouts(pos, cache) if pos.known.runs else None
        if layouts is None or bucket is None or not self._takes_pass(bucket, tokens, last[1]):
            return None
        if not self._within(last[1], cache.length):
            return None
        places = [RowPlaces(one.held, one.blocks, one.block, one.gone) for one in layouts]
        steps = {ledger: ledger.place(pos) for ledger in cache.ledgers}
        for layer in self._layers(cache):
            layer.store.enter(steps[layer.ledger], rows * tokens, CHUNK_GRAPH)
        stores, out, at = self._stores(cache), torch.empty_like(x_BTD), 0
        while at < tokens:
            graph = self._chunk_graph(bucket, tokens - at, places, last[1], cache)
            end = min(at + graph.tokens, tokens)
            out[:, at:end] = graph.run(x_BTD[:, at:end], places, at, pos.pos[:, at], stores)
            at = end
        return out

    def ahead(
        self,
        tokens: Sequence[int] | PendingSteps,
        caches: Sequence[ModelCache],
        steps: int,
        choices: Sequence[RowChoice],
    ) -> Pending | None:
        """So many steps of rows that each have a cache of their own, which hold the tokens from now on.

        ``tokens``: the last of every row, or an earlier call for the same rows, to go on from what it chose. ``None``
        comes back, and nothing has changed, where this cannot be done.
        """
        one = caches[0]
        able = steps <= MAX_AHEAD and all(cache.extensible and cache.batch == 1 for cache in caches)
        if not able or not self.takes(one) or (len(caches) > 1 and not all(layer.store.pooled for layer in one.layers)):
            return None
        extensions = [cache.extend(steps, self.path) for cache in caches]
        places = [_side_by_side([row[i].layout for row in extensions]) for i in range(len(one.ledgers))]
        first = [row[0].first + held for row, held in zip(extensions, places[0].held, strict=True)]
        graph = self._graph(places, max(first) + steps - 1, one)
        if graph is None:
            for cache, start in zip(caches, first, strict=True):
                cache.crop(start)
            return None
        known = tokens if isinstance(tokens, Sequence) else None
        graph.place(places, self._stores(one), first, known, choices, steps)
        if isinstance(tokens, Pending):
            graph.tokens[: len(caches)].copy_(tokens.last)
        searches, begun = _searches(choices), graph.now()
        for _ in range(steps):
            graph.run()
            graph.choose(searches)
        return graph.read(steps, len(caches), begun)

    # ---- before a step

    def _graph(self, places: Sequence[RowPlaces], last: int, cache: ModelCache) -> StepGraph | None:
        """The graph for these rows, up to this position."""
        rows = _bucket(len(places[0].held))
        if self.modules is not None and any(place.blocks is None for place in places):
            rows = len(places[0].held)  # buffers have so many rows
        if rows is None or not self._within(last, cache.length):
            return None
        shape = self._shape(rows, places, last, cache, LEAST_BLOCKS)
        if self.modules is not None:
            return self._module_graph(shape, self._layers(cache))
        if shape not in self._graphs:
            rotations = self._rotations(shape.angles, cache.length)
            queries = QueryBiases(self._query_tables(shape.angles), self._attentions, rows, self._room)
            self._graphs[shape] = StepGraph(self._model, self.program, shape, rotations, queries=queries)
        return self._graphs[shape]

    def _chunk_graph(
        self, rows: int, tokens: int, places: Sequence[RowPlaces], last: int, cache: ModelCache
    ) -> ChunkGraph:
        """The graph for so many tokens of each row, or for the first of them."""
        if self._chunk_buffers is None:
            self._chunk_buffers = ChunkBuffers(self.program, BUCKETS, self._model.device)
        size = bucket_for(tokens, rows, chunks=self.program.takes_chunks)
        assert size is not None, "asked for before"
        shape = self._shape(rows, places, last, cache, LEAST_CHUNK_BLOCKS)._replace(tokens=size)
        if shape not in self._chunk_graphs:
            rotations, queries = self._rotations(shape.angles, cache.length), None
            if self.program.grows:
                queries = QueryBiases(self._query_tables(shape.angles), self._attentions, rows * size, self._room)
            if not self._chunk_graphs:  # the last have gone, or there were none
                self._chunk_buffers.new_pool()
            self._chunk_graphs[shape] = ChunkGraph(
                self._model, self.program, shape, rotations, self._chunk_buffers, queries
            )
        return self._chunk_graphs[shape]

    def _takes_pass(self, rows: int, tokens: int, last: int) -> bool:
        """Whether there are graphs for so many tokens of each of so many rows, up to this position. That depends on
        nothing that ran before, so that a pass gives the same bits again."""
        size = bucket_for(tokens, rows, chunks=self.program.takes_chunks)
        if size is None or not self.program.grows:
            return size is not None
        numbers = table_numbers(self.program, _at_least(last + 1, LEAST_ANGLES))
        return rows * size * numbers <= MOST_TABLE_NUMBERS

    def _shape(
        self, rows: int, places: Sequence[RowPlaces], last: int, cache: ModelCache, least_blocks: int
    ) -> GraphShape:
        """What a graph for so many rows must be made for, up to this position."""
        ledgers = list(cache.ledgers)
        layers, turning = self._layers(cache), any(a.turn for a in self._attentions)
        which = tuple(ledgers.index(layer.ledger) for layer in layers)
        widest = max((len(row) for place in places for row in place.blocks or ()), default=1)
        table = _at_least(widest, least_blocks) if any(place.blocks is not None for place in places) else 1
        grows = self.program.grows
        angles = _at_least(last + 1, LEAST_ANGLES) if turning or grows or self.modules is not None else 1
        if grows and self._tables is not None:  # one set of tables for all rows: they are as large as keys
            angles = max(angles, self._tables[0])
        blocks = tuple(0 if place.blocks is None else place.block for place in places)
        return GraphShape(rows, which, blocks, table, angles, cache.length, self._in_8_bits(cache))

    def _query_tables(self, positions: int) -> dict[int, QueryTable]:
        """What biases of queries are made of. Those for fewer positions go, and the graphs that read them."""
        positions = positions if self.program.grows else 0
        if self._tables is None or self._tables[0] < positions:
            for graphs in (self._graphs, self._chunk_graphs):
                for shape in [shape for shape in graphs if shape.angles < positions]:
                    del graphs[shape]
            self._tables = None
            self._tables = positions, query_tables(self.program, positions, self._model.device)
        return self._tables[1]

    def _module_graph(self, shape: GraphShape, layers: Sequence[LayerCache]) -> StepGraph | None:
        """The graph of the modules over these very buffers; ``None``, and why for good, where it cannot be made."""
        shape = shape._replace(stores=tuple((id(layer.store), layer.store.version) for layer in layers))
        if shape not in self._graphs:
            step = ModuleStep(self._model, layers, shape.ledgers, shape.angles - 1, shape.length)
            try:
                graph = StepGraph(self._model, self.program, shape, {}, step)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self.why_not = f"its step cannot be captured: {str(error).splitlines()[0]}"
                return None
            self._forget_others(layers)
            self._graphs[shape] = graph
        return self._graphs[shape]

    def _forget_others(self, layers: Sequence[LayerCache]) -> None:
        """Let go of graphs over buffers that this store has given up, and of all of them when it goes."""
        store, version = layers[0].store, layers[0].store.version
        own = id(store)
        old = [shape for shape in self._graphs if shape.stores[0][0] == own and shape.stores[0][1] != version]
        for shape in old:
            del self._graphs[shape]
        if own not in self._watched_stores:
            self._watched_stores.add(own)
            weakref.finalize(store, _forget_store, weakref.ref(self), own)

    def forget_store(self, own: int) -> None:
        self._watched_stores.discard(own)
        for shape in [shape for shape in self._graphs if shape.stores and shape.stores[0][0] == own]:
            del self._graphs[shape]

    def _within(self, last: int, length: int | None) -> bool:
        """Whether the model has this position; what lies beyond is refused elsewhere, in words."""
        limits = [n for n in (self._model.max_positions, self.program.max_positions, length) if n is not None]
        return all(last < n for n in limits)

    def _layouts(self, pos: Positions, cache: ModelCache) -> list[Layout] | None:
        """Where the tokens of each ledger stand, if all of them stand where the kernels can go."""
        if pos.known.empty or pos.segment is not None or pos.axes is not None or pos.pos.is_floating_point():
            return None
        layouts = [layout for ledger in cache.ledgers if (layout := ledger.layout()) is not None]
        if len(layouts) < len(cache.ledgers) or any(layout.ring or layout.deferred for layout in layouts):
            return None
        # rows of unequal length may each be a plain run
        run = all(layout.run for layout in layouts) or pos.known.pos == pos.known.order
        reads_none = self.modules is None and not any(step.scores.reads_positions for step in self._attentions)
        return layouts if run or reads_none else None

    def _stores(self, cache: ModelCache) -> np.ndarray:
        """Where every layer's keys, values and sums are. Mostly that is where they were."""
        now = [cache.layers[attention.index].store for attention in self._attentions]
        if self._last_stores is None or any(
            ref() is not store or version != store.version
            for (ref, version), store in zip(self._last_stores[0], now, strict=True)
        ):
            numbers = np.array([_numbers(store) for store in now], dtype=np.int64)
            numbers = numbers.reshape(-1, decode.ADDRESS + gate_sums.STREAM)
            self._last_stores = [(weakref.ref(store), store.version) for store in now], numbers
        return self._last_stores[1]

    def _rotations(self, positions: int, length: int | None) -> dict[int, head_vectors.RopeTables]:
        """The tables of every rotation, by its module."""
        if (positions, length) not in self._angles:
            most = positions if self.program.max_positions is None else min(positions, self.program.max_positions)
            where = Positions.arange(1, most, device=self._model.device).declare(length)
            tables: dict[int, head_vectors.RopeTables] = {}
            for turn in (step.turn for step in self._attentions if step.turn is not None):
                if id(turn.tables) not in tables:
                    tables[id(turn.tables)] = _rotation(turn, where)
            self._angles[positions, length] = tables
        return self._angles[positions, length]


def _forget_store(steps: weakref.ref[GpuSteps], own: int) -> None:
    if (alive := steps()) is not None:
        alive.forget_store(own)


def _takes_streams(step: AttendStep | LatentStep, store: Store) -> bool:
    """Whether what a layer keeps beside keys and values is what its step keeps there."""
    if isinstance(step, LatentStep) or step.gates is None:
        return not store.streams
    sums, *others = store.streams
    return sums.running and not others and gate_sums.takes_stream(sums.width, sums.dtype, step.shape)


def _numbers(store: Store) -> list[int]:
    """Where a layer's keys and values are, and its sums."""
    cut = len(store.tensors) - len(store.streams)
    return decode.store_numbers(store.tensors[:cut]) + gate_sums.stream_numbers(*store.tensors[cut:])


def _searches(choices: Sequence[RowChoice]) -> Searches:
    """What any of these rows needs."""
    drawn = [choice for choice in choices if choice.temperature]
    return Searches(bool(drawn), any(choice.top_k for choice in drawn), any(choice.top_p < 1.0 for choice in drawn))


def _rotation(turn: Turn, where: Positions) -> head_vectors.RopeTables:
    pairing = head_vectors.ADJACENT if turn.adjacent else head_vectors.HALVES
    sides = [tables.tables(where, torch.float32) for tables in (turn.tables, turn.key_tables) if tables is not None]
    cos, sin = (torch.cat([table[0, 0] for table in tables], -1).contiguous() for tables in zip(*sides, strict=True))
    return head_vectors.RopeTables(cos, sin, turn.turned, pairing, keys_apart=turn.key_tables is not None)


def _side_by_side(rows: Sequence[Layout]) -> RowPlaces:
    """The layouts of single rows as one."""
    blocks = None if rows[0].blocks is None else [row.blocks[0] for row in rows if row.blocks is not None]
    gone = [row.gone[0] for row in rows] if blocks is not None else []
    return RowPlaces([row.held[0] for row in rows], blocks, rows[0].block, gone)


def _bucket(rows: int) -> int | None:
    """The rows of the graph that takes so many; ``None``: there is none."""
    return next((n for n in BUCKETS if n >= rows), None)


def _at_least(n: int, least: int) -> int:
    """A power of two that is no smaller than either."""
    return max(least, 1 << (n - 1).bit_length())
