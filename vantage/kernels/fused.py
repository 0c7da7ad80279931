"""Attention in one pass on a GPU, with the bias as its form: neither scores, nor a mask, nor a bias is ever formed."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from vantage.kernels.by_form import form_of_need, refuses_need, runs
from vantage.kernels.fused_operator import DISTANCE_KEYS, FusedAttention, FusedPlan
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.kernels.tile_ranges import TileRanges, tile_ranges
from vantage.spec.forms import (
    DistanceKeys,
    DistanceTable,
    LogDistance,
    PointwiseForm,
    PowerDistance,
    QueryAndKey,
    RowTable,
    Slope,
)
from vantage.spec.masks import visible
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions
from vantage.spec.registry import Entry

F = TypeVar("F", bound=Callable[..., Any])

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256  # of a head
LONGEST_TABLE = 1_024  # distances of a table that is learned: each query keeps a place for each of them
MOST_BANKED = 4_096  # distances of a table whose tiles are made beforehand
LOG2E = math.log2(math.e)
NUMBERS = {type(None): 0, Slope: 1, LogDistance: 2, PowerDistance: 3, DistanceTable: 4, RowTable: 5, QueryAndKey: 6}
NUMBERS[DistanceKeys] = DISTANCE_KEYS


class Fused:
    """In Triton. Forms of biases, the usual masks, places of any kind; forward and backward."""

    name = "fused"

    def __init__(self, block: int | None = None):
        self.block = block  # queries and keys of a tile; ``None``: what suits the width and the device

    def auto(self, device: str) -> bool:
        return device == "cuda"

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return cannot_run(q.device.type) or refuses_need(need, self.name) or _refuses_shape(need, q, view)

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        assert need.temperature is not None
        flags = mask_flags(visible(need.mask, pair))
        assert flags is not None, "a mask that was not refused"
        cool = 1 / need.temperature
        sinks = None if need.sinks is None else need.sinks.float() * cool
        if flags.nothing or 0 in (*q_BHTd.shape, view.k.shape[2]):
            return _nothing_seen(q_BHTd, view, sinks, need)
        block = self.block or _block(q_BHTd, view.v)
        form = form_of_need(need)
        if isinstance(form, DistanceKeys):
            bias = _distance_keys(form, flags, pair, block, q_BHTd)
        else:
            bias = _bias(form, flags, pair, cool, block)
        beyond = bias.beyond if flags.one_sided else None
        places = pair.once(("fused", flags, block, beyond), lambda: _lasting_places(pair, flags, block, beyond))
        out, lse = FusedAttention.apply(
            q_BHTd,
            view.k,
            view.v,
            bias.one,
            bias.two,
            sinks,
            *places,
            [int(x) for x in _plan(bias, flags, pair, block)],
            [need.scale, need.softcap or 0.0, cool, *bias.factor],
        )
        return Attended(out, lse=lse if need.lse else None)


# ---- what it refuses


def constant_when_compiled(function: F) -> F:
    """What ``torch.compiler.assume_constant_result`` sets. That brings torch's whole compiler along, which would take a
    third of the time that ``import vantage`` takes, for everybody."""
    setattr(function, "_dynamo_marked_constant", True)  # noqa: B010
    return function


@constant_when_compiled
def cannot_run(device: str) -> str | None:
    """Why there is no such kernel on this kind of device; ``None``: there is."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the fused kernel needs a GPU"
    if importlib.util.find_spec("triton") is None:
        return "the fused kernel needs Triton, which is not installed: pip install triton"
    return (
        None if device == "cpu" else _cannot_run_on_gpu() if device == "cuda" else "the fused kernel needs a CUDA GPU"
    )


@functools.cache
def _cannot_run_on_gpu() -> str | None:
    if torch.version.hip:
        return "the fused kernel was not tried on ROCm, where torch's own kernels run"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return "the fused kernel needs a GPU of compute capability 8.0 or later"
    return None


