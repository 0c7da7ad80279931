"""torch's scaled_dot_product_attention: no mask where the facts allow it, ``is_causal`` where they allow that."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vantage.spec.masks import Everything, Mask, dense, is_plain_causal, visible
from vantage.spec.parts import Attended, Need, Softmax, View, materialise
from vantage.spec.positions import Pair


class Sdpa:
    name = "sdpa"

    def refuses(self, need: Need, q: Tensor, view: View) -> str | None:
        if need.weights or need.lse:
            return "sdpa does not hand back weights or the log-sum-exp"
        if need.softcap is not None:
            return "sdpa has no softcap"
        if need.sinks is not None:
            return "sdpa has no sinks"
        if need.value_bias is not None:
            return "a value bias needs the weights, which sdpa does not form"
        if not isinstance(need.normalise, Softmax):
            return "sdpa has no hard (argmax) attention"
        return None

    def __call__(self, q_BHTd: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        assert isinstance(need.normalise, Softmax)
        k, v = view.k, view.v
        B, H, T, d = q_BHTd.shape
        G = k.shape[1]
        mask = visible(need.mask, pair)
        if need.bias is None and T > 1 and is_plain_causal(mask, pair):
            attn_mask, causal = None, True  # written out: to the compiler the condition itself may be a symbol
        else:
            attn_mask, causal = self._mask(mask, pair, need, H, q_BHTd.dtype), False
        scale, q, folded = need.scale / need.normalise.temperature, q_BHTd, T == 1 and G != H
        if folded:  # one query: the heads that share a key become its rows, and keys are read once
            q = q.reshape(B, G, H // G, d)
            if attn_mask is not None and attn_mask.shape[1] != 1:
                attn_mask = attn_mask.reshape(attn_mask.shape[0], G, H // G, -1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p=need.dropout, is_causal=causal, scale=scale, enable_gqa=not folded and G != H
        )
        return Attended(out.reshape(B, H, T, -1))

    def _mask(self, mask: Mask, pair: Pair, need: Need, heads: int, dtype: torch.dtype) -> Tensor | None:
        assert isinstance(need.normalise, Softmax)
        seen = None if mask == Everything() else dense(mask, pair)
        bias = materialise(need.bias, pair, heads, dtype)
        if bias is None:
            return seen
        bias = bias if need.normalise.temperature == 1.0 else bias / need.normalise.temperature
        return bias if seen is None else bias.masked_fill(~seen, float("-inf"))
