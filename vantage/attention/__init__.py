"""Attention modules. Each reads like its formula; position, cache and kernel are handed in."""

from vantage.attention import indexer, qk
from vantage.attention.canon import Canon
from vantage.attention.compressed import SmallMaps
from vantage.attention.compressed_sparse import CompressedSparse, EntryChooser
from vantage.attention.delta import GatedDelta
from vantage.attention.differential import Differential
from vantage.attention.exclusive import Exclusive
from vantage.attention.gate import OutputGate
from vantage.attention.gated_convolution import GatedConvolution
from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.attention.heavily_compressed import HeavilyCompressed
from vantage.attention.indexer import SharedIndexer, TopKIndexer
from vantage.attention.kimi_delta import KimiDelta
from vantage.attention.latent import Latent, LatentAttention
from vantage.attention.lightning import Lightning
from vantage.attention.low_rank_query import LowRankQuery
from vantage.attention.mamba import Mamba2
from vantage.attention.moba import MoBA
from vantage.attention.native_sparse import BlockChooser, NativeSparse
from vantage.attention.qk import LengthTemperature, QKNorm
from vantage.attention.recurrent import Additive, Dot, General, RecurrentAttention
from vantage.attention.scorer import NoBias
from vantage.attention.value_residual import ValueResidual
from vantage.spec.model import AttentionConfig
from vantage.spec.parts import Buildable
from vantage.spec.registry import Registry, entries_of

__all__ = [
    "ATTENTIONS",
    "INDEXERS",
    "OUTPUT_PARTS",
    "QK_PARTS",
    "Additive",
    "BlockChooser",
    "Canon",
    "CompressedSparse",
    "Differential",
    "Dot",
    "EntryChooser",
    "Exclusive",
    "GatedConvolution",
    "GatedDelta",
    "General",
    "GroupedQuery",
    "GroupedQueryAttention",
    "HeavilyCompressed",
    "KimiDelta",
    "Latent",
    "LatentAttention",
    "LengthTemperature",
    "Lightning",
    "LowRankQuery",
    "Mamba2",
    "MoBA",
    "NativeSparse",
    "NoBias",
    "OutputGate",
    "QKNorm",
    "RecurrentAttention",
    "SharedIndexer",
    "SmallMaps",
    "TopKIndexer",
    "ValueResidual",
]

ATTENTIONS: Registry[AttentionConfig] = Registry(
    "attention",
    entries_of(
        "vantage.attention",
        "grouped",
        "latent",
        "gated_convolution",
        "delta",
        "kimi_delta",
        "differential",
        "heavily_compressed",
        "compressed_sparse",
        "native_sparse",
        "mamba",
        "lightning",
        "value_residual",
        "moba",
        "low_rank_query",
        "canon",
    ),
    needs=("shape", "cache_shape", "build", "build_cross"),
)
# Transforms of queries and keys that are no position encodings.
QK_PARTS: Registry[Buildable] = Registry("q/k part", (qk.NORM_ENTRY, qk.TEMPERATURE_ENTRY), needs=("build", "shared"))
# What stands between the kernel and the output map.
OUTPUT_PARTS: Registry[Buildable] = Registry(
    "output part", entries_of("vantage.attention", "gate", "exclusive"), needs=("build", "shared")
)
# What chooses the keys that a query attends to.
INDEXERS: Registry[Buildable] = Registry(
    "indexer", (indexer.ENTRY, indexer.SHARED_ENTRY), needs=("build", "shared", "every_key")
)
