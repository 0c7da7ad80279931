"""From logits to a token: penalties, constraint, temperature, filters, and one reproducible random number.

The order is fixed: repetition, presence and frequency penalties, bias, constraint, temperature, top-k,
top-p, min-p. Each filter works on what the one before it left, renormalised.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.spec.sampling import SEEDS, RowChoice, Sampling

RANKING_THRESHOLDS = (
    1e-3,
    1e-7,
    0.0,
)  # tokens are ranked down to these shares of the best one's probability, if need be to all


@final
@dataclass(frozen=True)
class Pick:
    """A chosen token. Log-probabilities are the model's own: before temperature, penalties and constraint."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Constraint(Protocol):
    """What may come next (a grammar, a schema). One object for one sample."""

    def allow(self, logits_V: Tensor) -> None:
        """Sets what may not come to -inf, in place."""
        ...

    def take(self, token: int) -> None:
        """This token has come."""
        ...

    def done(self) -> bool:
        """Nothing but an end may follow."""
        ...


@runtime_checkable
class ForkableConstraint(Protocol):
    """A constraint that can serve several samples."""

    def fork(self) -> Constraint:
        """An independent one in the same state."""
        ...


def fork_constraint(constraint: Constraint | None) -> Constraint | None:
    """Another one for another sample."""
    if constraint is not None and not isinstance(constraint, ForkableConstraint):
        raise BadInput("this constraint serves one sample: give one prompt and n=1, or a constraint that can fork()")
    return None if constraint is None else constraint.fork()


