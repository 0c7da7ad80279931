"""One sample on its way: what the scheduler moves about. And several of them in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import final

from vantage.cache import ModelCache
from vantage.generation.prefix import PrefixKey
from vantage.generation.request import Output, Request
from vantage.generation.sampling import Picker
from vantage.generation.stops import AnswerText


@final
@dataclass(eq=False)
class RunningSample:
    """A sample of a request, its tokens and its row of the cache."""

    request: Request
    output: Output
    picker: Picker
    text: AnswerText
    tokens: list[int]  # prompt and output
    chunked: int  # so many tokens are computed in chunks; those after them were generated
    siblings: list[RunningSample] = field(default_factory=list)  # the other samples, which begin where its prompt ends
    stage: str = "waiting"  # then "prefill", "decode" and "done"
    cache: ModelCache | None = None  # one row; None while waiting, or while in a batch
    fed: int = 0  # tokens the row holds
    reached: int = 0  # the most it ever held: what is computed below this is computed again
    length: int | None = None  # declared, where frequencies depend on it

    @property
    def rank(self) -> tuple[int, int, int]:
        """Who comes first: higher priority, then earlier arrival. The last in rank is the first to make room."""
        return -self.request.priority, self.request.id, self.output.sample

    @property
    def rows(self) -> int:
        """How many rows it takes, its siblings' included."""
        return 1 + len(self.siblings)

    def key(self, share_tenants: bool) -> PrefixKey:
        """Whose prefixes it may use."""
        return PrefixKey(None if share_tenants else self.request.tenant, self.length, self.request.adapter)

    def names(self, end: int) -> list[int]:
        """Its first tokens as prefixes are told apart: those of an image by what is in it."""
        images = self.request.images
        return self.tokens[:end] if images is None else [*images.names, *self.tokens[len(images.names) :]][:end]

    @property
    def pass_key(self) -> tuple[int, str]:
        """What rows of one pass have in common: other lengths are other frequencies, other adapters other weights."""
        return self.length or 0, self.request.adapter or ""

    @property
    def scoring(self) -> bool:
        """Tokens of its prompt have no score yet, so all of it must be computed."""
        request = self.request
        return request.prompt_logprobs is not None and len(request.prompt_picks) < len(request.tokens)

    def held(self) -> ModelCache:
        assert self.cache is not None, "this sample has no row of its own now"
        return self.cache

    def feed(self) -> None:
        """Its last token has been computed."""
        self.fed += 1
        self.reached = max(self.reached, self.fed)

    def free(self) -> None:
        """Give the row up."""
        if self.cache is not None:
            self.cache.free()
        self.cache, self.fed = None, 0


def by_pass(samples: Sequence[RunningSample]) -> list[list[RunningSample]]:
    """Those that can run in one pass together, by rank within it."""
    ordered = sorted(samples, key=lambda sample: sample.pass_key)
    return [list(group) for _, group in groupby(ordered, lambda sample: sample.pass_key)]


@final
class JoinedRows:
    """Samples whose rows are joined into one cache, for as long as the same samples run together."""

    def __init__(self) -> None:
        self._samples: list[RunningSample] = []
        self._cache: ModelCache | None = None

    def open(self, samples: Sequence[RunningSample]) -> ModelCache:
        """One cache whose rows are these samples'."""
        if self._cache is None or self._samples != list(samples):
            self.close()
            rows = [sample.held() for sample in samples]
            self._cache = rows[0] if len(rows) == 1 else ModelCache.join(rows)
            self._samples = list(samples)
            for sample in samples:
                sample.cache = None
        return self._cache

    def close(self) -> None:
        """Every sample gets its row back."""
        if self._cache is None:
            return
        rows = [self._cache] if len(self._samples) == 1 else self._cache.split()
        for sample, row in zip(self._samples, rows, strict=True):
            sample.cache = row
        self._samples, self._cache = [], None

    @property
    def caches(self) -> list[ModelCache]:
        return [] if self._cache is None else [self._cache]
