"""The native CPU backend: products with packed weights, and whole steps of a model, in C++ (see native.cpp)."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import warnings
from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor

from vantage.errors import VantageError
from vantage.kernels.native.build import CannotBuild, load
from vantage.kernels.native.huge_pages import use_huge_pages_later

MAX_ROWS_AS_ONE = 12  # rows that are computed as one is, whoever asks for fast products; see linear.h


class Format(IntEnum):
    """How a matrix is kept; see formats.h. All but the first are GGUF's, with their names."""

    DENSE = 0  # float32
    Q8_0 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 4
    Q5_1 = 5
    Q2_K = 6
    Q3_K = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    IQ4_NL = 11
    IQ4_XS = 12
    MXFP4 = 13
    F16 = 14
    BF16 = 15


class MatrixUnit(IntEnum):
    """What multiplies many rows, where it is no dot product; see amx.h and matrix_units.h."""

    NONE = 0
    I8MM = 1
    AMX = 2


class OpKind(IntEnum):
    """The steps that a program is made of; see native.cpp for what their numbers mean."""

    NORM = 0
    LINEAR = 1
    ROPE = 2
    APPEND = 3
    ATTEND = 4
    ACTIVATE = 5
    ADD = 6
    SCALE = 7


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
    _fields_: ClassVar = [("cos", c_void_p), ("sin", c_void_p), ("row", c_int64)]


class Kept(IntEnum):
    """In which form keys and values are kept; see attend.h."""

    FLOATS = 0
    HALVES = 1
    BYTES = 2  # with a scale for each token and head


class LayerStore(ctypes.Structure):
    _fields_: ClassVar = [
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("k_head", c_int64),
        ("v_head", c_int64),
        ("k_row", c_int64),
        ("v_row", c_int64),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("kept", c_int32),
        ("unused", c_int32),
    ]


class RowLocation(ctypes.Structure):
    _fields_: ClassVar = [("blocks", c_void_p), ("block", c_int32), ("gone", c_int32), ("held", c_int64)]


class ProgramCall(ctypes.Structure):
    _fields_: ClassVar = [(name, c_void_p) for name in ("ops", "buffers", "tables", "stores", "places")] + [
        *((name, c_int64) for name in ("n_ops", "rows", "tokens", "fast", "first_angle")),
        ("shown", c_void_p),
        ("shown_keys", c_int64),
    ]


class ChoiceSettings(ctypes.Structure):
    _fields_: ClassVar = [(name, c_double) for name in ("temperature", "top_p", "min_p")] + [("top_k", c_int64)]


class StepsCall(ctypes.Structure):
    _fields_: ClassVar = [
        ("body", ProgramCall),
        ("head", ProgramCall),
        ("locations", c_void_p),
        ("n_locations", c_int64),
        ("embeddings", c_void_p),
        ("scale", c_double),
        ("steps", c_int64),
        *((name, c_void_p) for name in ("choices", "uniforms", "tokens", "logprobs", "fine")),
    ]


class MappedPages(ctypes.Structure):
    _fields_: ClassVar = [("first", c_void_p), ("bytes", c_int64)]


class BiasKind(IntEnum):
    """What a bias of attention in tiles depends on; see tiles.h."""

    NONE = 0
    DISTANCE = 1
    QUERY_AND_DISTANCE = 2
    QUERY_AND_KEY = 3


