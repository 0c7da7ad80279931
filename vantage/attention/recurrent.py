"""Attention inside RNN encoder-decoders: the decoder's state looks at the encoder's states (A1, A2).

Dot and general scores are Luong et al. 2015, the additive score is Bahdanau et al. 2014.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class AlignmentScore(Protocol):
    """How well states (B, D), or whole rows of them (B, T, D), match each of the keys (B, S, K).

    In two parts: ``mapped`` is what hangs on the keys alone, so a decoder works it out once for all its steps.
    """

    def mapped(self, keys_BSK: Tensor) -> Tensor: ...

    def match(self, state_BTD: Tensor, mapped_BSH: Tensor) -> Tensor: ...


class Dot(nn.Module):
    """s · h"""

    def mapped(self, keys_BSK: Tensor) -> Tensor:
        return keys_BSK

    def match(self, state_BTD: Tensor, mapped_BSH: Tensor) -> Tensor:
        return torch.einsum("b...d,bsd->b...s", state_BTD, mapped_BSH)

    def forward(self, state_BTD: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.match(state_BTD, self.mapped(keys_BSK))


class General(nn.Module):
    """s · W h"""

    def __init__(self, state_dim: int, key_dim: int):
        super().__init__()
        self.map = nn.Linear(key_dim, state_dim, bias=False)

    def mapped(self, keys_BSK: Tensor) -> Tensor:
        return self.map(keys_BSK)

    def match(self, state_BTD: Tensor, mapped_BSH: Tensor) -> Tensor:
        return torch.einsum("b...d,bsd->b...s", state_BTD, mapped_BSH)

    def forward(self, state_BTD: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.match(state_BTD, self.mapped(keys_BSK))


class Additive(nn.Module):
    """v · tanh(W s + U h)"""

    def __init__(self, state_dim: int, key_dim: int, hidden: int):
        super().__init__()
        self.state = nn.Linear(state_dim, hidden, bias=False)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def mapped(self, keys_BSK: Tensor) -> Tensor:
        return self.key(keys_BSK)

    def match(self, state_BTD: Tensor, mapped_BSH: Tensor) -> Tensor:
        states = self.state(state_BTD).unsqueeze(-2)
        keys = mapped_BSH if state_BTD.dim() == 2 else mapped_BSH[:, None]
        return self.out(torch.tanh(states + keys)).squeeze(-1)

    def forward(self, state_BTD: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.match(state_BTD, self.mapped(keys_BSK))


class RecurrentAttention(nn.Module):
    """The context: encoder states weighted by how well they match. Keys are the values."""

    def __init__(self, score: AlignmentScore):
        super().__init__()
        self.score = score

    def forward(
        self,
        state_BTD: Tensor,
        keys_BSK: Tensor,
        filled_BS: Tensor | None = None,
        mapped_BSH: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Context (B, K) and weights (B, S) of states (B, D); of states (B, T, D), (B, T, K) and (B, T, S).

        ``filled`` is false at padding; a row of padding alone gives 0. ``mapped`` is the score's own view of the
        keys, for who asks many times over the same ones.
        """
        scores = self.score.match(state_BTD, self.score.mapped(keys_BSK) if mapped_BSH is None else mapped_BSH)
        if filled_BS is not None:
            filled_BS = filled_BS if scores.dim() == 2 else filled_BS[:, None]
            scores = scores.masked_fill(~filled_BS, float("-inf"))
        weights = torch.softmax(scores, -1)
        if filled_BS is not None:
            weights = weights.masked_fill(~filled_BS, 0.0)  # softmax of nothing but -inf is nan
        return torch.einsum("b...s,bsk->b...k", weights, keys_BSK), weights
