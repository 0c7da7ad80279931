"""The two ends of a model: tokens to vectors, vectors to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.model.linear import dense
from vantage.model.part_errors import build_norm
from vantage.model.token_types import NoTokenTypes, TokenTypes
from vantage.spec.model import Embedding, Head
from vantage.spec.native import Program
from vantage.spec.parts import INIT_STD
from vantage.spec.positions import Positions


class Embed(nn.Module):
    """Token embeddings, scaled, plus what is added at the input."""

    def __init__(self, config: Embedding, vocab: int, width: int, inputs: list[nn.Module]):
        super().__init__()
        own = width if config.width is None else config.width
        self.scale, self.rounded = config.scale, config.rounded
        std = (
            INIT_STD if config.scale == 1.0 else 1.0 / config.scale
        )  # a scale is there to bring them to the size of one
        # says with `check` what cannot be embedded, with `size` the rows and places (B, T) that tokens or images take
        self.tokens: Any = Table(vocab, own, std) if config.source is None else config.source.build(own)
        self.types = TokenTypes(config.types, own) if config.types else NoTokenTypes()
        self.inputs = nn.ModuleList(inputs)
        self.norm = nn.Identity() if config.norm is None else build_norm(config.norm, own)
        self.dropout = nn.Dropout(config.dropout)
        self.project = nn.Identity() if config.width is None else dense(own, width, True)
        self.streams: nn.Module | None = None  # which see the tokens once more (AltUp)

    def forward(self, tokens: Tensor, pos: Positions, types_BT: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens)
        x = x if self.scale == 1.0 else x * self._scale(x)
        x = self.types(x, types_BT)
        for part in self.inputs:
            x = part(x, pos)
        x = self.project(self.dropout(self.norm(x)))
        return x if self.streams is None else self.streams(x, tokens)

    def _scale(self, x: Tensor) -> Tensor | float:
        return torch.full((), self.scale, dtype=x.dtype, device=x.device) if self.rounded else self.scale


class Table(nn.Embedding):
    """A vector for each token id."""

    def __init__(self, vocab: int, width: int, std: float):
        super().__init__(vocab, width)
        nn.init.normal_(self.weight, std=std)

    def size(self, tokens_BT: Tensor) -> tuple[int, int]:
        return tokens_BT.shape[0], tokens_BT.shape[1]

    def check(self, tokens_BT: Tensor) -> None:
        check_tokens(tokens_BT, self.num_embeddings)


def check_tokens(tokens_BT: Tensor, vocab: int) -> None:
    """Refuse ids that are not in the vocabulary. Read in host memory only: no device is asked, no graph is broken."""
    if tokens_BT.dim() != 2 or tokens_BT.is_floating_point() or tokens_BT.dtype == torch.bool:
        raise BadInput(
            f"tokens are {tokens_BT.dtype} of shape {tuple(tokens_BT.shape)}: give whole numbers (batch, tokens)"
        )
    if tokens_BT.numel() == 0:
        raise BadInput(f"tokens have shape {tuple(tokens_BT.shape)}: give at least one")
    if (
        tokens_BT.device.type == "cpu"
        and not torch.compiler.is_compiling()
        # a torch.func transform would stand between us and the numbers
        and not torch._C._functorch.is_functorch_wrapped_tensor(tokens_BT)  # pyright: ignore[reportAttributeAccessIssue] (it has no stub)
    ):
        low, high = (int(n) for n in tokens_BT.aminmax())
        if low < 0 or high >= vocab:
            raise BadInput(f"token {low if low < 0 else high} is not in the vocabulary of {vocab} (0 to {vocab - 1})")


class Unembed(nn.Module):
    """A linear map to logits, which may be the embedding table itself, after a transform if there is one."""

    def __init__(self, config: Head, vocab: int, width: int, tokens: nn.Embedding):
        super().__init__()
        self.config = config
        own = width if config.width is None else config.width
        self.transform = nn.Identity() if config.transform is None else config.transform.build(width, own)
        self.linear = dense(own, vocab, config.bias)
        if config.tied:
            self.linear.weight = tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        logits = self.linear(self.transform(x))
        logits = logits if self.config.scale == 1.0 else logits * self.config.scale
        cap = self.config.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def native(self, program: Program, src: int, into: int | None) -> int:
        logits = program.linear(self.linear, program.lower(self.transform, src), None, "logits")
        if self.config.scale != 1.0 or self.config.softcap is not None:
            program.scale(logits, self.config.scale, self.config.softcap)
        return logits
