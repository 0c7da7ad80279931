"""Launching the kernels, as operators that torch's compiler can carry without looking inside."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
import triton
from torch import Tensor

from vantage.kernels.compiler_constants import constant_when_compiled
from vantage.kernels.fused_operator import (
    BACKWARD,
    BY_KEY,
    COUNTS,
    DISTANCE_KEYS,
    FORWARD,
    NUMBERS,
    PIECES,
    TABLES,
    FusedPlan,
)
from vantage.kernels.gpu import backward, forward, values
from vantage.kernels.gpu.table_gradient import SHORT_ROW, empty_table, shares_tiles, table_gradient
from vantage.spec.rounding import ceil_div, next_power_of_2

Launch = Any  # triton's kernels: indexed by their grid, then called
LOG2E = 1.4426950408889634
OF_THEIR_OWN = {DISTANCE_KEYS: "distance_operators", COUNTS: "count_operators"}
SINKS, WIDE_RANGES, WIDE_BANK, KEY_BLOCKS, POSITIONS = 2, 7, 8, 9, 10  # where ``unpack`` has them
BLOCK_LIST = 2  # dimensions of a list of blocks, which a pass of its own takes; tile ranges have three
HEADS_AT_ONCE = 16
LONG_FOR_CACHE = 8_192  # keys of a head, beyond which its own blocks fill the cache
MAX_SHARED_BYTES = 232_448  # bytes that a block may share on Hopper; others have less


def attend(
    q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor | None], plan: list[int], factors: list[float]
) -> tuple[Tensor, Tensor]:
    """Output (B, H, T, e) and log-sum-exp (B, H, T). ``tensors``: see ``unpack``; ``factors``: see ``units``."""
    p = FusedPlan(*plan)
    if p.form in OF_THEIR_OWN:
        return kernels_of(p.form).attend(q, k, v, tensors, p, factors)
    out, lse = empty_outputs(q, v)
    one, two, sinks, q_places, k_places, ranges, *_ = unpack(tensors, lse)
    q, k, v = (aligned(x) for x in (q, k, v))
    if (wide := tensors[WIDE_RANGES]) is not None:
        if wide.dim() == BLOCK_LIST:
            from vantage.kernels.gpu import hopper_rows

            hopper_rows.attend_rows(q, k, v, out, lse, wide, factors[0] * factors[2], row_bias(tensors, p))
        else:
            attend_on_hopper(q, k, v, out, lse, tensors, p, factors)
        return out, lse
    if p.whole_rows & FORWARD:
        causal_kernels().attend(q, k, v, out, lse, tensors, p, factors)
        return out, lse
    B, H, T, _ = q.shape
    blocks = ceil_div(T, p.block)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *sink_strides(tensors[2]))
    kernel: Launch = forward.attend
    with on(q):
        kernel[(blocks * B * H,)](
            q, k, v, out, lse, one, two, sinks, q_places, k_places, ranges, *strides, T, k.shape[2], blocks,
            ranges.shape[0], *arguments(p), *units(factors), **constants(q, k, v, p, factors),
            HAS_SINKS=tensors[2] is not None, MERGED=merged(p), num_warps=warps(q, v),
            num_stages=stages(q, v, p, 1),
        )  # fmt: skip
    if has_values(p):
        add_values(q, k, v, out, lse, [one, two, sinks, q_places, k_places, ranges], p, factors, tensors[2] is not None)
    return out, lse


def attend_on_hopper(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tensors: list[Tensor | None], p: FusedPlan,
    factors: list[float],
) -> None:  # fmt: skip
    """The forward pass by gpu/hopper.py."""
    from vantage.kernels.gpu import hopper

    one, two, sinks, _, _, _, _, ranges, bank, *_ = unpack(tensors, lse)
    two = two if tensors[WIDE_BANK] is None else bank
    B, H, T, D = q.shape
    blocks = ceil_div(T, hopper.BLOCK)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *sink_strides(tensors[2]))
    banks = bank.shape[1] if tensors[WIDE_BANK] is not None else 0
    kernel: Launch = hopper.attend
    with on(q):
        kernel[(blocks * B * H,)](
            q, k, v, out, lse, one, two, sinks, ranges, *strides, T, k.shape[2], blocks, p.off, p.origin, p.width,
            banks, p.window, p.chunk, *units(factors), H=H, GROUP=H // k.shape[1], D=D, E=v.shape[3],
            BLOCK=hopper.BLOCK, STAGES=hopper.STAGES, FORM=p.form, CAUSAL=bool(p.causal), WINDOW=p.window > 0,
            CHUNK=p.chunk > 0, SOFTCAP=factors[1] > 0, HAS_SINKS=tensors[2] is not None, num_warps=4,
        )  # fmt: skip


def row_bias(tensors: list[Tensor | None], p: FusedPlan) -> Any:
    """The bias as the passes over rows and documents take it."""
    from vantage.kernels.gpu.hopper_rows import RowBias

    return RowBias(p.form, tensors[0] if p.form else None, p.low, p.width, tensors[POSITIONS])


def rows_back_on_hopper(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor, gradients: tuple[Tensor, ...],
    tensors: list[Tensor | None], p: FusedPlan, factors: list[float],
) -> None:  # fmt: skip
    """The backward pass of whole rows or documents by gpu/hopper_rows_backward.py."""
    from vantage.kernels.gpu.hopper_rows_backward import row_gradients

    dq, dk, dv, one_sum, _, delta = gradients
    blocks = tensors[KEY_BLOCKS]
    assert blocks is not None
    needs_delta = p.learned or tensors[SINKS] is not None
    row_gradients(
        q, k, v, out, lse, grad, (dq, dk, dv), blocks, units(factors), factors[0] * factors[2], row_bias(tensors, p),
        softcap=factors[1] > 0, window=p.window, delta=delta if needs_delta else None,
    )  # fmt: skip
    if shares_tiles(p):
        table_of_rows(q, k, v, grad, lse, delta, tensors, one_sum, p, factors)


def table_of_rows(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lse: Tensor, delta: Tensor, tensors: list[Tensor | None],
    table: Tensor, p: FusedPlan, factors: list[float],
) -> None:  # fmt: skip
    """A table's gradient, where rows are whole blocks; ``delta``: what rows' gradients are less."""
    one, two = tensors[:2]
    assert one is not None
    assert two is not None
    how = constants(q, k, v, p, factors) | {"num_warps": warps(q, v)}
    with on(q):
        table_gradient(q, k, v, grad, (lse * LOG2E, delta), (one, two), table, p, units(factors), how)


def add_values(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, tensors: list[Tensor], p: FusedPlan,
    factors: list[float], has_sinks: bool,
) -> None:  # fmt: skip
    """What a table of values by distance, the second tensor, adds to the output."""
    B, H, T, _ = q.shape
    blocks, how = ceil_div(T, p.block), constants(q, k, v, p, factors)
    mass = q.new_zeros(B, H, T, p.width, dtype=torch.float32)
    one, two, sinks, q_places, k_places, ranges = tensors
    strides = (*q.stride()[:3], *k.stride()[:3], *out.stride()[:3], *sink_strides(sinks if has_sinks else None))
    kernel: Launch = values.add_values
    del how["BANKED"], how["TOGETHER"]
    with on(q):
        kernel[(blocks * B * H,)](
            q, k, out, lse, one, two, sinks, mass, q_places, k_places, ranges, *strides, T, k.shape[2], blocks,
            ranges.shape[0], p.off, p.origin, p.low, p.width, p.window, p.chunk, p.prefix, *units(factors), **how,
            HAS_SINKS=has_sinks, W_TILE=tile(p.width), num_warps=warps(q, v), num_stages=2,
        )  # fmt: skip


def by_vector(grad: Tensor, vectors: Tensor) -> Tensor:
    """(B, H, T, W), float32: what each vector says to a query's gradient. Row by row, as heads lie side by side."""
    turned = vectors.to(grad.dtype).T.expand(grad.shape[1], -1, -1)
    return torch.stack([torch.bmm(row, turned) for row in grad]).float()


