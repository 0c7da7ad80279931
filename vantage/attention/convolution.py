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
        n, (B, T) = self.taps, pos.shape
        count = pos.filled.long().cumsum(1)  # tokens of the row up to each column
        tokens, ranks = x_BTC, None if pos.segment is None else pos.order - pos.segment  # in the document
        if pos.known.empty:  # without gaps: padding goes to a place that is cut off
            place = torch.where(pos.filled, count - 1, T)
            tokens = x_BTC.new_zeros(B, T + 1, x_BTC.shape[2]).scatter(1, place[..., None].expand_as(x_BTC), x_BTC)
            tokens = tokens[:, :-1]
            ranks = None if ranks is None else ranks.new_zeros(B, T + 1).scatter(1, place, ranks)[:, :-1]
        line = torch.cat([before_BnC.to(x_BTC.dtype), tokens], 1)  # the state first
        out = torch.zeros_like(tokens) if self.bias is None else self.bias.expand_as(tokens)
        for i, weight_C in enumerate(self.weight.unbind(1)):
            seen = line[:, i : i + T]
            if ranks is not None:
                seen = torch.where((ranks >= n - 1 - i)[..., None], seen, 0)
            out = torch.addcmul(out, seen, weight_C)
        if pos.known.empty:
            out = out.gather(1, (count - 1).clamp_min(0)[..., None].expand_as(out))
        back = torch.arange(n - 1, device=x_BTC.device)
        return out, [_rows(line, count[:, c, None] + back) for c in columns]


def _rows(line_BSC: Tensor, index_Bn: Tensor) -> Tensor:
    """(B, n, C)"""
    return line_BSC.gather(1, index_Bn[..., None].expand(-1, -1, line_BSC.shape[-1]))
