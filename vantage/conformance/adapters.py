"""Ours, a transformers model or a user's own callable: one way to ask all three."""

from __future__ import annotations

import copy
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vantage.cache import ModelCache
from vantage.errors import BadInput
from vantage.model import Model
from vantage.spec.masks import And, Causal, Everything, Mask, SameSegment, Window
from vantage.spec.positions import Positions

NewCache = Callable[[int], Any]  # from a number of rows to an empty cache
UserModel = Callable[[Tensor, Tensor, Any], Tensor]  # (tokens, positions, cache) -> logits

DECLARED = 640  # the length declared for our length-dependent rules where a row does not ask for another
SMALL = 20_000_000  # parameters of a model that may be copied
SOURCE = 5  # tokens of the source that an encoder-decoder reads


class NotApplicable(Exception):
    """A row that has nothing to say of this model. The message is the reason."""


@runtime_checkable
class CroppableCache(Protocol):
    """A cache that can go back: keep the first ``to`` tokens of every row."""

    def crop(self, to: int) -> Any: ...


@runtime_checkable
class ForkableCache(Protocol):
    """A cache that can be copied."""

    def fork(self) -> Any: ...


@dataclass(frozen=True)
class ModelFacts:
    """What a model says of itself."""

    name: str
    vocab: int
    device: torch.device
    limit: int | None = None  # positions it has
    declares: bool = False  # the length of a context can be declared, so the rule does not change by itself
    windows: tuple[int | None, ...] = ()  # of each layer; (): none is declared
    odd_window: str = ""  # why its masks are no plain windows
    original: int | None = None  # the length past which its RoPE rule changes
    places_apart: bool = False  # masks count tokens, whatever positions the encodings are given
    reads_positions: bool = True  # positions can be given at all

    @property
    def room(self) -> int | None:
        """Positions at which no rule changes; None: any number."""
        limits = (self.limit, None if self.declares else self.original)
        return min((n for n in limits if n is not None), default=None)


class Subject(ABC):
    """A model under test."""

    facts: ModelFacts

    @abstractmethod
    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        """Logits (B, T, V). Positions (B, T), -1 is padding, ``None`` leaves them to the model.

        ``length`` is the declared length of an uncached pass; only our own models know it.
        """

    @abstractmethod
    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        """Encodings are given ``positions``; masks count tokens from ``start``. Needs ``facts.places_apart``."""

    @abstractmethod
    def new_cache(self, batch: int, *, length: int | None = None) -> Any:
        """Raises ``NotApplicable`` where there is none."""

    @abstractmethod
    def crop(self, cache: Any, to: int) -> None:
        """Back to ``to`` tokens. Raises ``NotApplicable`` where it cannot."""

    @abstractmethod
    def fork(self, cache: Any) -> Any: ...

    @abstractmethod
    def doubled(self) -> Subject | None:
        """A copy in float64, where one can be made and is small."""

    @abstractmethod
    def settled(self, start: int) -> bool:
        """Whether no token before ``start`` sees one from ``start`` on."""


class OwnModel(Subject):
    """A ``vantage.Model``. An encoder-decoder reads one fixed source."""

    def __init__(self, model: Model, new_cache: NewCache | None = None):
        spec = model.spec
        masks = [layer.mask for layer in spec.layers]
        windows = [_window(mask) for mask in masks]
        odd = next((str(m) for m, n in zip(masks, windows, strict=True) if m.reach() is not None and n is None), "")
        self.model, self._new_cache, self._masks = model, new_cache, masks
        self.facts = ModelFacts(
            name="vantage.Model",
            vocab=spec.vocab,
            device=model.device,
            limit=model.max_positions,
            declares=True,
            windows=tuple(windows) if any(m.reach() is not None for m in masks) else (),
            odd_window=odd,
            original=spec.original_length,
            places_apart=True,
        )
        self._source = None
        if spec.encoder is not None:
            self._source = torch.arange(SOURCE, device=model.device)[None] % spec.encoder.vocab

    def declared(self, length: int | None = None) -> int | None:
        original = self.facts.original
        return length if length is not None or original is None else max(original, DECLARED)

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        # read on the host, then moved: what the host knows of positions is kept
        where = None if positions is None else Positions.of(positions.cpu()).to(self.facts.device)
        return self._run(tokens, where, cache, length)

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        order = torch.arange(start, start + positions.shape[1]).expand(positions.shape)
        return self._run(tokens, Positions.of(positions.cpu(), order=order).to(self.facts.device), cache, None)

    def _run(self, tokens: Tensor, where: Positions | None, cache: ModelCache | None, length: int | None) -> Tensor:
        fresh = cache is None or not any(cache.tokens)
        source = self._source.expand(len(tokens), -1) if self._source is not None and fresh else None
        declared = self.declared(length) if cache is None else None
        return self.model(tokens, positions=where, cache=cache, length=declared, source=source)

    def new_cache(self, batch: int, *, length: int | None = None) -> ModelCache:
        if self._new_cache is not None and length is None:
            return self._new_cache(batch)
        return self.model.new_cache(batch, length=self.declared(length))

    def crop(self, cache: ModelCache, to: int) -> None:
        cache.crop(to)

    def fork(self, cache: ModelCache) -> ModelCache:
        return cache.fork()

    def doubled(self) -> OwnModel | None:
        return OwnModel(copy.deepcopy(self.model).double()) if _is_small(self.model) else None

    def settled(self, start: int) -> bool:
        return all(mask.settled(start) for mask in self._masks)


@dataclass
class TransformersCache:
    """A transformers cache and the padding mask of all it has been given, which transformers wants each time."""

    held: Any
    mask: Tensor  # (B, tokens so far)


