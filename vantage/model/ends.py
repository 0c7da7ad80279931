"""The two ends of a model: tokens to vectors, vectors to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.spec.model import Embedding, Head, LinearMaker
from vantage.spec.positions import Positions


class Embed(nn.Module):
    """Token embeddings, scaled, plus what is added at the input."""

    def __init__(self, config: Embedding, vocab: int, width: int, inputs: list[nn.Module]):
        super().__init__()
        self.scale = config.scale
        self.tokens = nn.Embedding(vocab, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.inputs = nn.ModuleList(inputs)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(width)
        self.dropout = nn.Dropout(config.dropout)

    def check(self, tokens_BT: Tensor) -> None:
        """Refuse ids that are not in the vocabulary. Read in host memory only: no device is asked."""
        if tokens_BT.dim() != 2 or tokens_BT.is_floating_point() or tokens_BT.dtype == torch.bool:
            raise BadInput(
                f"tokens are {tokens_BT.dtype} of shape {tuple(tokens_BT.shape)}: give whole numbers (batch, tokens)"
            )
        if tokens_BT.numel() == 0:
            raise BadInput(f"tokens have shape {tuple(tokens_BT.shape)}: give at least one")
        if tokens_BT.device.type == "cpu":
            low, high = (int(n) for n in tokens_BT.aminmax())
            vocab = self.tokens.num_embeddings
            if low < 0 or high >= vocab:
                raise BadInput(
                    f"token {low if low < 0 else high} is not in the vocabulary of {vocab} (0 to {vocab - 1})"
                )

    def forward(self, tokens_BT: Tensor, pos: Positions) -> Tensor:
        x = self.tokens(tokens_BT)
        x = x if self.scale == 1.0 else x * self.scale
        for part in self.inputs:
            x = part(x, pos)
        return self.dropout(self.norm(x))


class Unembed(nn.Module):
    """A linear map to logits, which may be the embedding table itself."""

    def __init__(self, config: Head, vocab: int, width: int, tokens: nn.Embedding, linear: LinearMaker):
        super().__init__()
        self.config = config
        self.linear = linear(width, vocab, config.bias)
        if config.tied:
            self.linear.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        logits = self.linear(x)
        logits = logits if self.config.scale == 1.0 else logits * self.config.scale
        cap = self.config.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
