"""Caches: a ledger (where things go) times a store (what is kept), one of each arrangement for a whole model."""

from vantage.cache.build import make_cache
from vantage.cache.contiguous import Contiguous
from vantage.cache.facts import Next
from vantage.cache.kinds import CACHES, CacheKind, LayerPlan, LedgerNeed, cache_kind
from vantage.cache.layer_cache import LayerCache, NoCache
from vantage.cache.ledger import Ledger, Mark, Step
from vantage.cache.model_cache import ModelCache, Pass
from vantage.cache.paged import Paged
from vantage.cache.pool import BLOCK, Pool
from vantage.cache.report import Holding, Report, RowHolding
from vantage.cache.ring import Ring
from vantage.cache.stores import Codec, Int8, Plain, Single, Store

__all__ = [
    "BLOCK",
    "CACHES",
    "CacheKind",
    "Codec",
    "Contiguous",
    "Holding",
    "Int8",
    "LayerCache",
    "LayerPlan",
    "Ledger",
    "LedgerNeed",
    "Mark",
    "ModelCache",
    "Next",
    "NoCache",
    "Paged",
    "Pass",
    "Plain",
    "Pool",
    "Report",
    "Ring",
    "RowHolding",
    "Single",
    "Step",
    "Store",
    "cache_kind",
    "make_cache",
]
