"""What each kind of cache says of itself before any is made: its numbers, what it promises and what it will take."""

import dataclasses

import pytest
import torch

import vantage as vt
from tests.cache.helpers import DK, DV, F64, G, plain, run
from vantage.cache import CACHES, LayerPlan, make_cache
from vantage.cache.kinds import LedgerNeed, cache_kind, window_kinds
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.kinds.forgetting import EVERY_KEY
from vantage.cache.kinds.heavy_hitters import HeavyHitterCache
from vantage.cache.kinds.kivi import KiviCache
from vantage.cache.kinds.low_bit import LowBitCache
from vantage.cache.kinds.paged import PagedCache
from vantage.cache.kinds.quantised import QuantisedCache
from vantage.cache.kinds.ring import RingCache
from vantage.cache.kinds.sinks import SinkCache
from vantage.cache.kinds.snapkv import SnapKVCache
from vantage.cache.kinds.static import StaticCache
from vantage.cache.kinds.tova import TovaCache
from vantage.cache.spec_bytes import CacheSettings, cache_bytes, layer_bytes
from vantage.errors import BadInput
from vantage.generation.cached_sequence import new_cache
from vantage.spec.kept import KeptStream
from vantage.spec.masks import Causal, Everything, Window
from vantage.spec.registry import parameters

GLOBAL, LOCAL = Causal(), Causal() & Window(3)


def layer(mask=GLOBAL, **options) -> LayerPlan:
    return LayerPlan(G, DK, DV, mask, **options)


def test_numbers_that_are_not_given():
    numbers = {
        name: {f.name: getattr(kind, f.name) for f in dataclasses.fields(kind) if f.name != "of"}
        for name, kind in ((name, cache_kind(name)) for name in CACHES)
        if kind.refuses([layer(LOCAL)]) is None  # as every kind serves a layer with a window
    }
    assert numbers == {
        "contiguous": {"capacity": None},
        "ring": {},
        "paged": {"block": 16},
        "static": {"capacity": 2048},
        "quantised": {"bits": 8},
        "low-bit": {"key_bits": 4, "value_bits": 4},
        "kivi": {"bits": 2, "group": 32, "newest": 128, "channels": 32},
        "sinks": {"sinks": 4, "window": 1024, "by_place": False},
        "heavy-hitters": {"heavy": 512, "recent": 512},
        "tova": {"size": 1024},
        "snapkv": {"size": 1024, "window": 32, "pool": 5},
    }
    assert parameters(StaticCache)["capacity"].low == 1


def test_which_kinds_round_and_which_let_go_of_what_left_a_window():
    kinds = {name: cache_kind(name) for name in CACHES}
    assert all(kind.refuses([layer(LOCAL)]) is None for kind in kinds.values())
    assert {name for name, kind in kinds.items() if not kind.exact} == {"quantised", "low-bit", "kivi"}
    letting_go = {name for name, kind in kinds.items() if kind.evicts}
    assert letting_go == {"ring", "sinks", "heavy-hitters", "tova", "snapkv"}
    assert window_kinds([layer(LOCAL)]) == ["ring"]
    assert window_kinds([layer(GLOBAL)]) == []


def test_who_decides_what_is_forgotten():
    kinds = (SinkCache(), HeavyHitterCache(), TovaCache(), SnapKVCache())
    assert [kind.own_ledgers for kind in kinds] == [False, True, True, True]  # every layer for itself
    assert [kind.by_head for kind in kinds] == [False, True, False, True]
    for kind in kinds:
        cache = make_cache([layer(), layer()], kind=kind)
        assert len(cache.ledgers) == (2 if kind.own_ledgers else 1)
        rounded = make_cache([layer(), layer()], kind=QuantisedCache(kind))
        assert len(rounded.ledgers) == len(cache.ledgers)
        assert QuantisedCache(kind).mask == kind.mask
    assert SinkCache(2, 3).mask is not None
    assert SinkCache(2, 3, by_place=True).mask is None  # no mask knows places
    assert TovaCache().mask is None  # nor weights
    assert not QuantisedCache().own_ledgers
    assert QuantisedCache().mask is None


