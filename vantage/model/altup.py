"""Alternating updates (Baykal et al. 2023; Gemma 3n): where streams begin, what layers do with them, how they end."""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.model.block import Chain, Residual
from vantage.model.feed_forward import ACTIVATIONS
from vantage.model.linear import dense
from vantage.model.part_errors import build_norm
from vantage.spec.altup import AltUp
from vantage.spec.model import Layer, NormConfig
from vantage.spec.operations import linear_operations
from vantage.spec.parts import INIT_STD, Context

SMALLEST = 1e-5  # of a mean square that is divided by


def as_large_as(x: Tensor, other: Tensor) -> Tensor:
    """x with the root mean square of the other."""
    size = x.square().mean(-1, keepdim=True).clamp_min(SMALLEST).sqrt()
    return x * other.square().mean(-1, keepdim=True).sqrt() / size


def rounded(number: float, x: Tensor) -> Tensor:
    return torch.full((), number, dtype=x.dtype, device=x.device)


class StreamsBegin(nn.Module):
    """Embeddings (B, T, D) to streams, and what each layer reads of the token, as one (B, T, A·D + L·P)."""

    def __init__(self, config: AltUp, norm: NormConfig, width: int, layers: int):
        super().__init__()
        self.config, self.layers = config, layers
        self.maps = nn.ModuleList(dense(width, width, False) for _ in range(config.streams - 1))
        self.tokens = nn.Embedding(config.token_vocab, layers * config.token_width)
        nn.init.normal_(self.tokens.weight, std=INIT_STD)
        self.of_embedding = dense(width, layers * config.token_width, False)
        self.norm = build_norm(norm, config.token_width)

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor) -> Tensor:
        c = self.config
        streams = [x_BTD, *(as_large_as(map(x_BTD), x_BTD) for map in self.maps)]
        known = (tokens_BT >= 0) & (tokens_BT < c.token_vocab)
        own = self.tokens(torch.where(known, tokens_BT, 0)) * rounded(sqrt(c.token_width), x_BTD)
        mapped = self.of_embedding(x_BTD) * rounded(x_BTD.shape[-1] ** -0.5, x_BTD)
        mapped = self.norm(mapped.unflatten(-1, (self.layers, -1))).flatten(-2)
        return torch.cat([*streams, (mapped + own) * rounded(sqrt(0.5), x_BTD)], -1)

    def operations(self, tokens: int) -> int:
        return sum(linear_operations(map, tokens) for map in (*self.maps, self.of_embedding))


class AltUpBlock(nn.Module):
    """A block over one of the streams, which the others follow."""

    def __init__(self, inner: nn.Module, config: AltUp, layer: Layer, width: int, index: int):
        super().__init__()
        if not isinstance(inner, Chain) or len(inner.steps) != 2 or any(_normed(step) for step in inner.steps):
            raise BadInput(
                "AltUp has attention and a feed-forward layer, each with norms before and after: use SANDWICH"
            )
        self.config, self.width, self.first = config, width, config.streams * width + index * config.token_width
        self.steps = inner.steps
        n = config.streams
        self.predict, self.correct = dense(n, n * n, False), dense(n, n, False)
        self.router, self.router_norm = dense(width, n, False), build_norm(layer.norm, width)
        self.left, self.right = dense(width, config.rank, False), dense(config.rank, width, False)
        self.rank_norm = build_norm(layer.norm, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.token_gate = dense(width, config.token_width, False)
        self.token_out, self.token_norm = dense(config.token_width, width, False), build_norm(layer.norm, width)

    @property
    def sublayers(self) -> list[nn.Module]:
        return [step.get_submodule("sublayer") for step in self.steps]

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        c, end = self.config, self.config.streams * self.width
        predicted = self.predicted(x[..., :end].unflatten(-1, (c.streams, -1)))
        activated = self.activated(predicted[..., c.active, :], ctx)
        streams = self.corrected(predicted, activated)
        of_token = self.of_token(streams[..., c.active, :], x[..., self.first : self.first + c.token_width])
        others = streams[..., 1:, :] + of_token[..., None, :]
        return torch.cat([streams[..., 0, :], others.flatten(-2), x[..., end:]], -1)

    def predicted(self, streams_BTAD: Tensor) -> Tensor:
        n = self.config.streams
        weights = self._linear(self.predict, self.routed(streams_BTAD[..., self.config.active, :]))
        return streams_BTAD + weights.unflatten(-1, (n, n)) @ streams_BTAD

    def activated(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        """Attention and what stands beside it, then the feed-forward layer."""
        attention, feed_forward = self.steps
        assert isinstance(attention, Residual)
        normed = attention.before(x_BTD)
        attended = x_BTD + attention.dropout(attention.after(attention.sublayer(normed, ctx)))
        beside = normed + self.rank_norm(self.right(self.left(normed)))
        return feed_forward((attended + beside) / sqrt(2), ctx)

    def corrected(self, predicted_BTAD: Tensor, activated_BTD: Tensor) -> Tensor:
        weights = self._linear(self.correct, self.routed(activated_BTD)) + 1.0
        missing = activated_BTD - predicted_BTAD[..., self.config.active, :]
        return predicted_BTAD + weights[..., None] * missing[..., None, :]

    def of_token(self, x_BTD: Tensor, token_BTP: Tensor) -> Tensor:
        x = x_BTD * self.scale if self.config.scaled else x_BTD
        gate = ACTIVATIONS[self.config.activation](self.token_gate(x))
        return self.token_norm(self.token_out(gate * token_BTP))

    def routed(self, x_BTD: Tensor) -> Tensor:
        """How much a token is of each kind: (B, T, A)."""
        routed = self.router(self.router_norm(x_BTD) * rounded(1 / self.width, x_BTD))
        return torch.tanh(routed.to(torch.promote_types(x_BTD.dtype, torch.float32))).to(x_BTD.dtype)

    def _linear(self, map: nn.Module, x: Tensor) -> Tensor:
        clip = self.config.clip
        if not self.training or clip is None:
            return map(x)
        return F.linear(x, map.get_parameter("weight").clamp(-clip, clip))

    def beside(self) -> list[nn.Module]:
        """Everything but the sublayers and their norms."""
        return [module for name, module in self.named_children() if name != "steps"]

    def operations_beside(self, tokens: int) -> int:
        """Those of everything but the sublayers."""
        maps = (self.predict, self.correct, self.router, self.router, self.left, self.right)
        ends = (self.token_gate, self.token_out)
        mixed = 2 * tokens * self.config.streams**2 * self.width
        return sum(linear_operations(map, tokens) for map in (*maps, *ends)) + mixed


def _normed(step: nn.Module) -> bool:
    """Whether a residual connection norms the stream itself."""
    plain = isinstance(step, Residual) and not step.normed and step.kept == 1.0
    return not plain or not isinstance(step.outer, nn.Identity)


class StreamsEnd(nn.Module):
    """The mean of all streams, each mapped and as large as the first, and normed."""

    def __init__(self, config: AltUp, norm: nn.Module, width: int):
        super().__init__()
        self.streams, self.width = config.streams, width
        self.maps = nn.ModuleList(dense(width, width, False) for _ in range(config.streams - 1))
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        first, *others = x[..., : self.streams * self.width].split(self.width, -1)
        mapped = [as_large_as(map(stream), first) for map, stream in zip(self.maps, others, strict=True)]
        return self.norm(torch.stack([first, *mapped]).mean(0))

    def operations(self, tokens: int) -> int:
        return sum(linear_operations(map, tokens) for map in self.maps)
