"""cuDNN's attention by its own front end, which can do what torch's call of it cannot: ALiBi, windows, documents, and
queries behind a cache. An optional dependency: ``pip install vantage[cudnn]``."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vantage.kernels.alignment import side_by_side
from vantage.kernels.by_form import form_of_need, refuses_need, runs
from vantage.kernels.compiler_constants import constant_when_compiled
from vantage.kernels.cudnn_operator import attend, forward_op, suits
from vantage.kernels.documents import (
    blocks_of_keys,
    blocks_of_rows,
    document_starts,
    documents_on_hopper,
    gradients_on_hopper,
    may_add_up,
    rows_on_hopper,
)
from vantage.kernels.fused import Fused
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.kernels.recurring import RecurringShapes
from vantage.spec.forms import Slope, alibi_slopes
from vantage.spec.masks import visible
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions
from vantage.spec.registry import Entry
from vantage.spec.rounding import ceil_div, next_power_of_2

if TYPE_CHECKING:
    from vantage.kernels.gpu.cudnn_calls import PassCalls

MIN_QUERIES = 512  # queries from which on a plan is worth its time
PAYS_AFTER = 5e14  # operations in which a plan of 0.2 s is won back: 450 and 560 TFLOP/s, fused and planned
MAX_SHAPES = 64  # that are planned for
WIDEST = 256  # of a head
OLDEST = 91_900  # version of cuDNN that was tried


class Cudnn:
    """Plans are made for shapes that come again, and kept. What ``refuses`` cannot see, where the queries stand, is
    looked at in the call; queries that are not the last of the keys go to the fused kernel."""

    name = "cudnn"

    def __init__(self) -> None:
        self.shapes = RecurringShapes(PAYS_AFTER, plans=MAX_SHAPES)
        self.elsewhere = Fused()

    def auto(self, device: str) -> bool:
        return device == "cuda"

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return (
            cannot_run(q.device.type)
            or refuses_need(need, self.name)
            or _refuses_kind(need)
            or _refuses_places(need, q, view)
            or _refuses_shape(need, q, view)
        )

    def yields(self, need: Need, q: Tensor, view: View) -> bool:
        """Where a row is short, or nobody knows that its shape comes again; and where sinks are learned by a kernel of
        our own, which is faster."""
        if need.sinks is not None and gradients_on_hopper(need, q, view):
            return True
        T, S = q.shape[2], view.k.shape[2]
        if T < MIN_QUERIES or torch.compiler.is_compiling():  # nobody counts passes in compiled code
            return True
        flags = mask_flags(need.mask)
        assert flags is not None, "a mask that was not refused"
        documents = _rounded(view.pos)
        sinks, bias = need.sinks is not None, need.bias is not None
        shape = (q.shape, view.k.shape, view.v.shape, q.dtype, q.device, flags, documents, sinks, bias, need.scale)
        pairs = len(q) * q.shape[1] * T * min(S, flags.window or S)
        return not self.shapes.planned((*shape, torch.is_grad_enabled()), view.pos, 4.0 * pairs * q.shape[3])

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        assert need.temperature is not None
        sinks = need.sinks
        if torch.compiler.is_compiling():
            if (graph := _graph(q_BHTd, view.k, view.v, pair, need)) is None:
                return self.elsewhere(q_BHTd, view, pair, need)
            sinks = None if sinks is None else sinks.float() / need.temperature
            return Attended(forward_op(q_BHTd, view.k, view.v, sinks, graph.options, graph.scale)[0])
        learning = torch.is_grad_enabled()
        layers_share = (need.mask, need.scale, need.temperature, need.bias is None, sinks is None, learning)
        key = ("cudnn", layers_share, *(_layout(x) for x in (q_BHTd, view.k, view.v)))
        shared = pair.once(key, lambda: _layer_calls(q_BHTd, view.k, view.v, pair, need))
        if shared is None:
            return self.elsewhere(q_BHTd, view, pair, need)
        q, k, v = (
            x if as_it_is else side_by_side(x)
            for x, as_it_is in zip((q_BHTd, view.k, view.v), shared.as_they_are, strict=True)
        )
        sinks = None if sinks is None else sinks.float() / need.temperature
        return Attended(attend(q, k, v, sinks, shared.calls))


# ---- what it refuses


@constant_when_compiled
def cannot_run(device: str) -> str | None:
    """Why there is no such kernel on this kind of device; ``None``: there is."""
    return _cannot_run_on_gpu() if device == "cuda" else "the cudnn kernel needs a CUDA GPU"


@functools.cache
def _cannot_run_on_gpu() -> str | None:
    if torch.version.hip:
        return "the cudnn kernel needs a GPU of NVIDIA's"
    if importlib.util.find_spec("cudnn") is None:
        return "the cudnn kernel needs cuDNN's front end, which is not installed: pip install vantage[cudnn]"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
        return "the cudnn kernel was tried on compute capability 9.0 (Hopper) alone"
    if (version := torch.backends.cudnn.version() or 0) < OLDEST:
        return f"the cudnn kernel needs cuDNN {OLDEST} or later, not {version}"
    return None


def _refuses_kind(need: Need) -> str | None:
    if need.lse:
        return "the cudnn kernel has no gradient of the log-sum-exp"
    if need.value_bias is not None:
        return "a value bias needs the weights, which cuDNN does not form"
    if need.softcap is not None:
        return "cuDNN has no softcap beside a mask"
    if need.sinks is not None and need.sinks.dim() != 1:
        return "the cudnn kernel has one sink for each head, not one for each query"
    form = form_of_need(need)
    if form is not None and not (isinstance(form, Slope) and form.numbers == alibi_slopes(len(form.slopes))):
        return f"cuDNN has no bias but ALiBi's with the slopes of its paper, not {type(form).__name__}"
    if form is not None and (need.temperature != 1.0 or (form.slopes.requires_grad and torch.is_grad_enabled())):
        return "cuDNN's slopes are neither learned nor divided by a temperature"
    flags = mask_flags(need.mask)
    if flags is None or flags.chunk or flags.prefix or flags.nothing or (flags.window and not flags.causal):
        return f"the cudnn kernel knows causal masks, windows before a query and documents, not {need.mask!r}"
    if form is not None and not flags.causal:
        return "the cudnn kernel has slopes under a causal mask alone"
    return None


def _refuses_places(need: Need, q: Tensor, view: View) -> str | None:
    known, square = view.pos.known, q.shape[2] == view.k.shape[2]
    if view.pos.segment is not None:
        flags = mask_flags(need.mask)
        if flags is None or not flags.segments or not square:
            return "the cudnn kernel has documents in one pass that see themselves alone"
        if known.documents is None or torch.compiler.is_compiling():
            return "the cudnn kernel needs documents one behind the other, and a host that knows how many"
        if need.sinks is not None:
            return "cuDNN has no gradient of sinks over documents"
        return None
    if known.first is None:
        return "the cudnn kernel needs keys that stand one after another, with none empty"
    if need.bias is not None and not square:
        return "cuDNN has no bias for queries behind a cache"
    return None


def _refuses_shape(need: Need, q: Tensor, view: View) -> str | None:
    if torch._C._are_functorch_transforms_active():
        return "the cudnn kernel has no rule for vmap"
    if q.dtype not in (torch.bfloat16, torch.float16) or view.k.dtype != q.dtype or view.v.dtype != q.dtype:
        return f"the cudnn kernel works in bfloat16 and float16, not in {q.dtype}"
    widths = q.shape[-1], view.v.shape[-1]
    if max(widths) > WIDEST or any(width % 8 for width in widths):
        return f"the cudnn kernel has heads of a multiple of 8 numbers up to {WIDEST}, not {max(widths)}"
    if q.shape[2] > view.k.shape[2] or not q.shape[2]:
        return "the cudnn kernel needs at least as many keys as queries, and a query"
    if q.shape[2] == 1 and need.sinks is not None:
        return "cuDNN has no sinks for a single query"
    return None


# ---- what it hands to cuDNN


class Graph(NamedTuple):
    """What a graph is told: offsets and lengths of documents, gpu/cudnn_graphs.GraphOptions, the scale."""

    offsets: Tensor | None
    lengths: Tensor | None
    options: list[int]
    scale: float


class LayerCalls(NamedTuple):
    """What layers of a pass share whose tensors lie alike."""

    calls: PassCalls
    as_they_are: tuple[bool, bool, bool]  # q, k and v need no copy


def _layer_calls(q: Tensor, k: Tensor, v: Tensor, pair: Pair, need: Need) -> LayerCalls | None:
    from vantage.kernels.gpu.cudnn_calls import PassCalls

    graph = _graph(q, k, v, pair, need)
    if graph is None:
        return None
    q_, k_, v_ = (suits(x, packed=graph.offsets is not None) for x in (q, k, v))
    key_blocks = _key_blocks(q, k, v, pair, need) if torch.is_grad_enabled() else None
    form = form_of_need(need)
    slopes = form.slopes.float().contiguous() if isinstance(form, Slope) and key_blocks is not None else None
    calls = PassCalls(graph.options, graph.scale, graph.offsets, graph.lengths, key_blocks, slopes)
    return LayerCalls(calls, (q_, k_, v_))


def _key_blocks(q: Tensor, k: Tensor, v: Tensor, pair: Pair, need: Need) -> Tensor | None:
    """Of rows and documents whose gradients gpu/hopper_rows_backward.py makes, which is faster than cuDNN."""
    flags = mask_flags(visible(need.mask, pair))
    if flags is None or need.sinks is not None:
        return None
    if (documents := documents_on_hopper(q, k, v, flags, pair)) is not None:
        return blocks_of_keys(q, k, pair, documents) if need.bias is None else None
    if not rows_on_hopper(q, k, v, flags, pair) or not may_add_up(q, k, len(q)):
        return None
    return blocks_of_rows(len(q), q.shape[2], flags.window, q.device)[1]


def _graph(q: Tensor, k: Tensor, v: Tensor, pair: Pair, need: Need) -> Graph | None:
    """``None``: the queries are not the last of the keys."""
    assert need.temperature is not None
    flags = mask_flags(visible(need.mask, pair))
    if flags is None or not _stands_last(flags, pair):
        return None
    documents = _rounded(pair.k) if flags.segments else (0, 0)
    assert documents is not None, "documents that were not refused"
    offsets = lengths = None
    if packed := documents[0] > 0:
        strides = _token_strides(q, k, v, *(suits(x, packed=True) for x in (q, k, v)))
        offsets, lengths = _documents(pair, *documents, strides)
    options = [
        flags.causal,
        q.shape[2] != k.shape[2] and flags.causal,
        flags.window,
        need.bias is not None,
        *documents,
        packed and pair.q.known.empty,
    ]
    return Graph(offsets, lengths, [int(x) for x in options], need.scale / need.temperature)


def _stands_last(flags: MaskFlags, pair: Pair) -> bool:
    """Whether the queries are the last of the keys, all of them where there are documents."""
    if flags.segments:
        return pair.q.order is pair.k.order and pair.q.segment is pair.k.segment
    if not flags.causal:
        return runs(pair)
    (_, T), (_, S), q, k = pair.q.shape, pair.k.shape, pair.q.known.first, pair.k.known.first
    return q is not None and k is not None and q + T == k + S


def _rounded(at: Positions) -> tuple[int, int] | None:
    """How many documents and how long at most, rounded up so that plans are few. (0, 0): there are none."""
    if at.segment is None:
        return 0, 0
    if at.known.documents is None:
        return None
    count, longest = at.known.documents
    step = max(128, next_power_of_2(longest) // 8)  # at most four lengths between two powers of two
    return next_power_of_2(count), ceil_div(longest, step) * step


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.storage_offset() % (16 // x.element_size())


def _token_strides(q: Tensor, k: Tensor, v: Tensor, *as_they_are: bool) -> tuple[int, ...]:
    """From one token to the next: of q, k, v, the output, the log-sum-exp, and the gradients of q, k and v."""
    (_, H, _, d), (_, G, _, e) = q.shape, v.shape
    alone = H * d, G * d, G * e
    given = (x.stride(2) if kept else n for x, kept, n in zip((q, k, v), as_they_are, alone, strict=True))
    return *given, H * e, 1, *alone


def _documents(pair: Pair, most: int, longest: int, strides: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Where documents begin in memory, (n, most + 1, 1, 1, 1) for each of n strides, and their lengths (most, 1, 1, 1).
    Those that there are not are empty, and begin where the last one ends. Made once for all layers."""

    def make() -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):  # they serve training as well
            starts, lengths = document_starts(pair.q, most)
            return torch.stack([starts * stride for stride in strides])[..., None, None, None], lengths[
                :, None, None, None
            ]

    return pair.once(("cudnn", most, longest, strides), make)


ENTRY = Entry(
    "cudnn",
    Cudnn,
    "cuDNN",
    "cuDNN's own attention on a Hopper GPU, for shapes that come again: causal, ALiBi, windows, documents.",
    variants={},  # it needs a GPU and an optional package; tests of its own hold it to the reference
)
