"""A form of a bias as what the fused kernel reads: float32 tensors and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vantage.kernels.by_form import form_of_need, runs
from vantage.kernels.fused_operator import COUNTS, DISTANCE_KEYS
from vantage.kernels.mask_flags import MaskFlags
from vantage.spec.forms import (
    CountTable,
    DistanceKeys,
    DistanceTable,
    Form,
    LogDistance,
    PointwiseForm,
    PowerDistance,
    QueryAndKey,
    RatioNetwork,
    RatioPieces,
    RowTable,
    Slope,
    ValueTable,
    value_form_of,
)
from vantage.spec.parts import Need
from vantage.spec.positions import Pair

MAX_BANKED = 4_096  # distances of a table whose tiles are made beforehand
FAR_BLOCKS = 4  # from so many blocks away on, a logarithm or power of the distance is a cubic in each tile (gpu/far.py)
LOG2E = math.log2(math.e)
HEADER, GROUP = 4, 4  # as gpu/pieces.py has them
NUMBERS = {
    type(None): 0,
    Slope: 1,
    LogDistance: 2,
    PowerDistance: 3,
    DistanceTable: 4,
    RowTable: 5,
    QueryAndKey: 6,
    RatioPieces: 7,
    RatioNetwork: 7,
    DistanceKeys: DISTANCE_KEYS,
    CountTable: COUNTS,
}


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


def bias_tensors(
    form: PointwiseForm | None, flags: MaskFlags, pair: Pair, cool: float, block: int, heads: Sequence[int]
) -> BiasTensors:
    number = NUMBERS[type(form)]
    if form is None:
        return BiasTensors(number)
    far = FAR_BLOCKS * block if flags.one_sided and runs(pair) else None
    if isinstance(form, Slope):
        return BiasTensors(number, _float(form.slopes, cool), beyond=0)
    if isinstance(form, LogDistance | PowerDistance):
        return BiasTensors(number, _float(form.a, cool), _float(form.p, 1.0), beyond=far)
    if isinstance(form, RatioPieces | RatioNetwork):
        return _pieces(form, pair, cool, heads)._replace(beyond=far)
    if isinstance(form, QueryAndKey):
        return BiasTensors(number, _float(form.by_query, cool), _float(form.by_key, cool))
    values, low = form.values, form.first
    if low < 0 and flags.one_sided and runs(pair):  # no query meets a negative distance
        values, low = values[..., min(-low, values.shape[-1] - 1) :], min(0, low + values.shape[-1] - 1)
    values, width = _float(values, cool), values.shape[-1]
    known = isinstance(form, DistanceTable) and flags.one_sided and runs(pair) and width <= MAX_BANKED
    banks = bank_size(low, width, block) if known else 0
    return BiasTensors(number, values, None, low, width, low + width - 1, banks)


def break_points(form: Form | None) -> int:
    """How many a function in pieces has at most."""
    if isinstance(form, RatioNetwork):
        return form.inner.shape[0]
    return form.breaks.shape[0] if isinstance(form, RatioPieces) else 0


def _pieces(form: RatioPieces | RatioNetwork, pair: Pair, cool: float, heads: Sequence[int]) -> BiasTensors:
    """One: (H, pieces, 2). Two: c, then the break points from the fifth number on, then a number for each query that
    makes log2(1 + c·distance) the ratio. Behind the last break point there are some at infinity, in whole groups.

    Of a network one kernel makes both: as operations of torch they would take longer to start than attention takes at
    4,096 tokens."""
    n = break_points(form)
    groups = max(1, (1 << max(n - 1, 0).bit_length()) // GROUP)
    more = (groups + 1) * GROUP - n
    if isinstance(form, RatioNetwork):
        weights = (form.inner, form.inner_bias, form.outer, form.outer_bias, form.c, form.limit)
        if pair.q.known.first is not None and not torch.compiler.is_compiling():
            from vantage.kernels.gpu.piece_tables import PieceTables

            numbers = (form.eps, cool, heads[0] * heads[1], pair.q.known.first, pair.q.shape[1], n + more)
            one, two = PieceTables.apply(*weights, numbers)
            return BiasTensors(NUMBERS[RatioNetwork], one, two, 0, one.shape[1], banks=groups)
        form = form.pieces()
    pieces = torch.stack((form.slopes, form.offsets), -1).float()
    pieces = torch.cat((pieces, pieces[:, -1:].expand(-1, more, -1)), 1)
    c = form.c.abs().float()
    pos = pair.q.pos[: pair.rows]
    if pair.q.known.first is not None:
        pos = pos[:1]
    share = form.share(torch.maximum(pos.to(form.c.dtype), form.limit)).float() / LOG2E  # (R, T)
    share = share[:, None].expand(*heads, pos.shape[1])
    head = torch.nn.functional.pad(c, (0, HEADER - 1))
    breaks = torch.nn.functional.pad(form.breaks.detach().float(), (0, more), value=float("inf"))
    two = torch.cat((head, breaks, share.flatten()))
    return BiasTensors(NUMBERS[RatioPieces], _float(pieces, cool), two, 0, pieces.shape[1], banks=groups)


def form_to_run(need: Need, q: Tensor) -> Form | None:
    """With a table of values by distance there is one for scores as well, of the same distances."""
    form, values = form_of_need(need), None if need.value_bias is None else value_form_of(need.value_bias)
    if values is None or form is not None:
        return form
    return RowTable(q.new_zeros(*q.shape[:3], values.values.shape[0], dtype=torch.float32), values.first)


def with_values(bias: BiasTensors, form: ValueTable | None) -> BiasTensors:
    """The values of the distances that the table of the bias has left."""
    assert form is not None, "a value bias that was not refused"
    return bias._replace(two=_float(form.values[form.values.shape[0] - bias.width :], 1.0), banks=1)


def bank_size(low: int, width: int, block: int) -> int:
    return -(-max(low + width, 1) // block) + 3


def with_bank(bias: BiasTensors, pair: Pair, block: int) -> BiasTensors:
    """A table with the biases of its tiles, for the kernels that read those."""
    assert bias.one is not None
    return bias._replace(two=bank(bias.one.detach(), bias.low, offset(pair) % block, block))


def bank(values_HW: Tensor, low: int, rest: int, block: int) -> Tensor:
    """(H, n, block, block) in units of log2: the biases of tiles in which queries stand one block behind, none, one
    ahead and so on, and ``rest`` places, less what is far away. The last of them is 0 all over."""
    width, device = values_HW.shape[-1], values_HW.device
    n = bank_size(low, width, block)
    along = torch.arange(block, device=device)
    distance = (torch.arange(n, device=device) - 1)[:, None, None] * block + rest + along[:, None] - along
    centred = (values_HW - values_HW[:, -1:]) * LOG2E
    return centred[:, (distance - low).clamp(0, width - 1)]


def distance_keys(form: DistanceKeys, flags: MaskFlags, pair: Pair, block: int, q: Tensor) -> BiasTensors:
    """Queries, and vectors of all distances at which a key is seen, the furthest first. ``low`` is the row of the
    distance between the first query and the first key: a multiple of the block, so that tiles meet whole blocks."""
    assert runs(pair), "such a bias has a form where positions run on"
    T, S, off = pair.q.shape[1], pair.k.shape[1], offset(pair)
    highest, lowest = T - 1 + off, off - S + 1
    if flags.one_sided:
        lowest = max(lowest, 0)
    if flags.window and not flags.prefix:
        highest, lowest = min(highest, flags.window - 1), max(lowest, 1 - flags.window)
    low = -(-(highest - off) // block) * block
    keys = form.keys(low + off, max(low + off - lowest + 1, 1)).to(q.dtype).expand(q.shape[1], -1, -1)
    if learns(keys) or keys.stride()[1:] != (keys.shape[2], 1):
        keys = keys.contiguous()
    one = None
    if form.queries is not None:
        one = form.queries.to(q.dtype)
    elif form.offset is not None:
        one = _float(form.offset, 1.0)
    return BiasTensors(DISTANCE_KEYS, one, keys, low, keys.shape[1], factor=(form.factor,), own=form.queries is None)


def count_table(form: CountTable, q: Tensor) -> BiasTensors:
    """In the dtype of the queries, which it is a product of."""
    by_count = form.by_count.to(q.dtype)
    by_count = by_count if by_count.stride(-1) == 1 else by_count.contiguous()
    return BiasTensors(COUNTS, by_count, width=by_count.shape[-1], factor=(form.scale,))


def offset(pair: Pair) -> int:
    """The first query less the first key, where places run on."""
    return (pair.q.known.first or 0) - (pair.k.known.first or 0)


def _float(x: Tensor, factor: float) -> Tensor:
    x = x.float()
    return (x if factor == 1.0 else x * factor).contiguous()


def learns(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
