"""Attention as graphs of cuDNN's front end: each is planned once for a shape, and kept."""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

cudnn: Any = importlib.import_module("cudnn")  # it has no types

MAX_PLANS = 256  # that are kept: what has not run for longest is forgotten
MAX_PADDING = 4  # times the tokens, in the workspace of a backward pass over documents
TYPES = {
    torch.bfloat16: cudnn.data_type.BFLOAT16,
    torch.float16: cudnn.data_type.HALF,
    torch.float32: cudnn.data_type.FLOAT,
    torch.int32: cudnn.data_type.INT32,
    torch.int64: cudnn.data_type.INT64,
}


class GraphOptions(NamedTuple):
    """What a graph does, its tensors' shapes aside. Whole numbers, as an operator takes a list of them; 1 is true."""

    causal: int
    aligned_right: int  # the last query stands at the last key; else the first at the first
    window: int  # keys that a query sees at most, itself included; 0: no limit
    alibi: int  # the paper's slopes
    documents: int  # how many there are at most, each a row of its own; 0: rows are as they come
    longest: int  # tokens of a document at most
    empty: int  # there may be places behind the documents: 0 is written there


class Planned(NamedTuple):
    graph: Any
    uids: dict[str, int]  # cuDNN's numbers of its tensors, by what they are
    workspace: int  # bytes


_plans: OrderedDict[Any, Planned] = OrderedDict()
_lock = threading.Lock()
_threads = threading.local()


def planned(way: str, tensors: dict[str, Tensor], options: GraphOptions, scale: float) -> Planned:
    """The plan for tensors of these shapes: the kept one, or a new one."""
    device = tensors["q"].device
    shapes = tuple((name, x.dtype, x.shape, x.stride()) for name, x in tensors.items())
    key = (way, device.index, shapes, options._replace(empty=0), scale)
    with _lock:
        if (kept := _plans.get(key)) is not None:
            _plans.move_to_end(key)
            return kept
        plan = _build(way, tensors, options, scale)
        _plans[key] = plan
        while len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
        return plan


def execute(plan: Planned, uids: tuple[int, ...], tensors: tuple[Tensor, ...]) -> None:
    """``uids``: cuDNN's numbers of these tensors. The front end reads tensors in C++, 19 of them in 4 µs; addresses it
    describes one by one in Python, in 70."""
    device = tensors[0].device
    workspace = torch.empty(max(1, plan.workspace), device=device, dtype=torch.uint8)
    plan.graph.execute(tensors, workspace, handle=_handle(device), tensor_uids=uids)


class _Handle:
    """cuDNN's, and the stream that it has been told."""

    def __init__(self) -> None:
        self.of_cudnn, self.stream = cudnn.create_handle(), -1


def _handle(device: torch.device) -> Any:
    """One for each thread and device: the backward pass has a thread of its own."""
    handles: dict[int | None, _Handle] = _threads.__dict__.setdefault("handles", {})
    kept = handles.get(device.index)
    if kept is None:
        kept = handles[device.index] = _Handle()
    stream = torch._C._cuda_getCurrentRawStream(device.index)  # a stream as an object takes ten times as long
    if stream != kept.stream:
        cudnn.set_stream(handle=kept.of_cudnn, stream=stream)
        kept.stream = stream
    return kept.of_cudnn


CORE = {"forward": ("q", "k", "v"), "backward": ("q", "k", "v", "o", "dO", "stats")}
RESULTS = {"forward": ("o", "stats"), "backward": ("dq", "dk", "dv")}
PACKED = {name for way in (*CORE.values(), *RESULTS.values()) for name in way}  # with documents, one after the other


def _build(way: str, tensors: dict[str, Tensor], options: GraphOptions, scale: float) -> Planned:
    graph = cudnn.pygraph(
        io_data_type=TYPES[tensors["q"].dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=_handle(tensors["q"].device),
    )
    small = {name: _declare(graph, name, x) for name, x in tensors.items() if name not in PACKED}

    def declare(name: str) -> Any:
        declared = _declare(graph, name, tensors[name], options)
        return declared.set_ragged_offset(small[f"{name}_offsets"]) if options.documents else declared

    core = {name: declare(name) for name in CORE[way]}
    settings = _settings(options, small) | {"attn_scale": scale, "name": way}
    if way == "forward":
        results = graph.sdpa(**core, generate_stats=True, **settings)
    else:
        if options.documents:
            settings |= _bounds_of_all(options, tensors["q"])
        results = graph.sdpa_backward(**core, **settings)
    named = dict(zip(RESULTS[way], results, strict=True))
    for name, result in named.items():
        dim, stride = _layout(tensors[name], options)
        result.set_output(True).set_dim(dim).set_stride(stride).set_data_type(TYPES[tensors[name].dtype])
        if options.documents:
            result.set_ragged_offset(small[f"{name}_offsets"])
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    uids = {name: tensor.get_uid() for name, tensor in (small | core | named).items()}
    return Planned(graph, uids, graph.get_workspace_size())


def _settings(options: GraphOptions, inputs: dict[str, Any]) -> dict[str, Any]:
    aligned = cudnn.diagonal_alignment
    settings: dict[str, Any] = {
        "diagonal_alignment": aligned.BOTTOM_RIGHT if options.aligned_right else aligned.TOP_LEFT
    }
    if options.causal:
        settings["diagonal_band_right_bound"] = 0
    if options.window:
        settings["diagonal_band_left_bound"] = options.window
    if options.alibi:
        settings["use_alibi_mask"] = True
    if "sinks" in inputs:
        settings["sink_token"] = inputs["sinks"]
    if "d_sinks" in inputs:
        settings["dSink_token"] = inputs["d_sinks"]
    if options.documents:
        settings |= {"use_padding_mask": True, "seq_len_q": inputs["lengths"], "seq_len_kv": inputs["lengths"]}
    return settings


def _bounds_of_all(options: GraphOptions, q: Tensor) -> dict[str, int]:
    """How many tokens there are at most, where the float32 gradients that cuDNN adds up would take too much memory
    without it: as much as if all documents were the longest. With it, its product of output and gradient walks over
    all rows in a kernel that takes twice as long."""
    tokens = len(q) * q.shape[2]
    if options.documents * options.longest <= MAX_PADDING * tokens:
        return {}
    return {"max_total_seq_len_q": tokens, "max_total_seq_len_kv": tokens}


def _declare(graph: Any, name: str, x: Tensor, options: GraphOptions | None = None) -> Any:
    dim, stride = (list(x.shape), list(x.stride())) if options is None else _layout(x, options)
    return graph.tensor(name=name, dim=dim, stride=stride, data_type=TYPES[x.dtype])


def _layout(x: Tensor, options: GraphOptions) -> tuple[list[int], list[int]]:
    """Sizes and strides; of documents, those of one after another."""
    if not options.documents:
        return list(x.shape), list(x.stride())
    stride = [options.longest * x.stride(2), *x.stride()[1:]]
    return [options.documents, x.shape[1], options.longest, x.shape[3]], stride