def has_values(p: FusedPlan) -> bool:
    """Whether the second tensor of a table for each query is one of values."""
    return p.form == TABLES[1] and p.banks > 0


def attend_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    grad_lse: Tensor | None,
    tensors: list[Tensor | None],
    plan: list[int],
    factors: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; two sums of a learned bias; and output times gradient, row by row."""
    p = FusedPlan(*plan)
    if p.form in OF_THEIR_OWN:
        return kernels_of(p.form).attend_back(q, k, v, out, lse, grad, grad_lse, tensors, p, factors)
    dq, dk, dv, one_sum, two_sum, delta = gradients = empty_gradients(q, k, v, plan, tensors)
    one, two, _, q_places, k_places, key_ranges, query_ranges, *_ = unpack(tensors, lse)
    q, k, v, grad = (aligned(x) for x in (q, k, v, grad))
    if tensors[KEY_BLOCKS] is not None and grad_lse is None:
        rows_back_on_hopper(q, k, v, out, lse, grad, gradients, tensors, p, factors)
        return gradients
    if p.whole_rows & BACKWARD:
        causal_kernels().attend_back(q, k, v, out, lse, grad, grad_lse, gradients, tensors, p, factors)
        return gradients
    B, H, T, _ = q.shape
    S, G = k.shape[2], k.shape[1]
    blocks, key_blocks = ceil_div(T, p.block), ceil_div(S, p.block)
    inputs = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    numbers = (key_ranges.shape[0], *arguments(p), *units(factors), factors[0] * factors[2])
    how = constants(q, k, v, p, factors) | {"num_warps": warps(q, v), "num_stages": stages(q, v, p, 2)}
    line, shared = (lse.new_empty(B, H, blocks * p.block) for _ in range(2))
    launch: Launch = backward.row_lines
    with on(q):
        launch[(blocks * B * H,)](
            out, grad, lse, lse if grad_lse is None else grad_lse.contiguous(), delta, line, shared, *out.stride()[:3],
            *grad.stride()[:3], T, blocks, H=H, E=v.shape[3], E_TILE=how["E_TILE"], BLOCK=p.block,
            HAS_GRAD_LSE=grad_lse is not None,
        )  # fmt: skip
        if has_values(p):
            two = by_vector(grad, two)
            if p.one_sided:
                shared[..., :T] -= two[..., -1]
        by_tiles = shares_tiles(p)
        if by_tiles:
            table_gradient(q, k, v, grad, (line, shared), (one, two), one_sum, p, units(factors), how)
        launch = backward.query_gradients
        launch[(blocks * B * H,)](
            q, k, v, grad, line, shared, dq, one, two, one_sum, two_sum, q_places, k_places, key_ranges,
            *inputs, *dq.stride()[:3], T, S, blocks, *numbers, **how,
            LEARNED=bool(p.learned and p.form != BY_KEY and not by_tiles),
        )  # fmt: skip
        if p.form == PIECES and row_bytes(q, v) > SHORT_ROW:  # registers spill, and more with a second stage
            how["num_stages"] = 1
        launch = backward.key_gradients
        launch[(key_blocks * B * G,)](
            q, k, v, grad, line, shared, dk, dv, one, two, two_sum, q_places, k_places, query_ranges,
            *inputs, *dk.stride()[:3], *dv.stride()[:3], T, S, key_blocks, *numbers,
            **how, LEARNED=bool(p.learned and p.form == BY_KEY),
        )  # fmt: skip
    return dq, dk, dv, one_sum, two_sum, delta


def whole_blocks(x: Tensor, block: int, value: float) -> Tensor:
    """(B, H, T) with T filled up to whole blocks."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % block), value=value).contiguous()


