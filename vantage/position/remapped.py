"""What Self-Extend and dual chunk attention share: RoPE, at other positions than those of the tokens.

Queries and keys arrive turned by their positions. Where a rule has them elsewhere they are turned on by the difference,
multiplied once more, and the bias is what that changes of a score. Nothing that is kept depends on the rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vantage.position.angles import highest, rows, wide
from vantage.position.rope import Rope, Rotation, turns
from vantage.spec.parts import BiasInputs, Dense, Shape


class Region(NamedTuple):
    """Pairs that meet at other positions."""

    queries: Tensor  # (R, T): where the queries stand for these pairs
    keys: Tensor  # (R, S)
    pairs: Tensor  # (R, T, S) bool: for which


class Remapping(Protocol):
    """Which pairs of query and key meet where."""

    @property
    def rope(self) -> Rope: ...

    @property
    def unchanged(self) -> int:
        """Rows of so many tokens are as RoPE has them."""
        ...

    def regions(self, q_RT: Tensor, k_RS: Tensor) -> Iterator[Region]:
        """They do not overlap. Pairs of none of them meet where they stand."""
        ...


class RemappedScores(nn.Module):
    def __init__(self, config: Remapping, shape: Shape):
        super().__init__()
        self.config, self.rotary_dim = config, shape.rotary_dim
        self.rotation = Rotation(config.rope, shape.rotary_dim)

    def at(self, inputs: BiasInputs) -> Dense | None:
        top = highest(inputs.q_pos)
        if top is not None and top < self.config.unchanged:
            return None
        return inputs.dense(self.whole, pairwise=True)

    def whole(self, inputs: BiasInputs) -> Tensor:
        precise = wide(inputs.q.dtype)
        q, k = inputs.q.to(precise), inputs.k.to(precise)
        freq, _ = self.rotation.rates(inputs.q_pos)
        q_at, k_at = rows(inputs.q_pos), rows(inputs.k_pos)
        plain = _scores(q, k, inputs)
        bias = torch.zeros_like(plain)
        for region in self.config.regions(q_at, k_at):
            moved_q, moved_k = self.turned(q, region.queries - q_at, freq), self.turned(k, region.keys - k_at, freq)
            change = _scores(moved_q, moved_k, inputs) - plain
            bias = torch.where(region.pairs[:, None], change, bias)
        return bias

    def turned(self, x_BHTd: Tensor, by_RT: Tensor, freq: Tensor) -> Tensor:
        """The part of each head that turns, its last ``rotary_dim``, turned on; YaRN's factor is in it already."""
        still, turning = x_BHTd.split((x_BHTd.shape[-1] - self.rotary_dim, self.rotary_dim), -1)
        tables = turns(by_RT, freq, 1.0, self.config.rope.pairing, x_BHTd.dtype)
        return torch.cat((still, self.rotation.turn_by(turning, *tables)), -1)


def _scores(q_BHTd: Tensor, k_BGSd: Tensor, inputs: BiasInputs) -> Tensor:
    """(B, H, T, S), as a kernel has them before it adds a bias."""
    grouped = q_BHTd.unflatten(1, (k_BGSd.shape[1], -1))
    scores = (grouped @ k_BGSd[:, :, None].transpose(-1, -2)).flatten(1, 2) * inputs.scale
    return scores if inputs.softcap is None else inputs.softcap * torch.tanh(scores / inputs.softcap)


def chunk_of(pos_RT: Tensor, size: int) -> Tensor:
    return torch.div(pos_RT, size, rounding_mode="floor")
