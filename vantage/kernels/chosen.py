"""Attention to keys that were chosen for each query: these are read, and no others (DSA, CSA).

Some queries at a time, in plain torch. What is formed grows with the keys that a query attends to, and so do the
operations; on the way back a block is worked out once more.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vantage.kernels.fused import DTYPES, WIDEST, cannot_run
from vantage.kernels.reference import normalise
from vantage.kernels.sdpa import CHEAP_MASK_SIZE
from vantage.spec.chosen import ChosenKeys
from vantage.spec.masks import Mask, visible
from vantage.spec.parts import Attended, Dense, Need, Pointwise, View
from vantage.spec.positions import EMPTY, Pair, Place, Positions
from vantage.spec.query_blocks import query_blocks
from vantage.spec.registry import Entry

IN_TRITON = ("cuda",)  # where gpu/chosen.py runs; a test adds the CPU, for Triton's interpreter
COLUMN_SIZED_TENSORS = 8  # tensors as large as the columns of a block, where it is asked which of them are seen
SCORE_SIZED_TENSORS = 3  # tensors of a block that are as large as its scores, beside its keys and values


class ChosenKeysKernel:
    """Softmax over chosen keys, with masks, biases, softcap and sinks; forward and backward."""

    name = "chosen"

    def __init__(self, queries: int | None = None):
        self.queries = queries  # of a block; ``None``: as many as suit the device

    def auto(self, device: str) -> bool:
        return True

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if chosen_keys(need) is None:
            return "the chosen kernel is for sparse attention, where each query has a list of keys"
        if need.weights:
            return "the chosen kernel does not hand back weights"
        if need.value_bias is not None:
            return "a value bias needs the weights, which the chosen kernel does not form"
        if need.temperature is None:
            return f"the chosen kernel has softmax alone, not {type(need.normalise).__name__}"
        if need.dropout:
            return "the chosen kernel has no dropout"
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return "the chosen kernel cannot be compiled into a graph, nor has it a rule for vmap"
        return None

    def yields(self, need: Need, q: Tensor, view: View) -> bool:
        """Where there are few pairs, and where most keys are chosen: to gather them would take longer."""
        chosen = chosen_keys(need)
        assert chosen is not None, "asked for before"
        B, H, T, _ = q.shape
        return B * H * T * view.k.shape[2] <= CHEAP_MASK_SIZE or 4 * chosen.columns.shape[-1] > view.k.shape[2]

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        chosen = chosen_keys(need)
        assert chosen is not None, "a need that was not refused"
        if runs_in_triton(chosen, need, q_BHTd, view):
            return _in_triton(q_BHTd, view, pair, need, chosen)
        (B, H, T, d), (_, G, _, e) = q_BHTd.shape, view.v.shape
        numbers = B * chosen.columns.shape[-1] * (G * (d + e) + SCORE_SIZED_TENSORS * H)
        parts = [
            self.block(q_BHTd, view, pair, need, cut) for cut in query_blocks(T, numbers, q_BHTd.device, self.queries)
        ]
        if not parts:
            return Attended(q_BHTd.new_zeros(B, H, T, e), lse=q_BHTd.new_zeros(B, H, T) if need.lse else None)
        return Attended(
            torch.cat([out for out, _ in parts], 2), lse=torch.cat([lse for _, lse in parts], 2) if need.lse else None
        )

    def block(self, q: Tensor, view: View, pair: Pair, need: Need, cut: slice) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of some queries."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            return _attend(q, k, v, pair, need, cut)

        inputs = q[:, :, cut], view.k, view.v
        if not torch.is_grad_enabled():
            return attend(*inputs)
        return checkpoint(attend, *inputs, use_reentrant=False)


# ---- on a GPU


def runs_in_triton(chosen: ChosenKeys, need: Need, q: Tensor, view: View) -> bool:
    """Whether gpu/chosen.py has it: no bias beside the choice, no softcap, and heads that are not too wide."""
    if q.device.type not in IN_TRITON or cannot_run(q.device.type) is not None:
        return False
    if chosen.inner is not None or need.softcap is not None:
        return False
    alike = q.dtype in DTYPES and view.k.dtype == q.dtype and view.v.dtype == q.dtype
    return alike and max(q.shape[-1], view.v.shape[-1]) <= WIDEST and 0 not in (*q.shape, *view.k.shape)


def _in_triton(q: Tensor, view: View, pair: Pair, need: Need, chosen: ChosenKeys) -> Attended:
    from vantage.kernels.gpu import chosen as gpu

    assert need.temperature is not None
    columns = torch.empty(chosen.columns.shape, dtype=torch.int32, device=q.device)
    for cut in query_blocks(q.shape[2], q.shape[0] * COLUMN_SIZED_TENSORS * columns.shape[-1], q.device):
        some = chosen.columns[:, cut]
        columns[:, cut] = torch.where(shown_columns(some, need.mask, pair, cut)[0][:, 0], some, EMPTY).to(torch.int32)
    out, lse = gpu.attend(q, view.k, view.v, columns, need.scale / need.temperature)
    if need.sinks is not None:  # a sink adds exp(sink) to the denominator and nothing to the sum
        sinks = need.sinks.float() / need.temperature
        sinks = sinks[None, :, None] if sinks.dim() == 1 else sinks
        out = out * torch.sigmoid(lse - sinks)[..., None].to(out.dtype)
        lse = torch.logaddexp(lse, sinks)
    return Attended(out, lse=lse if need.lse else None)


# ---- in plain torch


def chosen_keys(need: Need) -> ChosenKeys | None:
    return need.bias.chosen if isinstance(need.bias, Dense) else None


def shown_columns(columns_BtK: Tensor, mask: Mask, pair: Pair, cut: slice) -> tuple[Tensor, Place, Place]:
    """Which of the chosen keys some queries see, (B, 1, t, K), and the places of queries and keys."""
    index = columns_BtK.clamp_min(0).flatten(1)
    q, k = _places(pair.q, cut), _picked(pair.k, index, columns_BtK)
    shown = visible(mask, pair)(q, k) & (columns_BtK >= 0)[:, None]
    return shown, q, k


def _attend(q: Tensor, k: Tensor, v: Tensor, pair: Pair, need: Need, cut: slice) -> tuple[Tensor, Tensor]:
    """(B, H, t, e) and (B, H, t): the keys of each query are gathered, and it meets those."""
    chosen = chosen_keys(need)
    assert chosen is not None, "a need that was not refused"
    columns, dtype = chosen.columns[:, cut], q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    shown, q_at, k_at = shown_columns(columns, need.mask, pair, cut)
    G = k.shape[1]
    grouped = q.to(wide).unflatten(1, (G, -1)).transpose(2, 3)  # (B, G, t, H / G, d)
    scores = grouped @ _gathered(k, columns).to(wide).transpose(-1, -2) * need.scale
    scores = scores.transpose(2, 3).flatten(1, 2)  # (B, H, t, K)
    if need.softcap is not None:
        scores = need.softcap * torch.tanh(scores / need.softcap)
    bias = _bias(chosen, columns, cut, q_at, k_at, q.shape[1])
    scores = scores if bias is None else scores + bias.to(wide)
    sinks = need.sinks
    if sinks is not None:
        sinks = sinks.to(wide) if sinks.dim() == 1 else sinks[:, :, cut].to(wide)
    weights, lse = normalise(scores.masked_fill(~shown, float("-inf")), sinks, need.normalise)
    out = weights.unflatten(1, (G, -1)).transpose(2, 3) @ _gathered(v, columns).to(wide)
    return out.transpose(2, 3).flatten(1, 2).to(dtype), lse


def _bias(chosen: ChosenKeys, columns: Tensor, cut: slice, q: Place, k: Place, heads: int) -> Tensor | None:
    """(B, H, t, K), or what broadcasts to it."""
    if chosen.inner is None:
        return None
    at = columns.clamp_min(0)[:, None]
    if not isinstance(chosen.inner, Pointwise):
        value = chosen.inner.of_queries(cut)
        return value.expand(len(columns), *value.shape[1:]).gather(-1, at.expand(-1, value.shape[1], -1, -1))
    device = columns.device
    b = torch.arange(len(columns), device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    i = torch.arange(cut.start, cut.stop, device=device)[None, None, :, None]
    return chosen.inner(b, h, i, q, k._replace(column=at))


def _gathered(x_BGSd: Tensor, columns_BtK: Tensor) -> Tensor:
    """(B, G, t, K, d)"""
    index = columns_BtK.clamp_min(0).flatten(1)[:, None, :, None].expand(-1, x_BGSd.shape[1], -1, x_BGSd.shape[3])
    return x_BGSd.gather(2, index).unflatten(2, columns_BtK.shape[1:])


def _places(pos: Positions, cut: slice) -> Place:
    """(B, 1, t, 1)"""
    segment = None if pos.segment is None else pos.segment[:, None, cut, None]
    return Place(pos.pos[:, None, cut, None], pos.order[:, None, cut, None], segment)


def _picked(pos: Positions, index_Bn: Tensor, like: Tensor) -> Place:
    """(B, 1, t, K)"""

    def at(values: Tensor) -> Tensor:
        return values.gather(1, index_Bn).view_as(like)[:, None]

    return Place(at(pos.pos), at(pos.order), None if pos.segment is None else at(pos.segment))


ENTRY = Entry(
    "chosen",
    ChosenKeysKernel,
    "Chosen keys",
    "The keys that an indexer has chosen for a query, and no others, with gradients: nothing grows with the pairs.",
    default=lambda number: ChosenKeysKernel(),
    variants={},  # it does nothing where no keys were chosen; tests of its own hold it to the reference
)