class TileCall(ctypes.Structure):
    """Attention in tiles; see tiles.h. It holds on to the tensors whose addresses it is given."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("q", "k", "v", "out", "lse", "q_at", "k_at", "ranges")),
        *((name, c_void_p) for name in ("bias", "by_key", "sinks")),
        *((name, c_int64 * 3) for name in ("q_step", "k_step", "v_step", "out_step")),
        *((name, c_int64) for name in ("rows", "batch", "heads", "kv_heads", "queries", "keys")),
        *((name, c_int64) for name in ("key_dim", "value_dim", "first", "length")),
        *((name, c_int32) for name in ("bias_kind", "running", "causal", "window", "chunk", "prefix", "segments")),
        ("sink_of_query", c_int32),
        *((name, c_float) for name in ("scale", "softcap", "cool")),
    ]

    def put(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())
        self.held = [*getattr(self, "held", ()), *tensors.values()]


class Native:
    """The library's functions. Tensors are float32, contiguous and in host memory: callers see to it."""

    def __init__(self, library: ctypes.CDLL):
        self._run, self._linear, self._rows = library.vantage_run, library.vantage_linear, library.vantage_rows
        self._run.argtypes = [ctypes.POINTER(ProgramCall), c_int]
        self._linear.argtypes = [ctypes.POINTER(Matrix), c_void_p, c_void_p, c_int64, c_int, c_int]
        self._rows.argtypes = [ctypes.POINTER(Matrix), c_void_p, c_int64, c_void_p]
        self._rows.restype = None
        self._steps = library.vantage_steps
        self._steps.argtypes = [ctypes.POINTER(StepsCall), c_int]
        self._has_bytes = library.vantage_has_bytes
        self._has_bytes.argtypes = [ctypes.POINTER(Matrix)]
        self._repack = library.vantage_repack
        self._repack.argtypes = [ctypes.POINTER(Matrix), c_void_p, c_int]
        library.vantage_prefault.argtypes, library.vantage_prefault.restype = [c_void_p, c_int64], None
        self._library = library
        self._top = library.vantage_top
        self._top.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p, c_void_p, c_int]
        self._attend = library.vantage_attend
        self._attend.argtypes = [ctypes.POINTER(TileCall), c_int]
        self.matrix_unit = MatrixUnit(library.vantage_matrix_unit())
        _lend_threads(library)

    def run(self, call: ProgramCall) -> None:
        _check(self._run(call, torch.get_num_threads()))

    def steps(self, call: StepsCall) -> None:
        """Several tokens for every row, each chosen from the logits after the one before."""
        _check(self._steps(call, torch.get_num_threads()))

    def attend(self, call: TileCall) -> None:
        _check(self._attend(call, torch.get_num_threads()))

    def linear(self, matrix: Matrix, x: Tensor, *, fast: bool = False) -> Tensor:
        """(…, inputs) to (…, outputs). ``fast``: of many rows activations may be rounded to 8 bits."""
        y = x.new_empty((*x.shape[:-1], matrix.outputs))
        m = x.numel() // matrix.inputs
        if m == 0:  # the native code divides its work by the number of rows
            return y
        _check(self._linear(matrix, x.data_ptr(), y.data_ptr(), m, torch.get_num_threads(), fast))
        return y

    def has_fast(self, matrix: Matrix) -> bool:
        """Whether ``fast`` makes a difference for this matrix on this processor."""
        return bool(self._has_bytes(matrix))

    def rows(self, matrix: Matrix, ids: Tensor) -> Tensor:
        """Rows (…) of the matrix, (…, inputs)."""
        y = torch.empty((*ids.shape, matrix.inputs))
        self._rows(matrix, ids.data_ptr(), ids.numel(), y.data_ptr())
        return y

    def repack(self, matrix: Matrix, rows: Tensor) -> bool:
        """The rows of a GGUF tensor, bytes, into the matrix; ``False``: a scale is not finite."""
        addresses = rows.data_ptr() + rows.stride(0) * torch.arange(len(rows))
        return not self._repack(matrix, addresses.data_ptr(), torch.get_num_threads())

    def prefault(self, memory: Tensor) -> None:
        """Have the system provide this memory's pages now, which keep what they hold."""
        self._library.vantage_prefault(memory.data_ptr(), memory.nbytes)

    def repacking(self) -> Repacking:
        """For many matrices."""
        return Repacking(self._library)

    def top(self, scores: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
        """(…, n) scores to the k largest weights that softmax makes of them times scale, and where they stand (…, k).

        Falling, of equal ones the earlier first. ``scale`` is above 0, and some score of every row is not -inf.
        """
        n, shape = scores.shape[-1], (*scores.shape[:-1], k)
        values, where = scores.new_empty(shape), torch.empty(shape, dtype=torch.int32)
        rows, threads = scores.numel() // n, torch.get_num_threads()
        _check(self._top(scores.data_ptr(), rows, n, k, scale, values.data_ptr(), where.data_ptr(), threads))
        return values, where


class Repacking:
    """Fills matrices from the rows of GGUF tensors in a thread of its own, while Python goes on (repacking.h)."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        library.vantage_repacking.restype = c_void_p
        library.vantage_repacking_add.argtypes = [c_void_p, ctypes.POINTER(Matrix), c_void_p, c_void_p, c_int64]
        library.vantage_repacking_finish.argtypes = [c_void_p]
        library.vantage_repacking_finish.restype = c_int64
        library.vantage_repacking_free.argtypes = [c_void_p]
        self._held: list[object] = []  # what the thread reads and writes
        self._handle: int | None = library.vantage_repacking(torch.get_num_threads())
        _check(self._handle is None)

    def add(
        self, data: Tensor, matrix: Matrix, addresses: Tensor, pages: Sequence[tuple[int, int]], owner: object
    ) -> None:
        """``data``: the matrix's memory. ``addresses``: of the row of each output, in memory of ``owner``. ``pages``:
        what is given back afterwards, as a beginning and a length."""
        self._held += [data, addresses, owner]
        given = (MappedPages * len(pages))(*pages)
        _check(self._library.vantage_repacking_add(self._handle, matrix, addresses.data_ptr(), given, len(pages)))

    def finish(self) -> int | None:
        """Returns when all matrices are filled; the first, by its number, that has a scale that is not finite."""
        failed = self._library.vantage_repacking_finish(self._handle)
        return None if failed < 0 else failed

    def close(self) -> None:
        """Nothing is read or written from then on."""
        if self._handle is not None:
            self._library.vantage_repacking_free(self._handle)
        self._handle, self._held = None, []


@functools.cache
def native() -> Native | None:
    """The backend; ``None`` where it cannot be built, which is said once."""
    try:
        backend = Native(load())
        if os.environ.get("VANTAGE_MATRIX_UNITS") == "1" and backend.matrix_unit is MatrixUnit.NONE:
            warnings.warn(
                "VANTAGE_MATRIX_UNITS=1, but there is neither i8mm nor AMX that the system lets this process use; "
                "dot products run in their place",
                stacklevel=2,
            )
        return backend
    except CannotBuild as why:
        warnings.warn(f"{why}; the model runs on torch's own operators, which are slower", stacklevel=2)
        return None


class WeightMemory:
    """Memory for the many matrices of a model, taken in large pieces, so that small ones get huge pages as well, in
    time."""

    PIECE = 2**26

    def __init__(self) -> None:
        self._piece, self._used = torch.empty(0, dtype=torch.uint8), 0

    def reserve(self, nbytes: int) -> None:
        """So much will be taken soon. The first half of a small model's memory is prefaulted while Python still works,
        in a thread of its own; for a large one that was no gain (docs/log.md)."""
        if nbytes > 2 * self.PIECE or (backend := native()) is None:
            return
        self._piece, self._used = torch.empty(nbytes, dtype=torch.uint8), 0
        use_huge_pages_later(self._piece)
        half = self._piece[: nbytes // 2]
        threading.Thread(target=backend.prefault, args=(half,), name="vantage-prefault", daemon=True).start()

    def take(self, nbytes: int) -> Tensor:
        start = -(-self._used // 64) * 64
        if start + nbytes > len(self._piece):
            # pages that nobody writes to are never given: the rest of a piece costs nothing
            self._piece, start = torch.empty(max(nbytes, self.PIECE), dtype=torch.uint8), 0
            use_huge_pages_later(self._piece)
        self._used = start + nbytes
        return self._piece[start : self._used]


def matrix(data: Tensor, bias: Tensor | None, format: Format, shape: Sequence[int]) -> Matrix:
    """The tensors must outlive it."""
    outputs, inputs = shape
    return Matrix(data.data_ptr(), None if bias is None else bias.data_ptr(), int(format), outputs, inputs, 0)


def _lend_threads(library: ctypes.CDLL) -> None:
    """Give the library torch's OpenMP, if it has one; otherwise it makes threads of its own."""
    try:
        process = ctypes.CDLL(None)  # all that this process has loaded
        functions = [process.GOMP_parallel, process.omp_get_thread_num]
    except (AttributeError, TypeError):  # the second: Windows knows no such thing
        return
    library.vantage_use_openmp.argtypes = [c_void_p] * 2
    library.vantage_use_openmp(*(ctypes.cast(function, c_void_p) for function in functions))


def _check(code: int) -> None:
    if code:
        raise VantageError("the native kernels ran out of memory: use shorter prompts or fewer requests at once")
