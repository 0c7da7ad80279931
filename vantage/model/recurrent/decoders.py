"""Decoders: one without attention, and three by what of the attention goes into the recurrence.

Each takes embedded tokens (B, T, E) and what it carries from the step before, so a step of decoding is a pass over
one token. A pass over many gives the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from vantage.attention import Additive, Dot, General, RecurrentAttention
from vantage.attention.recurrent import AlignmentScore
from vantage.model.recurrent.encoder import Cell, Encoded, Network
from vantage.model.recurrent.spec import RecurrentSpec


@dataclass(frozen=True, eq=False)
class Memory:
    """What every step of a decoder looks at."""

    keys_BSD: Tensor
    mapped_BSH: Tensor  # the score's own view of the keys, worked out once
    filled_BS: Tensor | None


@dataclass(frozen=True, eq=False)
class Carried:
    """What a decoder takes from one step to the next."""

    cell: Cell
    memory: Memory | None = None  # None: no attention
    fed_BD: Tensor | None = None  # the attentional vector before, where it is fed


@dataclass(frozen=True, eq=False)
class Decoded:
    """``out`` goes to the head; ``states`` are the top layer's; ``weights`` (B, T, S) are those that were used."""

    out_BTD: Tensor
    states_BTD: Tensor
    weights_BTS: Tensor | None
    carried: Carried


class RecurrentDecoder(Protocol):
    """From what the encoder left to ``Decoded``."""

    def start(self, encoded: Encoded) -> Carried: ...

    def __call__(self, x_BTE: Tensor, carried: Carried) -> Decoded: ...


class Looking(nn.Module):
    """Attention and what is made of it: s̃ = tanh(W [s; c]), the update of A2 and Luong's attentional vector."""

    def __init__(self, spec: RecurrentSpec, score: AlignmentScore):
        super().__init__()
        self.attention = RecurrentAttention(score)
        self.combine = nn.Linear(2 * spec.width, spec.width)

    def memory(self, encoded: Encoded) -> Memory:
        mapped = self.attention.score.mapped(encoded.states_BSD)
        return Memory(encoded.states_BSD, mapped, encoded.filled_BS)

    def context(self, state_BTD: Tensor, memory: Memory | None) -> tuple[Tensor, Tensor]:
        assert memory is not None  # start() gave one
        return self.attention(state_BTD, memory.keys_BSD, memory.filled_BS, memory.mapped_BSH)

    def update(self, state_BTD: Tensor, context_BTD: Tensor) -> Tensor:
        return torch.tanh(self.combine(torch.cat([state_BTD, context_BTD], -1)))


class PlainDecoder(nn.Module):
    """No attention: all it knows of the source is the state it starts from."""

    def __init__(self, spec: RecurrentSpec):
        super().__init__()
        self.net = Network(spec, spec.width)

    def start(self, encoded: Encoded) -> Carried:
        return Carried(encoded.last)

    def forward(self, x_BTE: Tensor, carried: Carried) -> Decoded:
        states, cell = self.net(x_BTE, carried.cell)
        return Decoded(states, states, None, Carried(cell))


class LookAfter(nn.Module):
    """The new state looks, and nothing of it returns into the recurrence, so all steps run at once (Luong)."""

    def __init__(self, spec: RecurrentSpec, score: AlignmentScore):
        super().__init__()
        self.net = Network(spec, spec.width)
        self.look = Looking(spec, score)

    def start(self, encoded: Encoded) -> Carried:
        return Carried(encoded.last, self.look.memory(encoded))

    def forward(self, x_BTE: Tensor, carried: Carried) -> Decoded:
        states, cell = self.net(x_BTE, carried.cell)
        context, weights = self.look.context(states, carried.memory)
        return Decoded(self.look.update(states, context), states, weights, Carried(cell, carried.memory))


class LookAfterFed(nn.Module):
    """The new state looks, and its attentional vector is fed to the next step beside the token (input feeding)."""

    def __init__(self, spec: RecurrentSpec, score: AlignmentScore):
        super().__init__()
        self.net = Network(spec, 2 * spec.width)
        self.look = Looking(spec, score)

    def start(self, encoded: Encoded) -> Carried:
        return Carried(encoded.last, self.look.memory(encoded), torch.zeros_like(encoded.last[0][0]))

    def forward(self, x_BTE: Tensor, carried: Carried) -> Decoded:
        return _stepwise(self.step, x_BTE, carried)

    def step(self, x_BE: Tensor, carried: Carried) -> Decoded:
        assert carried.fed_BD is not None  # start() gave one
        states, cell = self.net(torch.cat([x_BE, carried.fed_BD], -1)[:, None], carried.cell)
        context, weights = self.look.context(states[:, 0], carried.memory)
        out = self.look.update(states[:, 0], context)
        return Decoded(out, states[:, 0], weights, Carried(cell, carried.memory, out))


class LookBefore(nn.Module):
    """The state before the step looks, and what it sees goes into the cell beside the token (Bahdanau).

    The head reads tanh(W [s; c]) here as well, where the paper has a maxout layer.
    """

    def __init__(self, spec: RecurrentSpec, score: AlignmentScore):
        super().__init__()
        self.net = Network(spec, 2 * spec.width)
        self.look = Looking(spec, score)

    def start(self, encoded: Encoded) -> Carried:
        return Carried(encoded.last, self.look.memory(encoded))

    def forward(self, x_BTE: Tensor, carried: Carried) -> Decoded:
        return _stepwise(self.step, x_BTE, carried)

    def step(self, x_BE: Tensor, carried: Carried) -> Decoded:
        before = carried.cell[0][-1]  # h of the top layer
        context, weights = self.look.context(before, carried.memory)
        states, cell = self.net(torch.cat([x_BE, context], -1)[:, None], carried.cell)
        out = self.look.update(states[:, 0], context)
        return Decoded(out, states[:, 0], weights, Carried(cell, carried.memory))


def _stepwise(step: Callable[[Tensor, Carried], Decoded], x_BTE: Tensor, carried: Carried) -> Decoded:
    outs, states, weights = [], [], []
    for x_BE in x_BTE.unbind(1):
        stepped = step(x_BE, carried)
        carried = stepped.carried
        outs.append(stepped.out_BTD)
        states.append(stepped.states_BTD)
        weights.append(stepped.weights_BTS)
    return Decoded(torch.stack(outs, 1), torch.stack(states, 1), torch.stack(weights, 1), carried)


# by name, as a spec says them
_SCORES: dict[str, Callable[[int], AlignmentScore]] = {
    "dot": lambda width: Dot(),
    "general": lambda width: General(width, width),
    "additive": lambda width: Additive(width, width, width),
}
_LOOKING: dict[str, Callable[[RecurrentSpec, AlignmentScore], RecurrentDecoder]] = {
    "nothing": LookAfter,
    "attended": LookAfterFed,
    "context": LookBefore,
}


def decoder_of(spec: RecurrentSpec) -> RecurrentDecoder:
    """The decoder that a spec asks for: an nn.Module."""
    if spec.attention is None or spec.fed is None:
        return PlainDecoder(spec)
    return _LOOKING[spec.fed](spec, _SCORES[spec.attention](spec.width))
