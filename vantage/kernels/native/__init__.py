"""The native CPU backend: products with packed weights, and whole steps of a model, in C++ (see native.cpp)."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor

from vantage.errors import VantageError
from vantage.kernels.native.build import CannotBuild, load


class Format(IntEnum):
    """How a matrix is kept; see linear.h."""

    DENSE = 0
    PACK8 = 1
    PACK4 = 2


class OpKind(IntEnum):
    """The steps that a program is made of; see native.cpp for what their numbers mean."""

    NORM = 0
    LINEAR = 1
    ROPE = 2
    APPEND = 3
    ATTEND = 4
    JOIN = 5
    ACTIVATE = 6
    ADD = 7
    SCALE = 8


class Matrix(ctypes.Structure):
    _fields_: ClassVar = [("data", c_void_p), ("bias", c_void_p)] + [
        (name, c_int32) for name in ("format", "outputs", "inputs", "unused")
    ]


class Op(ctypes.Structure):
    _fields_: ClassVar = [(name, c_int32) for name in ("kind", "dst", "src", "other")] + [
        ("n", c_int32 * 8),
        ("f", c_float * 4),
        ("p", c_void_p * 4),
    ]


class Buffer(ctypes.Structure):
    _fields_: ClassVar = [("data", c_void_p), ("width", c_int64)]


class AngleTable(ctypes.Structure):
    _fields_: ClassVar = [("cos", c_void_p), ("sin", c_void_p), ("same", c_int64)]


class LayerStore(ctypes.Structure):
    _fields_: ClassVar = [
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_head", c_int64),
        ("v_head", c_int64),
        ("k_row", c_int64),
        ("v_row", c_int64),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
    ]


class RowLocation(ctypes.Structure):
    _fields_: ClassVar = [("blocks", c_void_p), ("block", c_int32), ("gone", c_int32), ("held", c_int64)]


class ProgramCall(ctypes.Structure):
    _fields_: ClassVar = [(name, c_void_p) for name in ("ops", "buffers", "tables", "stores", "places")] + [
        (name, c_int64) for name in ("n_ops", "rows", "tokens")
    ]


class Native:
    """The library's functions. Tensors are float32, contiguous and in host memory: callers see to it."""

    def __init__(self, library: ctypes.CDLL):
        self._run, self._linear, self._rows = library.vantage_run, library.vantage_linear, library.vantage_rows
        self._run.argtypes = [ctypes.POINTER(ProgramCall), c_int]
        self._linear.argtypes = [ctypes.POINTER(Matrix), c_void_p, c_void_p, c_int64, c_int]
        self._rows.argtypes = [ctypes.POINTER(Matrix), c_void_p, c_int64, c_void_p]
        self._rows.restype = None
        self._top = library.vantage_top
        self._top.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, c_void_p, c_int]
        _lend_threads(library)

    def run(self, call: ProgramCall) -> None:
        _check(self._run(call, torch.get_num_threads()))

    def linear(self, matrix: Matrix, x: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        y = x.new_empty((*x.shape[:-1], matrix.outputs))
        m = x.numel() // matrix.inputs
        _check(self._linear(matrix, x.data_ptr(), y.data_ptr(), m, torch.get_num_threads()))
        return y

    def rows(self, matrix: Matrix, ids: Tensor) -> Tensor:
        """Rows (…) of the matrix, (…, inputs)."""
        y = torch.empty((*ids.shape, matrix.inputs))
        self._rows(matrix, ids.data_ptr(), ids.numel(), y.data_ptr())
        return y

    def top(self, scores: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
        """(…, n) scores to the k largest weights that softmax makes of them times scale, and where they stand (…, k).

        Falling, of equal ones the earlier first. ``scale`` is above 0, and some score of every row is not -inf.
        """
        n, shape = scores.shape[-1], (*scores.shape[:-1], k)
        values, where = scores.new_empty(shape), torch.empty(shape, dtype=torch.int32)
        rows, threads = scores.numel() // n, torch.get_num_threads()
        _check(self._top(scores.data_ptr(), rows, n, k, scale, values.data_ptr(), where.data_ptr(), threads))
        return values, where


@functools.cache
def native() -> Native | None:
    """The backend; ``None`` where it cannot be built, which is said once."""
    try:
        return Native(load())
    except CannotBuild as why:
        warnings.warn(f"{why}; the model runs on torch's own operators, which are slower", stacklevel=2)
        return None


def matrix(data: Tensor, bias: Tensor | None, format: Format, shape: Sequence[int]) -> Matrix:
    """The tensors must outlive it."""
    outputs, inputs = shape
    return Matrix(data.data_ptr(), None if bias is None else bias.data_ptr(), int(format), outputs, inputs, 0)


def _lend_threads(library: ctypes.CDLL) -> None:
    """Give the library torch's OpenMP, if it has one; otherwise it makes threads of its own."""
    process = ctypes.CDLL(None)  # all that this process has loaded
    try:
        functions = [process.GOMP_parallel, process.omp_get_thread_num, process.omp_get_num_threads]
    except AttributeError:
        return
    library.vantage_use_openmp.argtypes = [c_void_p] * 3
    library.vantage_use_openmp(*(ctypes.cast(function, c_void_p) for function in functions))


def _check(code: int) -> None:
    if code:
        raise VantageError("the native kernels ran out of memory: use shorter prompts or fewer requests at once")
