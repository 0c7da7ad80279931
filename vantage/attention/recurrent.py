"""Attention inside RNN encoder-decoders: the decoder's state looks at the encoder's states (A1, A2).

Dot and general scores are Luong et al. 2015, the additive score is Bahdanau et al. 2014.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Score(Protocol):
    """How well a state (B, D) matches each of the keys (B, S, K)."""

    def __call__(self, state_BD: Tensor, keys_BSK: Tensor) -> Tensor: ...


class Dot(nn.Module):
    """s · h"""

    def forward(self, state_BD: Tensor, keys_BSK: Tensor) -> Tensor:
        return torch.einsum("bd,bsd->bs", state_BD, keys_BSK)


class General(nn.Module):
    """s · W h"""

    def __init__(self, state_dim: int, key_dim: int):
        super().__init__()
        self.map = nn.Linear(key_dim, state_dim, bias=False)

    def forward(self, state_BD: Tensor, keys_BSK: Tensor) -> Tensor:
        return torch.einsum("bd,bsd->bs", state_BD, self.map(keys_BSK))


class Additive(nn.Module):
    """v · tanh(W s + U h)"""

    def __init__(self, state_dim: int, key_dim: int, hidden: int):
        super().__init__()
        self.state = nn.Linear(state_dim, hidden, bias=False)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, state_BD: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.out(torch.tanh(self.state(state_BD)[:, None] + self.key(keys_BSK))).squeeze(-1)


class RecurrentAttention(nn.Module):
    """The context: encoder states weighted by how well they match. Keys are the values."""

    def __init__(self, score: Score):
        super().__init__()
        self.score = score

    def forward(self, state_BD: Tensor, keys_BSK: Tensor, filled_BS: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Context (B, K) and weights (B, S). ``filled`` is false at padding; a row of padding alone gives 0."""
        scores = self.score(state_BD, keys_BSK)
        if filled_BS is not None:
            scores = scores.masked_fill(~filled_BS, float("-inf"))
        weights = torch.softmax(scores, -1)
        if filled_BS is not None:
            weights = weights.masked_fill(~filled_BS, 0.0)  # softmax of nothing but -inf is nan
        return torch.einsum("bs,bsk->bk", weights, keys_BSK), weights
