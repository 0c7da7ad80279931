"""Attention in one pass on a GPU, with the bias as its form: neither scores, nor a mask, nor a bias is ever formed."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor

from vantage.kernels.by_form import form_of_need, refuses_need, runs
from vantage.kernels.compiler_constants import constant_when_compiled
from vantage.kernels.documents import (
    HOPPER_TILE,
    blocks_of_keys,
    blocks_of_queries,
    blocks_of_rows,
    documents_on_hopper,
    is_side_by_side,
    may_add_up,
    rows_on_hopper,
)
from vantage.kernels.fused_bias import (
    BiasTensors,
    bank,
    bias_tensors,
    break_points,
    count_table,
    distance_keys,
    form_to_run,
    learns,
    offset,
    with_bank,
    with_values,
)
from vantage.kernels.fused_operator import BACKWARD, DISTANCE_KEYS, FORWARD, SLOPE, TABLES, FusedPlan, attend
from vantage.kernels.gluon import has_gluon
from vantage.kernels.mask_flags import MaskFlags, mask_flags
from vantage.kernels.tile_ranges import TileRanges, tile_ranges
from vantage.spec.forms import (
    CountTable,
    DistanceKeys,
    DistanceTable,
    Form,
    RatioNetwork,
    RatioPieces,
    RowTable,
    ValueTable,
    value_form_of,
)
from vantage.spec.masks import visible
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions
from vantage.spec.registry import Entry

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256  # of a head
LONGEST_TABLE = 1_024  # distances of a table that is learned: each query keeps a place for each of them
WIDEST_VALUES = 129  # distances that a value may have a vector for: they are one tile
MAX_BREAKS = 64  # break points of a function in pieces
WIDE_HEAD = 128  # with heads of 64 it is no faster than the pass for all GPUs
LONG_ROW = 1_024  # tokens from which on gpu/causal_rows.py is slower than the backward pass for Hopper
WIDE_ALWAYS, WIDE_ONE_SIDED = {0, 6}, {1, 2, 3, 4}  # forms by number, as in fused_bias.NUMBERS


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
        form = form_to_run(need, q_BHTd)
        block = self.block or _block(q_BHTd, view.v, form)
        if isinstance(form, DistanceKeys):
            bias = distance_keys(form, flags, pair, block, q_BHTd)
        elif isinstance(form, CountTable):
            bias = count_table(form, q_BHTd)
        else:
            bias = bias_tensors(form, flags, pair, cool, block, q_BHTd.shape[:2])
        if need.value_bias is not None:
            bias = with_values(bias, value_form_of(need.value_bias))
        plan = _plan(bias, flags, pair, block)
        plan = plan._replace(whole_rows=_whole_rows(q_BHTd, view, need, plan))
        places: tuple[Tensor | None, ...] = (None,) * 4
        if plan.whole_rows != FORWARD | BACKWARD:
            beyond = bias.beyond if flags.one_sided else None
            places = pair.once(("fused", flags, block, beyond), lambda: _lasting_places(pair, flags, block, beyond))
        rows = _rows_on_hopper(q_BHTd, view, flags, pair, need, plan)
        wide = _wide(q_BHTd, view, bias, flags, pair) if rows.queries is None else (rows.queries, None)
        if (
            plan.form == TABLES[0]
            and plan.banks
            and (torch.is_grad_enabled() or not (plan.whole_rows or wide[0] is not None))
        ):
            bias = with_bank(bias, pair, block)
        out, lse = attend(
            q_BHTd,
            view.k,
            view.v,
            bias.one,
            bias.two,
            sinks,
            *places,
            *wide,
            rows.keys,
            rows.positions,
            [int(x) for x in plan],
            [need.scale, need.softcap or 0.0, cool, *bias.factor],
        )
        return Attended(out, lse=lse if need.lse else None)


# ---- what it refuses


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
    if isinstance(form, DistanceTable | RowTable) and form.values.shape[-1] > LONGEST_TABLE and learns(form.values):
        return f"the fused kernel learns tables of up to {LONGEST_TABLE} distances, not {form.values.shape[-1]}"
    if (n := break_points(form)) > MAX_BREAKS:
        return f"the fused kernel has functions of up to {MAX_BREAKS} break points, not {n}"
    if isinstance(form, CountTable):
        flags = mask_flags(need.mask)
        if flags is None or not (flags.one_sided or flags.nothing):
            return "the fused kernel counts keys back from a query, where it does not look ahead"
    if need.value_bias is not None and (why := _refuses_values(form, value_form_of(need.value_bias))):
        return why
    if isinstance(form, RatioPieces | RatioNetwork) and form.two_sided:
        return "the fused kernel has no ratio to the later of query and key, as FIRE has where it looks both ways"
    return None


def _refuses_values(form: Form | None, values: ValueTable | None) -> str | None:
    assert values is not None, "a value bias that was not refused"
    if form is not None and not isinstance(form, RowTable):
        return "the fused kernel has values by distance beside a table of scores by distance alone"
    if form is not None and (form.values.shape[-1], form.first) != (values.values.shape[0], values.first):
        return "the fused kernel needs values by distance to have the distances that scores have"
    if values.values.shape[0] > WIDEST_VALUES:
        return f"the fused kernel has values of up to {WIDEST_VALUES} distances, not {values.values.shape[0]}"
    return None


# ---- what it hands to Triton


def _block(q: Tensor, v: Tensor, form: Form | None) -> int:
    from vantage.kernels.gpu.operators import block_for

    return block_for(q, v, counts=isinstance(form, CountTable))


def _whole_rows(q: Tensor, view: View, need: Need, plan: FusedPlan) -> int:
    """Which passes gpu/causal_rows.py runs; it reads no places."""
    from vantage.kernels.gpu.causal_operators import passes

    return passes(q, view.k, view.v, need.sinks, need.softcap, plan)


def _plan(bias: BiasTensors, flags: MaskFlags, pair: Pair, block: int) -> FusedPlan:
    run = runs(pair)
    return FusedPlan(
        form=bias.form,
        one_sided=bias.beyond is not None and flags.one_sided,
        learned=learns(
            *(x for x in (bias.one, bias.two)[bias.form == DISTANCE_KEYS and not bias.own :] if x is not None)
        ),
        run=run,
        fractional=not run and _fractional(pair),
        off=offset(pair) if run else 0,
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


def _wide(
    q: Tensor, view: View, bias: BiasTensors, flags: MaskFlags, pair: Pair
) -> tuple[Tensor, Tensor | None] | tuple[None, None]:
    """What the forward pass for Hopper reads besides: tile ranges of its own block, and the biases of a table's tiles;
    ``None`` where it does not run. It has places that run on, masks that look back, and biases that cost a tile far
    from the diagonal little."""
    one_sided = bias.beyond is not None and flags.one_sided
    cheap = one_sided and (bias.banks > 0 or not bias.width)
    known = bias.form in WIDE_ALWAYS or (bias.form in WIDE_ONE_SIDED and cheap)
    if not (
        known and runs(pair) and flags.one_sided and q.shape[2] >= HOPPER_TILE and not torch.compiler.is_compiling()
    ):
        return None, None
    if q.element_size() != 2 or q.shape[3] != WIDE_HEAD or view.v.shape[3] != WIDE_HEAD or not has_gluon(q.device):
        return None, None
    beyond, first = bias.beyond if flags.one_sided else None, pair.k.known.first or 0
    ranges = _ranges_of_runs(offset(pair), first, q.shape[2], view.k.shape[2], flags, HOPPER_TILE, beyond, q.device)
    tiles = None
    if bias.banks:
        assert bias.one is not None
        tiles = bank(bias.one.detach(), bias.low, offset(pair) % HOPPER_TILE, HOPPER_TILE)
    return ranges.keys, tiles


class RowsOnHopper(NamedTuple):
    """What gpu/hopper_rows.py and its backward pass take one by one, of rows or documents that look back at themselves;
    ``None`` for a pass that does not run. And the positions of rows, where they do not run on."""

    queries: Tensor | None = None
    keys: Tensor | None = None
    positions: Tensor | None = None


def _rows_on_hopper(q: Tensor, view: View, flags: MaskFlags, pair: Pair, need: Need, plan: FusedPlan) -> RowsOnHopper:
    if need.value_bias is not None or plan.form not in (0, SLOPE, TABLES[0]) or (plan.form and not plan.one_sided):
        return RowsOnHopper()
    alone = need.softcap is None and need.sinks is None and plan.form != TABLES[0]
    forward = alone and all(is_side_by_side(x) for x in (q, view.k, view.v))
    # a slope's gradient takes sums that are not made there; a table's, tiles that have no more rows than there are
    learns_more = plan.learned and (plan.form != TABLES[0] or not plan.banks or q.shape[2] % plan.block)
    backward = torch.is_grad_enabled() and not learns_more
    if (documents := documents_on_hopper(q, view.k, view.v, flags, pair)) is not None and plan.form != TABLES[0]:
        return RowsOnHopper(
            blocks_of_queries(pair, documents) if forward else None,
            blocks_of_keys(q, view.k, pair, documents) if backward else None,
        )
    if not rows_on_hopper(q, view.k, view.v, flags, pair) or (plan.form == TABLES[0] and not plan.banks):
        return RowsOnHopper()
    B, _, T, _ = q.shape
    queries, keys = blocks_of_rows(B, T, flags.window, q.device)
    short = plan.whole_rows & BACKWARD and T < LONG_ROW
    backward = backward and not short and may_add_up(q, view.k, B)
    return RowsOnHopper(
        queries if forward and not flags.window and not runs(pair) else None,
        keys if backward else None,
        _gathered(pair) if plan.form else None,
    )


def _gathered(pair: Pair) -> Tensor | None:
    """The position of each token of each row; ``None`` where they run on."""
    if runs(pair):
        return None
    dtype = torch.float32 if _fractional(pair) else torch.int32
    with torch.inference_mode(False):
        return pair.once("row positions", lambda: pair.q.pos.to(dtype).contiguous())


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
        ranges = _ranges_of_runs(offset(pair), first, T, S, flags, block, beyond, pair.q.device)
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
    if not (flags.chunk or flags.prefix):  # then only distances count, and a place below 0 would be an empty one
        first += max(0, -first, -first - off)
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
