"""Conversations that keep their keys and values: a new turn computes its new tokens, and says how many those were."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from vantage.cache import ModelCache
from vantage.cache.saved import Fingerprint, fingerprint, read_cache, save_cache
from vantage.errors import BadInput, CheckpointError
from vantage.generation.cached_sequence import CachedSequence, Ending, WorkCounts, new_cache
from vantage.generation.prompts import end_tokens
from vantage.generation.sampling import Constraint, Pick, Picker, Sampling
from vantage.generation.speculate import Draft, Speculator
from vantage.generation.stops import Stop
from vantage.model import Model

FORMAT = "vantage-conversation-1"
Message = Mapping[str, str]


@final
@dataclass(frozen=True)
class Turn:
    """One answer, and what it took."""

    text: str
    finish: str  # "stop", "length", or "stopped" by hand
    picks: tuple[Pick, ...]
    seed: int
    prompt: int  # tokens of the whole conversation before the answer
    reused: int  # of those, how many had their keys and values already
    computed: int  # tokens whose keys were computed: what is new of the prompt, the answer, and guesses
    recomputed: int  # tokens that had been computed before and had to be again
    calls: int  # forward passes, those of the answer included
    guessed: int
    kept: int
    to_first: float  # seconds to the first token
    seconds: float  # and to the end


class _Said(NamedTuple):
    """All tokens up to the end of the last answer, and the text that they stand for in the template."""

    tokens: list[int] = []  # noqa: RUF012 (never written into)
    text: str = ""


@dataclass
class _Answer:
    """An answer under way."""

    asked: list[Message]
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    reused: int = 0
    begun: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    picks: list[Pick] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    finish: str = "stopped"
    whole: bool = False  # everything that was chosen is in ``picks``

    def take(self, picks: Sequence[Pick], piece: str) -> str:
        self.first = self.first or time.perf_counter() - self.begun
        self.picks += picks
        self.shown.append(piece)
        self.whole = True
        return piece


_UNKNOWN = "\0"  # in no text that a template writes: what ends so is never gone on from


@final
class Conversation:
    """Turns with one model over one cache.

    The chat template writes the whole conversation out every turn, and what the cache holds of it is
    kept. So messages may be edited (``messages``), and templates may rewrite history: only what comes
    after the first change is computed again.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        kind: str = "contiguous",
        sampling: Sampling = Sampling(),
        stop: Stop | str | int | Sequence[str | int] | None = None,
        max_tokens: int = 512,
        draft: Draft | None = None,
        variables: Mapping[str, Any] | None = None,
    ):
        if model.tokenizer is None:
            raise BadInput("a conversation needs a tokenizer: load a model that has one")
        if model.encoder is not None:
            raise BadInput("an encoder-decoder cannot converse: use vt.generate with a source")
        self.model, self.sampling, self.draft, self.variables = model, sampling, draft, variables
        self.stops = Stop.of(stop).also(end_tokens(model))
        self.max_tokens = max_tokens
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.turns: list[Turn] = []
        self._row = CachedSequence(model, new_cache(model, kind, 0 if draft is None else draft.tokens))
        self._said = _Said()
        self._stopping = False

    # ---- talking

    def ask(
        self,
        text: str,
        *,
        role: str = "user",
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
    ) -> Turn:
        """Say something and wait for the whole answer."""
        for _ in self.stream(text, role=role, max_tokens=max_tokens, sampling=sampling, constraint=constraint):
            pass
        return self.turns[-1]

    @torch.inference_mode()
    def stream(
        self,
        text: str,
        *,
        role: str = "user",
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        constraint: Constraint | None = None,
    ) -> Iterator[str]:
        """Say something; the answer in pieces, as it comes.

        Whoever stops early (``stop()``, Ctrl-C, leaving the loop) keeps what was said so far. What was
        stopped before its first token did not happen.
        """
        answer = _Answer([*self.messages, {"role": role, "content": text}])
        answer.prompt, answer.tokens = self._rendered(answer.asked)
        most = self._room(len(answer.tokens), self.max_tokens if max_tokens is None else max_tokens)
        picker = Picker(
            sampling or self.sampling,
            answer.tokens,
            vocab=self.model.spec.vocab,
            sample=sum(message["role"] == role for message in self.messages),  # other random numbers each turn
            constraint=constraint,
        )
        ending = Ending(self.stops, self.model.tokenizer, constraint)
        run, before = Speculator(self._row, picker, self.draft), replace(self._row.work)
        answer.reused = self._row.match(answer.tokens)
        self._stopping = False
        try:
            for picks in run.run(answer.tokens[answer.reused :], most, ending):
                if piece := answer.take(picks, ending.shown()):
                    yield piece
                if self._stopping:
                    break
                answer.whole = False
            else:
                answer.finish = "length" if ending.why is None else "stop"
                answer.whole = True
        finally:
            rest = self._keep(answer, ending, run, before)
        if rest:
            yield rest

    def _keep(self, answer: _Answer, ending: Ending, run: Speculator, before: WorkCounts) -> str:
        """Take in an answer, whole or broken off; the last of its text."""
        row, said = self._row, [*answer.tokens, *(pick.token for pick in answer.picks)]
        row.settle(said[:-1])  # after an interrupt anywhere; and nobody has asked yet what follows the last token
        rest = ending.flush() if answer.whole else ""
        if not answer.picks:
            return rest
        text = "".join(answer.shown) + rest
        # a pass that broke off may have told the ending of tokens that nobody saw
        end = self._end(ending, said[-1]) if answer.whole else _UNKNOWN
        self._said = _Said(said, answer.prompt + text + end)
        self.messages = [*answer.asked, {"role": "assistant", "content": text}]
        self.turns.append(
            Turn(
                text,
                answer.finish,
                tuple(answer.picks),
                run.picker.seed,
                len(answer.tokens),
                answer.reused,
                row.work.computed - before.computed,
                row.work.recomputed - before.recomputed,
                row.work.calls - before.calls,
                run.counts.guessed,
                run.counts.kept,
                answer.first,
                time.perf_counter() - answer.begun,
            )
        )
        return rest

    def stop(self) -> None:
        """End the answer that is under way after its present token. For signal handlers and other threads."""
        self._stopping = True

    def _rendered(self, messages: Sequence[Message]) -> tuple[str, list[int]]:
        """The conversation as text and as tokens.

        What was said may not be what its text would be tokenised to, and may not even be text (half a
        character). Where the template writes on from it, the tokens that were said stay as they are.
        """
        tokenizer = self.model.tokenizer
        text = tokenizer.chat(messages, variables=self.variables)
        tokens, front = self._said
        if front and text.startswith(front) and len(text) > len(front):
            return text, tokens + tokenizer.encode(text[len(front) :], special=False)
        return text, tokenizer.encode(text, special=False)

    def _end(self, ending: Ending, last: int) -> str:
        """What the end of an answer is written as: a stop token stands for itself, a stop string for no known text."""
        if ending.why == "stop string":
            return _UNKNOWN
        return self.model.tokenizer.decode([last], special=True) if ending.why == "stop token" else ""

    def _room(self, prompt: int, most: int) -> int:
        limit = self.model.context_length
        if limit is not None and prompt >= limit:
            raise BadInput(
                f"this conversation has {prompt} tokens, and the model was made for {limit}: reset it, or edit messages"
            )
        if most < 1:
            raise BadInput(f"max_tokens={most}: give at least 1")
        return most if limit is None else min(most, limit - prompt)

    # ---- what was said

    @property
    def cache(self) -> ModelCache:
        """What the conversation holds: ``cache.holds()`` shows it, ``cache.bytes`` weighs it."""
        return self._row.cache

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens whose keys and values are held."""
        return tuple(self._row.tokens)

    def reset(self) -> None:
        """Forget all but the system message. Its keys stay, as far as the next turn begins alike."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self.turns = []

    def branch(self) -> Conversation:
        """An independent conversation that has come the same way."""
        other = Conversation.__new__(Conversation)
        other.__dict__.update(self.__dict__)
        other._row = self._row.fork()
        other.messages, other.turns = list(self.messages), list(self.turns)
        return other

    # ---- files

    def save(self, path: str | Path) -> None:
        """Write the messages and the cache to a file that another process can go on from."""
        extra = {
            "conversation": FORMAT,
            "messages": [dict(message) for message in self.messages],
            "tokens": list(self._row.tokens),
            "said": list(self._said.tokens),
            "text": self._said.text,
        }
        save_cache(self._row.cache, path, fingerprint=fingerprint_of(self.model), extra=extra)

    @staticmethod
    def load(
        path: str | Path,
        model: Model,
        *,
        sampling: Sampling = Sampling(),
        stop: Stop | str | int | Sequence[str | int] | None = None,
        max_tokens: int = 512,
        draft: Draft | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """Go on with a saved conversation. Another model than it was saved with is refused."""
        made = Conversation(
            model, sampling=sampling, stop=stop, max_tokens=max_tokens, draft=draft, variables=variables
        )
        saved = read_cache(path, like=model.new_cache(), fingerprint=fingerprint_of(model))
        messages, tokens, said = _checked(path, saved.extra, model.spec.vocab)
        if saved.cache.batch != 1 or saved.cache.tokens[0] != len(tokens):
            raise CheckpointError(f"{path}: its cache does not hold its {len(tokens)} tokens")
        made.messages, made._said = messages, said
        made._row = CachedSequence(model, saved.cache, tokens)
        return made


def _checked(path: str | Path, extra: Mapping[str, Any], vocab: int) -> tuple[list[Message], list[int], _Said]:
    if extra.get("conversation") != FORMAT:
        raise CheckpointError(f"{path} is a saved cache without a conversation")
    messages: list[Message] = []
    given = extra.get("messages")
    for row in given if isinstance(given, list) else [None]:
        if not isinstance(row, dict) or not {"role", "content"} <= row.keys():
            raise CheckpointError(f"{path}: a message without role and content")
        if not all(isinstance(text, str) for text in row.values()):
            raise CheckpointError(f"{path}: a message that is no text")
        messages.append(row)
    numbers = []
    for name in ("tokens", "said"):
        row = extra.get(name)
        if not isinstance(row, list) or not all(type(n) is int and 0 <= n < vocab for n in row):
            raise CheckpointError(f"{path}: its {name} are no tokens of this model")
        numbers.append(row)
    if not isinstance(extra.get("text"), str):
        raise CheckpointError(f"{path}: it has no text")
    return messages, numbers[0], _Said(numbers[1], extra["text"])


def fingerprint_of(model: Model) -> Fingerprint:
    """Which model this is: over its spec and samples of its weights."""
    spec = model.spec
    kind = (model.config or {}).get("model_type", "model")
    name = f"{kind}, {len(spec.layers)} layers of width {spec.width}, {model.dtype}"
    return fingerprint(name.replace("torch.", ""), repr(spec), model.state_dict().items())
