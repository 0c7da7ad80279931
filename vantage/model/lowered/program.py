"""A program under construction: steps over named buffers of rows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from vantage.kernels.native import Format, Matrix, Op, OpKind, matrix
from vantage.model.feed_forward import ACTIVATIONS
from vantage.model.lowered.buffers import ProgramBuffers
from vantage.model.norms import norm_form
from vantage.model.packed import PackedLinear
from vantage.spec.forms import Slope
from vantage.spec.native import (
    LANES,
    AngleTables,
    CannotLower,
    HeadColumns,
    LatentForm,
    ScoreForm,
    fewest_positions,
    no_native_form,
)
from vantage.spec.parts import Shape

# The kernels know activations and norms by these numbers.
FUNCTIONS = {ACTIVATIONS[name]: i for i, name in enumerate(("relu", "gelu", "gelu_tanh", "silu"))}
RMS, LAYER = 0, 1


@dataclass(frozen=True)
class LoweredAttention:
    """An attention layer that appends to a cache."""

    index: int
    shape: Shape
    needs_run: bool  # its bias reads positions: rows must be plain runs


@dataclass
class NativeProgram(ProgramBuffers):
    """Steps, and what they hold on to. ``tensors`` are read where they lie, so they must stay there."""

    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    learned: list[Tensor] = field(default_factory=list)  # what numbers of its steps were made of
    matrices: list[Matrix] = field(default_factory=list)
    rotations: list[AngleTables] = field(default_factory=list)
    max_positions: int | None = None  # that they have
    attentions: list[LoweredAttention] = field(default_factory=list)
    quantised: list[Matrix] = field(default_factory=list)
    layer_ends: list[int] = field(default_factory=list)  # how many steps there are up to the end of each layer
    dense: bool = False  # some weights are plain float32: for many rows torch's own products are faster

    # ---- modules

    def linear(self, module: nn.Module, src: int, into: int | None, name: str) -> int:
        weights = self._matrices(module)
        dst = self.buffer(name, sum(weight.outputs for _, weight in weights)) if into is None else into
        for column, weight in weights:
            self.emit(OpKind.LINEAR, dst, src, n=[into is not None, column], p=[weight])
        return dst

    def _matrices(self, module: nn.Module) -> list[tuple[int, Matrix]]:
        """The parts of a linear map's weight, and the column where the outputs of each begin."""
        if isinstance(module, PackedLinear):
            if module.weight.device.type != "cpu":
                raise CannotLower("its weights are not in host memory")
            for part in module.weight.parts:
                self.hold(part.data)
            weights = list(module.weight.matrices(self._held_bias(module.bias)))
            self.quantised += [weight for _, weight in weights]
            return weights
        if not isinstance(module, nn.Linear):
            raise no_native_form(module)
        _need_float32(module.weight)
        self.dense = True
        return [(0, matrix(self.hold(module.weight), self._held_bias(module.bias), Format.DENSE, module.weight.shape))]

    def _held_bias(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else self.hold(bias)

    def norm(self, module: nn.Module, src: int, dst: int) -> None:
        self._norm(module, src, dst, self.widths[src], 1, 0)

    def norm_heads(self, module: nn.Module, heads: HeadColumns) -> None:
        self._norm(module, heads.buffer, heads.buffer, heads.head_dim, heads.heads, heads.column)

    def _norm(self, module: nn.Module, src: int, dst: int, width: int, heads: int, column: int) -> None:
        if (form := norm_form(module)) is None:
            raise no_native_form(module)
        _need_float32(form.weight)
        numbers = [width, heads, LAYER if form.centred else RMS, column, column]
        self.emit(OpKind.NORM, dst, src, n=numbers, f=[form.eps, form.offset], p=[form.weight, form.bias])

    # ---- single steps

    def rotate(self, tables: AngleTables, heads: HeadColumns, turned: int, *, adjacent: bool) -> None:
        if tables not in self.rotations:
            self.rotations.append(tables)
            self.max_positions = fewest_positions(self.max_positions, tables, torch.float32)
        numbers = [heads.column, heads.heads, heads.head_dim, turned, adjacent, self.rotations.index(tables)]
        self.emit(OpKind.ROPE, heads.buffer, n=numbers)

    def shift(self, offset: Tensor, heads: HeadColumns) -> None:
        raise CannotLower("a vector that is added to queries has no native form on a CPU")

    def attend(self, qkv: int, index: int, shape: Shape, scores: ScoreForm, gates: int | None = None) -> int:
        if index != len(self.attentions):
            raise CannotLower("its layers do not stand in order")
        if not isinstance(scores.bias, Slope | None):
            raise CannotLower(f"{type(scores.bias).__name__} has no native form on a CPU")
        if scores.values is not None:
            raise CannotLower(f"{type(scores.values).__name__} has no native form on a CPU")
        self.attentions.append(LoweredAttention(index, shape, needs_run=scores.bias is not None))
        self.learned += scores.learned
        k = shape.heads * shape.key_dim
        v = k + shape.kv_heads * shape.key_dim
        self.emit(OpKind.APPEND, qkv, qkv, n=[k, v, index, index, shape.kv_heads])
        attended = self.buffer("attended", shape.heads * shape.value_dim)
        numbers = [0, shape.heads, shape.kv_heads, index, index, scores.window]
        factors = [scores.scale, scores.softcap or 0.0]
        slopes = None if scores.bias is None else scores.bias.slopes.detach().to(torch.float32).contiguous()
        self.emit(OpKind.ATTEND, attended, qkv, n=numbers, f=factors, p=[slopes, scores.sinks])
        return attended

    def attend_latent(self, q: int, kv: int, index: int, form: LatentForm, scores: ScoreForm) -> int:
        raise CannotLower("LatentAttention has no native form on a CPU")

    def activate(self, src: int, hidden: int, function: Any, *, gated: bool) -> int:
        if function not in FUNCTIONS:
            raise CannotLower("this activation has no native form")
        if hidden % LANES:
            raise CannotLower(f"a hidden layer of {hidden} is no multiple of {LANES}")
        dst = self.buffer("active", hidden)
        self.emit(OpKind.ACTIVATE, dst, src, n=[hidden, FUNCTIONS[function], gated])
        return dst

    def add(self, dst: int, a: int, b: int) -> None:
        self.emit(OpKind.ADD, dst, a, b, n=[self.widths[dst]])

    def scale(self, buffer: int, factor: float, softcap: float | None) -> None:
        self.emit(OpKind.SCALE, buffer, n=[self.widths[buffer]], f=[factor, softcap or 0.0])

    def emit(
        self,
        kind: OpKind,
        dst: int,
        src: int = 0,
        other: int = 0,
        *,
        n: Sequence[int] = (),
        f: Sequence[float] = (),
        p: Sequence[Tensor | Matrix | None] = (),
    ) -> None:
        op = Op(int(kind), dst, src, other)
        op.n[: len(n)] = [int(i) for i in n]
        op.f[: len(f)] = list(f)
        for i, what in enumerate(p):
            if isinstance(what, Tensor):
                op.p[i] = self.hold(what).data_ptr()
            elif what is not None:
                self.matrices.append(what)
                op.p[i] = ctypes.addressof(what)
        self.ops.append(op)

    def mark_private(self) -> None:
        """Tell the norms and activations that only the products after them read: with few rows every thread takes
        such a step for itself, which is faster than waiting for the one that takes it for all."""
        for i, op in enumerate(self.ops):
            if op.kind not in (OpKind.NORM, OpKind.ACTIVATE) or op.dst in (op.src, self.out):
                continue
            rest = self.ops[i + 1 :]
            products = list(takewhile(partial(_is_product_of, op.dst), rest))
            written_over = any(product.dst == op.src for product in products)
            op.n[7] = bool(products) and not written_over and not _read_later(op.dst, rest[len(products) :])

    def hold(self, tensor: Tensor) -> Tensor:
        self.tensors.append(tensor)
        return tensor


def _is_product_of(buffer: int, op: Op) -> bool:
    return op.kind == OpKind.LINEAR and op.src == buffer


def _read_later(buffer: int, ops: Sequence[Op]) -> bool:
    """Whether a step reads the buffer before another has written all of it."""
    for op in ops:
        if op.src == buffer or (op.kind == OpKind.ADD and op.other == buffer):
            return True
        if op.dst == buffer:
            in_place = op.kind in (OpKind.ROPE, OpKind.SCALE) or (op.kind == OpKind.LINEAR and bool(op.n[0]))
            return in_place or op.kind not in (OpKind.NORM, OpKind.ACTIVATE, OpKind.ADD)
    return False


def _need_float32(tensor: Tensor) -> None:
    if tensor.dtype is not torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise CannotLower(f"its weights are {tensor.dtype} on {tensor.device}: float32 in host memory is wanted")