class TransformersModel(Subject):
    """A transformers causal language model."""

    def __init__(self, model: Any, new_cache: NewCache | None = None):
        name = type(model).__name__
        config = model.config.get_text_config(decoder=True)
        if model.config.is_encoder_decoder or not model.can_generate():
            raise BadInput(
                f"{name} is no causal language model, the only kind of transformers model that check knows: "
                "wrap it in a callable (tokens, positions, cache) -> logits and pass vocab="
            )
        self.model, self._new_cache, self._config = model, new_cache, config
        takes = inspect.signature(model.forward).parameters
        self._cached, self._placed = "past_key_values" in takes, "position_ids" in takes
        settings = config.to_dict()
        limit, original = (
            settings.get("max_position_embeddings", settings.get("n_positions")),
            _original_length(settings),
        )
        self.facts = ModelFacts(
            name=name,
            vocab=config.vocab_size,
            device=model.device,
            limit=None if limit == original else limit,  # dynamic NTK goes on past it
            windows=_windows_of(settings, config.num_hidden_layers),
            original=original,
            places_apart=self._placed,
            reads_positions=self._placed,
        )

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        mask = torch.ones_like(tokens) if positions is None else (positions >= 0).to(tokens)
        if cache is not None:
            cache.mask = mask = torch.cat([cache.mask, mask], 1)
            arguments["past_key_values"] = cache.held
        if positions is not None and self._placed:
            arguments["position_ids"] = positions.clamp_min(0)
        return self.model(input_ids=tokens, attention_mask=mask, **arguments).logits

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        return self.run(tokens, positions, cache)  # its masks count places anyway

    def new_cache(self, batch: int, *, length: int | None = None) -> TransformersCache:
        if not self._cached:
            raise NotApplicable(f"{self.facts.name} takes no past_key_values")
        if self._new_cache is None:
            held = sys.modules["transformers"].DynamicCache(config=self._config)
        else:
            held = self._new_cache(batch)
        return TransformersCache(held, torch.ones((batch, 0), dtype=torch.long, device=self.facts.device))

    def crop(self, cache: TransformersCache, to: int) -> None:
        gone = cache.mask.shape[1] - to
        try:
            cache.held.crop(-gone)
        except (NotImplementedError, RuntimeError, ValueError) as why:  # how transformers says that it cannot
            raise NotApplicable(f"this cache does not go back: {_first_line(why)}") from why
        cache.mask = cache.mask[:, :to]

    def fork(self, cache: TransformersCache) -> TransformersCache:
        return TransformersCache(copy.deepcopy(cache.held), cache.mask)

    def doubled(self) -> TransformersModel | None:
        return TransformersModel(copy.deepcopy(self.model).double()) if _is_small(self.model) else None

    def settled(self, start: int) -> bool:
        return True


class CallableModel(Subject):
    """A user's callable ``(tokens, positions, cache) -> logits``; a cache is written in place."""

    def __init__(self, model: UserModel, facts: ModelFacts, new_cache: NewCache | None, causal: bool):
        self.model, self.facts, self._new_cache, self._causal = model, facts, new_cache, causal

    def run(self, tokens: Tensor, positions: Tensor | None, cache: Any = None, *, length: int | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return self.model(tokens, positions, cache)

    def misplaced(self, tokens: Tensor, positions: Tensor, start: int, cache: Any = None) -> Tensor:
        raise NotApplicable("a callable is given positions only, so nobody knows what its masks count")

    def new_cache(self, batch: int, *, length: int | None = None) -> Any:
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


def callable_facts(
    model: object,
    vocab: int | None,
    window: int | Sequence[int] | None,
    layers: int | None,
    max_length: int | None,
    original_length: int | None,
    device: torch.device | str | None,
) -> ModelFacts:
    """What the user states of a callable, checked."""
    if vocab is None:
        raise BadInput(f"{_name(model)} does not say how many tokens it knows: pass vocab=")
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
    return ModelFacts(_name(model), vocab, where, limit=max_length, windows=windows, original=original_length)


def _name(model: object) -> str:
    named = inspect.isroutine(model)
    return str(model.__qualname__) if named else type(model).__name__


def _window(mask: Mask) -> int | None:
    """The window of a mask that is a plain window, causal or not."""
    terms = _terms(mask)
    plain = all(isinstance(term, Causal | Window | SameSegment | Everything) for term in terms)
    return min((term.n for term in terms if isinstance(term, Window)), default=None) if plain else None


def _terms(mask: Mask) -> list[Mask]:
    return [*_terms(mask.a), *_terms(mask.b)] if isinstance(mask, And) else [mask]


def _windows_of(config: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    n, kinds = config.get("sliding_window"), config.get("layer_types")
    if n is None:
        return ()
    windows = (n,) * layers if kinds is None else tuple(n if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else ()


def _original_length(config: dict[str, Any]) -> int | None:
    """The length past which dynamic NTK or LongRoPE changes; layers may differ (nested parameters)."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    every = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    lengths = []
    for rule in every:
        kind = rule.get("rope_type", rule.get("type"))
        if kind == "dynamic":  # it reads nothing else
            lengths.append(config["max_position_embeddings"])
        elif kind == "longrope":
            lengths.append(rule.get("original_max_position_embeddings") or config["original_max_position_embeddings"])
    return min(lengths, default=None)


def _is_small(model: nn.Module) -> bool:
    """Whether a copy in float64 is cheap, and possible: Apple's GPUs have none."""
    weights = list(model.parameters())
    return sum(p.numel() for p in weights) <= SMALL and all(p.device.type != "mps" for p in weights)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
