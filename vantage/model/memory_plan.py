"""What a model takes of a memory of stated size, and which of its layers stay off the device. Nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from vantage.errors import Refused
from vantage.spec.memory_size import readable

BUFFERS = 2  # layers that are off the device run in so many buffers, one after the other
LEAST_CONTEXT = 16  # tokens: less is no use to anybody


@final
@dataclass(frozen=True)
class MemoryNeed:
    """Bytes. ``cache`` and ``workspace`` by the tokens of the context."""

    layers: tuple[int, ...]  # of the weights of each
    others: int  # embeddings, norms, the head
    cache: Callable[[int], int]
    workspace: Callable[[int], int]
    taken: int = 0  # by the process before, where its memory is the model's

    def with_layers_off(self, off: tuple[int, ...], context: int) -> int:
        """What is on the device when these layers are not."""
        away = [self.layers[i] for i in off]
        weights = self.others + sum(self.layers) - sum(away) + BUFFERS * max(away, default=0)
        return self.taken + weights + self.cache(context) + self.workspace(context)

    @property
    def weights(self) -> int:
        return self.others + sum(self.layers)


@final
@dataclass(frozen=True)
class MemoryPlan:
    """``off``: the layers whose weights are not on the device."""

    off: tuple[int, ...]
    context: int
    limit: int
    need: MemoryNeed

    @property
    def parts(self) -> dict[str, int]:
        """Bytes on the device by what they are for."""
        need, away = self.need, [self.need.layers[i] for i in self.off]
        parts = {
            "the process before": need.taken,
            "embeddings, norms and head": need.others,
            f"{len(need.layers) - len(away)} layers": sum(need.layers) - sum(away),
            f"room for {BUFFERS} of {len(away)} layers that come and go": BUFFERS * max(away, default=0),
            f"cache of {self.context:,} tokens": need.cache(self.context),
            "workspace": need.workspace(self.context),
        }
        return {name: nbytes for name, nbytes in parts.items() if nbytes}

    @property
    def off_bytes(self) -> int:
        """What a pass brings to the device: with no more layers than buffers nothing, as they stay there."""
        return sum(self.need.layers[i] for i in self.off)

    @property
    def largest(self) -> int:
        return max(self.need.layers[i] for i in self.off)


def spread(count: int, layers: int) -> tuple[int, ...]:
    """So many of the layers, as far apart as can be: while others run, the link has time."""
    return tuple((2 * i + 1) * layers // (2 * count) for i in range(count))


def plan_memory(
    need: MemoryNeed, limit: int, context: int, *, name: str = "max_memory", smaller: Mapping[str, float] | None = None
) -> MemoryPlan:
    """As few layers off the device as the limit allows; refused, with what would fit, where all of them are too few.

    ``smaller``: other dtypes, and what share of the layers' bytes they take.
    """
    count = len(need.layers)
    for number in (0, *range(BUFFERS + 1, count + 1)):
        off = spread(number, count)
        if need.with_layers_off(off, context) <= limit:
            return MemoryPlan(off, context, limit, need)
    raise Refused(_refusal(need, limit, context, name, smaller or {}))


def _refusal(need: MemoryNeed, limit: int, context: int, name: str, smaller: Mapping[str, float]) -> str:
    count = len(need.layers)
    least = spread(count, count)
    parts = ", ".join(f"{what} {readable(n)}" for what, n in MemoryPlan(least, context, limit, need).parts.items())
    ways = list[str]()
    if fitting := _longest(need, limit, context):
        ways.append(f"a context of {fitting:,} tokens")
    for dtype, share in smaller.items():
        shrunk = MemoryNeed(
            tuple(int(n * share) for n in need.layers),
            int(need.others * share),
            need.cache,
            need.workspace,
            need.taken,
        )
        if any(shrunk.with_layers_off(spread(n, count), context) <= limit for n in (0, *range(BUFFERS + 1, count + 1))):
            ways.append(f"dtype={dtype!r}")
    all_off, none_off = need.with_layers_off(least, context), need.with_layers_off((), context)
    ways.append(f"{name} of {readable(min(all_off, none_off))} or more ({readable(none_off)} holds all layers)")
    return (
        f"{name}={readable(limit)} is too little for a context of {context:,} tokens even with all {count} layers kept "
        f"elsewhere: {parts}. What would fit: {'; '.join(ways)}"
    )


def _longest(need: MemoryNeed, limit: int, context: int) -> int:
    """The longest context below this one that fits with every layer off the device; 0: none."""
    off, low, high = spread(len(need.layers), len(need.layers)), 0, context // LEAST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need.with_layers_off(off, middle * LEAST_CONTEXT) <= limit else (low, middle - 1)
    return low * LEAST_CONTEXT
