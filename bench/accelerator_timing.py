"""Timing on a GPU: contestants in turn, as a host launches them or as graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

CALLS, REPEATS = 10, 3  # between two events, and of those the median
CAPTURED = 5  # calls of a graph


def side_by_side(contestants: dict[str, Callable[[], Any]], calls: int = CALLS) -> dict[str, float]:
    """Milliseconds of each. In turn: a GPU that has grown warm is slower for everybody."""
    for call in contestants.values():
        call()

    def repeated(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                call()

        return run

    return {name: ms / calls for name, ms in _in_turn({n: repeated(call) for n, call in contestants.items()}).items()}


def on_device(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The same as graphs, so that no time of the host's is in it. Who cannot be a part of a graph is left out."""
    graphs = {}
    for name, call in contestants.items():
        try:
            graphs[name] = captured(call)
        except RuntimeError:  # torch's and Triton's errors while a stream is captured
            torch.cuda.synchronize()
    return {name: ms / CAPTURED for name, ms in _in_turn({n: graph.replay for n, graph in graphs.items()}).items()}


def captured(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph of some calls, one after the other. The stream that they run on is not the default one, which cannot be
    captured: gradients go to the stream on which their leaves were first used."""
    for _ in range(2):  # what is made once is made before
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(CAPTURED):
            call()
    graph.replay()
    return graph


def _in_turn(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Each begins behind calls of its own that are not counted, as in a model of several layers: else the way from a
    call to its first kernel would be counted, which ten long calls hide and ten short ones do not. A host that is
    slower than the GPU is waited for all the same."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            samples[name].append(start.elapsed_time(end))
    return {name: statistics.median(taken) for name, taken in samples.items()}
