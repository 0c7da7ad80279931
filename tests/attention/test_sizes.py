"""The sizes of every attention, counted by hand: shapes, what is kept and learned, activations, costs, shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vantage as vt
from tests.attention.helpers import attention, build_context
from vantage.attention import (
    Canon,
    CompressedSparse,
    Differential,
    EntryChooser,
    GatedConvolution,
    GatedDelta,
    GroupedQuery,
    HeavilyCompressed,
    KimiDelta,
    Latent,
    Lightning,
    LowRankQuery,
    Mamba2,
    MoBA,
    NativeSparse,
    OutputGate,
    SmallMaps,
    ValueResidual,
)
from vantage.errors import Refused
from vantage.spec.attention import ActivationColumns
from vantage.spec.kept import KeptStream, StateShape
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.model import AttentionConfig, CacheShape
from vantage.spec.native import LANES, CannotLower
from vantage.spec.operations import AttentionWork, PassSize
from vantage.spec.parts import Shape

NORM, WIDTH = vt.RMSNorm(), 16

# Sizes where nothing is said, in a width of 16.
PLAIN: dict[str, tuple[AttentionConfig, Shape]] = {
    "grouped": (GroupedQuery(4), Shape(16, 4, 4, 4, 4, 4)),
    "differential": (Differential(4), Shape(16, 4, 4, 4, 8, 4)),
    "gated-delta": (GatedDelta(4, NORM), Shape(16, 4, 4, 4, 4, 0)),
    "kimi-delta": (KimiDelta(4, NORM), Shape(16, 4, 4, 4, 4, 0)),
    "mamba-2": (Mamba2(4, NORM), Shape(16, 4, 1, 128, 8, 0)),
    "mamba-2 of many heads": (Mamba2(32, NORM), Shape(16, 32, 1, 128, 1, 0)),
    "lightning": (Lightning(4), Shape(16, 4, 4, 4, 4, 0)),
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
    "lightning": (
        Lightning(4, NORM, head_dim=3),
        Shape(16, 4, 4, 3, 3, 0),
        CacheShape.of_states(StateShape((4, 3, 3), wide=True)),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 12, 4), "v": ("qkv", 24, 12, 4), "heads": ("out", 0, 12, 4)},
    ),
    "value-residual": (
        ValueResidual(4, 2, 3),
        Shape(16, 4, 2, 3, 3, 3),
        CacheShape(2, 3, 3),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 6, 2), "heads": ("out", 0, 12, 4)},
    ),
    "canon": (
        Canon(4, 2, 3, taps=3),
        Shape(16, 4, 2, 3, 3, 3),
        CacheShape(2, 3, 3, states=(StateShape((2, 16)), StateShape((2, 24)))),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 6, 2), "heads": ("out", 0, 12, 4)},
    ),
    "low-rank-query": (
        LowRankQuery(4, 2, 3, rank=5),
        Shape(16, 4, 2, 3, 3, 3),
        CacheShape(2, 3, 3),
        {"q": ("queries", 0, 12, 4), "k": ("qkv", 5, 6, 2), "v": ("qkv", 11, 6, 2), "heads": ("out", 0, 12, 4)},
    ),
    "moba": (
        MoBA(4, 2, 3),
        Shape(16, 4, 2, 3, 3, 3),
        CacheShape(2, 3, 3, every_key=True),
        {"q": ("qkv", 0, 12, 4), "k": ("qkv", 12, 6, 2), "v": ("qkv", 18, 6, 2), "heads": ("out", 0, 12, 4)},
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
    "lightning": {"qkv": 16 * 36, "gate": 16 * 12, "norm": 12, "out": 12 * 16},
    "value-residual": {"qkv": 16 * (12 + 6 + 6), "out": 12 * 16},
    "moba": {"qkv": 16 * (12 + 6 + 6), "out": 12 * 16},
    "canon": {"qkv": 16 * 24, "convolutions": 3 * (16 + 24), "out": 12 * 16},
    "low-rank-query": {"down, k and v": 16 * (5 + 6 + 6), "up": 5 * 12, "out": 12 * 16},
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


def test_the_rank_of_low_rank_queries() -> None:
    """A quarter of the width, and never nothing."""
    ranks = {width: LowRankQuery(1).describe(width)[1] for width in (3, 4, 7, 8, 20)}
    assert ranks == {width: f"queries of rank {rank}" for width, rank in {3: 1, 4: 1, 7: 1, 8: 2, 20: 5}.items()}


def test_what_small_maps_learn() -> None:
    """Queries through 5 numbers; 4 heads of 6 in 2 groups, each through 3."""
    config = HeavilyCompressed(4, 6, ratio=3, maps=SmallMaps(q_rank=5, q_norm=1e-6, out_rank=3, out_groups=2))
    wanted = {"q": 16 * 5 + 5 * 24, "kv": 16 * 6, "entries": 16 * 12 + 3 * 6, "out": 2 * 3 * 12 + 6 * 16}
    assert sum(p.numel() for p in attention(config, WIDTH).parameters()) == sum(wanted.values())
    small = Latent(4, kv_rank=5, nope_dim=3, rope_dim=2, value_dim=7, norm=NORM, q_rank=6)
    more = 16 * 6 + 6 + 6 * 20 - 16 * 20
    assert sum(p.numel() for p in attention(small, WIDTH).parameters()) == sum(LEARNED["latent"].values()) + more


def test_the_three_forms_of_grouped_query_attention_have_their_names() -> None:
    assert GroupedQuery(4).describe(WIDTH) == ("multi-head, 4 / 4 × 4",)
    assert GroupedQuery(4, 1).describe(WIDTH) == ("multi-query, 4 / 1 × 4",)
    assert GroupedQuery(4, 2).describe(WIDTH) == ("grouped-query, 4 / 2 × 4",)
    assert GroupedQuery(4, 2, value_norm=NORM).describe(WIDTH) == ("grouped-query, 4 / 2 × 4", "normed values")


# Five tokens that look at five, 2 for a multiply and an add: scores, weighted sum, projections, output.
COSTS: dict[str, tuple[int, int, int, int]] = {
    "grouped": (2 * 4 * 25 * 3, 2 * 4 * 25 * 5, 10 * 16 * 28, 10 * 20 * 16),
    "differential": (2 * 4 * 25 * 3, 2 * 4 * 25 * 6, 10 * 16 * 24, 10 * 12 * 16),
    "native-sparse": (2 * 4 * 25 * 3, 2 * 4 * 25 * 3, 10 * 16 * (24 + 12), 10 * 12 * 16),  # 12 gates
    # expanded: 5 latents become keys of 3 and values of 7 in each head
    "latent": (2 * 4 * 25 * 5, 2 * 4 * 25 * 7, 10 * 16 * (20 + 7) + 10 * 4 * 5 * 10, 10 * 28 * 16),
    "hca": (2 * 4 * 5 * 6 * 6, 2 * 4 * 5 * 6 * 6, 10 * 16 * (24 + 6 + 12), 10 * 24 * 16),  # five tokens and an entry
}


@pytest.mark.parametrize("name", COSTS)
def test_costs_counted_by_hand(name: str) -> None:
    config, shape, _, _ = BY_HAND[name]
    built: Any = attention(config, WIDTH)
    keys = built.keys_given(5, 5) if isinstance(config, HeavilyCompressed) else 5
    work = AttentionWork(shape, PassSize(1, 5, 5), keys, built.score_width(5, 5))
    names = ("scores", "weighted sum", "projections", "output")
    assert built.operations(work) == dict(zip(names, COSTS[name], strict=True))


def test_what_a_step_of_latent_attention_costs() -> None:
    """Absorbed: a query goes into the latents' width of 5 and the output comes back; keys are 5 + 2 wide."""
    config, shape, _, _ = BY_HAND["latent"]
    built: Any = attention(config, WIDTH)
    assert built.score_width(1, 5) == 7
    assert built.operations(AttentionWork(shape, PassSize(1, 1, 5), 5, 7)) == {
        "scores": 2 * 4 * 5 * 7,
        "weighted sum": 2 * 4 * 5 * 5,
        "projections": 2 * 16 * (20 + 7) + 2 * 4 * 3 * 5,
        "output": 2 * 28 * 16 + 2 * 4 * 5 * 7,
    }


