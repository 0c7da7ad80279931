"""What every attention takes for granted, the smallest that it takes and the largest that it refuses, and its sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import vantage as vt
from tests.attention.helpers import attention
from vantage.attention import (
    ATTENTIONS,
    BlockChooser,
    CompressedSparse,
    Differential,
    EntryChooser,
    GatedConvolution,
    GatedDelta,
    GroupedQuery,
    HeavilyCompressed,
    KimiDelta,
    Latent,
    LengthTemperature,
    Mamba2,
    NativeSparse,
    OutputGate,
    QKNorm,
    SharedIndexer,
    SmallMaps,
    TopKIndexer,
)
from vantage.attention.delta import unit
from vantage.attention.differential import UnitLength
from vantage.attention.indexer import EarlierChoice, KeyChoice
from vantage.errors import BadInput, Refused
from vantage.spec.abilities import Effect
from vantage.spec.attention import ActivationColumns
from vantage.spec.kept import KeptStream, StateShape
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.model import AttentionConfig, CacheShape
from vantage.spec.parts import Shape

NORM, WIDTH = vt.RMSNorm(), 16

# A spec that was written without these means these.
DEFAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "grouped": (GroupedQuery(4), {"bias": False, "out_bias": False}),
    "differential": (Differential(4), {"bias": False, "out_bias": False}),
    "latent": (Latent(4, 2, 2, 2, 2, NORM), {"bias": False}),
    "gated-delta": (GatedDelta(4, NORM), {"taps": 4}),
    "kimi-delta": (KimiDelta(4, NORM), {"taps": 4}),
    "mamba-2": (
        Mamba2(4, NORM),
        {"state_dim": 128, "groups": 1, "taps": 4, "bias": False, "convolution_bias": True, "least_step": 0.0},
    ),
    "gated-convolution": (GatedConvolution(), {"taps": 3, "bias": False}),
    "native-sparse": (NativeSparse(4), {"near": 512, "blocks": BlockChooser(64, 16, 1, 2)}),
    "hca": (HeavilyCompressed(4), {"ratio": 128, "near": 128, "turned_values": False, "maps": SmallMaps(out_groups=1)}),
    "csa": (CompressedSparse(4), {"ratio": 4, "near": 128, "choice": EntryChooser(512, 64, 128)}),
    "indexer": (TopKIndexer(), {"keep": 2048, "heads": 64, "head_dim": 128}),
    "temperature": (LengthTemperature(), {"scale": 0.1, "floor": 8192.0}),
    "qk-norm": (QKNorm(NORM), {"keys": True}),
    "gate": (OutputGate(), {"bias": False}),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_left_out(name: str) -> None:
    config, wanted = DEFAULTS[name]
    assert {field: getattr(config, field) for field in wanted} == wanted


def test_what_parts_say_of_themselves() -> None:
    """A norm's scores do not hang on the position; a temperature's do, and it acts on a sum term by term."""
    assert QKNorm.effect == Effect("q/k norm", positional=False, linear=False)
    assert LengthTemperature.effect == Effect("temperature", positional=True, linear=True)
    assert (QKNorm(NORM).shared, LengthTemperature().shared, OutputGate().shared) == (False, True, False)
    for indexer in (TopKIndexer(), SharedIndexer(0)):
        assert (indexer.shared, indexer.every_key) == (False, True)
    assert (KeyChoice.kept, EarlierChoice.kept) == (1, 0)  # streams beside the keys


def test_which_attentions_a_comparison_takes_by_name() -> None:
    """Those that need no more than heads. The three forms of grouped-query attention have names of their own."""
    compared = {entry.name for entry in ATTENTIONS.entries() if entry.compared}
    assert compared == {"differential", "heavily-compressed", "compressed-sparse", "native-sparse"}


def test_what_keeps_a_division_by_zero_away() -> None:
    """Of a vector of that length itself, √½ is left."""
    half = pytest.approx(0.5**0.5, rel=1e-4)
    assert float(unit(torch.tensor([1e-3]))) == half
    assert float(UnitLength()(torch.tensor([1e-5**0.5]))) == half
    assert KeyChoice(TopKIndexer(1, 1, 4), 4).k_norm.eps == 1e-6  # DeepSeek-V3.2's


SMALLEST: dict[str, Callable[[], AttentionConfig]] = {
    "grouped": lambda: GroupedQuery(1, 1, 1, clip=0.5),
    "differential": lambda: Differential(2, 2, 1),
    "latent": lambda: Latent(1, 1, 1, 0, 1, NORM),
    "gated-delta": lambda: GatedDelta(1, NORM, 1, 1),
    "kimi-delta": lambda: KimiDelta(1, NORM, 1),
    "mamba-2": lambda: Mamba2(1, NORM, 1, state_dim=1, taps=2, greatest_step=0.0),
    "gated-convolution": lambda: GatedConvolution(2),
    "native-sparse": lambda: NativeSparse(1, near=1, blocks=BlockChooser(1, keep=1, first=0, recent=1)),
    "hca": lambda: HeavilyCompressed(1, 1, ratio=2, near=1, rope_dim=0),
    "hca all turned": lambda: HeavilyCompressed(1, 3, rope_dim=3),
    "csa": lambda: CompressedSparse(1, 1, ratio=2, near=1, choice=EntryChooser(1, 1, 1, rope_dim=0)),
    "csa all turned": lambda: CompressedSparse(1, choice=EntryChooser(1, 1, 3, rope_dim=3)),
    # sizes that do not divide the width, each with one that says so
    "grouped apart": lambda: GroupedQuery(3, 3, 4),
    "differential apart": lambda: Differential(6, 6, 4),
    "gated-delta apart": lambda: GatedDelta(3, NORM, key_dim=4),
    "kimi-delta apart": lambda: KimiDelta(3, NORM, head_dim=4),
    "mamba-2 apart": lambda: Mamba2(3, NORM, head_dim=4),
    "hca apart": lambda: HeavilyCompressed(3, 4),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_that_is_taken(name: str) -> None:
    config = SMALLEST[name]()
    assert config.shape(WIDTH).width == WIDTH
    attention(config, WIDTH, Causal() & SameSegment())


REFUSED: dict[str, list[Callable[[], AttentionConfig]]] = {
    "grouped": [
        lambda: GroupedQuery(0, 1, 4),
        lambda: GroupedQuery(4, 0),
        lambda: GroupedQuery(4, -1),
        lambda: GroupedQuery(4, 3),
        lambda: GroupedQuery(3),
        lambda: GroupedQuery(4, clip=0.0),
    ],
    "differential": [
        lambda: Differential(0, 2, 4),
        lambda: Differential(4, 0),
        lambda: Differential(4, -2),
        lambda: Differential(6, 4, 4),
        lambda: Differential(3, 3, 4),
        lambda: Differential(6),
    ],
    "latent": [
        lambda: Latent(0, 1, 1, 2, 1, NORM),
        lambda: Latent(1, 0, 1, 2, 1, NORM),
        lambda: Latent(1, 1, 0, 2, 1, NORM),
        lambda: Latent(1, 1, 1, 2, 0, NORM),
        lambda: Latent(1, 1, 1, -2, 1, NORM),
        lambda: Latent(1, 1, 1, 3, 1, NORM),
    ],
    "gated-delta": [
        lambda: GatedDelta(0, NORM, 1, 4),
        lambda: GatedDelta(4, NORM, 0),
        lambda: GatedDelta(4, NORM, -1),
        lambda: GatedDelta(4, NORM, 3),
        lambda: GatedDelta(3, NORM),
    ],
    "kimi-delta": [lambda: KimiDelta(0, NORM, 4), lambda: KimiDelta(3, NORM)],
    "mamba-2": [
        lambda: Mamba2(0, NORM, 4),
        lambda: Mamba2(4, NORM, groups=0),
        lambda: Mamba2(4, NORM, groups=-1),
        lambda: Mamba2(4, NORM, groups=3),
        lambda: Mamba2(3, NORM),
        lambda: Mamba2(4, NORM, taps=1),
        lambda: Mamba2(4, NORM, state_dim=0),
        lambda: Mamba2(4, NORM, least_step=-0.5),
        lambda: Mamba2(4, NORM, least_step=0.5, greatest_step=0.25),
    ],
    "gated-convolution": [lambda: GatedConvolution(1)],
    "native-sparse": [
        lambda: NativeSparse(4, near=0),
        lambda: NativeSparse(4, blocks=BlockChooser(0)),
        lambda: NativeSparse(4, blocks=BlockChooser(first=-1)),
        lambda: NativeSparse(4, blocks=BlockChooser(recent=0)),
        lambda: NativeSparse(4, blocks=BlockChooser(keep=2)),
    ],
    "hca": [
        lambda: HeavilyCompressed(0, 4),
        lambda: HeavilyCompressed(3),
        lambda: HeavilyCompressed(4, ratio=1),
        lambda: HeavilyCompressed(4, near=0),
        lambda: HeavilyCompressed(4, 0),
        lambda: HeavilyCompressed(4, rope_dim=-1),
        lambda: HeavilyCompressed(4, rope_dim=5),
        lambda: HeavilyCompressed(4, maps=SmallMaps(out_groups=0)),
        lambda: HeavilyCompressed(4, maps=SmallMaps(out_groups=-1)),
        lambda: HeavilyCompressed(4, maps=SmallMaps(out_groups=3)),
    ],
    "csa": [
        lambda: CompressedSparse(4, choice=EntryChooser(keep=0)),
        lambda: CompressedSparse(4, choice=EntryChooser(heads=0)),
        lambda: CompressedSparse(4, choice=EntryChooser(head_dim=0)),
        lambda: CompressedSparse(4, choice=EntryChooser(head_dim=4, rope_dim=-1)),
        lambda: CompressedSparse(4, choice=EntryChooser(head_dim=4, rope_dim=5)),
    ],
}


@pytest.mark.parametrize(("name", "which"), [(name, i) for name, wrong in REFUSED.items() for i in range(len(wrong))])
def test_what_is_refused(name: str, which: int) -> None:
    with pytest.raises(BadInput):
        REFUSED[name][which]().shape(WIDTH)


def test_what_parts_beside_them_refuse() -> None:
    assert TopKIndexer(1, 1, 1).keep == 1
    for wrong in ({"keep": 0}, {"heads": 0}, {"head_dim": 0}):
        with pytest.raises(BadInput, match="1 or more"):
            TopKIndexer(**wrong)
    assert (LengthTemperature(floor=0.5).floor, LengthTemperature(floor=1.5, kind="self-extend").floor) == (0.5, 1.5)
    for floor, kind in ((0.0, "llama4"), (1.0, "self-extend")):
        with pytest.raises(BadInput, match="floor="):
            LengthTemperature(floor=floor, kind=kind)


# Sizes where nothing is said, in a width of 16.
PLAIN: dict[str, tuple[AttentionConfig, Shape]] = {
    "grouped": (GroupedQuery(4), Shape(16, 4, 4, 4, 4, 4)),
    "differential": (Differential(4), Shape(16, 4, 4, 4, 8, 4)),
    "gated-delta": (GatedDelta(4, NORM), Shape(16, 4, 4, 4, 4, 0)),
    "kimi-delta": (KimiDelta(4, NORM), Shape(16, 4, 4, 4, 4, 0)),
    "mamba-2": (Mamba2(4, NORM), Shape(16, 4, 1, 128, 8, 0)),
    "mamba-2 of wide heads": (Mamba2(32, NORM), Shape(16, 32, 1, 128, 1, 0)),
    "native-sparse": (NativeSparse(4), Shape(16, 4, 4, 4, 4, 4)),
    "hca": (HeavilyCompressed(4), Shape(16, 4, 1, 4, 4, 4)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_sizes_that_follow_from_the_width(name: str) -> None:
    config, wanted = PLAIN[name]
    assert config.shape(WIDTH) == wanted


# Sizes that are all different, counted by hand: the shape, what a cache keeps, and where activations lie.
BY_HAND: dict[str, tuple[AttentionConfig, Shape, CacheShape, dict[str, tuple[str, int, int, int]]]] = {
    "grouped": (
        GroupedQuery(4, 2, 3, value_dim=5),
        Shape(16, 4, 2, 3, 5, 3),
        CacheShape(2, 3, 5),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 10, 2), "heads": ("out", 0, 20, 4)},
    ),
    "differential": (
        Differential(4, 2, 3),
        Shape(16, 4, 2, 3, 6, 3),
        CacheShape(1, 6, 6),  # two keys and their value
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 6, 1), "heads": ("out", 0, 12, 2)},
    ),
    "latent": (
        Latent(4, kv_rank=5, nope_dim=3, rope_dim=2, value_dim=7, norm=NORM),
        Shape(16, 4, 4, 5, 7, 2),
        CacheShape(1, 7, 5, single=True),
        {"q": ("q_up", 0, 20, 4), "latent": ("kv_down", 0, 7, 0), "heads": ("out", 0, 28, 4)},
    ),
    "gated-delta": (
        GatedDelta(4, NORM, key_heads=2, key_dim=5, value_dim=3),
        Shape(16, 4, 2, 5, 3, 0),
        CacheShape.of_states(StateShape((4, 5, 3), wide=True), StateShape((3, 10 + 10 + 12))),
        {"q": ("qkv", 0, 10, 2), "k": ("qkv", 10, 10, 2), "v": ("qkv", 20, 12, 4), "heads": ("out", 0, 12, 4)},
    ),
    "kimi-delta": (
        KimiDelta(4, NORM, head_dim=3, taps=6),
        Shape(16, 4, 4, 3, 3, 0),
        CacheShape.of_states(StateShape((4, 3, 3), wide=True), StateShape((5, 36))),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 12, 4), "v": ("qkv", 24, 12, 4), "heads": ("out", 0, 12, 4)},
    ),
    "mamba-2": (
        Mamba2(4, NORM, head_dim=3, state_dim=5, groups=2),
        Shape(16, 4, 2, 5, 3, 0),
        CacheShape.of_states(StateShape((4, 5, 3), wide=True), StateShape((3, 12 + 10 + 10))),
        {"v": ("maps", 12, 12, 4), "k": ("maps", 24, 10, 2), "q": ("maps", 34, 10, 2), "heads": ("out", 0, 12, 4)},
    ),
    "gated-convolution": (
        GatedConvolution(3),
        Shape(16, 1, 1, 16, 16, 0),
        CacheShape.of_states(StateShape((2, 16))),
        {},
    ),
    "native-sparse": (
        NativeSparse(4, 2, 3),
        Shape(16, 4, 2, 3, 3, 3),
        CacheShape(2, 3, 3, every_key=True),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 6, 2), "heads": ("out", 0, 12, 4)},
    ),
    "hca": (
        HeavilyCompressed(4, 6, ratio=3, rope_dim=2),
        Shape(16, 4, 1, 6, 6, 2),
        CacheShape(1, 6, 6, False, (KeptStream(1, 12),), every_key=True, before=2),  # the rest of a window
        {"q": ("q", 0, 24, 4), "kv": ("kv", 0, 6, 1), "heads": ("out", 0, 24, 4)},
    ),
    "csa": (
        CompressedSparse(4, 6, ratio=3, turned_values=True, choice=EntryChooser(2, heads=3, head_dim=5)),
        Shape(16, 4, 1, 6, 6, 6),
        CacheShape(1, 6, 6, True, (KeptStream(1, 24), KeptStream(1, 20)), every_key=True, before=5),  # and one more
        {"q": ("q", 0, 24, 4), "kv": ("kv", 0, 6, 1), "heads": ("out", 0, 24, 4)},
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_sizes_counted_by_hand(name: str) -> None:
    config, shape, kept, columns = BY_HAND[name]
    assert config.shape(WIDTH) == shape
    assert config.cache_shape(WIDTH) == kept
    if columns:
        built: Any = attention(config, WIDTH, Causal() & SameSegment())
        wanted = {name: ActivationColumns(*at, given=name == "heads") for name, at in columns.items()}
        assert built.activations() == wanted


# What is learned, map by map, of those above and of one with small maps.
LEARNED: dict[str, dict[str, int]] = {
    "grouped": {"qkv": 16 * (12 + 6 + 10), "out": 20 * 16},
    "differential": {"qkv": 16 * (12 + 6 + 6), "lambda": 4 * 3, "out": 12 * 16},
    "latent": {"q": 16 * 20, "kv_down": 16 * 7, "norm": 5, "k_up": 4 * 3 * 5, "v_up": 4 * 7 * 5, "out": 28 * 16},
    "gated-delta": {
        "qkv": 16 * 32,
        "gates": 16 * (12 + 4 + 4),
        "convolution": 32 * 4,
        "decay": 4 + 4,
        "norm": 3,
        "out": 12 * 16,
    },
    "kimi-delta": {
        "qkv": 16 * 36,
        "beta": 16 * 4,
        "small": 16 * (3 + 3),
        "decay": 3 * 12 + 12 + 4,
        "gate": 3 * 12,
        "convolution": 36 * 6,
        "norm": 3,
        "out": 12 * 16,
    },
    "mamba-2": {
        "maps": 16 * (12 + 32 + 4),
        "convolution": 32 * 4 + 32,
        "step, rate and D": 3 * 4,
        "norm": 12,
        "out": 12 * 16,
    },
    "gated-convolution": {"maps": 16 * 48, "convolution": 16 * 3, "out": 16 * 16},
    "native-sparse": {"qkv": 16 * (12 + 6 + 6), "gates": 16 * 4 * 3, "out": 12 * 16},
    "hca": {"q": 16 * 24, "kv": 16 * 6, "entries": 16 * 12 + 3 * 6, "out": 24 * 16},
    "csa": {
        "q": 16 * 24,
        "kv": 16 * 6,
        "entries": 16 * 24 + 3 * 12,
        "out": 24 * 16,
        "choice": 16 * 3 * 5 + 16 * 3,
        "its entries": 16 * 20 + 3 * 10,
    },
}


@pytest.mark.parametrize("name", LEARNED)
def test_what_is_learned(name: str) -> None:
    built = attention(BY_HAND[name][0], WIDTH, Causal() & SameSegment())
    assert sum(p.numel() for p in built.parameters()) == sum(LEARNED[name].values())


def test_what_small_maps_learn() -> None:
    """Queries through 5 numbers; 4 heads of 6 in 2 groups, each through 3."""
    config = HeavilyCompressed(4, 6, ratio=3, maps=SmallMaps(q_rank=5, q_norm=1e-6, out_rank=3, out_groups=2))
    wanted = {"q": 16 * 5 + 5 * 24, "kv": 16 * 6, "entries": 16 * 12 + 3 * 6, "out": 2 * 3 * 12 + 6 * 16}
    assert sum(p.numel() for p in attention(config, WIDTH).parameters()) == sum(wanted.values())
    small = Latent(4, kv_rank=5, nope_dim=3, rope_dim=2, value_dim=7, norm=NORM, q_rank=6)
    more = 16 * 6 + 6 + 6 * 20 - 16 * 20
    assert sum(p.numel() for p in attention(small, WIDTH).parameters()) == sum(LEARNED["latent"].values()) + more


LATENT = BY_HAND["latent"][0]
# What one of so many processes gets. With more processes than key heads, some have the same one.
DIVIDED: dict[str, tuple[Any, int, Any]] = {
    "grouped in 2": (GroupedQuery(8, 4, 3, 5), 2, GroupedQuery(4, 2, 3, 5)),
    "grouped in 4": (GroupedQuery(8, 4, 3, 5), 4, GroupedQuery(2, 1, 3, 5)),
    "grouped in 8": (GroupedQuery(8, 4, 3, 5), 8, GroupedQuery(1, 1, 3, 5)),
    "grouped by the width": (GroupedQuery(8), 2, GroupedQuery(4, 4, 2, 2)),
    "grouped in 3": (GroupedQuery(8, 4), 3, None),
    "grouped in 6": (GroupedQuery(12, 4, 3), 6, None),
    "latent in 2": (LATENT, 2, replace(LATENT, heads=2)),  # pyright: ignore[reportArgumentType] (a dataclass)
    "latent in 4": (LATENT, 4, replace(LATENT, heads=1)),  # pyright: ignore[reportArgumentType]
    "latent in 3": (LATENT, 3, None),
    "native-sparse in 2": (NativeSparse(8, 4, 3), 2, NativeSparse(4, 2, 3)),
    "native-sparse in 4": (NativeSparse(8, 4), 4, NativeSparse(2, 1, 2)),
    "native-sparse in 8": (NativeSparse(8, 4, 3), 8, None),  # the heads of a key head choose together
}


@pytest.mark.parametrize("name", DIVIDED)
def test_divided_among_processes(name: str) -> None:
    config, ranks, wanted = DIVIDED[name]
    if wanted is None:
        with pytest.raises(Refused, match=f"among {ranks} processes"):
            config.divided(ranks, WIDTH)
    else:
        assert config.divided(ranks, WIDTH) == wanted


def test_cross_attentions_columns() -> None:
    built: Any = attention(GroupedQuery(4, 2, 3, value_dim=5), WIDTH, cross=True)
    columns = {"q": ("q", 0, 12, 4), "k": ("kv", 0, 6, 2), "v": ("kv", 6, 10, 2), "heads": ("out", 0, 20, 4)}
    assert built.activations() == {name: ActivationColumns(*at, given=name == "heads") for name, at in columns.items()}
    assert built.projections() == {"kv": (("k", 6), ("v", 10))}
    assert sum(p.numel() for p in built.parameters()) == 16 * 12 + 16 * 16 + 20 * 16
    assert built.crosses
    for config in (GroupedQuery(4), Differential(4), LATENT, HeavilyCompressed(4)):
        inside: Any = attention(config, WIDTH)
        assert not inside.crosses
    assert not attention(LATENT, WIDTH).biased  # what its norms make of a bias is no bias
