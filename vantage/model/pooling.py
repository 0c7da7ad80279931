"""From hidden states to one vector a row, and what stands between hidden states and a head.

embedding = mean_pool(model.hidden(tokens, mask=mask), mask)     # sentence-transformers
embedding = model.pooler(model.hidden(tokens, mask=mask))        # BERT's pooler, where the checkpoint has one
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, unknown
from vantage.model.feed_forward import ACTIVATIONS
from vantage.model.linear import dense
from vantage.spec.model import NormConfig

POOLER_ACTIVATIONS = {**ACTIVATIONS, "tanh": torch.tanh}


def mean_pool(hidden_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:
    """The mean over the tokens of each row, padding left out; a row of nothing but padding gives 0."""
    if mask_BT is None:
        return hidden_BTD.mean(1)
    if mask_BT.shape != hidden_BTD.shape[:2]:
        raise BadInput(
            f"the mask has shape {tuple(mask_BT.shape)}, the hidden states {tuple(hidden_BTD.shape)}: one entry a token"
        )
    real = mask_BT.bool()[..., None]
    # what stands at padding is nobody's business, not even if it is not a number
    return hidden_BTD.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp_min(1)


def first_token(hidden_BTD: Tensor) -> Tensor:
    """The first token of each row (class token, [CLS]). Rows must be padded on the right."""
    return hidden_BTD[:, 0]


@dataclass(frozen=True)
class First:
    """A head on the first token alone (ViT's classifier)."""

    def build(self, width: int, out: int) -> nn.Module:
        return _First()


class _First(nn.Module):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return first_token(x_BTD)


@dataclass(frozen=True)
class Pooler:
    """f(W x₀ + b) of the first token (BERT)."""

    activation: str = "tanh"
    out: int | None = None  # None: as wide as asked for

    def __post_init__(self) -> None:
        if self.activation not in POOLER_ACTIVATIONS:
            raise BadInput(unknown("activation", self.activation, POOLER_ACTIVATIONS))

    def build(self, width: int, out: int) -> nn.Module:
        return _Pooler(self, width, out if self.out is None else self.out)


class _Pooler(nn.Module):
    def __init__(self, config: Pooler, width: int, out: int):
        super().__init__()
        self.act = POOLER_ACTIVATIONS[config.activation]
        self.linear = dense(width, out, True)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.act(self.linear(first_token(x_BTD)))


class NoPooler(nn.Module):
    """A model whose checkpoint has none."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        raise BadInput("this model has no pooler: use mean_pool or first_token of vantage.model.pooling")


@dataclass(frozen=True)
class Transform:
    """norm(f(W x + b)) at every token: what BERT's masked-LM head does before it compares with the embeddings."""

    activation: str
    norm: NormConfig

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise BadInput(unknown("activation", self.activation, ACTIVATIONS))

    def build(self, width: int, out: int) -> nn.Module:
        return _Transform(self, width, out)


class _Transform(nn.Module):
    def __init__(self, config: Transform, width: int, out: int):
        super().__init__()
        self.act = ACTIVATIONS[config.activation]
        self.linear = dense(width, out, True)
        self.norm = config.norm.build(out)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(self.act(self.linear(x_BTD)))
