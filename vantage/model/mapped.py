"""Layers in a file, mapped into memory: for a CPU whose memory does not hold the model.

The file is a scratch file with the weights as the kernels want them, joined and packed; it has no name and is gone with
the process. After a layer has run its pages are given back, and the kernel is told early which layer comes next. So
no more than a layer or two of these are resident, wherever the native kernels or torch's read them.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from vantage.errors import Refused
from vantage.model.placement import check_no_gradient, check_not_compiled, layout_of, replace_tensors


class Span(NamedTuple):
    """Bytes of the file, in whole pages."""

    start: int
    nbytes: int


@final
class MappedLayers:
    """The weights of some layers. They stay where they are mapped, so programs over them hold."""

    def __init__(self, folder: Path, layers: tuple[int, ...], nbytes: int, capacity: int | None = None):
        """``folder``: where the scratch file is written. ``nbytes``: of all layers together, each in whole pages."""
        self.layers, self.capacity = layers, capacity
        free = shutil.disk_usage(folder).free
        if nbytes > free:
            raise Refused(
                f"the layers that memory does not hold need {nbytes:,} bytes in {folder}, which has {free:,} free: "
                "name another folder in VANTAGE_HOME"
            )
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as this lives)
        weakref.finalize(self, self._file.close)
        self._file.truncate(nbytes)
        # shared: what somebody writes into a weight is in the file when its pages are given back
        self._map = mmap.mmap(self._file.fileno(), nbytes)
        self._data = torch.frombuffer(self._map, dtype=torch.uint8)
        self._spans: dict[int, Span] = {}
        self._end = 0
        self._order = {layer: i for i, layer in enumerate(layers)}

    @property
    def nbytes(self) -> int:
        return sum(span.nbytes for span in self._spans.values())

    def take(self, index: int, block: nn.Module, shared: frozenset[int]) -> None:
        """Have a layer from now on; where it was before it is let go of. ``shared``: tensors that others have too."""
        with torch.inference_mode(False), torch.no_grad():
            layout = layout_of(block, shared)
            span = Span(self._end, whole_pages(layout.nbytes))
            mapped = self._data[span.start : span.start + span.nbytes]
            for laid in layout.tensors:
                self._write(laid.tensor, span.start + laid.start)
            replace_tensors(block, {id(laid.tensor): laid.view(mapped) for laid in layout.tensors})
            self._spans[index], self._end = span, span.start + span.nbytes
        os.fdatasync(self._file.fileno())  # what is not written yet cannot be given back
        self.end(index)

    def _write(self, tensor: Tensor, start: int) -> None:
        """Not through the map, whose pages would be resident."""
        data = memoryview(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())
        self._file.seek(start)
        self._file.write(data)
        self._file.flush()

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
        """The next of these layers is read from the file while this one runs."""
        if index in self._spans:
            following = self.layers[(self._order[index] + 1) % len(self.layers)]
            if following in self._spans:
                self._map.madvise(mmap.MADV_WILLNEED, *self._spans[following])

    def end(self, index: int) -> None:
        if index in self._spans:
            self._map.madvise(mmap.MADV_DONTNEED, *self._spans[index])

    def ready(self) -> None:
        pass

    def captured(self) -> AbstractContextManager[None]:
        return nullcontext()

    def adopt(self, model: nn.Module) -> None:
        pass


def whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
