"""What the conformance matrix is made of: the parts of the registries, and the combinations that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from vantage.attention import ATTENTIONS, INDEXERS, OUTPUT_PARTS, QK_PARTS, GroupedQuery, SharedIndexer
from vantage.cache import CACHES, CacheKind
from vantage.kernels import KERNELS
from vantage.model.norms import RMSNorm
from vantage.position import ENCODINGS, Rope
from vantage.position.scaling import SCALINGS
from vantage.spec.mask_registry import MASKS
from vantage.spec.masks import Mask
from vantage.spec.model import AttentionConfig
from vantage.spec.parts import Buildable, Encoding
from vantage.spec.registry import Entry, MatrixSize, Registry

T = TypeVar("T")

# Small, but past every threshold: rows are longer than the window, the chunk, the prefix, the T5
# buckets' exact range, Shaw's clip and the length up to which frequencies stay as they are.
WIDTH, LAYERS, VOCAB = 32, 3, 19
HEADS, HEAD_DIM = 4, 8
SIZE = MatrixSize(HEADS, HEAD_DIM, length=24, original=6, reach=4, prefix=3, norm=RMSNorm())
LENGTH = SIZE.length
NO_CACHE = "none"
SCENARIOS = ("full", "steps", "ragged", "left-padded", "right-padded", "packed", "randomised", "rollback", "fork")
FACTOR_NAMES = ("encoding", "attention", "mask", "cache", "kernel", "scenario")
NUMBER = {name: i for i, name in enumerate(FACTOR_NAMES)}


@dataclass(frozen=True)
class AttentionCase:
    """An attention: its config, what precedes the encoding on q and k, what follows the kernel, whether it is also
    crossed, whether the last layer reads the keys of the first, what the other layers have in its place, and what
    chooses the keys in the first layer and in the others."""

    config: AttentionConfig
    qk: tuple[Buildable, ...] = ()
    output: tuple[Buildable, ...] = ()
    cross: bool = False
    shared_keys: bool = False
    between: AttentionConfig | None = None  # without scores: it has a layer on either side
    indexers: tuple[Buildable, Buildable] | None = None


def variants(entry: Entry[T], number: int) -> dict[str, Callable[[], T]]:
    """The forms of a part that the matrix tries, by name; without any, the part as it comes."""
    if entry.variants is None:
        return {entry.name: lambda: entry.make(number)}
    return {name: lambda make=make: make(SIZE) for name, make in entry.variants.items()}


def _all(registry: Registry[T], number: int) -> dict[str, Callable[[], T]]:
    return {name: make for entry in registry.entries() for name, make in variants(entry, number).items()}


def encodings() -> dict[str, Callable[[], Encoding]]:
    """Every encoding in its forms, RoPE with every frequency rule behind it."""
    forms: dict[str, Callable[[], Encoding]] = {}
    for entry in ENCODINGS.entries():
        forms |= variants(entry, LENGTH)
        if entry.config is Rope:
            rules = _all(SCALINGS, LENGTH).items()
            forms |= {f"{entry.name}-{name}": lambda make=make: Rope(scaling=make()) for name, make in rules}
    return forms


def attentions() -> dict[str, AttentionCase]:
    grouped = GroupedQuery(HEADS, HEADS // 2)
    cases = {}
    for name, make in _all(ATTENTIONS, HEADS).items():
        config = make()
        scores = config.cache_shape(WIDTH).kv_heads > 0
        cases[name] = AttentionCase(config) if scores else AttentionCase(grouped, between=config)
    cases["cross"] = AttentionCase(grouped, cross=True)
    cases["shared-keys"] = AttentionCase(grouped, shared_keys=True)
    cases |= {name: AttentionCase(grouped, output=(make(),)) for name, make in _all(OUTPUT_PARTS, HEADS).items()}
    for name, make in _all(INDEXERS, HEADS).items():
        indexer = make()
        cases[name] = AttentionCase(grouped, indexers=(indexer, indexer))
        cases[f"{name}-shared"] = AttentionCase(grouped, indexers=(indexer, SharedIndexer(0)))
    return cases | {name: AttentionCase(grouped, qk=(make(),)) for name, make in _all(QK_PARTS, HEADS).items()}


def masks() -> dict[str, Mask]:
    return {name: make() for name, make in _all(MASKS, LENGTH).items()}


def caches() -> dict[str, CacheKind]:
    return {name: make() for name, make in _all(CACHES, LENGTH).items()}


def factors() -> dict[str, tuple[str, ...]]:
    """The values of each factor, by name."""
    kernels = tuple(_all(KERNELS, LENGTH))
    values = (tuple(encodings()), tuple(attentions()), tuple(masks()), (NO_CACHE, *caches()), kernels, SCENARIOS)
    return dict(zip(FACTOR_NAMES, values, strict=True))


@dataclass(frozen=True)
class RefusalRule:
    """Cells with all of these values are refused, and the error must say ``because``.

    ``tested=False``: nothing refuses; there is nothing to run or to compare, for the reason given.
    """

    where: dict[str, tuple[str, ...]]
    because: str
    tested: bool = True


STEPPED = ("steps", "ragged", "rollback", "fork")


def rules() -> tuple[RefusalRule, ...]:
    """All that is refused: what no single part is to blame for, and what the entry of a part says."""
    kinds = caches()
    rounded = tuple(name for name, kind in kinds.items() if not kind.exact)
    general = (
        RefusalRule(
            {"cache": (NO_CACHE,), "scenario": STEPPED},
            "there is nothing to step through without a cache",
            tested=False,
        ),
        RefusalRule(
            {"cache": rounded, "attention": ("hard",)},
            "rounding may change which key scores highest, so there is nothing to compare",
            tested=False,
        ),
        RefusalRule(
            {"mask": ("bidirectional",), "cache": tuple(kinds), "scenario": STEPPED},
            "earlier ones should have seen them",
        ),
    )
    registries: dict[str, Registry[Any]] = {
        "encoding": ENCODINGS,
        "attention": ATTENTIONS,
        "mask": MASKS,
        "cache": CACHES,
        "kernel": KERNELS,
    }
    by_parts = [
        RefusalRule({factor: tuple(variants(entry, LENGTH)), **refusal.where}, refusal.because)
        for factor, registry in registries.items()
        for entry in registry.entries()
        for refusal in entry.refusals
    ]
    return (*general, *by_parts)


def allowed_by(rules: tuple[RefusalRule, ...]) -> Callable[[Mapping[int, str]], bool]:
    """Whether values that were chosen so far (by the factor's number) break none of these rules.

    The matrix asks some hundred thousand times, so the rules that a value leaves open are bits of a number.
    """

    @cache
    def left_open(number: int, value: str | None) -> int:
        factor = FACTOR_NAMES[number]
        return sum(1 << i for i, rule in enumerate(rules) if factor not in rule.where or value in rule.where[factor])

    def allowed(chosen: Mapping[int, str]) -> bool:
        broken = -1
        for number in range(len(FACTOR_NAMES)):
            broken &= left_open(number, chosen.get(number))
        return not broken

    return allowed
