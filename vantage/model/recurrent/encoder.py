"""The encoder: a recurrent network over sources of different lengths, and what it leaves for the decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vantage.model.recurrent.spec import RecurrentSpec

Cell = tuple[Tensor, ...]  # a cell's state: (h,) or, for an LSTM, (h, c), each (layers, B, width)

_NETWORKS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Network(nn.Module):
    """torch's RNN, GRU or LSTM, with a state that is a tuple whichever it is."""

    def __init__(self, spec: RecurrentSpec, inputs: int, *, bidirectional: bool = False):
        super().__init__()
        # torch puts dropout between layers, and warns where there is no between
        between = spec.dropout if spec.layers > 1 else 0.0
        self.net = _NETWORKS[spec.cell](
            inputs,
            spec.width // 2 if bidirectional else spec.width,
            spec.layers,
            batch_first=True,
            dropout=between,
            bidirectional=bidirectional,
        )
        self.kinds = 2 if isinstance(self.net, nn.LSTM) else 1  # how many tensors a state has

    def forward(self, x_BTE: Tensor, state: Cell | None) -> tuple[Tensor, Cell]:
        given = state[0] if state is not None and self.kinds == 1 else state  # torch has tuples for the LSTM alone
        out_BTD, last = self.net(x_BTE, given)
        return out_BTD, self._cell(last)

    def padded(self, x_BSE: Tensor, lengths: list[int]) -> tuple[Tensor, Cell]:
        """The same over rows of different lengths: 0 past the end of a row, and the state at its end."""
        packed = pack_padded_sequence(x_BSE, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        out, last = self.net(packed)
        out_BSD, _ = pad_packed_sequence(out, batch_first=True, total_length=x_BSE.shape[1])
        return out_BSD, self._cell(last)

    def _cell(self, last: Tensor | Cell) -> Cell:
        return (last,) if isinstance(last, Tensor) else last


@dataclass(frozen=True, eq=False)
class Encoded:
    """A source, read: the state at every token, and the state from which the decoder starts."""

    states_BSD: Tensor
    filled_BS: Tensor | None  # false at padding; None: there is none
    last: Cell


class RecurrentEncoder(nn.Module):
    """Reads the source; in both directions if asked, and then a bridge makes one state of the two last ones."""

    def __init__(self, spec: RecurrentSpec):
        super().__init__()
        self.net = Network(spec, spec.width, bidirectional=spec.bidirectional)
        self.bridge = (
            nn.ModuleList(nn.Linear(spec.width, spec.width) for _ in range(self.net.kinds))
            if spec.bidirectional
            else None
        )

    def forward(self, x_BSE: Tensor, filled_BS: Tensor | None, lengths: list[int] | None) -> Encoded:
        states_BSD, last = self.net(x_BSE, None) if lengths is None else self.net.padded(x_BSE, lengths)
        if self.bridge is not None:
            last = tuple(torch.tanh(bridge(_joined(h))) for bridge, h in zip(self.bridge, last, strict=True))
        return Encoded(states_BSD, filled_BS, last)


def _joined(last: Tensor) -> Tensor:
    """(2 × layers, B, D/2), forwards and backwards by turns, to (layers, B, D)."""
    return torch.cat([last[0::2], last[1::2]], -1)
