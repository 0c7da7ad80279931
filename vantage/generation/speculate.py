"""Speculative decoding: guess several tokens, check them in one pass, keep what the model would have chosen.

A guess from the text itself (look-up) or by a smaller model costs little; a pass over a few tokens
costs about as much as over one. What is wrong is taken back from the cache.

Greedy output is that of plain decoding. Sampled output has the same distribution: a guess x drawn
from q is kept with probability min(1, p(x) / q(x)), and what takes its place is drawn from
max(0, p - q) (Leviathan et al. 2023; Chen et al. 2023). A guess that was not drawn (look-up) is kept
if the model draws it too: the same rule, and the very tokens of plain sampling with that seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import torch
from torch import Tensor

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused
from vantage.generation.cached_sequence import CachedSequence
from vantage.generation.sampling import Pick, Picker, uniform
from vantage.model import Model

GUESS, DECIDE, INSTEAD = (n << 60 for n in (1, 2, 3))  # random numbers of their own: see ``checked``


@final
@dataclass(frozen=True, eq=False)
class Guess:
    """Tokens that may come next; ``q`` (n, V): what each was drawn from, ``None`` if they were not drawn."""

    tokens: tuple[int, ...] = ()
    q: Tensor | None = None


class Guesser(Protocol):
    """Guesses for one request."""

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        """At most so many tokens that may follow these."""
        ...

    def learn(self, proposed: int, accepted: int) -> None:
        """How many of the last guess were right."""
        ...


@runtime_checkable
class Draft(Protocol):
    """Where guesses come from; ``tokens`` is the longest guess."""

    @property
    def tokens(self) -> int: ...

    def start(self, model: Model, picker: Picker) -> Guesser: ...


# ---- look-up


@final
@dataclass(frozen=True)
class Lookup:
    """Prompt-lookup speculative decoding (Saxena 2023).

    It guesses what followed the last occurrence of the newest ``longest`` … ``shortest`` tokens.
    """

    tokens: int = 8
    longest: int = 4
    shortest: int = 2

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 1 <= self.shortest <= self.longest:
            raise BadInput(f"{self}: guess at least 1 token, from a match of shortest ≤ longest tokens, 1 or more")

    def start(self, model: Model, picker: Picker) -> Guesser:
        return _LookupGuesser(self)


@final
class _LookupGuesser:
    """Remembers where each short run of tokens ended last. A wrong guess makes the next shorter, a right one longer."""

    def __init__(self, draft: Lookup):
        self._draft, self._reach = draft, draft.tokens
        self._ends: dict[tuple[int, ...], int] = {}
        self._seen = 0  # tokens whose runs are remembered; the newest is not: it would find itself

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        sizes = range(self._draft.shortest, self._draft.longest + 1)
        for end in range(self._seen + 1, len(tokens)):
            for n in sizes:
                if n <= end:
                    self._ends[tuple(tokens[end - n : end])] = end
        self._seen = max(self._seen, len(tokens) - 1)
        for n in reversed(sizes):
            end = self._ends.get(tuple(tokens[-n:])) if n <= len(tokens) else None
            if end is not None:
                return Guess(tuple(tokens[end : end + min(most, self._reach)]))
        return Guess()

    def learn(self, proposed: int, accepted: int) -> None:
        if proposed:
            right = accepted == proposed
            self._reach = min(self._draft.tokens, 2 * self._reach) if right else max(1, accepted + 1)


# ---- a smaller model


@final
@dataclass(frozen=True, eq=False)
class DraftModel:
    """Speculative decoding with a smaller model of the same vocabulary."""

    model: Model
    tokens: int = 4

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise BadInput(f"a draft of {self.tokens} tokens: give at least 1")

    def start(self, model: Model, picker: Picker) -> Guesser:
        mine = self.model
        if mine.spec.vocab != model.spec.vocab:
            raise Refused(
                f"the draft model has a vocabulary of {mine.spec.vocab} tokens and the model one of "
                f"{model.spec.vocab}: a draft needs the same tokens"
            )
        if mine.encoder is not None:
            raise Refused("an encoder-decoder cannot draft: it would need a source of its own")
        tokenizers = [of.tokenizer for of in (mine, model) if of.tokenizer is not None]
        if len(tokenizers) == 2 and _differ(*tokenizers):
            raise Refused("the draft model's tokens stand for other texts than the model's: use one of the same family")
        return _ModelGuesser(mine, picker)


def check_draft(draft: object) -> None:
    """A model by itself, or a class in the place of an object, is a likely slip."""
    if isinstance(draft, Model):
        raise BadInput("draft= is a model: give vt.DraftModel(model)")
    if isinstance(draft, type) or not isinstance(draft, Draft):
        raise BadInput(f"draft={draft!r:.80}: give vt.Lookup() or vt.DraftModel(small)")


def _differ(a: Tokenizer, b: Tokenizer) -> bool:
    return a is not b and a.backend.get_vocab() != b.backend.get_vocab()


@final
class _ModelGuesser:
    def __init__(self, model: Model, picker: Picker):
        # Penalties and constraints are left to the check: a guess may come from any distribution.
        sampling = replace(
            picker.sampling, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logprobs=None
        )
        self._picker = Picker(replace(sampling, seed=picker.seed), (), vocab=model.spec.vocab)
        self._checked = picker  # whose next step the first guess is for
        self._row = CachedSequence(model, model.new_cache())
        self._positions = model.max_positions

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        if self._positions is not None:  # a draft whose own positions end sooner guesses as far as they go
            most = min(most, self._positions - len(tokens) + 1)
        if most < 1:
            return Guess()
        self._row.match(tokens)
        new, guesses, drawn_from = list(tokens[len(self._row.tokens) :]), [], []
        for i in range(most):
            logits = self._row.feed(new)[-1]
            if self._picker.sampling.greedy:
                token = self._picker.pick(logits).token
            else:
                q = self._picker.distribution(logits)
                step = self._checked.step + i
                token = drawn(q, uniform(self._checked.seed, GUESS + self._checked.sample, step))
                drawn_from.append(q)
            guesses.append(token)
            new = [token]
        return Guess(tuple(guesses), torch.stack(drawn_from) if drawn_from else None)

    def learn(self, proposed: int, accepted: int) -> None: ...


def drawn(p_V: Tensor, u: float) -> int:
    """The token at u of the summed probabilities, which need not add up to 1."""
    mass = p_V.cumsum(0)
    at = int(torch.searchsorted(mass, u * float(mass[-1]), right=True))
    return min(at, int(p_V.nonzero()[-1]))


def checked(picker: Picker, logits_V: Tensor, guess: Guess, i: int) -> Pick:
    """The token that comes, given that token i of a guess was to come."""
    token = guess.tokens[i]
    pick = picker.pick(logits_V)
    if guess.q is None or picker.sampling.greedy:
        return pick
    p, q = picker.distribution(logits_V), guess.q[i]
    if uniform(picker.seed, DECIDE + picker.sample, picker.step) * float(q[token]) >= float(p[token]):
        rest = (p - q).clamp_min(0)
        if float(rest.sum()) > 0:
            token = drawn(rest, uniform(picker.seed, INSTEAD + picker.sample, picker.step))
    return replace(pick, token=token, logprob=float(logits_V[token] - logits_V.logsumexp(-1)))