def merged(p: FusedPlan) -> bool:
    """Whether masked and full tiles go through one loop: where places are looked up and ranges short, as documents are,
    that saves filling a pipeline three times. Where places run on it costs more than it saves."""
    return not p.run and not p.empty


def arguments(p: FusedPlan) -> tuple[int, ...]:
    """What a kernel is told at run time, so that no number of these is compiled for."""
    return p.off, p.origin, p.low, p.width, p.banks, p.window, p.chunk, p.prefix


def units(factors: list[float]) -> tuple[float, float]:
    """What scores are multiplied by, before and after a softcap, to be in units of log2.

    Of scale, softcap (0: none) and one over the temperature.
    """
    scale, softcap, cool = factors
    return (scale / softcap, softcap * cool * LOG2E) if softcap else (scale * cool * LOG2E, 1.0)


def unpack(tensors: list[Tensor | None], other: Tensor) -> list[Tensor]:
    """Two tensors of the bias, sinks, places of queries and keys, tile ranges of both; for Hopper tile ranges and the
    biases of tiles; of rows or documents there blocks of queries instead, blocks of keys, and positions. ``other`` for
    ``None``."""
    return [other if x is None else x for x in tensors]


def empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    B, H, T, _ = q.shape
    out = q.new_empty(B, T, H, v.shape[3]).transpose(1, 2)  # heads of a token side by side, as the output map wants it
    return out, q.new_empty(B, H, T, dtype=torch.float32)


