"""Vantage: a transformer in which every attention, position encoding and cache can be exchanged."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Names are imported when they are first used: `vantage --help` need not wait for torch.
_WHERE = {
    "vantage.model": ("Model", "build", "decoder", "encoder", "encoder_decoder"),
    "vantage.conformance": ("check",),
    "vantage.checkpoints.pull": ("pull",),
    "vantage.errors": ("ContextWarning",),
    "vantage.families": ("load", "save"),
    "vantage.families.gguf_files": ("save_gguf",),
    "vantage.functional": ("alibi_bias",),
    "vantage.generation": (
        "Beams",
        "Conversation",
        "DraftModel",
        "Engine",
        "Lookup",
        "Sampling",
        "beam_search",
        "generate",
    ),
    "vantage.inspect": ("capture", "swap"),
    "vantage.interventions": ("Edit", "trace", "tracing"),
    "vantage.cache.kinds.heavy_hitters": ("HeavyHitterCache",),
    "vantage.cache.kinds.kivi": ("KiviCache",),
    "vantage.cache.kinds.low_bit": ("LowBitCache",),
    "vantage.cache.kinds.sinks": ("SinkCache",),
    "vantage.cache.kinds.snapkv": ("SnapKVCache",),
    "vantage.cache.kinds.tova": ("TovaCache",),
    "vantage.parts": ("register",),
    "vantage.spec.positions": ("Positions",),
    "vantage.spec.masks": ("Causal", "Chunked", "Everything", "Prefix", "SameSegment", "Window"),
    "vantage.spec.model": ("ModelSpec", "Scores"),
    "vantage.spec.normalisers": ("Argmax", "Entmax15", "OffByOne", "Sigmoid", "Softmax", "Sparsemax", "StickBreaking"),
    "vantage.training": ("train",),
    "vantage.attention": (
        "BlockChooser",
        "Canon",
        "CompressedSparse",
        "Differential",
        "EntryChooser",
        "Exclusive",
        "GatedConvolution",
        "GatedDelta",
        "GroupedQuery",
        "HeavilyCompressed",
        "KimiDelta",
        "Latent",
        "Lightning",
        "LowRankQuery",
        "Mamba2",
        "MoBA",
        "NativeSparse",
        "OutputGate",
        "QKNorm",
        "SharedIndexer",
        "SmallMaps",
        "TopKIndexer",
        "ValueResidual",
    ),
    "vantage.model.experts": ("Experts", "TopK"),
    "vantage.model.feed_forward": ("FeedForward",),
    "vantage.model.no_feed_forward": ("NoFeedForward",),
    "vantage.model.norms": ("LayerNorm", "RMSNorm"),
    "vantage.position": (
        "Alibi",
        "AxialRope",
        "CoPE",
        "DAPE",
        "DualChunk",
        "Fire",
        "FoPE",
        "Forgetting",
        "Kerple",
        "LeRope",
        "Learned",
        "MultiAxisRope",
        "NoPE",
        "PaTH",
        "PoPE",
        "Randomised",
        "RelativeBank",
        "Rope",
        "SSMax",
        "SelectiveRope",
        "SelfExtend",
        "Shaw",
        "Shifted",
        "Sinusoidal",
        "T5",
        "TransformerXL",
        "XPos",
    ),
}
_HOME = {name: module for module, names in _WHERE.items() for name in names}
_MODULES = {
    "functional": "vantage.functional",
    "inspect": "vantage.inspect",
    "interventions": "vantage.interventions",
    "scaling": "vantage.position.scaling",
    "studies": "vantage.studies",
}

# Editors and type checkers, which import nothing, read the same names in __init__.pyi (`python tools/public_types.py`).
__all__ = [*sorted(_HOME), *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll] (filled by __getattr__)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vantage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
