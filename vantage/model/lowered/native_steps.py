"""Several steps of a lowered model on a CPU without Python in between: each row's token goes into its next step.

Rows that take the likeliest token, or draw one with random numbers that are given, need nobody between two steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from vantage.cache import ModelCache
from vantage.kernels.native import ChoiceSettings, Format, Matrix, StepsCall, matrix
from vantage.model.ends import Embed, Table
from vantage.model.packed import PackedTable
from vantage.model.token_types import NoTokenTypes
from vantage.spec.sampling import Chosen, RowChoice


class PlainEmbedding(NamedTuple):
    """An embedding that is a row of a table, times a number."""

    table: Matrix
    scale: float
    weight: Any  # what holds the table's memory

    @staticmethod
    def of(embed: Embed) -> PlainEmbedding | None:
        """``None``: more is done to a token's vector, such as adding its position."""
        added = len(embed.inputs) or not isinstance(embed.types, NoTokenTypes) or embed.streams is not None
        if added or not all(isinstance(part, nn.Identity) for part in (embed.norm, embed.project)):
            return None
        tokens = embed.tokens
        if isinstance(tokens, PackedTable):
            (_, table), *others = tokens.weight.matrices()
            return None if others else PlainEmbedding(table, embed.scale, tokens.weight)
        if not isinstance(tokens, Table) or tokens.weight.dtype is not torch.float32:
            return None
        weight = tokens.weight.detach()
        return PlainEmbedding(matrix(weight, None, Format.DENSE, weight.shape), embed.scale, weight)


class StepsDone(NamedTuple):
    """Steps whose tokens are there."""

    chosen: Chosen

    def read(self) -> Chosen:
        return self.chosen

    @property
    def seconds(self) -> None:
        return None


class StepResults:
    """Where the kernels write what they choose."""

    def __init__(self, tokens: Sequence[int], steps: int, choices: Sequence[RowChoice]):
        rows = len(tokens)
        self.tokens = torch.zeros((1 + steps, rows), dtype=torch.int32)
        self.tokens[0] = torch.tensor(tokens, dtype=torch.int32)
        self.logprobs = torch.zeros((steps, rows))
        self.fine = torch.zeros((steps, rows), dtype=torch.int32)
        self.uniforms = torch.zeros((steps, rows), dtype=torch.float64)
        self.choices = (ChoiceSettings * rows)()
        for b, row in enumerate(choices):
            self.choices[b] = ChoiceSettings(row.temperature, row.top_p, row.min_p, row.top_k)
            if row.temperature:
                self.uniforms[:, b] = torch.tensor(row.uniforms[:steps], dtype=torch.float64)

    def write_to(self, call: StepsCall) -> None:
        """Say where everything is."""
        call.choices, call.uniforms = ctypes.addressof(self.choices), self.uniforms.data_ptr()
        call.tokens, call.logprobs = self.tokens.data_ptr(), self.logprobs.data_ptr()
        call.fine = self.fine.data_ptr()

    def chosen(self) -> Chosen:
        fine = [[bool(good) for good in step] for step in self.fine.tolist()]
        return Chosen(self.tokens[1:].tolist(), self.logprobs.tolist(), fine)


def takes_steps(caches: Sequence[ModelCache]) -> bool:
    """Whether rows with these caches can be run ahead: each one plain run, all over one pool if there are several."""
    plain = all(cache.extensible and cache.batch == 1 for cache in caches)
    return plain and (len(caches) == 1 or all(layer.store.pooled for layer in caches[0].layers))