def kernels_of(form: int) -> ModuleType:
    """The kernels of a form that has some of its own, which take from here what all share."""
    return importlib.import_module(f"vantage.kernels.gpu.{OF_THEIR_OWN[form]}")


def causal_kernels() -> Any:
    from vantage.kernels.gpu import causal_operators  # which takes from here what all share

    return causal_operators


def empty_gradients(
    q: Tensor, k: Tensor, v: Tensor, plan: list[int], tensors: list[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    p = FusedPlan(*plan)
    if p.form in OF_THEIR_OWN:
        return kernels_of(p.form).empty_gradients(q, k, v, tensors, p)
    B, H, T, _ = q.shape
    dq, dk, dv = (x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v))
    delta = q.new_empty(B, H, T, dtype=torch.float32)
    one, two = q.new_empty(0, dtype=torch.float32), q.new_empty(0, dtype=torch.float32)
    if p.learned and p.form < NUMBERS:
        one, two = torch.empty_like(delta), torch.empty_like(delta)
    elif p.learned and p.form == PIECES:
        one = q.new_zeros(B, H, ceil_div(T, p.block), p.width, 4, dtype=torch.float32)
        two = q.new_empty(2, B, H, T, dtype=torch.float32)
    elif shares_tiles(p):
        one = empty_table(q, p)
    elif p.learned and p.form == BY_KEY:
        two = q.new_empty(B, H, k.shape[2], dtype=torch.float32)
    elif p.learned:
        if has_values(p):
            two = q.new_zeros(B, H, T, p.width, dtype=torch.float32)
        one = q.new_zeros(B, H, T, p.width, dtype=torch.float32)
    return dq, dk, dv, one, two, delta


def constants(q: Tensor, k: Tensor, v: Tensor, p: FusedPlan, factors: list[float]) -> dict[str, Any]:
    H, D, E = q.shape[1], q.shape[3], v.shape[3]
    full = q.dtype == torch.float32
    return {
        "H": H, "GROUP": H // k.shape[1], "D": D, "E": E, "D_TILE": tile(D), "E_TILE": tile(E), "BLOCK": p.block,
        "FORM": p.form, "ONE_SIDED": bool(p.one_sided), "RUN": bool(p.run), "FLOAT": bool(p.fractional),
        "CAUSAL": bool(p.causal), "WINDOW": p.window > 0, "CHUNK": p.chunk > 0, "PREFIX": p.prefix > 0,
        "SEGMENT": bool(p.segments), "EMPTY": bool(p.empty),
        "BANKED": p.banks if p.form == PIECES else p.banks > 0, "SOFTCAP": factors[1] > 0,
        "PRECISION": "tf32x3" if full else "tf32", "APPROXIMATE": q.is_cuda and not full and not torch.version.hip,
        "TOGETHER": heads_at_once(q.shape[0] * k.shape[1], k.shape[2]),
    }  # fmt: skip


def heads_at_once(heads: int, keys: int) -> int:
    """Heads whose blocks are worked on at once, the longest first. Not all, and of long rows one: what they read is to
    stay in the cache. Transformer-XL at 16,384 tokens: 4.9 ms with one, 5.3 with 4, 5.6 with 16."""
    return 1 if keys > LONG_FOR_CACHE else next(n for n in (HEADS_AT_ONCE, 8, 4, 2, 1) if heads % n == 0)


def tile(width: int) -> int:
    return max(16, next_power_of_2(width))


def row_bytes(q: Tensor, v: Tensor) -> int:
    return max(tile(q.shape[3]), tile(v.shape[3])) * q.element_size()


def warps(q: Tensor, v: Tensor) -> int:
    return 4 if row_bytes(q, v) <= 256 else 8


def stages(q: Tensor, v: Tensor, p: FusedPlan, held: int) -> int:
    """How many tiles may be on their way: as many as fit beside the ``held`` ones. Three forward pay, two back."""
    most = 3 if held == 1 else 2
    room = shared_memory(q.device) - p.block * p.block * 4 * held
    turned = 2 if held == 2 and turns_tiles_in_memory(q.device) else 0
    return max(1, min(most, (room // (p.block * row_bytes(q, v)) - held - turned) // 2))


def block_for(q: Tensor, v: Tensor, *, counts: bool = False) -> int:
    """Queries and keys of a tile: 64, or as many as fit twice, forward and backward. ``counts``: for the kernels of
    counts, which have more tiles at once."""
    wide, row = q.element_size() == 4, row_bytes(q, v)
    held = 8 if wide and turns_tiles_in_memory(q.device) else 5  # with the turned ones
    counted = (10 if wide else 7) if counts else 0
    fits = [n for n in (64, 32) if max(held * n * row + n * n * 8, counted * n * row) <= shared_memory(q.device)]
    return fits[0] if fits else 16


@constant_when_compiled
def shared_memory(device: torch.device) -> int:
    return _shared_memory(device.index or 0) if device.type == "cuda" else MAX_SHARED_BYTES


@constant_when_compiled
def turns_tiles_in_memory(device: torch.device) -> bool:
    """Whether transposed tiles of the backward pass are copies in shared memory: compute capability 10 (Blackwell)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 10


@functools.cache
def _shared_memory(index: int) -> int:
    return torch.cuda.get_device_properties(index).shared_memory_per_block_optin


def sink_strides(sinks: Tensor | None) -> tuple[int, int, int]:
    """Of sinks (H,) or (B, H, T), or of none: those of a tensor in their place would be compiled for."""
    if sinks is None:
        return 0, 0, 0
    return (0, sinks.stride(0), 0) if sinks.dim() == 1 else sinks.stride()[:3]  # pyright: ignore[reportReturnType] (three)


def aligned(x: Tensor) -> Tensor:
    """As the copy engine wants it: the last dimension dense, rows at multiples of 16 bytes."""
    size = x.element_size()
    rows = all(stride * size % 16 == 0 for stride in x.stride()[:3])
    if x.stride(3) == 1 and rows and x.stride(2) > 0 and x.data_ptr() % 16 == 0:
        return x
    return x.contiguous()


def on(x: Tensor) -> AbstractContextManager[object]:
    """Launched on the tensor's device, with room for the tiles' descriptors from torch's own memory."""
    if x.device.type != "cuda":
        return nullcontext()
    # said again for every launch: Triton keeps it for each thread, and the backward pass has its own
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=x.device, dtype=torch.int8))
    return torch.cuda.device(x.device)
