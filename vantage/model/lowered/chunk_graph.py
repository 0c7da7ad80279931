"""Several tokens of each row through a lowered model: the steps of its program over all of these tokens.

A bucket of rows and tokens is a CUDA graph, so that a pass costs the host one launch, where module by module it costs
hundreds. It is always the graph that runs, so that a chunk's bits depend on its bucket alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vantage.kernels.gpu import chunk, decode, head_vectors, packed_rows
from vantage.kernels.gpu.chunk_place import ChunkPlace, place_chunk
from vantage.model.lowered.capture import captured
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, LatentStep
from vantage.model.lowered.pass_sizes import most_tokens, sizes_for
from vantage.model.lowered.query_tables import QueryBiases, TableRoom, query_tables
from vantage.model.lowered.row_attention import LayerNumbers, RowAttention, one_by_one
from vantage.model.lowered.row_steps import attention_options, head_options, run_step, sums_for
from vantage.model.lowered.step_graph import GraphShape, RowPlaces
from vantage.model.placement import Placement
from vantage.spec.parts import Shape


class ChunkBuffers:
    """What the steps of a chunk read and write. All graphs use it, and never two of them at once."""

    def __init__(self, program: GpuProgram, rows: Sequence[int], device: torch.device):
        """``rows``: the numbers of rows that graphs are made for."""
        used = {0, program.hidden, *(number for step in program.body for number in program.touched(step))}
        chunks = program.takes_chunks
        most = most_tokens(chunks=chunks)
        with torch.inference_mode(False):
            self.buffers = [  # zeros: what no token has filled yet goes through the same steps
                torch.zeros((most if i in used else 0, width), dtype=program.dtype, device=device)
                for i, width in enumerate(program.widths)
            ]
            shapes = [step.shape for step in program.body if isinstance(step, AttendStep)]
            width = max((shape.heads * shape.key_dim for shape in shapes), default=0)
            self.queries = torch.empty(most * width, dtype=program.dtype, device=device)
            sizes = [(n, size) for n in rows for size in sizes_for(n, chunks=chunks)]
            self.shares = {shape: _shares(shape, program.dtype, sizes, device) for shape in {*shapes}}
            self.layers = LayerNumbers(program, self.buffers, device)
            self.own_biases: QueryBiases | None = None
            if not program.grows:  # else a graph has tables for as many positions as it is made for
                tables = query_tables(program, 0, device)
                self.own_biases = QueryBiases(tables, program.attentions, most, TableRoom(device))
            self.sums = sums_for(program.body, packed_rows.MOST_ROWS, device)
        self.pool: Any = None

    def new_pool(self) -> None:
        """Memory that graphs share. torch takes no graph into a pool whose last one has gone."""
        self.pool = torch.cuda.graph_pool_handle() if self.buffers[0].is_cuda else None


def _shares(
    shape: Shape, dtype: torch.dtype, sizes: Sequence[tuple[int, int]], device: torch.device
) -> chunk.ChunkWorkspace:
    """``sizes``: rows and the tokens of each."""
    heads, width = shape.heads, max(shape.key_dim, shape.value_dim)
    tiles = [
        (chunks * tokens, chunk.tile_for(tokens, heads, shape.kv_heads, width, dtype, chunks))
        for chunks, tokens in sizes
    ]
    return chunk.ChunkWorkspace.make(tiles, heads, shape.value_dim, device)


class ChunkGraph:
    """The steps for so many tokens (``shape.tokens``) of each of so many rows."""

    def __init__(
        self,
        model: Any,
        program: GpuProgram,
        shape: GraphShape,
        rotations: dict[int, head_vectors.RopeTables],
        memory: ChunkBuffers,
        queries: QueryBiases | None = None,
    ):
        """``queries``: what biases of queries are made of, where that grows with the positions."""
        self._program, self._shape, self._rotations, self._memory = program, shape, rotations, memory
        self._device: torch.device = model.device
        self._placement: Placement = model.placement
        self._queries = memory.own_biases if queries is None else queries
        rows, tokens = shape.rows, shape.tokens
        with torch.inference_mode(False):
            ints = rows * (3 + len(shape.blocks) * (1 + shape.table))
            self._ints = torch.zeros(ints, dtype=torch.int32, device=self._device)
            self._buffers = [buffer[: rows * tokens] for buffer in memory.buffers]
            self._order = torch.arange(tokens, dtype=torch.int32, device=self._device)
            # of every token: how many its row holds before it, -1 where it is none; and its position
            self._per_token = torch.zeros((2, rows * tokens), dtype=torch.int32, device=self._device)
            apart = [step for step in program.attentions if one_by_one(step)]
            self._rows = RowAttention(apart, rows * tokens, self._buffers, memory.layers, rotations, int8=shape.int8)
        held, count, pos = self._ints[: 3 * rows].view(3, rows)
        self._places = [
            ChunkPlace(held, count, pos, gone, table, block)
            for block, (gone, table) in zip(shape.blocks, self._per_ledger(self._ints), strict=True)
        ]
        before, at = self._per_token
        self._row_states = [
            decode.RowState(before, at, place.gone, place.table, place.block, tokens) for place in self._places
        ]
        with torch.inference_mode(False), torch.no_grad():  # first with no token in it
            self._launch = captured(self._steps, self._device, memory.pool)

    @property
    def tokens(self) -> int:
        """The most that it takes of a row."""
        return self._shape.tokens

    def _per_ledger(self, ints: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each ledger the blocks that are gone (rows,), and the table of the others (rows, blocks)."""
        rows, table = self._shape.rows, self._shape.table
        parts = ints[3 * rows :].view(len(self._shape.blocks), rows * (1 + table))
        return [(part[:rows], part[rows:].view(rows, table)) for part in parts]

    def run(self, x_BTD: Tensor, places: Sequence[RowPlaces], before: int, first: Tensor, stores: np.ndarray) -> Tensor:
        """The last hidden states (B, T, D) of so many tokens, after those that are held and ``before`` more of the same
        pass. ``first`` (B,): their first positions. What comes back is written over by the next call."""
        rows, tokens = x_BTD.shape[:2]
        self._place(rows, tokens, places, before, stores)
        self._places[0].pos[:rows].copy_(first)
        self._of_rows(0)[:rows, :tokens].copy_(x_BTD)
        self._placement.ready()
        self._launch()
        return self._of_rows(self._program.hidden)[:rows, :tokens]

    def _of_rows(self, buffer: int) -> Tensor:
        return self._buffers[buffer].view(self._shape.rows, self._shape.tokens, -1)

    def _place(self, rows: int, tokens: int, places: Sequence[RowPlaces], before: int, stores: np.ndarray) -> None:
        # memory of its own for every call: what is on its way to the device must stay as it is
        staged = torch.zeros(len(self._ints), dtype=torch.int32, pin_memory=self._device.type == "cuda")
        held, count, _ = staged[: 3 * self._shape.rows].view(3, self._shape.rows).numpy()
        held[:rows] = [n + before for n in places[0].held]
        count[:rows] = tokens
        for place, (gone, table) in zip(places, self._per_ledger(staged), strict=True):
            if place.blocks is not None:
                gone.numpy()[:rows] = place.gone
                for line, blocks in zip(table.numpy(), place.blocks, strict=False):
                    line[: len(blocks)] = blocks
        self._ints.copy_(staged, non_blocking=True)
        self._memory.layers.place(stores)

    def _steps(self) -> None:
        with self._placement.captured():
            if not self._program.takes_chunks:
                self._place_tokens()
            for step in self._program.body:
                run_step(step, self._buffers, self._attend, sums=self._memory.sums)

    def _place_tokens(self) -> None:
        place = self._places[0]
        held, count, pos = place.held[:, None], place.count[:, None], place.pos[:, None]
        before, at = self._per_token.view(2, *self._of_rows(0).shape[:2])
        before.copy_(torch.where(self._order < count, held + self._order, -1))
        at.copy_(pos + self._order)

    def _attend(self, step: AttendStep | LatentStep) -> None:
        """No kernel of these begins before the one before it has ended: what one writes, the next may read."""
        ledger = self._shape.ledgers[step.index]
        if isinstance(step, LatentStep):  # its own passes keep what is new first
            return self._rows.attend(step, self._row_states[ledger])
        s, turn, layers = step.shape, step.turn, self._memory.layers
        width, place, qkv = s.heads * s.key_dim, self._places[ledger], self._buffers[step.src]
        queries = self._memory.queries[: len(qkv) * width].view(-1, width)
        rotation = None if turn is None else self._rotations[id(turn.tables)]
        how: dict[str, Any] = {"rotation": rotation, "int8": self._shape.int8}
        if one_by_one(step):
            place_chunk(qkv, queries, layers.stores, step.index, place, **how, **head_options(step))
            return self._rows.attend(step, self._row_states[ledger])
        own = None if self._queries is None else self._queries.made(step, qkv, self._per_token[0])
        chunk.attend_chunk(
            qkv,
            queries,
            self._buffers[step.dst],
            layers.stores,
            step.index,
            place,
            self._memory.shares[s],
            bias=own or layers.biases[step.index],
            values=layers.values[step.index],
            **how,
            **attention_options(step),
        )
