"""A user's own callable: ``f(tokens)``, ``f(tokens, positions)`` or ``f(tokens, positions, cache)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.conformance.subject import ModelFacts, NewCache, NotApplicable, Subject
from vantage.errors import BadInput
from vantage.spec.positions import Positions

FULL = ("tokens", "positions", "cache")
PROBE_SHAPE = (3, 4)  # rows and tokens of the call that shows how large the vocabulary is


@runtime_checkable
class CroppableCache(Protocol):
    """A cache that can go back: keep the first ``to`` tokens of every row."""

    def crop(self, to: int) -> Any: ...


@runtime_checkable
class ForkableCache(Protocol):
    """A cache that can be copied."""

    def fork(self) -> Any: ...


class CallableModel(Subject):
    """A user's callable; a cache is written in place. ``takes``: how many of tokens, positions and cache it takes."""

    def __init__(
        self, model: Callable[..., Any], facts: ModelFacts, new_cache: NewCache | None, causal: bool, takes: int
    ):
        self.model, self.facts, self._new_cache, self._causal = model, facts, new_cache, causal
        self._takes = takes

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        plain = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        positions = plain if positions is None else positions
        if self._takes == 1:
            return self.model(self._padded(tokens, positions, plain))
        tokens = tokens if self.facts.pad is None else tokens.masked_fill(positions < 0, self.facts.pad)
        return self.model(tokens, positions) if self._takes == 2 else self.model(tokens, positions, cache)

    def _padded(self, tokens: Tensor, positions: Tensor, plain: Tensor) -> Tensor:
        """The tokens alone, where they say all that there is to say."""
        filled = positions >= 0
        if bool(filled.all()) and not torch.equal(positions, plain):
            raise NotApplicable("it takes tokens only, and counts their positions itself")
        if self.facts.pad is not None:
            return tokens.masked_fill(~filled, self.facts.pad)
        if not torch.equal(torch.where(filled, positions, plain), plain):
            raise NotApplicable("it takes tokens only and cannot be told what is padding: pass pad=, its padding token")
        if not self._causal:
            raise NotApplicable("it takes tokens only and sees later ones: pass pad=, its padding token")
        return tokens  # on the right of a causal model padding is any later token

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        raise NotApplicable("what the masks of a callable count cannot be seen from outside")

    def packings(self) -> tuple[str, ...]:
        raise NotApplicable("the arguments of a callable have no way to mark documents")

    def packed(self, tokens: Tensor, where: Positions, way: str) -> Tensor:
        raise NotApplicable("the arguments of a callable have no way to mark documents")

    def new_cache(self, batch: int, *, length: int | None = None) -> Any:
        if self._takes < len(FULL):
            raise NotApplicable("it takes no cache: to check one, take (tokens, positions, cache)")
        if self._new_cache is None:
            raise NotApplicable("no cache to check: pass new_cache=, which takes a number of rows and returns one")
        return self._new_cache(batch)

    def crop(self, cache: Any, to: int) -> None:
        if not isinstance(cache, CroppableCache):
            raise NotApplicable(f"{type(cache).__name__} has no crop(to)")
        cache.crop(to)

    def fork(self, cache: Any) -> Any:
        if not isinstance(cache, ForkableCache):
            raise NotApplicable(f"{type(cache).__name__} has no fork()")
        return cache.fork()

    def doubled(self) -> None:
        return None

    def settled(self, start: int) -> bool:
        return self._causal


def callable_subject(
    model: Callable[..., Any],
    new_cache: NewCache | None,
    *,
    vocab: int | None,
    causal: bool | None,
    window: int | Sequence[int] | None,
    layers: int | None,
    max_length: int | None,
    original_length: int | None,
    pad: int | None,
    device: torch.device | str | None,
) -> CallableModel:
    """The callable, with what the user states of it, checked."""
    takes = arguments_taken(model)
    if takes < len(FULL) and new_cache is not None:
        raise BadInput(f"{_name(model)} takes no cache: leave out new_cache=, or take ({', '.join(FULL)})")
    if isinstance(window, int) and layers is None:
        raise BadInput(f"window={window} of how many layers? pass layers= as well, or window= with one number a layer")
    windows = (window,) * (layers or 0) if isinstance(window, int) else tuple(window or ())
    if layers is not None and windows and len(windows) != layers:
        raise BadInput(f"{len(windows)} windows for {layers} layers: give one a layer")
    if any(n < 1 for n in windows):
        raise BadInput(f"window={window}: a window holds at least 1 token, the token itself")
    if device is None:
        weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        device = torch.device("cpu") if weight is None else weight.device
    where = torch.device(device)
    facts = ModelFacts(
        _name(model),
        0,
        where,
        limit=max_length,
        windows=windows,
        original=original_length,
        reads_positions=takes > 1,
        pad=pad,
    )
    subject = CallableModel(model, facts, new_cache, causal is not False, takes)
    subject.facts = facts.knowing(_vocabulary(subject, max_length) if vocab is None else vocab)
    if pad is not None and not 0 <= pad < subject.facts.vocab:
        raise BadInput(f"pad={pad} is no token of a vocabulary of {subject.facts.vocab}")
    return subject


def arguments_taken(model: Callable[..., Any]) -> int:
    """How many of tokens, positions and cache it takes: what has a default counts if it is called so."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):  # written in C: nobody knows
        return len(FULL)
    taken = 0
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return len(FULL)
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.kind is parameter.VAR_KEYWORD:
            break
        if taken == len(FULL) or (parameter.default is not parameter.empty and parameter.name != FULL[taken]):
            break
        taken += 1
    if taken == 0:
        raise BadInput(f"{_name(model)} takes no arguments: check a function of tokens, f(tokens) -> logits")
    return taken


def _vocabulary(subject: CallableModel, max_length: int | None) -> int:
    """As many tokens as there are logits; the call is made with the first token alone, which every vocabulary has."""
    rows, width = PROBE_SHAPE
    tokens = torch.zeros((rows, min(width, max_length or width)), dtype=torch.long, device=subject.facts.device)
    logits = subject.run(tokens, None)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[-1] < 2:
        returned = f"{tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise BadInput(
            f"{subject.facts.name} returned {returned} for tokens {tuple(tokens.shape)}, which does not say how many "
            "tokens it knows: return logits (batch, tokens, vocabulary), or pass vocab="
        )
    return logits.shape[-1]


def _name(model: object) -> str:
    return str(model.__qualname__) if inspect.isroutine(model) else type(model).__name__
