"""What is kept, and in what form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.cache.helpers import contiguous, plain, run
from vantage.cache import (
    Contiguous,
    Int8Codec,
    LayerCache,
    ModelCache,
    NoCache,
    Paged,
    PlainCodec,
    Pool,
    Ring,
    SingleCodec,
    Static,
    Store,
)
from vantage.cache.build import no_caches
from vantage.cache.codecs import HalfCodec, StreamShape, dump_streams, read_streams, rounded
from vantage.cache.moves import Concatenated, HeadScatter, Span
from vantage.cache.placed import PlacedCache
from vantage.cache.policies import SinkWindow
from vantage.cache.selective import Selective
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.spec.positions import Positions

F32, F64 = torch.float32, torch.float64


def layer(codec, ledger):
    return LayerCache(ledger, Store(codec, ledger))


def test_plain_keeps_what_it_gets():
    cache = layer(PlainCodec(2, 4, 3), Contiguous(1, capacity=8))
    k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 3)
    view = cache.append(Positions.arange(1, 5), k, v)
    assert torch.equal(view.k, k)
    assert torch.equal(view.v, v)
    assert [t.shape for t in cache.store.tensors] == [(1, 2, 8, 4), (1, 2, 8, 3)]
    assert cache.bytes == 2 * 8 * (4 + 3) * 4
    assert all(t.dtype == F32 for t in cache.store.tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, F64])
def test_the_store_has_the_dtype_it_was_given(dtype):
    for ledger in (Contiguous(1), Ring(1, window=2), Ring(1, window=9, draft=6), Paged(1, Pool())):
        cache = layer(PlainCodec(1, 2, 2, dtype), ledger)
        k = torch.randn(1, 1, 5, 2)
        view = cache.append(Positions.arange(1, 5), k, k)
        assert view.k.dtype == dtype
        assert torch.equal(view.k, k.to(dtype))
        ledger.commit()
        more = cache.append(Positions.of(torch.tensor([[5, -1, 6]])), k[:, :, :3], k[:, :, :3])
        assert more.k.dtype == more.v.dtype == dtype
        at = int((more.pos.order[0] == 6).nonzero())
        assert torch.equal(more.k[:, :, at], k[:, :, 2].to(dtype))


def test_one_stream_is_kept_once():
    cache = layer(SingleCodec(1, 6, 4), Contiguous(1, capacity=8))
    k = torch.randn(1, 1, 5, 6)
    view = cache.append(Positions.arange(1, 5), k, k[..., :4])
    assert torch.equal(view.k, k)
    assert torch.equal(view.v, k[..., :4])
    assert view.v.data_ptr() == view.k.data_ptr()
    assert cache.bytes == 8 * 6 * 4
    assert len(cache.store.tensors) == 1
    with pytest.raises(BadInput, match="width 7 cannot be the front of keys of width 6"):
        SingleCodec(1, 6, 7)
    assert SingleCodec(1, 6, 6).value_dim == 6


def test_int8_keeps_a_byte_a_number_and_a_scale_a_head():
    cache = layer(Int8Codec(PlainCodec(3, 8, 4)), Contiguous(2, capacity=16))
    assert cache.bytes == 2 * 16 * 3 * (8 + 4 + 4 + 4)
    assert [t.dtype for t in cache.store.tensors] == [torch.int8, F32, torch.int8, F32]
    assert [t.shape[-1] for t in cache.store.tensors] == [8, 1, 4, 1]
    assert layer(Int8Codec(PlainCodec(1, 8, 4, F64)), Contiguous(1, capacity=2)).store.tensors[1].dtype == F64
    assert (
        layer(Int8Codec(PlainCodec(1, 8, 4, torch.bfloat16)), Contiguous(1, capacity=2)).store.tensors[1].dtype == F32
    )


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
    st.sampled_from([1e-20, 1.0, 1e6]),
)
def test_int8_keeps_its_bound(numbers, times):
    codec = Int8Codec(PlainCodec(1, 4, 4, F64))
    x = torch.tensor(numbers, dtype=F64)[None, None, None] * times
    k, v = codec.decode(codec.encode(x, -x))
    bound = float(x.abs().max()) / 254
    assert (k - x).abs().max() <= bound * (1 + 1e-9)
    assert (v + x).abs().max() <= bound * (1 + 1e-9)


def test_int8_scales_every_token_and_head_by_itself():
    codec = Int8Codec(PlainCodec(2, 3, 3, F64))
    x = torch.tensor([[[[127.0, 1, 0], [1270, 10, 5]], [[0, 0, 0], [1e-3, -127e-3, 0]]]], dtype=F64)
    whole, scale, _, _ = codec.encode(x, x)
    assert scale.flatten().tolist() == pytest.approx([1, 10, 0, 1e-3])
    assert whole.tolist() == [[[[127, 1, 0], [127, 1, 0]], [[0, 0, 0], [1, -127, 0]]]]
    k, _ = codec.decode(codec.encode(x, x))
    assert k[0, 0, 0].tolist() == [127, 1, 0]
    assert torch.equal(k[0, 1, 0], torch.zeros(3, dtype=F64))


def test_int8_reads_in_the_dtype_of_the_model():
    for dtype in (torch.bfloat16, F32, F64):
        codec = Int8Codec(PlainCodec(1, 4, 2, dtype))
        x = torch.randn(1, 1, 3, 4, dtype=dtype)
        k, v = codec.decode(codec.encode(x, x[..., :2]))
        assert k.dtype == v.dtype == dtype
        assert (k.double() - x.double()).abs().max() < 0.05
        assert (codec.kv_heads, codec.key_dim, codec.value_dim) == (1, 4, 2)


def test_int8_of_one_stream():
    cache = layer(Int8Codec(SingleCodec(1, 6, 4)), Contiguous(1, capacity=8))
    k = torch.randn(1, 1, 5, 6)
    view = cache.append(Positions.arange(1, 5), k, k[..., :4])
    assert cache.bytes == 8 * (6 + 4)
    assert torch.equal(view.v, view.k[..., :4])
    assert (view.k - k).abs().max() <= k.abs().max() / 254 * 1.001


@pytest.mark.parametrize("make", [lambda: Ring(1, window=3), lambda: Paged(1, Pool(block=4))])
def test_int8_with_any_arrangement(make):
    cache = layer(Int8Codec(PlainCodec(2, 4, 4)), make())
    k = torch.randn(1, 2, 20, 4)
    cache.append(Positions.arange(1, 9), k[:, :, :9], k[:, :, :9])
    view = cache.append(Positions.arange(1, 8, start=9), k[:, :, 9:17], k[:, :, 9:17])
    shown = k[:, :, view.pos.order[0]]
    bound = shown.abs().amax(-1, keepdim=True) / 254 * 1.001
    assert bool(((view.k - shown).abs() <= bound).all())
    assert view.k.shape[2] >= 10


def test_k5_memory_is_linear_in_length_and_batch_and_shrinks_with_key_value_heads():
    """K5: memory grows linearly with length and batch, and shrinks with MQA and GQA."""

    def size(batch=1, heads=8, length=64, width=16, layers=3, itemsize=F32):
        ledger = Contiguous(batch, capacity=length)
        stores = [Store(PlainCodec(heads, width, width, itemsize), ledger) for _ in range(layers)]
        assert all(s.bytes == sum(t.nbytes for t in s.tensors) for s in stores)
        return sum(s.bytes for s in stores)

    assert size() == 2 * 3 * 8 * 64 * 16 * 4  # keys and values × layers × heads × length × width × bytes
    assert size(length=128) == 2 * size()
    assert size(batch=5) == 5 * size()
    assert size(heads=2) * 4 == size()  # grouped
    assert size(heads=1) * 8 == size()  # multi-query
    assert size(itemsize=torch.bfloat16) * 2 == size()


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ((1, 2, 5, 4), (1, 2, 5, 4)),
        ((1, 2, 5, 3), (1, 2, 5, 3)),
        ((2, 2, 5, 4), (2, 2, 5, 3)),
        ((1, 1, 5, 4), (1, 1, 5, 3)),
        ((1, 2, 4, 4), (1, 2, 4, 3)),
        ((1, 2, 5, 4), (1, 2, 4, 3)),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(k, v):
    cache = layer(PlainCodec(2, 4, 3), Contiguous(1))
    with pytest.raises(BadInput, match=r"takes \(1, 2, 5, 4\) and \(1, 2, 5, 3\)"):
        cache.append(Positions.arange(1, 5), torch.zeros(k), torch.zeros(v))
    assert cache.ledger.next_positions.host == 0
    assert not cache.holding


def test_gradients_are_refused():
    cache = layer(PlainCodec(1, 2, 2), Contiguous(1))
    x = torch.zeros(1, 1, 1, 2)
    for k, v in ((x.clone().requires_grad_(), x), (x, x.clone().requires_grad_())):
        with pytest.raises(BadInput, match=r"use torch.no_grad\(\) with a cache"):
            cache.append(Positions.arange(1, 1), k, v)
        assert not cache.holding
    with torch.no_grad():
        cache.append(Positions.arange(1, 1), x.clone().requires_grad_(), x)
    assert cache.holding


@pytest.mark.parametrize(
    "make", [lambda: Contiguous(2), lambda: Ring(2, window=3, draft=1), lambda: Paged(2, Pool(block=2))]
)
def test_it_may_be_used_in_inference_mode_and_out_of_it(make):
    """A tensor made in inference mode cannot be written outside it: no buffer or table may be one."""
    cache = layer(PlainCodec(1, 2, 2), make())
    x = torch.randn(2, 1, 4, 2)

    def step(pos, width):
        cache.append(pos, x[:, :, :width], x[:, :, :width])
        cache.ledger.commit()

    for first, second in ((True, False), (False, True)):
        with torch.inference_mode(first):
            step(Positions.rows([4, 2]), 4)
            step(Positions.rows([1, 1], starts=[4, 2]), 1)
            cache.ledger.crop([4, 3])
            cache.store.reorder([1, 0], cache.ledger.used)
            cache.ledger.reorder([1, 0])
        with torch.inference_mode(second):
            step(Positions.rows([1, 2], starts=[3, 4]), 2)
            step(Positions.rows([1, 1], starts=[4, 6]), 1)
            cache.ledger.free()
    for width in (70, 1, 100):  # and while it grows
        x = torch.randn(2, 1, 100, 2)
        for mode in (True, False):
            with torch.inference_mode(mode):
                step(Positions.arange(2, width, start=cache.ledger.next_positions.host or 0), width)


def test_no_cache_keeps_nothing():
    cache = NoCache()
    k, v, pos = torch.randn(1, 1, 2, 2, requires_grad=True), torch.randn(1, 1, 2, 2), Positions.arange(1, 2)
    view = cache.append(pos, k, v)
    assert view.k is k
    assert view.v is v
    assert view.pos is pos
    with pytest.raises(CacheError, match="nothing is cached"):
        cache.view()


@pytest.mark.parametrize("make", [lambda: Contiguous(2), lambda: Ring(2, window=3), lambda: Paged(2, Pool(block=2))])
def test_it_counts_the_tokens_it_was_given(make):
    cache, other = (layer(PlainCodec(1, 2, 2), make()) for _ in range(2))
    assert cache.store.written == 0
    for start, width, seen in ((0, 5, 10), (5, 1, 12), (6, 4, 20)):
        pos, x = Positions.arange(2, width, start=start), torch.randn(2, 1, width, 2)
        cache.append(pos, x, x)
        assert cache.store.written == seen
        other.store.enter(other.ledger.place(pos), 2 * width, "native")  # a kernel writes by itself
        assert (other.store.written, cache.store.paths, other.store.paths) == (
            seen,
            {"modules": seen},
            {"native": seen},
        )


def test_it_counts_how_often_its_buffers_became_other_ones():
    """Prepared steps hold their addresses, and are made anew when the number is another."""
    cache = layer(PlainCodec(1, 2, 2), Contiguous(2, follows=24))
    x, store = torch.randn(2, 1, 40, 2), cache.store
    assert store.version == 0
    seen = []
    for start in range(0, 160, 40):
        cache.append(Positions.arange(2, 40, start=start), x, x)
        seen.append((store.version, store.tensors[0].shape[2]))
    assert seen == [(1, 64), (2, 128), (2, 128), (3, 256)]
    cache.ledger.commit()
    before = store.tensors
    store.reorder([1, 0], cache.ledger.used)
    cache.ledger.reorder([1, 0])
    assert store.version == 4
    assert all(a is not b for a, b in zip(before, store.tensors, strict=True))


def test_what_was_never_written_is_zero():
    """It is read with weight 0, and 0 times NaN is NaN."""
    for ledger in (Ring(2, window=5), Paged(2, Pool(64))):
        cache = layer(PlainCodec(1, 2, 2), ledger)
        x = torch.ones(2, 1, 1, 2)
        cache.append(Positions.rows([1, 0], width=1), x, x)
        assert all(bool(((t == 0) | (t == 1)).all()) for t in cache.store.tensors)
    grown = contiguous(1)
    run(grown, plain(1, 0, 3))
    assert bool((grown.layers[0].store.tensors[0][:, :, 3:] == 0).all())


def test_a_step_that_only_looks_writes_nothing():
    cache = layer(PlainCodec(1, 2, 2), Contiguous(1))
    x = torch.zeros(1, 1, 1, 2)
    cache.append(Positions.arange(1, 1), x, x)
    cache.ledger.commit()
    with pytest.raises(AssertionError, match="only looks"):
        cache.store.write(cache.ledger.look(), x, x)
    with pytest.raises(AssertionError, match="belongs to a pass"):
        Concatenated((Span(0, 1),)).get(x, None)


def test_a_stream_has_heads_of_its_own():
    ledger = Contiguous(1, capacity=4)
    cache = LayerCache(ledger, Store(PlainCodec(2, 3, 2), ledger, (StreamShape(4, F32, 1),)))
    k, v, beside = torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 2), torch.arange(12.0).view(1, 1, 3, 4)
    for wrong in ((), (beside.expand(1, 2, 3, 4),), (beside, beside), (beside[..., :3],)):
        with pytest.raises(BadInput, match=r"for a cache that takes \[\(1, 1, 3, 4\)\]"):
            cache.append(Positions.arange(1, 3), k, v, *wrong)
    view = cache.append(Positions.arange(1, 3), k, v, beside)
    assert torch.equal(view.streams[0], beside)
    assert cache.store.token_bytes == 4 * (2 * (3 + 2) + 4)
    assert cache.store.bytes == 4 * cache.store.token_bytes


def summing(ledger) -> ModelCache:
    """One layer that keeps a running sum beside its keys."""
    return ModelCache([LayerCache(ledger, Store(PlainCodec(1, 2, 2), ledger, (StreamShape(1, F32, 1, True),)))])


def sums(cache: ModelCache, pos: Positions, increments: list[float]) -> list[float]:
    """What one row is shown once these have come."""
    x = torch.tensor(increments).view(1, 1, -1, 1)
    with cache.step(pos):
        view = cache.layers[0].append(pos, x.expand(1, 1, -1, 2), x.expand(1, 1, -1, 2), x)
    return view.streams[0][0, 0, view.pos.filled[0], 0].tolist()


MAKERS = [lambda: Contiguous(1), lambda: Ring(1, window=9), lambda: Paged(1, Pool(None, 4)), lambda: Static(1, 9)]


@pytest.mark.parametrize("make", MAKERS, ids=["contiguous", "ring", "paged", "static"])
def test_a_running_sum_goes_on_in_a_fork(make):
    """In a pool the block that both share is copied first, and the sum so far stands in it."""
    cache = summing(make())
    assert sums(cache, Positions.arange(1, 3), [1, 2, 3]) == [1, 3, 6]
    fork = cache.fork()
    assert sums(fork, Positions.arange(1, 1, 3), [10]) == [1, 3, 6, 16]
    assert sums(cache, Positions.arange(1, 2, 3), [20, 1]) == [1, 3, 6, 26, 27]


@pytest.mark.parametrize("make", MAKERS, ids=["contiguous", "ring", "paged", "static"])
def test_a_running_sum_begins_with_its_row(make):
    cache = summing(make())
    assert sums(cache, Positions.rows([1], width=2, pad="left"), [7, 1]) == [1]  # what is no token adds nothing
    assert sums(cache, Positions.arange(1, 1, 1), [2]) == [1, 3]
    cache.crop(1)
    assert sums(cache, Positions.arange(1, 1, 1), [4]) == [1, 5]
    cache.crop(0)
    assert sums(cache, Positions.arange(1, 2), [5, 1]) == [5, 6]


def test_a_pass_without_a_cache_rounds_as_one_would():
    spec = vt.decoder(vocab=5, width=8, layers=1, heads=2)
    x = torch.linspace(-1, 1, 24).view(1, 2, 3, 4)
    exact, halved = (no_caches(spec, kv_dtype, F32)[0] for kv_dtype in (None, "float16"))
    assert torch.equal(exact.append(Positions.arange(1, 3), x, x).k, x)
    assert torch.equal(halved.append(Positions.arange(1, 3), x, x).k, x.half().float())
    training = x.clone().requires_grad_()
    assert torch.equal(halved.append(Positions.arange(1, 3), training, training).k, x)  # gradients pass no rounding
    with torch.no_grad():
        assert torch.equal(halved.append(Positions.arange(1, 3), training, training).k, x.half().float())


def test_heads_that_decide_for_themselves_take_their_streams_along():
    """Two heads with places of their own; of four heads of a stream two go with each."""
    buffer, x = torch.zeros(1, 4, 3, 1), torch.arange(1.0, 5).view(1, 4, 1, 1)
    HeadScatter(torch.tensor([[0], [2]]), heads=2).put(buffer, x)
    assert buffer[0, :, :, 0].tolist() == [[1, 0, 0], [2, 0, 0], [0, 0, 3], [0, 0, 4]]
    two = torch.arange(1.0, 9).view(1, 4, 2, 1)  # as many tokens as heads
    HeadScatter(torch.tensor([[0, 1], [2, 0]]), heads=2).put(buffer.zero_(), two)
    assert buffer[0, :, :, 0].tolist() == [[1, 2, 0], [3, 4, 0], [6, 0, 5], [8, 0, 7]]


def test_only_a_cache_that_numbers_tokens_anew_turns_keys_late():
    assert not NoCache().late
    assert not PlacedCache.late
    assert not any(make().late for make in MAKERS)
    assert Selective(1, SinkWindow(1, 2, by_place=True)).late
    assert not Selective(1, SinkWindow(1, 2)).late


# ---- codecs by themselves


def test_fewer_bits_for_what_has_all_of_them():
    two, one, nothing = PlainCodec(1, 4, 4), SingleCodec(1, 6, 4), PlainCodec(0, 0, 0)
    assert rounded(two, "int8") == Int8Codec(two)
    assert rounded(one, "float16") == HalfCodec(one)
    for codec in (Int8Codec(two), HalfCodec(one), nothing):
        assert rounded(codec, "int8") == codec  # rounded already, or nothing to round
    assert rounded(two, None) == two


def test_sizes_from_a_file():
    whole = PlainCodec(1, 4, 2).dump()
    assert PlainCodec.from_dump(whole) == PlainCodec(1, 4, 2)
    assert PlainCodec.from_dump({**whole, "sizes": [0, 0, 0]}) == PlainCodec(0, 0, 0)  # a layer of states alone
    assert PlainCodec.from_dump({**whole, "sizes": [1, 1, 2**20 - 1]}).value_dim == 2**20 - 1
    for sizes in ([0, 4, 2], [1, 0, 0], [1, 4, 0], [1, 4, 2**20], [1, 4, -1], [1, 4], [1, 4, 2, 2], "1", [1, 4, 2.0]):
        with pytest.raises(CheckpointError):
            PlainCodec.from_dump({**whole, "sizes": sizes})
    with pytest.raises(CheckpointError):
        PlainCodec.from_dump({**whole, "dtype": "int8"})


def test_streams_from_a_file():
    streams = StreamShape(3, torch.float32, 2, True), StreamShape(1, torch.float64, 2**20 - 1)
    assert read_streams(dump_streams(streams)) == streams
    good = dump_streams(streams)[0]
    for at, wrong in ((0, 0), (0, True), (0, 2**20), (1, "int8"), (2, 0), (2, None), (3, 1)):
        row = [*good]
        row[at] = wrong
        with pytest.raises(CheckpointError):
            read_streams([row])
    for wrong in (None, [3], [good[:3]], [[*good, 1]]):
        with pytest.raises(CheckpointError):
            read_streams(wrong)
