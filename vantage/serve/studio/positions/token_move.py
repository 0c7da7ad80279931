"""One token moved to another position while everything else stays: what becomes of a query's scores and weights.

Only ``pos`` changes, which encodings read. ``order``, which masks read, stays: the query sees the same keys as before.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.inspect.select import choose_sites, labels, numbers, read_tokens
from vantage.inspect.sites import KernelCall, Site, observing, sites_of
from vantage.inspect.tiles import cut_need, pick
from vantage.kernels.reference import masked_scores, normalise
from vantage.model import Model
from vantage.serve.studio.positions.answers import TokenMoveAnswer
from vantage.serve.studio.texts import encode_fitting
from vantage.spec.positions import Pair, Positions

TOKENS = 1024


class WeightRow(NamedTuple):
    """The row of weights that is looked at."""

    layer: int
    head: int
    query: int


def move_token(model: Model, text: str, which: WeightRow, token: int, to: int) -> TokenMoveAnswer:
    """Scores and weights of one query before and after. A key that the query does not see has no score."""
    if model.encoder is not None:
        raise Refused("tokens are dragged in a decoder or an encoder: this model is both, choose another")
    row = read_tokens(model, encode_fitting(model, text, TOKENS))
    n = row.shape[1]
    site = choose_sites(sites_of(model), "self", which.layer)[0]
    numbers(which.head, site.heads, "head", f" in layer {which.layer}")
    numbers(which.query, n, "query", " in this text")
    numbers(token, n, "token", " in this text")
    order = torch.arange(n)[None]
    pos = order.clone()
    pos[0, token] = to
    before = _row(model, row, Positions.of(order), site, which)
    after = _row(model, row, Positions.of(pos, order=order), site, which)
    return TokenMoveAnswer(
        tokens=labels(model, row[0].tolist()),
        before=before[1].tolist(),
        after=after[1].tolist(),
        scores_before=_visible(before[0]),
        scores_after=_visible(after[0]),
    )


@torch.inference_mode()
def _row(model: Model, tokens: Tensor, pos: Positions, site: Site, which: WeightRow) -> tuple[Tensor, Tensor]:
    """(keys,) scores and weights of the query, from what the kernel was given."""
    calls: list[KernelCall] = []
    with observing([site], calls.append):
        model.hidden(tokens, positions=pos)
    seen = calls[0]
    heads, query = torch.arange(seen.q.shape[1]), torch.tensor([which.query])  # a normaliser may need all heads
    wide = torch.promote_types(seen.q.dtype, torch.float32)
    q, k = seen.q[:1, :, query].to(wide), seen.view.k[:1].to(wide)
    need = cut_need(seen.need, heads, query, slice(None))
    pair = Pair(pick(seen.pair.q, (which.query,)), seen.pair.k)
    scores = masked_scores(q, k, pair, need)
    sinks = None if need.sinks is None else need.sinks.to(wide)
    weights, _ = normalise(scores, sinks, need.normalise, pair)
    return scores[0, which.head, 0], weights[0, which.head, 0]


def _visible(scores: Tensor) -> list[float | None]:
    return [None if value == float("-inf") else value for value in scores.tolist()]
