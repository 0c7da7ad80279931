"""Biases that a step makes of its queries before they attend: what they are made of, and room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vantage.kernels.gpu import query_table
from vantage.kernels.gpu.count_bias import CountBias
from vantage.kernels.gpu.query_table import QueryTable
from vantage.kernels.gpu.score_bias import DeviceBias
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, LatentStep
from vantage.spec.forms import QueryCounts, QueryDistances


class TableRoom:
    """Memory for the numbers of queries, which all graphs use in turn."""

    def __init__(self, device: torch.device):
        self._memory = torch.empty(0, device=device)

    def take(self, *shape: int) -> Tensor:
        size = 1
        for n in shape:
            size *= n
        if len(self._memory) < size:
            with torch.inference_mode(False):
                self._memory = torch.empty(size, device=self._memory.device)
        return self._memory[:size].view(shape)


def query_tables(program: GpuProgram, positions: int, device: torch.device) -> dict[int, QueryTable]:
    """What the tables of each layer are made of, for so many positions. Layers may share vectors."""
    vectors: dict[tuple[Callable[[int], Tensor], int], Tensor] = {}
    tables: dict[int, QueryTable] = {}
    for step in program.attentions:
        form = step.scores.bias
        if not isinstance(step, AttendStep) or not isinstance(form, QueryDistances):
            continue
        width = _width(form, step.scores.window, positions)
        with torch.inference_mode(False), torch.no_grad():
            if (form.keys, width) not in vectors:
                vectors[form.keys, width] = form.keys(width).detach().to(device, program.dtype).contiguous()
            offset = _offset(step, form, device)
        tables[step.index] = QueryTable(
            vectors[form.keys, width], offset, step.scores.scale, bounded=form.last is not None
        )
    return tables


def table_numbers(program: GpuProgram, positions: int) -> int:
    """How many numbers a query has for every distance, in the layer where they are the most."""
    return max(
        (
            step.shape.heads * _width(form, step.scores.window, positions)
            for step in program.attentions
            if isinstance(step, AttendStep) and isinstance(form := step.scores.bias, QueryDistances)
        ),
        default=0,
    )


def _width(form: QueryDistances, window: int, positions: int) -> int:
    """How many distances have a vector."""
    return min(positions, window or positions) if form.last is None else form.last + 1


def _offset(step: AttendStep, form: QueryDistances, device: torch.device) -> Tensor | None:
    """What is added to queries as they stand in their buffer, where some are shifted already."""
    wanted = None if form.offset is None else form.offset.detach().to(device, torch.float32)
    if step.q_shift is None:
        return None if wanted is None else wanted.contiguous()
    shift = step.q_shift.to(device, torch.float32)
    return (-shift if wanted is None else wanted - shift).contiguous()


def count_biases(
    steps: Sequence[AttendStep | LatentStep],
    rows: int,
    splits: Callable[[AttendStep], int],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[int, CountBias]:
    """The biases that count keys, by layer. Layers of one size use the same room in turn. ``splits``: into how many
    shares a layer's keys are cut."""
    biases: dict[int, CountBias] = {}
    rooms: dict[tuple[int, int, int], CountBias] = {}
    for step in steps:
        form = step.scores.bias
        if not isinstance(step, AttendStep) or not isinstance(form, QueryCounts):
            continue
        size = step.shape.heads, len(form.vectors), splits(step)
        with torch.inference_mode(False), torch.no_grad():
            vectors = form.vectors.detach().to(device, dtype).contiguous()
            if size not in rooms:
                rooms[size] = CountBias.make(vectors, rows, size[2], size[0])
        biases[step.index] = rooms[size].sharing(vectors)
    return biases


class QueryBiases:
    """The tables of so many rows."""

    def __init__(self, tables: dict[int, QueryTable], steps: Sequence[AttendStep | LatentStep], rows: int,
                 room: TableRoom):  # fmt: skip
        self._tables = tables
        heads = {step.index: step.shape.heads for step in steps if isinstance(step, AttendStep)}
        widest = max((heads[index] * table.width for index, table in tables.items()), default=0)
        memory = room.take(rows * widest)  # layers use it in turn
        self._numbers = {
            index: memory[: rows * heads[index] * table.width].view(rows, heads[index], table.width)
            for index, table in tables.items()
        }

    def made(self, step: AttendStep, qkv: Tensor, held: Tensor, *, dependent: bool = False) -> DeviceBias | None:
        """The bias of these queries; ``None``: they need none of their own. ``held`` (rows,)"""
        table = self._tables.get(step.index)
        if table is None:
            return None
        numbers, s = self._numbers[step.index], step.shape
        query_table.fill(qkv, numbers[: len(qkv)], table, held, heads=s.heads, key_dim=s.key_dim, dependent=dependent)
        return table.bias(numbers)