def _refuses_shape(need: Need, q: Tensor, view: View) -> str | None:
    if torch._C._are_functorch_transforms_active():
        return "the fused kernel has no rule for vmap"
    if q.dtype not in DTYPES or view.k.dtype != q.dtype or view.v.dtype != q.dtype:
        return f"the fused kernel works in bfloat16, float16 and float32, not in {q.dtype}"
    widths = q.shape[-1], view.v.shape[-1]
    if max(widths) > WIDEST:
        return f"the fused kernel has heads up to {WIDEST} wide, not {max(widths)}"
    if odd := [width for width in widths if width * q.element_size() % 16]:
        return f"the fused kernel needs heads of a multiple of {16 // q.element_size()} numbers, not {odd[0]}"
    form = form_of_need(need)
    if isinstance(form, DistanceKeys) and form.queries is not None:
        width = form.queries.shape[-1]
        if width * q.element_size() % 16 or width > max(widths):
            return f"the fused kernel needs vectors of distances as wide as its heads, not {width}"
    if isinstance(form, DistanceTable | RowTable) and form.values.shape[-1] > LONGEST_TABLE and _learns(form.values):
        return f"the fused kernel learns tables of up to {LONGEST_TABLE} distances, not {form.values.shape[-1]}"
    return None


def _learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


# ---- what it hands to Triton


class BiasTensors(NamedTuple):
    """A form as float32 tensors and numbers. ``beyond``: the distance from which on a row's bias is all alike, up to
    what ``shift_of`` (gpu/tiles.py) puts back; ``None``: nowhere."""

    form: int
    one: Tensor | None = None
    two: Tensor | None = None
    low: int = 0
    width: int = 0
    beyond: int | None = None
    banks: int = 0
    factor: tuple[float, ...] = ()
    own: bool = False


def _bias(form: PointwiseForm | None, flags: MaskFlags, pair: Pair, cool: float, block: int) -> BiasTensors:
    number = NUMBERS[type(form)]
    if form is None:
        return BiasTensors(number)
    if isinstance(form, Slope):
        return BiasTensors(number, _float(form.slopes, cool), beyond=0)
    if isinstance(form, LogDistance | PowerDistance):
        return BiasTensors(number, _float(form.a, cool), _float(form.p, 1.0))
    if isinstance(form, QueryAndKey):
        return BiasTensors(number, _float(form.by_query, cool), _float(form.by_key, cool))
    values, low = form.values, form.first
    if low < 0 and flags.one_sided and runs(pair):  # no query meets a negative distance
        values, low = values[..., min(-low, values.shape[-1] - 1) :], min(0, low + values.shape[-1] - 1)
    values, width = _float(values, cool), values.shape[-1]
    bank = None
    if isinstance(form, DistanceTable) and flags.one_sided and runs(pair) and width <= MOST_BANKED:
        bank = _bank(values.detach(), low, _offset(pair) % block, block)
    banks = 0 if bank is None else bank.shape[1]
    return BiasTensors(number, values, bank, low, width, low + width - 1, banks)