@final
class Picker:
    """Chooses the tokens of one sample of one request.

    The random number of a step is a function of (seed, sample, step) alone, so the same seed gives
    the same text whatever else runs.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        *,
        vocab: int,
        sample: int = 0,
        constraint: Constraint | None = None,
    ):
        self.sampling, self.vocab, self.sample, self.constraint = sampling, vocab, sample, constraint
        self.seed = seed_of(sampling)
        self.step = 0
        self._bias = sampling.bias
        _in_vocab("logit_bias", [token for token, _ in self._bias], vocab)
        _in_vocab("the prompt", prompt, vocab)
        self._prompt = prompt
        self._output: Counter[int] = Counter()

    def distribution(self, logits_V: Tensor) -> Tensor:
        """The probabilities (V,) that ``pick`` draws from, in float64; all on one token when greedy."""
        adjusted = self._adjusted(logits_V)
        best = self._best(adjusted)
        out = torch.zeros(self.vocab, dtype=torch.float64, device=logits_V.device)
        if self.sampling.greedy:
            out[best] = 1.0
            return out
        p = self._probabilities(adjusted)
        ids = _ranked(p, 0.0)
        ids = ids[: self._kept(p[ids])]
        out[ids] = p[ids] / p[ids].sum()
        return out

    def pick(self, logits_V: Tensor) -> Pick:
        """Choose, without advancing: the same logits give the same token until ``took``."""
        adjusted = self._adjusted(logits_V)
        if self.sampling.greedy and not self.sampling.logprobs and logits_V.device.type != "cpu":
            return self._pick_at_once(adjusted, logits_V)
        token = self._best(adjusted)
        if not self.sampling.greedy:
            token = self._draw(self._probabilities(adjusted), uniform(self.seed, self.sample, self.step))
        highest = logits_V.max()
        total = highest + (logits_V - highest).exp().sum().log()  # logsumexp in a third of its time
        top = ()
        if self.sampling.logprobs:
            best = logits_V.topk(min(self.sampling.logprobs, self.vocab))
            top = tuple(zip(best.indices.tolist(), (best.values - total).tolist(), strict=True))
        return Pick(token, float(logits_V[token] - total), top)

    def _pick_at_once(self, adjusted_V: Tensor, logits_V: Tensor) -> Pick:
        """The likeliest, with one wait for the device."""
        token = adjusted_V.argmax(keepdim=True)
        highest = logits_V.max()
        total = highest + (logits_V - highest).exp().sum().log()
        logprob = logits_V.gather(0, token) - total
        numbers = torch.stack((token.double(), adjusted_V.gather(0, token).double(), logprob.double())).flatten()
        best, value, chosen = numbers.tolist()
        self._check_best(value)
        return Pick(int(best), chosen)

    def took(self, token: int) -> None:
        """This token was taken: penalties, constraint and random numbers move on."""
        if self.constraint is not None:
            self.constraint.take(token)
        self._output[token] += 1
        self.step += 1

    def choice(self, steps: int, coming: int = 0) -> RowChoice | None:
        """What a device needs to choose so many tokens by itself, after those that are on their way.

        ``None``: the host must see each of them first, for penalties, a bias, a constraint or the likeliest others.
        """
        s = self.sampling
        penalties = s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty
        if penalties or self._bias or self.constraint is not None or s.logprobs:
            return None
        steps_to_come = () if s.greedy else range(self.step + coming, self.step + coming + steps)
        uniforms = [uniform(self.seed, self.sample, step) for step in steps_to_come]
        top_p = 1.0 if s.top_p is None else float(s.top_p)
        return RowChoice(float(s.temperature), s.top_k or 0, top_p, float(s.min_p or 0.0), uniforms)

    # ---- inside

    @cached_property
    def _in_prompt(self) -> frozenset[int]:
        return frozenset(self._prompt)

    def _adjusted(self, logits_V: Tensor) -> Tensor:
        """The logits after penalties, bias and constraint."""
        if logits_V.shape != (self.vocab,):
            raise BadInput(f"logits of shape {tuple(logits_V.shape)}: give ({self.vocab},), one for each token")
        s = self.sampling
        logits = logits_V.detach()
        if s.repetition_penalty != 1 and (seen := sorted(self._in_prompt | self._output.keys())):
            index = torch.tensor(seen, device=logits.device)
            old = logits[index]
            new = torch.where(old < 0, old * s.repetition_penalty, old / s.repetition_penalty)
            logits = logits.index_put((index,), new)
        if (s.presence_penalty or s.frequency_penalty) and self._output:
            index = torch.tensor(list(self._output), device=logits.device)
            times = torch.tensor(list(self._output.values()), dtype=logits.dtype, device=logits.device)
            logits = logits.index_put((index,), logits[index] - s.presence_penalty - s.frequency_penalty * times)
        if self._bias:
            index, value = zip(*self._bias, strict=True)
            at = torch.tensor(index, device=logits.device)
            bias = torch.tensor(value, dtype=logits.dtype, device=logits.device)
            logits = logits.index_put((at,), logits[at] + bias)
        if self.constraint is not None:
            logits = logits.clone()
            self.constraint.allow(logits)
        return logits

    def _best(self, adjusted_V: Tensor) -> int:
        """The best token. Raises if there is none."""
        token = _best_of(adjusted_V)
        self._check_best(float(adjusted_V[token]))
        return token

    def _check_best(self, logit: float) -> None:
        if not math.isfinite(logit):
            raise Refused(_no_token(logit, self.constraint is not None))

    def _probabilities(self, adjusted_V: Tensor) -> Tensor:
        return torch.softmax(adjusted_V.double() / self.sampling.temperature, -1)

    @property
    def _filters(self) -> bool:
        s = self.sampling
        return s.top_k is not None or s.top_p is not None or s.min_p is not None

    def _kept(self, ranked: Tensor) -> int:
        """How many of the best tokens pass the filters, given the front of their probabilities, best first."""
        s = self.sampling
        cut = ranked if s.top_k is None else ranked[: s.top_k]
        mass = 1.0 if s.top_k is None else float(cut.sum())
        if s.top_p is not None and s.top_p < 1:
            before = cut.cumsum(0) - cut
            cut = cut[: max(1, int((before < s.top_p * mass).sum()))]
        if s.min_p is not None:
            cut = cut[: max(1, int((cut >= s.min_p * cut[0]).sum()))]
        return len(cut)

    def _draw(self, p_V: Tensor, u: float) -> int:
        """Inverse CDF, best tokens first, ties by id."""
        top_k, highest = self.sampling.top_k or 0, p_V.max()
        for share in RANKING_THRESHOLDS:
            ids = _ranked(p_V, share * highest)
            ranked = p_V[ids]
            kept, whole = self._kept(ranked), len(ids) == self.vocab
            more = len(ids) <= top_k or (kept == len(ids) and (self._filters or float(ranked.sum()) <= u))
            if more and not whole:
                continue  # the filters may let more through, or the number may fall beyond
            mass = ranked[:kept].cumsum(0)
            total = float(mass[-1]) if self._filters or whole else 1.0
            at = int((mass <= u * total).sum())
            return int(ids[min(at, kept - 1)])
        raise AssertionError("the whole vocabulary is the last resort")


def _best_of(logits_V: Tensor) -> int:
    """The best token, the lowest of equals; one that is NaN, if any is."""
    if logits_V.device.type == "cpu":
        return int(logits_V.detach().numpy().argmax())  # four times as fast as torch's
    return int(logits_V.argmax())


def _ranked(p_V: Tensor, least: Tensor | float) -> Tensor:
    """The tokens that have at least this probability, the best first, ties by id."""
    if p_V.device.type == "cpu":  # numpy finds a few among many ten times as fast as torch
        p = p_V.numpy()
        ids = np.flatnonzero(p >= float(least))
        return torch.from_numpy(ids[np.argsort(-p[ids], kind="stable")])
    ids = (p_V >= least).nonzero()[:, 0]
    return ids[p_V[ids].sort(descending=True, stable=True).indices]


def seed_of(sampling: Sampling) -> int:
    """The one that was given, or another one each time."""
    return secrets.randbelow(SEEDS) if sampling.seed is None else sampling.seed


def uniform(seed: int, sample: int, step: int) -> float:
    """One number from 0 up to 1, the same on every machine."""
    key = b"".join(n.to_bytes(8, "little") for n in (seed, sample, step))
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) * 2.0**-53


def _in_vocab(what: str, tokens: Sequence[int], vocab: int) -> None:
    if not tokens or (min(tokens) >= 0 and max(tokens) < vocab):
        return
    for token in tokens:
        if not 0 <= token < vocab:
            raise BadInput(f"{what} names token {token}; this model has 0 to {vocab - 1}")


def _no_token(best: float, constrained: bool) -> str:
    if math.isnan(best):
        return "the model's logits are not numbers (NaN): its weights or its input are damaged"
    if best > 0:
        return "the model's logits are infinite: its weights or its input are damaged"
    why = "the constraint and the bias allow none" if constrained else "the bias forbids all"
    return f"no token is left to choose: {why}"
