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

from vantage.kernels.gpu import chunk, decode, gate_sums, head_vectors, packed_rows
from vantage.model.lowered.capture import captured
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, LatentStep
from vantage.model.lowered.query_tables import QueryBiases, TableRoom, query_tables
from vantage.model.lowered.row_steps import attention_options, bias_of, run_step, sums_for, values_of
from vantage.model.lowered.step_graph import GraphShape, RowPlaces
from vantage.model.placement import Placement
from vantage.spec.parts import Shape

# tokens of a row that a graph is made for; a longer pass is several of the largest
CHUNKS = (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
SHORT = (2, 4, 8)  # of several rows, also so many: drafts
MIN_TOKENS = 2  # tokens of a pass; a single one is a step


def bucket_for(tokens: int, rows: int = 1) -> int | None:
    """The tokens of the graph that takes so many of each of these rows, or the most that there is room for; ``None``:
    there is no room for these rows."""
    sizes = [n for n in (SHORT if rows > 1 else ()) + CHUNKS if n * rows <= CHUNKS[-1]]
    return next((n for n in sizes if n >= tokens), max(sizes, default=None))


class ChunkBuffers:
    """What the steps of a chunk read and write. All graphs use it, and never two of them at once."""

    def __init__(self, program: GpuProgram, rows: Sequence[int], device: torch.device):
        """``rows``: the numbers of rows that graphs are made for."""
        used = {0, program.hidden, *(number for step in program.body for number in program.touched(step))}
        most = CHUNKS[-1]
        with torch.inference_mode(False):
            self.buffers = [  # zeros: what no token has filled yet goes through the same steps
                torch.zeros((most if i in used else 0, width), dtype=program.dtype, device=device)
                for i, width in enumerate(program.widths)
            ]
            shapes = [step.shape for step in program.body if isinstance(step, AttendStep)]
            width = max(shape.heads * shape.key_dim for shape in shapes)
            self.queries = torch.empty(most * width, dtype=program.dtype, device=device)
            self.shares = {shape: _shares(shape, program.dtype, rows, device) for shape in {*shapes}}
            self.stores = torch.zeros((len(program.attentions), decode.ADDRESS), dtype=torch.int64, device=device)
            self.streams = torch.zeros((len(program.attentions), gate_sums.STREAM), dtype=torch.int64, device=device)
            self.biases = [bias_of(step, self.buffers, self.streams) for step in program.attentions]
            self.values = [values_of(step, device) for step in program.attentions]
            tables = query_tables(program, 0, device)  # of those that take chunks no table grows with the positions
            self.own_biases = QueryBiases(tables, program.attentions, most, TableRoom(device))
            self.sums = sums_for(program.body, packed_rows.MOST_ROWS, device)
        self.numbers: np.ndarray | None = None  # what ``stores`` and ``streams`` say
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def _shares(shape: Shape, dtype: torch.dtype, rows: Sequence[int], device: torch.device) -> chunk.ChunkWorkspace:
    heads, width = shape.heads, max(shape.key_dim, shape.value_dim)
    tiles = [
        (chunks * tokens, chunk.tile_for(tokens, heads, shape.kv_heads, width, dtype, chunks))
        for chunks in rows
        for tokens in SHORT + CHUNKS
        if chunks * tokens <= CHUNKS[-1]
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
    ):
        self._program, self._shape, self._rotations, self._memory = program, shape, rotations, memory
        self._device: torch.device = model.device
        self._placement: Placement = model.placement
        rows = shape.rows
        with torch.inference_mode(False):
            ints = rows * (3 + len(shape.blocks) * (1 + shape.table))
            self._ints = torch.zeros(ints, dtype=torch.int32, device=self._device)
            self._buffers = [buffer[: rows * shape.tokens] for buffer in memory.buffers]
        held, count, pos = self._ints[: 3 * rows].view(3, rows)
        self._places = [
            chunk.ChunkPlace(held, count, pos, gone, table, block)
            for block, (gone, table) in zip(shape.blocks, self._per_ledger(self._ints), strict=True)
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
        memory = self._memory
        if stores is not memory.numbers:
            memory.stores.copy_(torch.from_numpy(stores[:, : decode.ADDRESS]))
            memory.streams.copy_(torch.from_numpy(stores[:, decode.ADDRESS :]))
            memory.numbers = stores

    def _steps(self) -> None:
        with self._placement.captured():
            for step in self._program.body:
                run_step(step, self._buffers, self._attend, sums=self._memory.sums)

    def _attend(self, step: AttendStep | LatentStep) -> None:
        assert isinstance(step, AttendStep), "others take no chunks"
        s, turn, memory = step.shape, step.turn, self._memory
        width, place = s.heads * s.key_dim, self._places[self._shape.ledgers[step.index]]
        qkv = self._buffers[step.src]
        own = memory.own_biases.made(step, qkv, place.held)
        chunk.attend_chunk(
            qkv,
            memory.queries[: len(qkv) * width].view(-1, width),
            self._buffers[step.dst],
            memory.stores,
            step.index,
            place,
            memory.shares[s],
            bias=own or memory.biases[step.index],
            values=memory.values[step.index],
            rotation=None if turn is None else self._rotations[id(turn.tables)],
            int8=self._shape.int8,
            **attention_options(step),
        )
