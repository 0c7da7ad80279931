"""Query by query: the reference over one query at a time, which forms no whole table of scores."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.kernels.reference import Reference
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, Refusal


class QueryByQuery:
    name = "query-by-query"

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if need.bias is not None or need.value_bias is not None:
            return "query-by-query has no biases"
        if need.dropout:
            return "query-by-query has no dropout"
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        reference = Reference()
        columns = [
            reference(q_BHTd[:, :, t : t + 1], view, pair.q.narrow(t, 1).against(pair.k), need)
            for t in range(q_BHTd.shape[2])
        ]
        weights = torch.cat([c.weights for c in columns if c.weights is not None], 2) if need.weights else None
        lse = torch.cat([c.lse for c in columns if c.lse is not None], 2) if need.lse else None
        return Attended(torch.cat([c.out for c in columns], 2), weights, lse)


BIASED = ("shifted", "alibi", "t5", "shaw", "xl", "kerple-log", "kerple-power", "fire", "cope", "fox", "bank")

ENTRY = Entry(
    "query-by-query",
    QueryByQuery,
    "Query by query",
    "The reference over one query at a time: slow, and small in memory.",
    refusals=(Refusal({"encoding": BIASED}, "query-by-query has no biases"),),
)
