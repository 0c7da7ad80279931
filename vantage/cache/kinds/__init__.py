"""Kinds of caches, one file each. ``cache_kind`` turns what a user wrote into one."""

from __future__ import annotations

from collections.abc import Sequence

from vantage.cache.codecs import Codec
from vantage.cache.kinds.kind import CacheKind, ForgettingKind, LayerPlan, LedgerNeed, as_forgetting
from vantage.cache.ledger import Ledger
from vantage.errors import BadInput
from vantage.spec.registry import Registry, entries_of

__all__ = [
    "CACHES",
    "CacheKind",
    "ForgettingKind",
    "LayerPlan",
    "LedgerNeed",
    "as_forgetting",
    "cache_kind",
    "codec_classes",
    "ledger_classes",
    "window_kinds",
]

CACHES: Registry[CacheKind] = Registry(
    "kind of cache",
    entries_of(
        "vantage.cache.kinds",
        "contiguous",
        "ring",
        "paged",
        "static",
        "quantised",
        "low_bit",
        "kivi",
        "sinks",
        "heavy_hitters",
        "tova",
        "snapkv",
    ),
    needs=("ledgers", "codecs", "exact", "evicts", "refuses", "ledger", "codec", "bytes"),
)


def cache_kind(kind: str | CacheKind) -> CacheKind:
    """A kind of cache by name or as an object."""
    if isinstance(kind, str):
        return CACHES[kind].make()
    if isinstance(kind, type) or not isinstance(kind, CacheKind):
        hint = f": write {kind.__name__}(...)" if isinstance(kind, type) else ""
        raise BadInput(f"kind={kind!r} is neither a name nor a kind of cache{hint}")
    return kind


def window_kinds(layers: Sequence[LayerPlan]) -> list[str]:
    """Those that give up what a window has left behind and keep all the rest as it is, of those that serve these."""
    kinds = {entry.name: entry.make() for entry in CACHES.entries() if entry.config.exact and entry.config.evicts}
    return [name for name, kind in kinds.items() if as_forgetting(kind) is None and kind.refuses(layers) is None]


def ledger_classes() -> dict[str, type[Ledger]]:
    """Those that a saved cache may hold, by their name in the file."""
    return {ledger.kind: ledger for kind in CACHES.classes() for ledger in kind.ledgers}


def codec_classes() -> dict[str, type[Codec]]:
    """Likewise."""
    return {codec.kind: codec for kind in CACHES.classes() for codec in kind.codecs}
