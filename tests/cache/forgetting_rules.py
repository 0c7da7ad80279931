"""The rules of caches that forget, written out over whole rows and without a cache.

For every query the keys that are still there, and the numbers they stand at. ``WrittenOut`` is an attention layer that
goes through its queries one by one; ``Forgetful`` a kernel that does so with the scores of any attention.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import vantage as vt
from vantage.cache import ModelCache
from vantage.cache.kinds.heavy_hitters import HeavyHitterCache
from vantage.cache.kinds.kind import CacheKind
from vantage.cache.kinds.quantised import QuantisedCache
from vantage.cache.kinds.sinks import SinkCache
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.conformance.scenarios import sharpen
from vantage.errors import CacheError
from vantage.inspect.cache_bytes import CacheSettings, layer_bytes
from vantage.kernels.reference import grouped_matmul, masked_scores, normalise
from vantage.spec.parts import Attended, Need, View
from vantage.spec.positions import Pair

SINKS, WINDOW = 2, 3
HEAVY, RECENT = 3, 2
SIZE = 5
KINDS = {
    "sinks": SinkCache(SINKS, WINDOW),
    "by place": SinkCache(SINKS, WINDOW, by_place=True),
    "heavy hitters": HeavyHitterCache(HEAVY, RECENT),
}
HEADS, KV_HEADS, DIM = 4, 2, 8
CUTS = [(17,), (5, 12), (1,) * 17, (9, 1, 1, 4, 2), (3, 3, 3, 8)]
TOKENS = torch.randint(19, (1, 17), generator=torch.Generator().manual_seed(10))


def decoder(position: str = "rope", **options) -> vt.ModelSpec:
    return vt.decoder(vocab=19, width=32, layers=2, heads=HEADS, kv_heads=KV_HEADS, position=position, **options)


def model(position: str = "rope", **options) -> vt.Model:
    return sharpen(vt.build(decoder(position, **options)).double())


# ---- the rules, written out


def turned(x_d: torch.Tensor, position: int) -> torch.Tensor:
    """RoPE by complex numbers: dimension k is paired with k + d/2."""
    half = len(x_d) // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x_d[:half], x_d[half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag])


def weights_of(q_d: torch.Tensor, at: int, keys: list[torch.Tensor], numbers: list[int]) -> torch.Tensor:
    scores = [turned(q_d, at) @ turned(k, n) / DIM**0.5 for k, n in zip(keys, numbers, strict=True)]
    return torch.stack(scores).softmax(0)


class WrittenOut(nn.Module):
    """An attention layer that goes through its queries one by one. ``rule(query, weigh)`` for one key/value head says
    which keys each query sees, and at which numbers everything stands."""

    def __init__(self, attention: nn.Module, new_rule: Callable[[], Rule]):
        super().__init__()
        self.attention, self.new_rule = attention, new_rule
        self.kept: list[list[list[int]]] = []  # by head and query: what it saw

    def forward(self, x_BTD: torch.Tensor, ctx: object) -> torch.Tensor:
        (x,) = x_BTD
        q, k, v = self.attention.qkv(x).split((HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM), -1)
        q, k, v = (t.view(len(x), -1, DIM) for t in (q, k, v))
        out = torch.zeros(len(x), HEADS, DIM, dtype=x.dtype)
        per = HEADS // KV_HEADS
        self.kept = []
        for group in range(KV_HEADS):
            rule, seen = self.new_rule(), []
            for i in range(len(x)):
                keys = rule.sees(i)
                query, numbers = rule.numbers(i, keys)
                total = torch.zeros(len(keys), dtype=x.dtype)
                for head in range(group * per, (group + 1) * per):
                    weights = weights_of(q[i, head], query, [k[j, group] for j in keys], numbers)
                    out[i, head] = sum(w * v[j, group] for w, j in zip(weights, keys, strict=True))
                    total += weights
                rule.weighed(i, keys, total.tolist())
                seen.append(keys)
            self.kept.append(seen)
        return self.attention.out(out.flatten(1))[None]


class Rule:
    def sees(self, i: int) -> list[int]:
        raise NotImplementedError

    def numbers(self, i: int, keys: list[int]) -> tuple[int, list[int]]:
        return i, keys

    def weighed(self, i: int, keys: list[int], weights: list[float]) -> None:
        pass


class FirstAndLast(Rule):
    """StreamingLLM's cache, as its authors drop: the first ones, and of the others the last."""

    def __init__(self) -> None:
        self.cache: list[int] = []

    def sees(self, i: int) -> list[int]:
        self.cache.append(i)
        if len(self.cache) > SINKS + WINDOW:
            self.cache = self.cache[:SINKS] + self.cache[len(self.cache) - WINDOW :]
        return list(self.cache)


class ByPlace(FirstAndLast):
    """And as its authors turn: keys by their index in the cache, the query last."""

    def numbers(self, i: int, keys: list[int]) -> tuple[int, list[int]]:
        return len(keys) - 1, list(range(len(keys)))


