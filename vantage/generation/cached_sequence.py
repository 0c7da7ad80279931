"""One sequence and its cache: what a conversation, a draft and a speculating run step forward and back.

A row knows which tokens its cache holds. So a text that differs from the one before costs only what
comes after the first difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.cache import CacheKind, ModelCache, cache_kind
from vantage.errors import BadInput, CacheError, Refused
from vantage.generation.images import PromptImages, features_of, named
from vantage.generation.stats import paths_of
from vantage.model import Model
from vantage.spec.images import ImageFeatures
from vantage.spec.parts import EncoderOutput

CHUNK = 512  # tokens of a pass: a long prompt is read in several, so that its activations stay small


@final
@dataclass
class WorkCounts:
    """What was done, counted where it was done."""

    calls: int = 0  # forward passes
    computed: int = 0  # tokens whose keys and values were computed
    reused: int = 0  # tokens whose keys and values were there already
    recomputed: int = 0  # tokens computed again: for a longer declared length, or because a window had let go of them


@final
class CachedSequence:
    """The tokens that a cache of one row holds, kept in step with it."""

    def __init__(
        self, model: Model, cache: ModelCache, tokens: Sequence[int] = (), source: Tensor | EncoderOutput | None = None
    ):
        if cache.batch != 1:
            raise BadInput(f"a cache of {cache.batch} rows for one sequence: give one with batch=1")
        if cache.tokens[0] != len(tokens):
            raise BadInput(f"the cache holds {cache.tokens[0]} tokens, and {len(tokens)} were said to be in it")
        self.model, self.cache, self.work = model, cache, WorkCounts()
        self.tokens = list(tokens)
        self._source = source
        self._images: PromptImages | None = None  # of the text that it holds a front of
        self._features: ImageFeatures | None = None  # of those images, once they are wanted
        self._earlier = (0,) * len(cache.layers)  # keys projected into caches that were given up
        self._earlier_paths = Counter[str]()

    @property
    def room(self) -> int | None:
        """How many more tokens fit the declared length; ``None``: no rule depends on it."""
        length = self.cache.length
        return None if length is None or self.model.spec.original_length is None else length - len(self.tokens)

    @property
    def projections(self) -> tuple[int, ...]:
        """Keys projected in each layer so far, counted where the caches took them in."""
        return tuple(n + layer.store.written for n, layer in zip(self._earlier, self.cache.layers, strict=True))

    @property
    def paths(self) -> Counter[str]:
        """Tokens by the path that computed them."""
        return self._earlier_paths + Counter(paths_of(self.cache))

    def feed(self, new: Sequence[int], want: int = 1) -> Tensor:
        """Compute these tokens; the logits (want, V) of the last ones."""
        if not 0 < want <= len(new):
            raise BadInput(f"the logits of {want} of {len(new)} tokens: feed at least as many as are wanted")
        self._make_room(len(new))
        first = len(new) - max(want, (len(new) - 1) % CHUNK + 1)
        for at in range(0, first, CHUNK):
            self._pass(new[at : min(at + CHUNK, first)], 0)
        logits = self._pass(new[first:], want)
        return logits.float() if logits.dtype.itemsize < 4 else logits  # sums over a vocabulary need the room

    def _pass(self, new: Sequence[int], want: int) -> Tensor:
        """One pass; the logits (want, V) of its last tokens."""
        model, source = self.model, self._source
        tokens = torch.tensor([list(new)], device=model.device)
        placed = self._placed(len(self.tokens), len(self.tokens) + len(new))
        if want == len(new):
            logits = model(tokens, cache=self.cache, source=source, **placed)
        else:  # the head is the widest map of all: only for those who are asked for
            hidden = model.hidden(tokens, cache=self.cache, source=source, **placed)
            logits = model.head(hidden[:, len(new) - want :]) if want else hidden[:, :0]
        self._source = None
        self.tokens += new
        self.work.calls += 1
        self.work.computed += len(new)
        return logits[0]

    def _placed(self, start: int, end: int) -> dict[str, Any]:
        """Where tokens stand of which some are an image's, and what the tower made of it. All others just go on: the
        cache knows from where."""
        images = self._images
        if images is None or not images.any_in(start, end):
            return {}
        if self._features is None:
            self._features = features_of(self.model, images.images)
        return {"positions": images.positions(start, end), "images": images.tokens(self._features, start, end)}

    def _make_room(self, n: int) -> None:
        """Frequencies are fixed for a cache's life: past its length everything is computed again, in doubling steps."""
        room = self.room
        if room is None or n <= room:
            return
        assert self.cache.length is not None
        length = self.cache.length
        while length < len(self.tokens) + n:
            length *= 2
        if self.model.encoder is not None:
            raise Refused(f"an encoder-decoder cannot grow past its length: make its cache with length={length}")
        if self.tokens and self._images is not None:
            raise Refused(f"a conversation with images cannot grow past {self.cache.length} tokens: start a new one")
        if self.tokens:
            self._exchange(self.model.grow(self.cache, self._as_row(), length=length))
            self.work.recomputed += len(self.tokens)
        else:
            self._exchange(self.cache.fresh())
            self.cache.length = length

    def _exchange(self, cache: ModelCache) -> None:
        """Go on with another cache; what the old one took in stays counted, unless both write to one store."""
        if self.cache.layers[0].store is not cache.layers[0].store:
            self._earlier_paths = self.paths
        layers = zip(self._earlier, self.cache.layers, cache.layers, strict=True)
        self._earlier = tuple(n if old.store is new.store else n + old.store.written for n, old, new in layers)
        self.cache = cache

    def _as_row(self) -> Tensor:
        return torch.tensor([self.tokens], device=self.model.device)

    def crop(self, to: int) -> None:
        """Keep the first ``to`` tokens."""
        if to < len(self.tokens):
            self.cache.crop(to)
            del self.tokens[to:]

    def match(self, tokens: Sequence[int], images: PromptImages | None = None) -> int:
        """Go back to where these tokens and the held ones part, and say how many are kept; never all of them.

        What a window let go of cannot be gone back to: then all is given up and computed again. ``images``: those of
        the tokens. Tokens of another image are others.
        """
        kept = min(common_length(named(self.tokens, self._images), named(tokens, images)), len(tokens) - 1)
        if images is not self._images:
            self._images, self._features = images, None
        try:
            self.crop(kept)
        except CacheError:
            self.work.recomputed += kept
            kept = 0
            self._exchange(self.cache.fresh())
            self.tokens = []
        self.work.reused += kept
        return kept

    def settle(self, tokens: Sequence[int]) -> None:
        """After a run that may have been interrupted: hold nothing but a front of these tokens, or nothing."""
        try:
            self.cache.crop(len(self.tokens))  # a pass may have been kept without notice
            self.crop(common_length(self.tokens, tokens))
        except CacheError:
            self._exchange(self.cache.fresh())
            self.tokens = []

    def fork(self) -> CachedSequence:
        """The same, to go on with independently."""
        other = CachedSequence(self.model, self.cache.fork(), self.tokens)
        other._images, other._features = self._images, self._features
        return other


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common from the front."""
    low, high = 0, min(len(a), len(b))
    a, b = a[:high], b[:high]
    if type(a) is not type(b):  # a list equals no tuple
        a, b = list(a), list(b)
    if a == b:  # mostly
        return high
    while low < high:  # whole stretches are compared at once
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def new_cache(model: Model, kind: str | CacheKind, draft: int, length: int | None = None) -> ModelCache:
    """An empty cache of one row that can take back ``draft`` tokens."""
    keeps = cache_kind(kind).evicts or model.spec.keeps_states
    return model.new_cache(kind=kind, length=length, draft=draft if keeps else None)