def test_a_gated_output_costs_its_map() -> None:
    config, shape, _, _ = BY_HAND["grouped"]
    gated = replace(build_context(config=config, width=WIDTH), output=(OutputGate().build(shape),))
    built: Any = config.build(WIDTH, gated)
    output = built.operations(AttentionWork(shape, PassSize(1, 5, 5), 5, 3))["output"]
    assert output == COSTS["grouped"][3] + 10 * 16 * 20


def test_what_a_source_costs_is_paid_when_it_is_read() -> None:
    built: Any = attention(GroupedQuery(4, 2, 3, value_dim=5), WIDTH, cross=True)
    read, later = (PassSize(2, 5, 5, source=7, fresh=fresh) for fresh in (True, False))
    query, source = 2 * 10 * 16 * 12, 2 * 14 * 16 * 16
    assert built.operations(AttentionWork(built.shape, read, 7, 3))["projections"] == query + source
    assert built.operations(AttentionWork(built.shape, later, 7, 3))["projections"] == query


def test_entries_and_near_tokens_are_what_a_kernel_is_given() -> None:
    """Of 10 keys 3 entries, and of the tokens those near to one of 3 queries: 3 and the one before."""
    built: Any = attention(HeavilyCompressed(4, ratio=3, near=2), WIDTH)
    assert (built.keys_given(3, 10), built.keys_given(10, 10)) == (4 + 3, 10 + 3)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(LANES, LANES + 1), (LANES + 1, LANES)])
def test_native_steps_need_heads_of_whole_lanes(key_dim: int, value_dim: int) -> None:
    built: Any = attention(GroupedQuery(2, head_dim=key_dim, value_dim=value_dim), WIDTH)
    with pytest.raises(CannotLower, match="are no multiples of"):
        built.native(None, 0, None)


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
