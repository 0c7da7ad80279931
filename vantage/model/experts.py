"""Mixture of experts: a router sends each token to a few feed-forward layers of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.model.linear import dense
from vantage.model.summary import describe
from vantage.spec.abilities import Divisible, TokenExchange
from vantage.spec.fingerprint import LATER
from vantage.spec.model import FeedForwardConfig
from vantage.spec.operations import module_operations, weights_of
from vantage.spec.parts import Context


class RouterConfig(Protocol):
    """Which experts a token goes to, and with what weight."""

    @property
    def k(self) -> int:
        """How many."""
        ...

    def build(self, width: int, experts: int) -> nn.Module:
        """A module with ``forward(x_ND) -> (weights_NK, chosen_NK)``."""
        ...


@dataclass(frozen=True)
class TopK:
    """The k highest scores of a linear map (Mixtral, Qwen-3, Grok, LLaMA-4).

    A softmax over all experts, renormalised, is the softmax over the chosen ones (GPT-OSS).
    """

    k: int
    score: str = "softmax"  # over all experts; or "sigmoid", each for itself
    renormalise: bool = True  # the chosen weights sum to 1
    bias: bool = False  # of the linear map (GPT-OSS)
    softcap: float | None = None  # of the linear map's results (Grok-2)

    def __post_init__(self) -> None:
        if self.score not in ("softmax", "sigmoid"):
            raise BadInput(f"score={self.score!r}: use 'softmax' or 'sigmoid'")

    def describe(self) -> str:
        return f"{self.k} by {self.score}"

    def build(self, width: int, experts: int) -> nn.Module:
        if not 1 <= self.k <= experts:
            raise BadInput(f"{self.k} of {experts} experts: choose from 1 to {experts}")
        return _TopK(self, dense(width, experts, self.bias))


class _TopK(nn.Module):
    def __init__(self, config: TopK, linear: nn.Module):
        super().__init__()
        self.config, self.linear = config, linear

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(x_ND)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.config.softcap is not None:
            logits = self.config.softcap * torch.tanh(logits / self.config.softcap)
        scores = logits.softmax(-1) if self.config.score == "softmax" else logits.sigmoid()
        chosen = logits.topk(self.config.k, dim=-1).indices  # not of the scores: sigmoids of large logits are all 1
        weights = scores.gather(-1, chosen)
        if self.config.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x_ND.dtype), chosen


@dataclass(frozen=True)
class Experts:
    """A mixture of ``count`` experts with a router; with ``shared`` also one expert that every token uses."""

    expert: FeedForwardConfig
    count: int
    router: RouterConfig
    shared: FeedForwardConfig | None = None
    weigh_input: bool = False  # the weight multiplies what goes in instead of what comes out (LLaMA-4)
    scale: float = 1.0  # of the sum of all of them (Grok-2)
    shared_gate: bool = field(default=False, metadata=LATER)  # the shared one's output is weighed by σ(w x) (Qwen)

    def __post_init__(self) -> None:
        if self.shared_gate and self.shared is None:
            raise BadInput("shared_gate=True weighs the shared expert, and there is none: give shared=")

    def describe(self) -> str:
        gated = " behind a gate" if self.shared_gate else ""
        shared = "" if self.shared is None else f", beside {describe(self.shared)}{gated}"
        return f"{describe(self.router)} of {self.count} experts ({describe(self.expert)}){shared}"

    def divided(self, ranks: int, width: int) -> Experts:
        """A share of every expert: whichever are chosen, all processes have as much to do."""
        parts = {"expert": self.expert} if self.shared is None else {"expert": self.expert, "shared": self.shared}
        shares = {name: _divisible(part, name).divided(ranks, width) for name, part in parts.items()}
        return replace(self, **shares)

    @property
    def chosen(self) -> int:
        return self.router.k

    def of_experts(self, first: int, count: int) -> SomeExperts:
        """What a process has that holds these experts: the router and the shared expert are everybody's."""
        return SomeExperts(self, first, count)

    def with_experts(self, first: int, count: int, ranks: int, width: int) -> SomeExperts:
        """These experts whole, and a share of the shared one."""
        if self.shared is None:
            return SomeExperts(self, first, count)
        shared = _divisible(self.shared, "shared").divided(ranks, width)
        return SomeExperts(replace(self, shared=shared), first, count)

    def build(self, width: int) -> nn.Module:
        return _Experts(self, width)


def _divisible(part: FeedForwardConfig, name: str) -> Divisible:
    if not isinstance(part, Divisible):
        raise Refused(f"{type(part).__name__}, the {name} of these experts, does not say how it is divided")
    return part


