"""CUDA graphs, begun and ended by hand: before each ``torch.cuda.graph`` waits for the device, collects garbage and
empties the allocator, some 150 ms in which nobody gets a token."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable
from typing import Any

import torch


def captured(run: Callable[[], None], device: torch.device, pool: Any = None) -> Callable[[], None]:
    """``run`` as a graph, after a first time in which its kernels are compiled; as it is where there is no GPU.
    ``pool``: of ``torch.cuda.graph_pool_handle``, for graphs that never run at once."""
    if device.type != "cuda":
        return run
    run()
    try:
        return _by_hand(run, device, pool)
    except torch.OutOfMemoryError:  # while a graph is captured the allocator cannot give back what it keeps
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            run()
        return graph.replay


def _by_hand(run: Callable[[], None], device: torch.device, pool: Any) -> Callable[[], None]:
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # another graph that went now would be destroyed in the middle of this one
    try:
        with torch.cuda.stream(_stream(device)):
            graph.capture_begin(*(() if pool is None else (pool,)))
            try:
                run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it says that the capture failed, which is known
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    return graph.replay


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: torch's products keep a workspace for each stream."""
    return torch.cuda.Stream(device)
