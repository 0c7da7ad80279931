"""A short causal convolution over the tokens of a document, one filter for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.attention.scorer import NoBias
from vantage.errors import BadInput, Refused
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.model import BuildContext
from vantage.spec.positions import Positions


def check_goes_forward(context: BuildContext, who: str) -> None:
    """What has no scores takes no position, and can only see all that came before in its document."""
    if context.mask != Causal() & SameSegment():
        raise Refused(f"{who} sees all that came before: give this layer the mask Causal() & SameSegment()")
    if context.qk or context.value_bias is not None or not isinstance(context.bias, NoBias):
        raise Refused(f"{who} has no scores that a position could act on: give this layer none (position='none')")


class ShortConvolution(nn.Module):
    """y_t = Σ w_i ⊙ x_(t-n+1+i), with zeros before the start of a document. The last n - 1 inputs are its state.

    Padding is no token: it is stepped over, and leaves the state as it is.
    """

    def __init__(self, channels: int, taps: int, *, bias: bool = False):
        super().__init__()
        if taps < 1:
            raise BadInput(f"taps={taps}: a convolution sees one token or more")
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(channels, taps))
        nn.init.normal_(self.weight, std=taps**-0.5)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self, x_BTC: Tensor, before_BnC: Tensor, pos: Positions, columns: tuple[int, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """The result (B, T, C), and the states (B, n - 1, C) after each of these columns."""
        n, count = self.taps, pos.filled.long().cumsum(1)  # tokens of the row up to each column
        if pos.known.empty:
            rank = torch.where(pos.filled, count - 1, x_BTC.shape[1])  # padding goes to a place that is cut off
            tokens = torch.zeros_like(x_BTC[:, :1]).repeat(1, x_BTC.shape[1] + 1, 1)
            tokens = tokens.scatter(1, rank[..., None].expand_as(x_BTC), x_BTC)[:, :-1]
        else:
            tokens = x_BTC
        line = torch.cat([before_BnC.to(x_BTC.dtype), tokens], 1)  # the inputs without gaps, the state first
        back = torch.arange(n, device=x_BTC.device)
        at = (count - 1).clamp_min(0)[..., None] + back  # (B, T, n): the inputs that each token sees
        windows = _rows(line, at)
        if pos.segment is not None:
            rank = (pos.order - pos.segment)[..., None]  # in its document
            windows = torch.where((n - 1 - back <= rank)[..., None], windows, 0)
        out = torch.einsum("btnc,cn->btc", windows, self.weight)
        states = [_rows(line, count[:, c, None, None] + back[: n - 1])[:, 0] for c in columns]
        return out if self.bias is None else out + self.bias, states

    def operations(self, tokens: int) -> int:
        return 2 * tokens * self.weight.numel()


def _rows(line_BSC: Tensor, index_BTn: Tensor) -> Tensor:
    """(B, T, n, C)"""
    B, T, n = index_BTn.shape
    flat = index_BTn.reshape(B, T * n, 1).expand(-1, -1, line_BSC.shape[-1])
    return line_BSC.gather(1, flat).view(B, T, n, line_BSC.shape[-1])