def test_what_forgets_is_refused_where_it_would_be_missed():
    sinks, by_place, tova, heavy = SinkCache(), SinkCache(by_place=True), TovaCache(), HeavyHitterCache()
    for kind in (sinks, by_place, tova, heavy):
        assert kind.refuses([layer()]) is None
        assert kind.refuses([layer(), layer(every_key=True)]) == EVERY_KEY
        states_alone = dataclasses.replace(layer(Everything()), kv_heads=0)
        assert kind.refuses([layer(), states_alone]) is None
    assert sinks.refuses([layer(Everything())]) is None
    for kind in (by_place, tova, heavy):
        assert "causal" in str(kind.refuses([layer(), layer(Everything())]))
    shared, of_each_head = (layer(streams=(KeptStream(heads, 4),)) for heads in (1, G))
    assert tova.refuses([shared]) is None
    assert heavy.refuses([of_each_head]) is None
    assert "streams that heads share" in str(heavy.refuses([shared]))


def test_a_kind_is_a_name_or_an_object():
    assert cache_kind("tova") == TovaCache()
    assert cache_kind(TovaCache(3)) == TovaCache(3)
    with pytest.raises(BadInput, match=r"write RingCache\(...\)"):
        cache_kind(RingCache)
    with pytest.raises(BadInput, match=r"kind=7 is neither a name nor a kind of cache$"):
        cache_kind(7)


# ---- what a layer asks


def test_a_layer_asks_for_no_more_than_it_says():
    plain_layer = layer()
    assert not plain_layer.single_stream
    assert not plain_layer.every_key
    assert (plain_layer.streams, plain_layer.states, plain_layer.before) == ((), (), 0)
    assert layer(LOCAL, before=4).reach == 7  # it reads streams of four tokens before the window
    assert LedgerNeed(1).kv_heads == 1


# ---- bytes

TOKEN = G * (DK + DV) * 8  # of a key and a value in float64


@pytest.mark.parametrize(
    ("kind", "local", "everything"),
    [
        (ContiguousCache(), 2 * 40, 2 * 40),
        (RingCache(), 2 * (3 + 2 + 1), 2 * 40),  # window, draft, and a place that nobody reads
        (PagedCache(), 7 * 16, 7 * 16),  # three blocks a row, and one that nobody reads
        (PagedCache(block=5), 17 * 5, 17 * 5),
        (StaticCache(), 2 * 41, 2 * 41),
    ],
)
def test_what_two_rows_of_forty_tokens_take(kind, local, everything):
    """With a draft of two, in a layer whose window is 3 and in one without a window."""
    for mask, places in ((LOCAL, local), (GLOBAL, everything)):
        need = LedgerNeed(2, layer(mask).reach, capacity=40, draft=2)
        assert kind.bytes(layer(mask), need, F64) == places * TOKEN
    undrafted = LedgerNeed(2, 3, capacity=40)
    assert RingCache().bytes(layer(LOCAL), undrafted, F64) == 2 * (3 + 1) * TOKEN
    assert StaticCache(7).bytes(layer(), LedgerNeed(2), F64) == 2 * 8 * TOKEN
    assert QuantisedCache(RingCache(), bits=16).bytes(layer(LOCAL), undrafted, F64) == 2 * (3 + 1) * TOKEN // 4


