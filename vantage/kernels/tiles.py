"""Attention tile by tile on a CPU, with the bias as its form: neither scores, nor a mask, nor a bias is ever formed.

What ``fused`` is on a GPU, without a backward pass (kernels/native/tiles.h).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.kernels.by_form import form_of_need, refuses_need, runs
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.kernels.native import BiasKind, TileCall, native
from vantage.kernels.native.build import enabled
from vantage.kernels.reference import Reference
from vantage.kernels.tile_ranges import tile_ranges
from vantage.spec.forms import CountTable, DistanceKeys, PointwiseForm, QueryAndKey, RatioNetwork, RatioPieces, RowTable
from vantage.spec.masks import visible
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Place, Positions
from vantage.spec.registry import Entry

TILE = 64  # as tiles.h has it
MAX_DISTANCES = 2**22  # distances of a bias that are worked out beforehand, for every head
NO_PLACE = -1


class Tiles:
    """In C++, float32, without gradients. Forms of biases, the usual masks, places of any kind."""

    name = "tiles"

    def auto(self, device: str) -> bool:
        return device == "cpu"

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return refuses_need(need, self.name) or _refuses_inputs(need, q, view)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        library, flags = native(), mask_flags(visible(need.mask, pair))
        assert flags is not None, "a mask that was not refused"
        assert library is not None, "asked for before"
        form = form_of_need(need)
        assert not isinstance(form, DistanceKeys | CountTable), "a form that was not refused"
        (B, H, T, _), (_, G, S, _), e = q_BHTd.shape, view.k.shape, view.v.shape[-1]
        bias = bias_numbers(form, pair, H)
        if bias is None or flags.nothing or 0 in (B, T, S):
            # nothing to see, or distances that only the pair shows to be too many: few tokens stand so far apart
            return Reference()(q_BHTd, view, pair, need)
        assert need.temperature is not None
        cool = 1 / need.temperature
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTd, view.k, view.v))
        out = q.new_empty(B, T, H, e).transpose(1, 2)  # as the output map wants it
        lse = q.new_empty(B, H, T) if need.lse else None
        call = TileCall()
        call.put(q=q, k=k, v=v, out=out, lse=lse)
        places = pair.once(("tiles", flags), lambda: tile_places(pair, flags))
        call.put(q_at=places.queries, k_at=places.keys, ranges=places.ranges)
        call.put(bias=_scaled(bias.values, cool), by_key=_scaled(bias.by_key, cool), sinks=_scaled(need.sinks, cool))
        for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
            getattr(call, f"{name}_step")[:] = x.stride()[:3]
        call.rows, call.batch, call.heads, call.kv_heads, call.queries, call.keys = pair.rows, B, H, G, T, S
        call.key_dim, call.value_dim, call.first, call.length = q.shape[-1], e, bias.first, bias.length
        call.bias_kind, call.running, call.sink_of_query = bias.kind, bias.runs, _of_query(need.sinks)
        call.causal, call.window, call.chunk, call.prefix, call.segments = flags[:5]
        call.scale, call.softcap, call.cool = need.scale, need.softcap or 0.0, cool
        library.attend(call)
        return Attended(out, lse=lse)


# ---- what it refuses


def _refuses_inputs(need: Need, q: Tensor, view: View) -> str | None:
    if isinstance(form_of_need(need), CountTable):
        return "the tiles kernel knows biases by distance, and this one counts keys"
    if isinstance(form_of_need(need), DistanceKeys):
        return "the tiles kernel has no biases that are products of their own"
    if q.device.type != "cpu":
        return f"the tiles kernel runs on a CPU, not on {q.device.type}"
    if not (q.dtype == view.k.dtype == view.v.dtype == torch.float32):
        return f"the tiles kernel works in float32, not in {q.dtype}"
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return "the tiles kernel cannot be compiled into a graph, nor has it a rule for vmap"
    form = form_of_need(need)
    if need.value_bias is not None:
        return "a value bias needs the weights, which the tiles kernel does not form"
    if isinstance(form, RatioPieces | RatioNetwork):
        return "the tiles kernel knows biases by distance, and this one is of a ratio of positions"
    if form is not None and not isinstance(form, QueryAndKey) and view.pos.pos.is_floating_point():
        return "the tiles kernel knows biases by whole distances, and these positions are fractions"
    learned = (q, view.k, view.v, need.sinks, *(vars(form).values() if form is not None else ()))
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in learned):
        return "the tiles kernel has no backward pass"
    if not enabled() or native() is None:
        return "the tiles kernel is native code, which is turned off or cannot be built here"
    return None


# ---- what it hands to C++


class BiasNumbers(NamedTuple):
    """A form as numbers. ``first``: the distance from key to query that the first entry stands for; ``runs``: the
    queries of a tile stand one after another, and so do their entries."""

    kind: BiasKind
    values: Tensor | None = None
    by_key: Tensor | None = None
    first: int = 0
    length: int = 0
    runs: bool = False


def bias_numbers(form: PointwiseForm | None, pair: Pair, heads: int) -> BiasNumbers | None:
    """``None``: positions for which distances cannot be worked out beforehand."""
    if form is None:
        return BiasNumbers(BiasKind.NONE)
    if isinstance(form, QueryAndKey):
        return BiasNumbers(BiasKind.QUERY_AND_KEY, form.by_query, form.by_key)
    if pair.q.pos.is_floating_point() or pair.k.pos.is_floating_point():
        return None
    if isinstance(form, RowTable):
        return BiasNumbers(BiasKind.QUERY_AND_DISTANCE, form.values, None, form.first, form.values.shape[-1])
    lowest, highest = pair.once("tiles: distances", lambda: _distances(pair))
    length = highest - lowest + 1
    if length > MAX_DISTANCES:
        return None
    length += TILE  # a run of queries is read on to the end of its tile
    distance, head = torch.arange(lowest, lowest + length), torch.arange(heads)[:, None]
    zero = torch.zeros_like(distance)
    values = form(head, head, zero, Place(distance, distance, None), Place(zero, zero, None))
    return BiasNumbers(BiasKind.DISTANCE, values, None, lowest, length, runs(pair))


def _distances(pair: Pair) -> tuple[int, int]:
    """The lowest and highest distance from a key to a query."""
    (q_low, q_high), (k_low, k_high) = ((int(at.pos.amin()), int(at.pos.amax())) for at in (pair.q, pair.k))
    return q_low - k_high, q_high - k_low


class TilePlaces(NamedTuple):
    """(4, R, N) int32 each, N being whole tiles, and which tiles there are to visit."""

    queries: Tensor
    keys: Tensor
    ranges: Tensor


def tile_places(pair: Pair, flags: MaskFlags) -> TilePlaces:
    q_first, k_first = pair.q.known.first, pair.k.known.first
    if q_first is not None and k_first is not None and (start := min(q_first, k_first)) < 0:
        # a run has no empty places, whatever its numbers are
        q = Positions.arange(1, pair.q.shape[1], q_first - start)
        pair = q.against(Positions.arange(1, pair.k.shape[1], k_first - start))
    ranges = tile_ranges(pair, flags, TILE, None).keys.contiguous()
    return TilePlaces(_numbers(pair.q, pair.rows, flags), _numbers(pair.k, pair.rows, flags), ranges)


def _numbers(at: Positions, rows: int, flags: MaskFlags) -> Tensor:
    """Order, position, segment and first order of its chunk. Behind the last one places are empty; positions run on."""
    order = at.order[:rows].to(torch.int32)
    segment = torch.zeros_like(order) if at.segment is None else at.segment[:rows].to(torch.int32)
    pos = at.pos[:rows].to(torch.int32)
    chunk = order - (order - segment) % flags.chunk if flags.chunk else segment
    missing = -order.shape[1] % TILE
    beyond = pos[:, -1:] + torch.arange(1, missing + 1, dtype=torch.int32)
    order, segment, chunk = (F.pad(x, (0, missing), value=NO_PLACE) for x in (order, segment, chunk))
    return torch.stack((order, torch.cat((pos, beyond), 1), segment, chunk))


def _of_query(sinks: Tensor | None) -> bool:
    return sinks is not None and sinks.dim() > 1


def _scaled(x: Tensor | None, factor: float) -> Tensor | None:
    return None if x is None else (x.float() * factor if factor != 1.0 else x.float()).contiguous()


ENTRY = Entry(
    "tiles",
    Tiles,
    "Native tiles",
    "One pass in C++ on a CPU, forward alone: masks and biases by form, nothing as large as the scores.",
    variants={},  # float32 alone; tests of its own hold it to the reference
)
