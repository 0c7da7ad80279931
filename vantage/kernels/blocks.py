"""Attention a block of queries at a time, in plain torch: whatever is asked for, in memory that grows with the keys.

Each block is an attention of its own, over the keys that some query of it may see, by torch's SDPA where that can do it
and by the formula where it cannot. On the way back a block is worked out once more: between the two nothing is kept of
it but its output.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vantage.kernels.reference import Reference
from vantage.kernels.sdpa import Sdpa
from vantage.spec.masks import Mask
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair, Positions
from vantage.spec.query_blocks import SeesStretches, of_queries, query_blocks
from vantage.spec.registry import Entry

SCORE_SIZED_TENSORS = 4  # tensors of a block that are as large as its scores, at the same time


class QueryBlocks:
    """Everything but the weights, which are as many as there are pairs; forward and backward."""

    def __init__(self, queries: int | None = None):
        self.queries = queries  # of a block; ``None``: as many as suit the device
        self.name = "blocks" if queries is None else f"blocks-of-{queries}"

    def auto(self, device: str) -> bool:
        return False  # it runs where another would form too much (select.py)

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if need.weights:
            return "the blocks kernel does not hand back weights"
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return "the blocks kernel cannot be compiled into a graph, nor has it a rule for vmap"
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        B, H, T, _ = q_BHTd.shape
        blocks = query_blocks(T, SCORE_SIZED_TENSORS * B * H * view.k.shape[2], q_BHTd.device, self.queries)
        if len(blocks) <= 1:
            return _inner(need, q_BHTd, view)(q_BHTd, view, pair, need)
        attended = [self.block(q_BHTd, view, pair, need, cut) for cut in blocks]
        lse = torch.cat([part for _, part in attended if part is not None], 2) if need.lse else None
        return Attended(torch.cat([out for out, _ in attended], 2), lse=lse)

    def block(self, q: Tensor, view: View, pair: Pair, need: Need, cut: slice) -> tuple[Tensor, Tensor | None]:
        """Output and log-sum-exp of some queries."""
        some = pair.q.narrow(cut.start, cut.stop - cut.start)
        keys = seen_keys(need, some, pair.k)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            where = pair.k.pick(keys) if isinstance(keys, Tensor) else pair.k.narrow(keys.start, keys.stop - keys.start)
            seen = View(k[:, :, keys], v[:, :, keys], where)
            own = of_queries(need, cut, keys, q.device)
            own_pair = Pair(some, where)  # one that nobody else holds: what it keeps is as large as the block
            attended = _inner(own, q, seen)(q, seen, own_pair, own)
            return attended.out, attended.lse

        inputs = q[:, :, cut], view.k, view.v
        if not torch.is_grad_enabled():
            return attend(*inputs)
        return checkpoint(attend, *inputs, use_reentrant=False)


def _inner(need: Need, q: Tensor, view: View) -> Sdpa | Reference:
    sdpa = Sdpa()
    return sdpa if sdpa.refuses(need, q, view) is None else Reference()


def seen_keys(need: Need, queries: Positions, keys: Positions) -> slice | Tensor:
    """The columns of all keys that some query may see, as far as the host knows."""
    if isinstance(need.bias, SeesStretches) and (stretches := need.bias.stretches(queries)) is not None:
        return torch.cat([torch.arange(s.start, s.stop, device=keys.device) for s in stretches])
    return _seen_run(need.mask, queries, keys)


def _seen_run(mask: Mask, queries: Positions, keys: Positions) -> slice:
    S, first, bounds = keys.shape[1], keys.known.first, queries.known.order
    if first is None or bounds is None or queries.known.first is None:
        return slice(0, S)
    reach, low, high = mask.reach(), 0, S
    if mask.causal:
        high = bounds[1] + 1 - first
    elif reach is not None:
        high = bounds[1] + reach - first
    if reach is not None:
        low = bounds[0] - reach + 1 - first
    low, high = max(low, 0), min(high, S)
    return slice(low, high) if high > low else slice(0, min(1, S))


ENTRY = Entry(
    "blocks",
    QueryBlocks,
    "Blocks of queries",
    "Some queries after the others, in plain torch, with gradients: all that the reference does, without handing back "
    "weights, in memory that grows with the keys and not with the pairs.",
    default=lambda number: QueryBlocks(),
    variants={},  # so many at once as no row of the matrix has
)
SMALL = Entry(
    "blocks-of-2",
    QueryBlocks,
    "Blocks of two queries",
    "The same with two queries at a time, to check with.",
    default=lambda number: QueryBlocks(queries=2),
)