@pytest.mark.parametrize("draft", [None, 2])
@pytest.mark.parametrize("name", CACHES)
def test_bytes_are_known_before_a_cache_is_made(name, draft):
    """Of the kinds as the conformance matrix has them, whose numbers are small."""
    small = {"kivi": KiviCache(4, 2, 3, 4), "sinks": SinkCache(2, 3), "heavy-hitters": HeavyHitterCache(3, 2)}
    small |= {"tova": TovaCache(5), "snapkv": SnapKVCache(5, 2, 3), "static": StaticCache(9)}
    kind = small.get(name, cache_kind(name))
    layers = [layer(LOCAL), layer(GLOBAL)]
    cache = make_cache(layers, batch=2, kind=kind, capacity=40, draft=draft, dtype=F64)
    if name not in ("heavy-hitters", "tova", "snapkv"):  # those are told weights by a model
        run(cache, plain(2, 0, 1))
    needs = [LedgerNeed(2, each.reach, 40, draft, kv_heads=G) for each in layers]
    assert cache.bytes == sum(kind.bytes(each, need, F64) for each, need in zip(layers, needs, strict=True))


def test_fields_of_a_ledger_are_those_of_its_kind():
    need = LedgerNeed(1, 3, capacity=None, draft=2)
    assert RingCache().ledger(need).capacity == 5
    assert RingCache().ledger(LedgerNeed(1, None, capacity=7)).capacity == 7
    assert ContiguousCache(9).ledger(LedgerNeed(1)).capacity == 9
    assert ContiguousCache(9).ledger(LedgerNeed(1, capacity=4)).capacity == 4
    assert StaticCache(9).ledger(LedgerNeed(1)).capacity == 9
    assert StaticCache(9).ledger(LedgerNeed(1, capacity=4)).capacity == 4
    assert PagedCache(3).ledger(LedgerNeed(2, capacity=7)).pool.blocks == 6
    assert PagedCache(3).ledger(LedgerNeed(2, capacity=7, block=7)).pool.blocks == 2
    for kind in (SinkCache(2, 3), TovaCache(4)):
        assert kind.ledger(LedgerNeed(1, kv_heads=0)).kind == "contiguous"  # positions alone
        assert kind.ledger(LedgerNeed(1, kv_heads=2)).kind == "selective"
    # what stays, what comes and a place that nobody reads; a draft once to keep and once to come
    assert SinkCache(2, 3).ledger(LedgerNeed(1)).places == 4 + 1 + 1
    assert SinkCache(2, 3).ledger(LedgerNeed(1, draft=5)).places == 4 + 1 + 1 + 5 + 5
    for draft in (None, 5):  # what goes by weights is never taken back
        assert TovaCache(4).ledger(LedgerNeed(1, draft=draft)).places == 4 + 1 + 1


def test_half_precision_and_nothing_between_eight_bits_and_sixteen():
    assert torch.float16 in {s.dtype for s in QuantisedCache(bits=16).codec(layer(), F64).streams()}
    with pytest.raises(BadInput, match="bits=9: keys and values are kept in 8 or 16 bits"):
        QuantisedCache(bits=9)


@pytest.mark.parametrize("kind", [RingCache(), QuantisedCache(RingCache()), LowBitCache(RingCache())], ids=str)
@torch.inference_mode()
def test_a_draft_is_taken_back_from_a_ring_whatever_its_bits(kind):
    model = vt.build(vt.decoder(vocab=9, width=16, layers=1, heads=2, window=8), seed=0).eval()
    cache = new_cache(model, kind, draft=4)
    model(torch.arange(16)[None] % 9, cache=cache)
    model(torch.tensor([[1, 2, 3, 4]]), cache=cache)
    cache.crop(16)
    assert cache.tokens == (16,)


def test_bytes_of_a_model_that_reads_a_source_count_it_once_it_is_read():
    spec = vt.encoder_decoder(vocab=9, width=16, layers=1, heads=2)
    settings = CacheSettings(8, 3, torch.float32)
    own = sum(layer_bytes(shape, mask, settings) for shape, mask in spec.caches)
    assert cache_bytes(spec, settings) == own
    read = 3 * 5 * 2 * 16 * 4  # rows, places, keys and values of width 16 in 4 bytes
    assert cache_bytes(spec, dataclasses.replace(settings, source=5)) == own + read
