"""Caches: a ledger (where things go) times a store (what is kept), one of each arrangement for a whole model."""

from vantage.cache.build import make_cache, no_caches
from vantage.cache.codecs import ROUNDING, Codec, HalfCodec, Int8Codec, PlainCodec, SingleCodec, rounded
from vantage.cache.contiguous import Contiguous
from vantage.cache.facts import NextPositions
from vantage.cache.kinds import (
    CACHES,
    CacheKind,
    ForgettingKind,
    LayerPlan,
    LedgerNeed,
    as_forgetting,
    cache_kind,
    window_kinds,
)
from vantage.cache.layer_cache import LayerCache, NoCache
from vantage.cache.ledger import Ledger, Savepoint, Step
from vantage.cache.model_cache import CachePass, ModelCache
from vantage.cache.paged import Paged
from vantage.cache.pool import BLOCK, Pool
from vantage.cache.report import CacheReport, Holding, RowHolding
from vantage.cache.ring import Ring
from vantage.cache.static import Static
from vantage.cache.stores import Store

__all__ = [
    "BLOCK",
    "CACHES",
    "ROUNDING",
    "CacheKind",
    "CachePass",
    "CacheReport",
    "Codec",
    "Contiguous",
    "ForgettingKind",
    "HalfCodec",
    "Holding",
    "Int8Codec",
    "LayerCache",
    "LayerPlan",
    "Ledger",
    "LedgerNeed",
    "ModelCache",
    "NextPositions",
    "NoCache",
    "Paged",
    "PlainCodec",
    "Pool",
    "Ring",
    "RowHolding",
    "Savepoint",
    "SingleCodec",
    "Static",
    "Step",
    "Store",
    "as_forgetting",
    "cache_kind",
    "make_cache",
    "no_caches",
    "rounded",
    "window_kinds",
]
