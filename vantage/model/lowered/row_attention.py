"""Attention of rows that have one token each, over what every layer keeps: requests, or the tokens of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vantage.kernels.gpu import decode, gate_sums, head_vectors, latent, row_shares
from vantage.model.lowered.gpu_program import AttendStep, GpuProgram, LatentStep
from vantage.model.lowered.query_tables import QueryBiases, count_biases
from vantage.model.lowered.row_steps import attention_options, bias_of, head_norm, values_of
from vantage.spec.forms import QueryCounts
from vantage.spec.native import LatentDims


def one_by_one(step: AttendStep | LatentStep) -> bool:
    """Whether several tokens of a row attend as so many rows, each of which reads all that it sees by itself."""
    return isinstance(step, LatentStep) or isinstance(step.scores.bias, QueryCounts)


class LayerNumbers:
    """Where the keys, values and sums of every layer are, which may change from pass to pass, and what its attention
    adds to them, all on the device."""

    def __init__(self, program: GpuProgram, buffers: Sequence[Tensor], device: torch.device):
        self.dtype, layers = program.dtype, len(program.attentions)
        self.stores = torch.zeros((layers, decode.ADDRESS), dtype=torch.int64, device=device)
        self.streams = torch.zeros((layers, gate_sums.STREAM), dtype=torch.int64, device=device)
        self.biases = [bias_of(step, buffers, self.streams) for step in program.attentions]
        self.values = [values_of(step, device) for step in program.attentions]
        self._numbers: np.ndarray | None = None  # what ``stores`` and ``streams`` say

    def place(self, numbers: np.ndarray) -> None:
        """``numbers`` (layers, ADDRESS + STREAM): the same array while nothing has moved."""
        if numbers is not self._numbers:
            self.stores.copy_(torch.from_numpy(numbers[:, : decode.ADDRESS]))
            self.streams.copy_(torch.from_numpy(numbers[:, decode.ADDRESS :]))
            self._numbers = numbers


class RowAttention:
    """These steps for so many rows, with room for what their programs leave to each other."""

    def __init__(
        self,
        steps: Sequence[AttendStep | LatentStep],
        rows: int,
        buffers: Sequence[Tensor],
        layers: LayerNumbers,
        rotations: dict[int, head_vectors.RopeTables],
        *,
        int8: bool,
    ):
        self._buffers, self._layers, self._rotations, self._int8 = buffers, layers, rotations, int8
        device, dtype = layers.stores.device, layers.dtype
        on_gpu = device.type == "cuda"
        processors = torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 4
        self._workspaces: dict[tuple[int, int, int], decode.Workspace] = {}
        self._latent_workspaces: dict[LatentDims, latent.LatentWorkspace] = {}
        for step in steps:
            if isinstance(step, LatentStep):
                sizes = step.form.sizes
                if sizes not in self._latent_workspaces:
                    splits = latent.splits_for(rows, sizes.heads, processors)
                    workspace = latent.LatentWorkspace.make(rows, splits, sizes, dtype, device)
                    self._latent_workspaces[sizes] = workspace
                continue
            s = step.shape
            key = s.heads, s.kv_heads, s.value_dim
            if key not in self._workspaces:
                splits = row_shares.splits_for(rows, s.kv_heads, processors)
                self._workspaces[key] = decode.Workspace.make(rows, splits, *key, device)
        self._counts = count_biases(steps, rows, lambda step: self._workspace(step).sums.shape[1], dtype, device)

    def _workspace(self, step: AttendStep) -> decode.Workspace:
        return self._workspaces[step.shape.heads, step.shape.kv_heads, step.shape.value_dim]

    def attend(
        self,
        step: AttendStep | LatentStep,
        rows: decode.RowState,
        queries: QueryBiases | None = None,
        *,
        dependent: bool = False,
    ) -> None:
        """``queries``: what biases of queries are made of."""
        if isinstance(step, LatentStep):
            return self._attend_latent(step, rows)
        turn, qkv, layers = step.turn, self._buffers[step.src], self._layers
        how: dict[str, Any] = {"int8": self._int8, "dependent": dependent}
        own = None if queries is None else queries.made(step, qkv, rows.held, dependent=dependent)
        decode.decode(
            qkv,
            self._buffers[step.dst],
            layers.stores,
            step.index,
            rows,
            self._workspace(step),
            bias=own or self._counts.get(step.index) or layers.biases[step.index],
            values=layers.values[step.index],
            rotation=None if turn is None else self._rotations[id(turn.tables)],
            **how,
            **attention_options(step),
        )

    def _attend_latent(self, step: LatentStep, rows: decode.RowState) -> None:
        form, scores, turn = step.form, step.scores, step.turn
        latent.decode_latent(
            self._buffers[step.queries],
            self._buffers[step.src],
            self._buffers[step.dst],
            form.k_up,
            form.v_up,
            self._layers.stores,
            step.index,
            rows,
            self._latent_workspaces[form.sizes],
            sizes=form.sizes,
            norm=head_norm(step.norm),
            scale=scores.scale,
            softcap=scores.softcap,
            window=scores.window,
            bias=self._layers.biases[step.index],
            sinks=scores.sinks,
            rotation=None if turn is None else self._rotations[id(turn.tables)],
        )
