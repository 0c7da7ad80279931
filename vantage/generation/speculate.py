"""Speculative decoding: guess several tokens, check them in one pass, keep what the model would have said.

A guess from the text itself (look-up) or by a smaller model costs little; a pass over a few tokens
costs about as much as over one. What is wrong is taken back from the cache.

Greedy output is that of plain decoding. Sampled output has the same distribution: a guess x drawn
from q is kept with probability min(1, p(x) / q(x)), and what takes its place is drawn from
max(0, p - q) (Leviathan et al. 2023; Chen et al. 2023). A guess that was not drawn (look-up) is kept
if the model draws it too: the same rule, and the very tokens of plain sampling with that seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
from torch import Tensor

from vantage.cache import ModelCache
from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput, Refused
from vantage.generation.cached_sequence import CachedSequence, Ending, new_cache
from vantage.generation.sampling import Constraint, Pick, Picker, Sampling, uniform
from vantage.generation.stops import Stop
from vantage.model import Model
from vantage.spec.parts import EncoderOutput

# Random numbers of their own for guesses, for the decision about them, and for what takes their place.
GUESS, DECIDE, INSTEAD = (n << 60 for n in (1, 2, 3))


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

    def told(self, guessed: int, kept: int) -> None:
        """How many of the last guess were right."""
        ...


class Draft(Protocol):
    """Where guesses come from; ``tokens`` is the longest guess."""

    @property
    def tokens(self) -> int: ...

    def start(self, model: Model, picker: Picker) -> Guesser: ...


# ---- look-up


@final
@dataclass(frozen=True)
class Lookup:
    """What followed the last time that the newest ``longest`` … ``shortest`` tokens occurred (Saxena 2023)."""

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

    def told(self, guessed: int, kept: int) -> None:
        if guessed:
            self._reach = min(self._draft.tokens, 2 * self._reach) if kept == guessed else max(1, kept + 1)


# ---- a smaller model


@final
@dataclass(frozen=True, eq=False)
class DraftModel:
    """Guesses by another model with the same vocabulary."""

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

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        self._row.match(tokens)
        new, found, drawn_from = list(tokens[len(self._row.tokens) :]), [], []
        for i in range(most):
            logits = self._row.feed(new)[-1]
            if self._picker.sampling.greedy:
                token = self._picker.pick(logits).token
            else:
                q = self._picker.distribution(logits)
                step = self._checked.step + i
                token = drawn(q, uniform(self._checked.seed, GUESS + self._checked.sample, step))
                drawn_from.append(q)
            found.append(token)
            new = [token]
        return Guess(tuple(found), torch.stack(drawn_from) if drawn_from else None)

    def told(self, guessed: int, kept: int) -> None: ...


def drawn(p_V: Tensor, u: float) -> int:
    """The token at u of the summed probabilities, which need not add up to 1."""
    mass = p_V.cumsum(0)
    at = int(torch.searchsorted(mass, u * float(mass[-1]), right=True))
    return min(at, int(p_V.nonzero()[-1]))


# ---- the run


@final
@dataclass
class Speculation:
    """What guessing brought."""

    guessed: int = 0
    kept: int = 0


@final
class Speculator:
    """Steps one row forward: each step is one pass and at least one token.

    ``draft=None`` is plain decoding.
    """

    def __init__(self, row: CachedSequence, picker: Picker, draft: Draft | None = None):
        self.row, self.picker, self.counts = row, picker, Speculation()
        self._longest = 0 if draft is None else draft.tokens
        self._guesser = None if draft is None else draft.start(row.model, picker)

    def run(self, new: Sequence[int], most: int, over: Callable[[int], bool]) -> Iterator[list[Pick]]:
        """Tokens after ``new``, pass by pass, at most ``most``, the last being the first that is ``over``.

        ``over`` is asked once for each token. The last token is not in the row: nobody has asked what follows it.
        """
        pending, left, ended = list(new), most, False
        while left > 0 and not ended:
            picks, ended = self._step(pending, left, over)
            left -= len(picks)
            yield picks
            pending = [picks[-1].token]

    def _step(self, pending: list[int], left: int, over: Callable[[int], bool]) -> tuple[list[Pick], bool]:
        """One pass over what is pending and a guess; what comes of it, and whether it is over."""
        row = self.row
        guess = self._guess(pending, left - 1)
        n = len(guess.tokens)
        logits = row.feed([*pending, *guess.tokens], n + 1)
        picks: list[Pick] = []
        kept, ended = 0, False
        for i in range(n + 1):
            pick = self._check(logits[i], guess, i) if i < n else self.picker.pick(logits[i])
            self.picker.took(pick.token)
            picks.append(pick)
            right = i < n and pick.token == guess.tokens[i]
            kept += right
            ended = over(pick.token)
            if ended or not right:
                break
        if self._guesser is not None:
            self._guesser.told(n, kept)
        self.counts.guessed += n
        self.counts.kept += kept
        # the last token is pending in the next step, so it must not be held yet
        row.crop(len(row.tokens) - n + len(picks) - 1)
        return picks, ended

    def _guess(self, pending: Sequence[int], most: int) -> Guess:
        """A guess never crosses the declared length: what lies beyond is computed at another one."""
        room = self.row.room
        most = min(most, self._longest, most if room is None else max(0, room - len(pending)))
        if self._guesser is None or most < 1:
            return Guess()
        return self._guesser.guess([*self.row.tokens, *pending], most)

    def _check(self, logits_V: Tensor, guess: Guess, i: int) -> Pick:
        """The token that comes, given a guess."""
        picker, x = self.picker, guess.tokens[i]
        pick = picker.pick(logits_V)
        if guess.q is None or picker.sampling.greedy:
            return pick
        p, q = picker.distribution(logits_V), guess.q[i]
        token = x
        if uniform(picker.seed, DECIDE + picker.sample, picker.step) * float(q[x]) >= float(p[x]):
            rest = (p - q).clamp_min(0)
            if float(rest.sum()) > 0:
                token = drawn(rest, uniform(picker.seed, INSTEAD + picker.sample, picker.step))
        return replace(pick, token=token, logprob=float(logits_V[token] - logits_V.logsumexp(-1)))


@final
@dataclass(frozen=True, eq=False)
class Speculated:
    """An answer, and what it took."""

    text: str | None  # None: the model has no tokenizer
    tokens: tuple[int, ...]
    picks: tuple[Pick, ...]
    finish: str  # "stop" (a stop token or string, or a constraint that is done) or "length"
    seed: int
    guessed: int
    kept: int
    calls: int  # forward passes of the model
    computed: int  # tokens it computed, guesses included
    recomputed: int  # tokens computed again for a longer declared length
    cache: ModelCache


@torch.inference_mode()
def speculative(
    model: Model,
    tokens: Sequence[int],
    *,
    max_tokens: int,
    draft: Draft | None,
    sampling: Sampling = Sampling(),
    stop: Stop | str | int | Sequence[str | int] | None = None,
    constraint: Constraint | None = None,
    cache: ModelCache | None = None,
    kind: str = "contiguous",
    source: Tensor | EncoderOutput | None = None,
) -> Speculated:
    """Go on from ``tokens`` with guesses from ``draft``: ``Lookup()``, ``DraftModel(small)``, or none.

    ``cache`` may hold the first of the tokens already; a ring in it must have a ``draft`` of at least
    the guess's length. Without one, a cache of this ``kind`` is made. A stop token ends the answer and
    is its last token.
    """
    if not tokens or max_tokens < 1:
        raise BadInput(f"{len(tokens)} tokens to go on from, max_tokens={max_tokens}: give at least 1 of each")
    stop = Stop.of(stop)
    made = cache if cache is not None else new_cache(model, kind, 0 if draft is None else draft.tokens)
    held = made.tokens[0]
    if held >= len(tokens):
        raise BadInput(f"the cache holds {held} tokens of {len(tokens)}: at least one must be left to compute")
    row = CachedSequence(model, made, tokens[:held], source)
    picker = Picker(sampling, tokens, vocab=model.spec.vocab, constraint=constraint)
    run = Speculator(row, picker, draft)
    ending = Ending(stop, model.tokenizer, constraint)
    picks = tuple(pick for picks in run.run(tokens[held:], max_tokens, ending) for pick in picks)
    return Speculated(
        None if model.tokenizer is None else ending.flush(),
        tuple(pick.token for pick in picks),
        picks,
        "length" if ending.why is None else "stop",
        picker.seed,
        run.counts.guessed,
        run.counts.kept,
        row.work.calls,
        row.work.computed,
        row.work.recomputed,
        row.cache,
    )
