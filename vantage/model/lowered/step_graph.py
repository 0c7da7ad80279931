"""One step of a lowered model for so many rows over buffers of its own, as a CUDA graph where there is a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vantage.kernels.gpu import choose, decode, head_vectors, packed, packed_product, product
from vantage.model.lowered.capture import captured
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, GpuStep, LatentStep, LinearStep
from vantage.model.lowered.module_step import ModuleStep
from vantage.model.lowered.query_tables import QueryBiases
from vantage.model.lowered.row_attention import LayerNumbers, RowAttention
from vantage.model.lowered.row_steps import run_step, sums_for
from vantage.spec.positions import Known, Positions
from vantage.spec.sampling import Chosen, RowChoice

MAX_AHEAD = 64  # steps whose tokens fit the buffers


@dataclass
class Pending:
    """Steps under way: ``read`` waits for them."""

    tokens: Tensor
    logprobs: Tensor
    status: Tensor
    begun: torch.cuda.Event | None
    done: torch.cuda.Event | None
    rows: int
    last: Tensor  # (rows,) on the device: where the next steps go on

    def read(self) -> Chosen:
        if self.done is not None:
            self.done.synchronize()
        cut = slice(0, self.rows)
        status = self.status[:, cut].tolist()
        fine = [[s == choose.CHOSEN for s in row] for row in status]
        return Chosen(self.tokens[:, cut].tolist(), self.logprobs[:, cut].tolist(), fine)

    @property
    def seconds(self) -> float | None:
        return None if self.begun is None or self.done is None else self.begun.elapsed_time(self.done) / 1e3


class GraphShape(NamedTuple):
    """What a graph is made for. Everything else is read from the device."""

    rows: int
    ledgers: tuple[int, ...]  # of each layer, which one it belongs to
    blocks: tuple[int, ...]  # of each ledger: tokens in a block, 0 where rows own their places
    table: int  # blocks of a row
    angles: int  # positions of the tables of rotations
    length: int | None
    int8: bool = False  # how keys and values are kept
    stores: tuple[tuple[int, int], ...] = ()  # which buffers, where the modules themselves run
    tokens: int = 1  # of each row


class RowPlaces(NamedTuple):
    """Where the rows of a step stand, for one ledger."""

    held: Sequence[int]  # tokens before it
    blocks: Sequence[Sequence[int]] | None  # of each row, in a pool
    block: int
    gone: Sequence[int]


class StepGraph:
    """One step for so many rows over buffers of its own, captured where there is a GPU."""

    def __init__(
        self,
        model: Any,
        program: GpuProgram,
        shape: GraphShape,
        rotations: dict[int, head_vectors.RopeTables],
        modules: ModuleStep | None = None,
        queries: QueryBiases | None = None,
    ):
        self._model, self._program, self._shape, self._rotations = model, program, shape, rotations
        self._modules = modules  # instead of the program's steps
        self._queries = queries  # what their own biases are made of
        device, rows = model.device, shape.rows
        self._device = device
        with torch.inference_mode(False), torch.no_grad():  # its buffers serve callers in both modes
            self._make(device, rows)
            self._launch = self._capture(self._step)
            self._launch_choice: dict[choose.Searches, Callable[[], None]] = {}

    def _make(self, device: torch.device, rows: int) -> None:
        program, shape = self._program, self._shape
        on_gpu = device.type == "cuda"
        # all whole numbers of a step in one block, which one copy fills; the last tokens at its end
        ints = 5 * rows + len(shape.blocks) * rows * (1 + shape.table)
        self._staged = torch.zeros(ints, dtype=torch.int32, pin_memory=on_gpu)
        self._ints = torch.zeros(ints, dtype=torch.int32, device=device)
        self._ints[:rows] = -1
        self._staged_floats = torch.zeros(rows * (3 + MAX_AHEAD), dtype=torch.float64, pin_memory=on_gpu)
        floats = torch.zeros(rows * (3 + MAX_AHEAD), dtype=torch.float64, device=device)
        self._floats = floats
        self._copied: torch.cuda.Event | None = None  # when what was staged is on the device
        self.held, self.pos, top_k, taken = self._ints[: 4 * rows].view(4, rows)
        self.tokens = self._ints[ints - rows :]
        self._row_states = [
            decode.RowState(self.held, self.pos, gone, table, block)
            for block, (gone, table) in zip(shape.blocks, self._per_ledger(self._ints), strict=True)
        ]
        settings, uniforms = floats[: 3 * rows].view(rows, 3), floats[3 * rows :].view(MAX_AHEAD, rows)
        self._choices = choose.Choices.over(settings, top_k, uniforms, taken)
        self._buffers = [torch.zeros((rows, width), dtype=program.dtype, device=device) for width in program.widths]
        self._layers = LayerNumbers(program, self._buffers, device)
        self._attention = RowAttention(
            program.attentions, rows, self._buffers, self._layers, self._rotations, int8=shape.int8
        )
        self.logits = torch.zeros((rows, self._model.spec.vocab), dtype=torch.float32, device=device)
        self._single = rows == 1
        self._rows: dict[
            tuple[int, int], packed_product.ArrangedRow
        ] = {}  # of the weight in blocks that is being multiplied
        blocks = [s.weight for s in program.steps if isinstance(s, LinearStep) and not isinstance(s.weight, Tensor)]
        self._split_sums = packed_product.SplitSums.make(blocks, device) if self._single else None
        self._row_sums = sums_for(program.steps, rows, device)
        self._dependent = self._single and product.supports_dependent_launch(device)
        self._steps = program.joined() if self._single else program.steps

    def _per_ledger(self, ints: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each ledger the blocks that are gone (rows,), and the table of the others (rows, blocks)."""
        rows, table = self._shape.rows, self._shape.table
        parts = ints[4 * rows : len(ints) - rows].view(len(self._shape.blocks), rows * (1 + table))
        return [(part[:rows], part[rows:].view(rows, table)) for part in parts]

    # ---- what the host says

    def place(
        self,
        places: Sequence[RowPlaces],
        stores: np.ndarray,
        positions: Sequence[int] | None = None,
        tokens: Sequence[int] | None = None,
        choices: Sequence[RowChoice] = (),
        steps: int = 0,
    ) -> None:
        """Where every row stands before this step; and, for rows that choose by themselves, how they do it."""
        if self._copied is not None:
            self._copied.synchronize()
        rows, used, ints = self._shape.rows, len(places[0].held), self._staged.numpy()
        ints[: 4 * rows] = 0
        ints[:rows] = -1
        ints[:used] = places[0].held
        if positions is not None:
            ints[rows : rows + used] = positions
        for place, (gone, table) in zip(places, self._per_ledger(self._staged), strict=True):
            if place.blocks is not None:
                gone.numpy()[:used] = place.gone
                for line, blocks in zip(table.numpy(), place.blocks, strict=False):
                    line[: len(blocks)] = blocks
                    line[len(blocks) :] = 0  # the block that nobody owns, whose numbers are numbers
        end = len(ints) - rows
        if tokens is not None:
            ints[end : end + used] = tokens
            end = len(ints)
        if choices:
            ints[2 * rows : 2 * rows + used] = [choice.top_k for choice in choices]
            self._set_choices(choices, steps)
        self._ints[:end].copy_(self._staged[:end], non_blocking=True)
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record()
        self._layers.place(stores)

    def _set_choices(self, choices: Sequence[RowChoice], steps: int) -> None:
        rows, floats = self._shape.rows, self._staged_floats.numpy()
        settings = floats[: 3 * len(choices)].reshape(-1, 3)
        settings[:] = [(choice.temperature, choice.top_p, choice.min_p) for choice in choices]
        end = 3 * rows
        if settings[:, 0].any():
            end += steps * rows
            uniforms = floats[3 * rows : end].reshape(steps, rows)
            for b, choice in enumerate(choices):
                uniforms[:, b] = choice.uniforms[:steps] if choice.temperature else 0.0
        self._floats[:end].copy_(self._staged_floats[:end], non_blocking=True)

    def set_positions(self, pos_B: Tensor) -> None:
        self.pos[: len(pos_B)].copy_(pos_B)

    # ---- what the device does

    def run(self) -> None:
        self._model.placement.ready()
        self._launch()

    def choose(self, searches: choose.Searches) -> None:
        if searches not in self._launch_choice:
            self._launch_choice[searches] = self._capture(lambda: self._choose(searches))
        self._launch_choice[searches]()

    def now(self) -> torch.cuda.Event | None:
        """Where the device's work stands."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self, steps: int, rows: int, begun: torch.cuda.Event | None) -> Pending:
        """What was chosen, on its way to the host."""
        choices, last = self._choices, self.tokens[:rows].clone()
        device = [t[:steps] for t in (choices.tokens, choices.logprobs, choices.status)]
        if self._device.type != "cuda":
            tokens, logprobs, status = (t.clone() for t in device)
            return Pending(tokens, logprobs, status, None, None, rows, last)
        host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in device]
        for target, source in zip(host, device, strict=True):
            target.copy_(source, non_blocking=True)
        tokens, logprobs, status = host
        return Pending(tokens, logprobs, status, begun, self.now(), rows, last)

    def _capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """As a graph. It first runs with no row in use."""
        held = self.held.clone()
        self.held.fill_(-1)
        launch = captured(run, self._device)
        self.held.copy_(held)
        return launch

    def _step(self) -> None:
        with self._model.placement.captured():
            self._run_layers()

    def _run_layers(self) -> None:
        if self._modules is not None:
            self.logits.copy_(self._modules.logits(self.tokens, self.held, self.pos, self._row_states))
            return
        model, rows = self._model, self._shape.rows
        pos = self.pos[:, None].to(torch.int64)
        where = Positions(pos, pos, known=Known(pos=(0, 0), order=(0, 0), counts=(1,) * rows, empty=False))
        x = model.embed(self.tokens[:, None], where.declare(self._shape.length), None)
        self._buffers[0].copy_(x[:, 0])
        for step in self._steps:
            self._do(step)
        self.logits.copy_(self._buffers[self._program.out])

    def _choose(self, searches: choose.Searches) -> None:
        choose.choose_tokens(self.logits, self._choices, self.tokens, self.held, self.pos, searches)

    def _do(self, step: GpuStep) -> None:
        if self._single and isinstance(step, LinearStep):
            self._linear(step)
        else:
            run_step(step, self._buffers, self._attend, sums=self._row_sums, dependent=self._dependent)

    def _linear(self, step: LinearStep) -> None:
        """The product of one row."""
        x, out, weight, norm = self._buffers[step.src], self._buffers[step.dst], step.weight, step.norm
        if not isinstance(weight, Tensor):
            return self._packed(step, weight, x[0], out[0, step.column : step.column + weight.outputs])
        product.multiply(
            x,
            weight,
            out,
            bias=step.bias,
            gain=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            offset=0.0 if norm is None else norm.offset,
            add=step.add,
            function=step.function,
            gated=step.gated,
            dependent=self._dependent,
        )

    def _packed(self, step: LinearStep, weight: packed.DeviceBlocks, x: Tensor, out: Tensor) -> None:
        """The parts of one weight follow each other, and share what was made of the row."""
        norm, key = step.norm, (step.src, packed_product.order_of(weight.format))
        if step.column == 0:
            self._rows.clear()
        if key not in self._rows:
            gain, offset = (None, 0.0) if norm is None else (norm.weight, norm.offset)
            function, gated = (product.NONE, False) if step.input is None else (step.input.function, step.input.gated)
            self._rows[key] = packed_product.arranged(
                x,
                weight.format,
                gain=gain,
                offset=offset,
                function=function,
                gated=gated,
                dependent=self._dependent,
            )
        eps = None if norm is None else norm.eps
        packed_product.multiply(
            self._rows[key],
            weight,
            out,
            bias=step.bias,
            eps=eps,
            add=step.add,
            dependent=self._dependent,
            split_sums=self._split_sums,
        )

    def _attend(self, step: AttendStep | LatentStep) -> None:
        rows = self._row_states[self._shape.ledgers[step.index]]
        self._attention.attend(step, rows, self._queries, dependent=self._dependent)