def _bank(values_HW: Tensor, low: int, rest: int, block: int) -> Tensor:
    """(H, n, block, block) in units of log2: the biases of tiles in which queries stand one block behind, none, one
    ahead and so on, and ``rest`` places, less what is far away. The last of them is 0 all over."""
    width, device = values_HW.shape[-1], values_HW.device
    n = -(-max(low + width, 1) // block) + 3
    along = torch.arange(block, device=device)
    distance = (torch.arange(n, device=device) - 1)[:, None, None] * block + rest + along[:, None] - along
    centred = (values_HW - values_HW[:, -1:]) * LOG2E
    return centred[:, (distance - low).clamp(0, width - 1)]


def _distance_keys(form: DistanceKeys, flags: MaskFlags, pair: Pair, block: int, q: Tensor) -> BiasTensors:
    """Queries, and vectors of all distances at which a key is seen, the furthest first. ``low`` is the row of the
    distance between the first query and the first key: a multiple of the block, so that tiles meet whole blocks."""
    assert runs(pair), "such a bias has a form where positions run on"
    T, S, off = pair.q.shape[1], pair.k.shape[1], _offset(pair)
    highest, lowest = T - 1 + off, off - S + 1
    if flags.one_sided:
        lowest = max(lowest, 0)
    if flags.window and not flags.prefix:
        highest, lowest = min(highest, flags.window - 1), max(lowest, 1 - flags.window)
    low = -(-(highest - off) // block) * block
    keys = form.keys(low + off, max(low + off - lowest + 1, 1)).to(q.dtype).expand(q.shape[1], -1, -1)
    if _learns(keys) or keys.stride()[1:] != (keys.shape[2], 1):
        keys = keys.contiguous()
    one = None
    if form.queries is not None:
        one = form.queries.to(q.dtype)
    elif form.offset is not None:
        one = (keys * form.offset.to(keys.dtype)[:, None]).sum(-1, dtype=torch.float32)  # without a wider copy of keys
    return BiasTensors(DISTANCE_KEYS, one, keys, low, keys.shape[1], factor=(form.factor,), own=form.queries is None)


def _offset(pair: Pair) -> int:
    """The first query less the first key, where places run on."""
    return (pair.q.known.first or 0) - (pair.k.known.first or 0)


def _float(x: Tensor, factor: float) -> Tensor:
    x = x.float()
    return (x if factor == 1.0 else x * factor).contiguous()


def _block(q: Tensor, v: Tensor) -> int:
    from vantage.kernels.gpu.operators import block_for

    return block_for(q, v)


def _plan(bias: BiasTensors, flags: MaskFlags, pair: Pair, block: int) -> FusedPlan:
    run = runs(pair)
    return FusedPlan(
        form=bias.form,
        one_sided=bias.beyond is not None and flags.one_sided,
        learned=_learns(
            *(x for x in (bias.one, bias.two)[bias.form == DISTANCE_KEYS and not bias.own :] if x is not None)
        ),
        run=run,
        fractional=not run and _fractional(pair),
        off=_offset(pair) if run else 0,
        origin=pair.k.known.first or 0,
        low=bias.low,
        width=bias.width,
        banks=bias.banks,
        empty=not run and (pair.q.known.empty or pair.k.known.empty),
        causal=flags.causal,
        window=flags.window,
        chunk=flags.chunk,
        prefix=flags.prefix,
        segments=flags.segments,
        block=block,
        own_queries=bias.own,
    )


def _fractional(pair: Pair) -> bool:
    return pair.q.pos.is_floating_point() or pair.k.pos.is_floating_point()


def _lasting_places(
    pair: Pair, flags: MaskFlags, block: int, beyond: int | None
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Made so that a pass with gradients may keep what one without has made first."""
    if torch.compiler.is_compiling():
        return _places(pair, flags, block, beyond)
    with torch.inference_mode(False):
        return _places(pair, flags, block, beyond)


def _places(
    pair: Pair, flags: MaskFlags, block: int, beyond: int | None
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Places of queries and keys, where they do not run on, and the tiles to visit."""
    if runs(pair) and not torch.compiler.is_compiling():
        (_, T), (_, S), first = pair.q.shape, pair.k.shape, pair.k.known.first or 0
        ranges = _ranges_of_runs(_offset(pair), first, T, S, flags, block, beyond, pair.q.device)
    else:
        ranges = tile_ranges(pair, flags, block, beyond)
    if runs(pair):
        return None, None, ranges.keys, ranges.queries
    q, k = (_as_integers(at, pair.rows, _fractional(pair)) for at in (pair.q, pair.k))
    return q, k, ranges.keys, ranges.queries


@functools.lru_cache(maxsize=256)
def _ranges_of_runs(
    off: int, first: int, T: int, S: int, flags: MaskFlags, block: int, beyond: int | None, device: torch.device
) -> TileRanges:
    """Kept from pass to pass: lengths come again, and these are a few kilobytes."""
    k = Positions.arange(1, S, first, device=device)
    return tile_ranges(Positions.arange(1, T, first + off, device=device).against(k), flags, block, beyond)


def _as_integers(at: Positions, rows: int, fractional: bool) -> Tensor:
    """(3, R, N), int32: order, position (its bits where it is fractional) and segment."""
    order, pos = at.order[:rows].to(torch.int32), at.pos[:rows]
    pos = pos.to(torch.float32).view(torch.int32) if fractional else pos.to(torch.int32)
    segment = torch.zeros_like(order) if at.segment is None else at.segment[:rows].to(torch.int32)
    return torch.stack((order, pos, segment))


def _nothing_seen(q: Tensor, view: View, sinks: Tensor | None, need: Need) -> Attended:
    """Where there is no key for anyone: 0, and a log-sum-exp of the sinks alone."""
    B, H, T, _ = q.shape
    out = q.new_zeros(B, H, T, view.v.shape[-1])
    if not need.lse:
        return Attended(out)
    lse = q.new_full((B, H, T), float("-inf"), dtype=torch.float32)
    if sinks is not None:
        lse = (sinks[None, :, None] if sinks.dim() == 1 else sinks).expand(B, H, T)
    return Attended(out, lse=lse)


ENTRY = Entry(
    "fused",
    Fused,
    "Fused",
    "One pass in Triton on a GPU, forward and backward: masks and biases by form, nothing as large as the scores.",
    variants={},  # it needs a GPU; tests of its own hold it to the reference, with Triton's interpreter as well
)
