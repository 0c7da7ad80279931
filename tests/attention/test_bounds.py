"""What every attention takes for granted, the smallest sizes that it takes, and those that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vantage as vt
from tests.attention.helpers import attention
from vantage.attention import (
    ATTENTIONS,
    BlockChooser,
    Canon,
    CompressedSparse,
    Differential,
    EntryChooser,
    Exclusive,
    GatedConvolution,
    GatedDelta,
    GroupedQuery,
    HeavilyCompressed,
    KimiDelta,
    Latent,
    LengthTemperature,
    Lightning,
    LowRankQuery,
    Mamba2,
    MoBA,
    NativeSparse,
    OutputGate,
    QKNorm,
    SharedIndexer,
    SmallMaps,
    TopKIndexer,
    ValueResidual,
)
from vantage.attention.delta import unit
from vantage.attention.differential import UnitLength
from vantage.attention.indexer import EarlierChoice, KeyChoice
from vantage.errors import BadInput
from vantage.spec.abilities import Effect
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.model import AttentionConfig

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
    "lightning": (Lightning(4), {"norm": None, "rate": 1.0}),
    "moba": (MoBA(4), {"size": 512, "keep": 3}),
    "canon": (Canon(4), {"kv_heads": None, "taps": 4, "before": True, "projected": True}),
    "low-rank-query": (LowRankQuery(4), {"kv_heads": 1, "rank": None, "norm": None}),
    "value-residual": (ValueResidual(4), {"own": 0.5, "first": 0.5, "learned": False, "values_of": 0}),
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
    assert not Exclusive().shared  # every layer has its own shares
    for indexer in (TopKIndexer(), SharedIndexer(0)):
        assert (indexer.shared, indexer.every_key) == (False, True)
    assert (KeyChoice.kept, EarlierChoice.kept) == (1, 0)  # streams beside the keys


def test_a_name_and_a_number_of_heads_make_an_attention() -> None:
    """Where no number is given, the fewest that it can have."""
    fewest = {"differential": 2}
    for entry in ATTENTIONS.entries():
        if entry.default is None or entry.config is GatedConvolution:  # sizes that no number says; no heads
            continue
        assert entry.make(6).shape(24).heads == 6, entry.name
        assert entry.make().shape(24).heads == fewest.get(entry.name, 1), entry.name


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
    "lightning": lambda: Lightning(1, NORM, 1, rate=0.0),
    "moba": lambda: MoBA(1, 1, 1, size=1, keep=1),
    "canon": lambda: Canon(1, 1, 1, taps=2),
    "low-rank-query": lambda: LowRankQuery(1, head_dim=1, rank=1),
    "value-residual": lambda: ValueResidual(1, 1, 1, values_of=0),
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
    "lightning apart": lambda: Lightning(3, head_dim=4),
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
    "lightning": [lambda: Lightning(0, NORM, 4), lambda: Lightning(3), lambda: Lightning(4, rate=-0.5)],
    "moba": [lambda: MoBA(4, size=0), lambda: MoBA(4, keep=0), lambda: MoBA(3), lambda: MoBA(4, 3)],
    "canon": [lambda: Canon(4, taps=1), lambda: Canon(3), lambda: Canon(4, before=False, projected=False)],
    "low-rank-query": [lambda: LowRankQuery(4, rank=0), lambda: LowRankQuery(3), lambda: LowRankQuery(4, 3)],
    "value-residual": [lambda: ValueResidual(4, values_of=-1), lambda: ValueResidual(3)],
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
    for keep, heads, head_dim in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(BadInput, match="1 or more"):
            TopKIndexer(keep, heads, head_dim)
    assert (LengthTemperature(floor=0.5).floor, LengthTemperature(floor=1.5, kind="self-extend").floor) == (0.5, 1.5)
    for floor, kind in ((0.0, "llama4"), (1.0, "self-extend")):
        with pytest.raises(BadInput, match="floor="):
            LengthTemperature(floor=floor, kind=kind)
