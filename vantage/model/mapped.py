"""Layers in a file, mapped into memory: for a CPU whose memory does not hold the model.

The file is a scratch file with the weights as the kernels want them, joined and packed; it has no name and is gone with
the process. While a layer runs a thread brings in the next one, and afterwards its pages are given back. So no more
than two of these layers are resident, whether the native kernels or torch's read them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import shutil
import sys
import tempfile
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, final

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.model.placement import check_no_gradient, check_not_compiled, layout_of, no_copy, replace_tensors

POPULATE_READ = 22  # of madvise(2), since Linux 5.14


class FileSpan(NamedTuple):
    """Bytes of the file, in whole pages."""

    start: int
    nbytes: int


@final
class MappedLayers:
    """The weights of some layers. They stay where they are mapped, so programs over them hold."""

    def __init__(self, folder: Path, layers: tuple[int, ...], nbytes: int, capacity: int | None = None):
        """``folder``: where the scratch file is written. ``nbytes``: of all layers together, each in whole pages."""
        if sys.platform != "linux":
            raise Refused(
                f"pages of a file cannot be given back on {sys.platform}: max_memory below a model needs Linux"
            )
        self.layers, self.capacity = layers, capacity
        free = shutil.disk_usage(folder).free
        if nbytes > free:
            raise Refused(
                f"the layers that memory does not hold need {nbytes:,} bytes in {folder}, which has {free:,} free: "
                "name another folder in VANTAGE_HOME"
            )
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as this lives)
        weakref.finalize(self, self.file.close)
        self.file.truncate(nbytes)
        # shared: what somebody writes into a weight is in the file when its pages are given back
        self._map = mmap.mmap(self.file.fileno(), nbytes)
        self._data = torch.frombuffer(self._map, dtype=torch.uint8)
        self._spans: dict[int, FileSpan] = {}
        self._brought: dict[int, FileSpan] = {}  # what is brought in ahead: experts are read when tokens come to them
        self._end = 0
        self._order = {layer: i for i, layer in enumerate(layers)}
        self._thread = ThreadPoolExecutor(1, "layers")
        self._coming: dict[int, Future[None]] = {}

    @property
    def nbytes(self) -> int:
        return sum(span.nbytes for span in self._spans.values())

    def take(self, index: int, block: nn.Module, shared: frozenset[int]) -> None:
        """Have a layer from now on; where it was before it is let go of. ``shared``: tensors that others have too."""
        with torch.inference_mode(False), torch.no_grad():
            layout = layout_of(block, shared)
            span = FileSpan(self._end, whole_pages(layout.nbytes))
            mapped = self._data[span.start : span.start + span.nbytes]
            for laid in layout.tensors:
                self._write(laid.tensor, span.start + laid.start)
            replace_tensors(block, {id(laid.tensor): laid.view(mapped) for laid in layout.tensors})
            self._spans[index], self._end = span, span.start + span.nbytes
            self._brought[index] = FileSpan(span.start, layout.before_experts)
        self.end(index)

    def _write(self, tensor: Tensor, start: int) -> None:
        """Not through the map, whose pages would be resident."""
        self.file.seek(start)
        tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tofile(self.file)
        self.file.flush()

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise no_copy()

    def run(self, index: int, block: nn.Module, x: Tensor, ctx: Any) -> Tensor:
        if index not in self._spans:
            return block(x, ctx)
        check_not_compiled()
        check_no_gradient(x, block, self.layers)
        self.begin(index)
        try:
            return block(x, ctx)
        finally:
            self.end(index)

    def bound(self, index: int, block: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, index: int) -> None:
        if index in self._spans:
            following = self.layers[(self._order[index] + 1) % len(self.layers)]
            if following in self._spans and following != index:
                self._coming[following] = self._thread.submit(_bring, self._data.data_ptr(), self._brought[following])

    def end(self, index: int) -> None:
        if index in self._spans:
            if (coming := self._coming.pop(index, None)) is not None:
                coming.result()  # or it would bring pages in after they were given back
            self._map.madvise(mmap.MADV_DONTNEED, *self._spans[index])

    def ready(self) -> None:
        pass

    def captured(self) -> AbstractContextManager[None]:
        return nullcontext()

    def adopt(self, model: nn.Module) -> None:
        pass


def whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _bring(base: int, span: FileSpan) -> None:
    """Read pages in and map them. ``MADV_WILLNEED`` reads few of them, however many are named. Where the system does
    not know the other word, they are read when they are first used."""
    _libc().madvise(c_void_p(base + span.start), c_size_t(span.nbytes), POPULATE_READ)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # its calls let other threads run, those of ``mmap`` do not