class HeaviestAndLast(Rule):
    """H2O: weights are added up; past the budget the lightest goes, but none of the last."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def sees(self, i: int) -> list[int]:
        self.scores[i] = 0.0
        return sorted(self.scores)

    def weighed(self, i: int, keys: list[int], weights: list[float]) -> None:
        for key, weight in zip(keys, weights, strict=True):
            self.scores[key] += weight
        if len(self.scores) > HEAVY + RECENT:
            del self.scores[min((key for key in self.scores if key <= i - RECENT), key=self.scores.__getitem__)]


class LastGiven(Rule):
    """TOVA: past the budget the one that the last query gave least weight goes, but not that query itself."""

    def __init__(self) -> None:
        self.cache: list[int] = []

    def sees(self, i: int) -> list[int]:
        self.cache.append(i)
        return list(self.cache)

    def weighed(self, i: int, keys: list[int], weights: list[float]) -> None:
        if len(keys) > SIZE:
            self.cache.remove(min((w, key) for w, key in zip(weights, keys, strict=True) if key != i)[1])


RULES = {"sinks": FirstAndLast, "by place": ByPlace, "heavy hitters": HeaviestAndLast}


def written_out(kind: str, tokens: torch.Tensor = TOKENS) -> tuple[torch.Tensor, list[WrittenOut]]:
    """The logits of one pass without a cache, and the layers with what their queries saw."""
    plain = model()
    layers = []
    for block in plain.blocks:
        first = block.steps[0]
        first.sublayer = WrittenOut(first.sublayer, RULES[kind])
        layers.append(first.sublayer)
    with torch.no_grad():
        return plain(tokens), layers


def run(m: vt.Model, cache: ModelCache, tokens: torch.Tensor, cuts: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([m(part, cache=cache) for part in tokens.split(cuts, 1)], 1)


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


class Forgetful:
    """A kernel for one pass without a cache: scores of the reference, and for each query the keys that a rule shows.

    ``groups`` of heads decide for themselves.
    """

    name = "forgetful"

    def __init__(self, new_rule: Callable[[], Rule], groups: int):
        self.new_rule, self.groups = new_rule, groups

    def refuses(self, *_: object) -> None:
        return None

    def __call__(self, q: torch.Tensor, view: View, pair: Pair, need: Need) -> Attended:
        scores = masked_scores(q, view.k, pair, need)
        weights, per = torch.zeros_like(scores), scores.shape[1] // self.groups
        for b in range(len(scores)):
            for group in range(self.groups):
                rule, heads = self.new_rule(), slice(group * per, (group + 1) * per)
                for i in range(scores.shape[2]):
                    keys = rule.sees(i)
                    sinks = None if need.sinks is None else need.sinks[heads]
                    shown, _ = normalise(scores[b, heads, i, keys][None, :, None], sinks, need.normalise)
                    weights[b, heads, i, keys] = shown[0, :, 0]
                    rule.weighed(i, keys, shown[0, :, 0].sum(0).tolist())
        out = grouped_matmul(weights, view.v)
        return Attended(out if need.value_bias is None else out + need.value_bias.at(weights, pair.q, pair.k))


# ---- what every cache that forgets does


def check_copies(kind: CacheKind, wanted: torch.Tensor, path: Path) -> None:
    """Forked, reordered, saved to ``path`` and read, it goes on as it was; in eight bits nearly so."""
    m = model()
    cache = m.new_cache(1, kind=kind)
    run(m, cache, TOKENS[:, :9], (9,))
    save_cache(cache, path, fingerprint=Fingerprint("m", "0"))
    fork = cache.fork()
    fork.reorder([0, 0])
    close(run(m, fork, TOKENS[:, 9:].expand(2, -1), (4, 4)), wanted[:, 9:].expand(2, -1, -1))
    again = read_cache(path, like=m.new_cache(1, kind=kind), fingerprint=Fingerprint("m", "0")).cache
    for one in (cache, again):
        close(run(m, one, TOKENS[:, 9:], (8,)), wanted[:, 9:])
    rounded = run(m, m.new_cache(1, kind=QuantisedCache(kind)), TOKENS, (17,))
    assert (rounded - wanted).abs().mean() < 0.1


def check_no_way_back(kind: CacheKind) -> None:
    m = model()
    cache = m.new_cache(1, kind=kind)
    run(m, cache, TOKENS[:, :4], (4,))
    with pytest.raises(CacheError, match="later queries have had a say"):
        cache.crop(3)


def check_bytes(name: str) -> None:
    """It takes what the costs say."""
    m = model()
    settings = CacheSettings(17, 2, torch.float64, name)
    assert sum(layer_bytes(shape, mask, settings) for shape, mask in m.spec.caches) == m.new_cache(2, kind=name).bytes