@dataclass(frozen=True)
class SomeExperts:
    """``held`` of the experts, from ``first`` on; other processes have the rest. Tokens are exchanged with them."""

    whole: Experts
    first: int
    held: int

    def describe(self) -> str:
        return f"{describe(self.whole)}, of which {self.held} from {self.first} on"

    def divided(self, ranks: int, width: int) -> SomeExperts:
        """A share of each of these."""
        return replace(self, whole=self.whole.divided(ranks, width))

    def build(self, width: int) -> nn.Module:
        return _Experts(self.whole, width, range(self.first, self.first + self.held))


class NumberedExperts(nn.Module):
    """Some of the experts, by their numbers among all of them: a parameter is called as in the whole model. (FSDP2 of
    torch 2.11 takes no ``ModuleDict``, even one with a ``forward``.)"""

    def __init__(self, experts: Mapping[int, nn.Module]):
        super().__init__()
        for number, expert in experts.items():
            self.add_module(str(number), expert)

    def __len__(self) -> int:
        return len(self._modules)

    def forward(self, x_MD: Tensor, expert_M: Tensor) -> Tensor:
        """What the expert of each row makes of it. One that no row goes to runs as well: it has a gradient, of 0."""
        out = torch.zeros_like(x_MD)
        for number, expert in self.named_children():
            (row,) = (expert_M == int(number)).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(x_MD[row]))
        return out


class _Experts(nn.Module):
    asks_host = "which tokens go to an expert is read by the host"

    def __init__(self, config: Experts, width: int, held: range | None = None):
        super().__init__()
        self.weigh_input, self.scale, self.k = config.weigh_input, config.scale, config.router.k
        self.router = config.router.build(width, config.count)
        self.exchange: TokenExchange | None = None
        self.experts = (
            nn.ModuleList(config.expert.build(width) for _ in range(config.count))
            if held is None
            else NumberedExperts({e: config.expert.build(width) for e in held})
        )
        self.shared = None if config.shared is None else config.shared.build(width)
        self.shared_gate = dense(width, 1, False) if config.shared_gate else None

    def forward(self, x_BTD: Tensor, ctx: Context | None = None) -> Tensor:
        x = x_BTD.flatten(0, -2)
        weights, chosen = self.router(x)
        out = self._by_all(x, weights, chosen) if self.numbered is None else self._exchanged(x, weights, chosen)
        if self.shared is not None:
            shared = self.shared(x)
            out = out + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return (out if self.scale == 1.0 else out * self.scale).view_as(x_BTD)

    def routed_experts(self) -> list[nn.Module]:
        """Those that run for some tokens alone."""
        return list(self.experts.children())

    @property
    def numbered(self) -> NumberedExperts | None:
        """The experts that are here, where others have the rest."""
        return self.experts if isinstance(self.experts, NumberedExperts) else None

    def exchange_by(self, exchange: TokenExchange) -> None:
        """From now on tokens go to the experts of other processes in this way."""
        self.exchange = exchange

    def _by_all(self, x_ND: Tensor, weights_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        out, experts = torch.zeros_like(x_ND), cast(nn.ModuleList, self.experts)
        # one that no token goes to has a gradient, of 0; without gradients it need not run, nor its weights be read
        for e in range(len(experts)) if torch.is_grad_enabled() else chosen_NK.unique().tolist():
            expert = experts[e]
            token, slot = (chosen_NK == e).nonzero(as_tuple=True)
            weight = weights_NK[token, slot, None]
            expert_out = expert(x_ND[token] * weight) if self.weigh_input else expert(x_ND[token]) * weight
            out = out.index_add(0, token, expert_out)
        return out

    def _exchanged(self, x_ND: Tensor, weights_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        """The same, where each token goes to the processes that have its experts, and comes back."""
        if self.exchange is None or self.numbered is None:
            raise Refused("these are some of the experts, and nothing leads to the others: use ExpertParallel.cut")
        token = torch.arange(len(x_ND), device=x_ND.device).repeat_interleave(chosen_NK.shape[1])
        weight = weights_NK.reshape(-1, 1)
        sent = x_ND[token] * weight if self.weigh_input else x_ND[token]
        done = self.exchange(sent, chosen_NK.flatten(), self.numbered)
        return torch.zeros_like(x_ND).index_add(0, token, done if self.weigh_input else done * weight)

    def operations(self, tokens: int) -> int:
        beside = (part for part in (self.shared, self.shared_gate) if part is not None)
        shared = sum(module_operations(part, tokens) for part in beside)
        return module_operations(self.router, tokens) + self.k * module_operations(self._one, tokens) + shared

    def weights_read(self, tokens: int) -> int:
        """Of many experts, at most one for each token sent."""
        idle = max(0, len(self.experts) - tokens * self.k)
        return weights_of(self) - idle * weights_of(self._one)

    @property
    def _one(self) -> nn.Module:
        return next(self.experts.children())
