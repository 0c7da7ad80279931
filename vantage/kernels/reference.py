"""Attention written out, in the order that ``Need`` fixes. Every other kernel is held to this one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.spec.masks import Everything, dense, visible
from vantage.spec.normalisers import Normaliser
from vantage.spec.parts import Attended, Need, View, materialise
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry


class Reference:
    """Does everything, returns the weights, works in float64. Computes in float32 at least."""

    name = "reference"

    def auto(self, device: str) -> bool:
        return True

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        return None

    def forms(self, need: Need, q: Tensor, view: View) -> int:
        return q.shape[0] * q.shape[1] * q.shape[2] * view.k.shape[2]

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        wide = torch.promote_types(q_BHTd.dtype, torch.float32)
        q, k, v = q_BHTd.to(wide), view.k.to(wide), view.v.to(wide)
        scores = masked_scores(q, k, pair, need)
        sinks = None if need.sinks is None else need.sinks.to(wide)
        weights, lse = normalise(scores, sinks, need.normalise, pair)
        used = F.dropout(weights, need.dropout) if need.dropout else weights
        out = grouped_matmul(used, v)
        if need.value_bias is not None:
            out = out + need.value_bias.at(used, pair.q, pair.k)
        return Attended(out.to(q_BHTd.dtype), weights if need.weights else None, lse if need.lse else None)


def masked_scores(q_BHTd: Tensor, k_BGSd: Tensor, pair: Pair, need: Need) -> Tensor:
    """(B, H, T, S): what the normaliser gets, -inf where a query does not see a key."""
    scores = grouped_matmul(q_BHTd, k_BGSd.transpose(-1, -2)) * need.scale
    if need.softcap is not None:
        scores = need.softcap * torch.tanh(scores / need.softcap)
    bias = materialise(need.bias, pair, q_BHTd.shape[1], scores.dtype)
    if bias is not None:
        scores = scores + bias
    mask = visible(need.mask, pair)
    return scores if mask == Everything() else scores.masked_fill(~dense(mask, pair), float("-inf"))


def grouped_matmul(a_BHTx: Tensor, b_BGxy: Tensor) -> Tensor:
    """a @ b where H query heads share G key/value heads, head h using head h // (H / G)."""
    B, H, T, x = a_BHTx.shape
    G = b_BGxy.shape[1]
    out = a_BHTx.reshape(B, G, H // G * T, x) @ b_BGxy
    return out.reshape(B, H, T, b_BGxy.shape[-1])


def normalise(
    scores_BHTS: Tensor, sinks: Tensor | None, how: Normaliser, pair: Pair | None = None
) -> tuple[Tensor, Tensor]:
    """Weights and the log-sum-exp. ``sinks``: one for each head, or for each query (B, H, T)."""
    if sinks is not None:
        sinks = sinks[None, :, None, None] if sinks.dim() == 1 else sinks[..., None]
    return how(scores_BHTS, sinks, pair)


ENTRY = Entry("reference", Reference, "Reference", "The formula written out: does everything, hands back the weights.")
