"""Caches in files: what is read is what was written; what is damaged or foreign is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cache.saving import MINE, forged
from vantage.cache import LayerPlan, ModelCache, make_cache
from vantage.cache.codecs import Codec, Int8Codec, PlainCodec, SingleCodec
from vantage.cache.saved import FORMAT, Fingerprint, _codec, _parsed, fingerprint, read_cache, save_cache
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.spec.masks import Causal, Everything, Window
from vantage.spec.positions import Positions

GLOBAL, LOCAL = LayerPlan(2, 3, 4, Causal()), LayerPlan(2, 3, 4, Causal() & Window(3))
CROSS = LayerPlan(2, 3, 4, Everything())


def given(cache: ModelCache, n: int = 5) -> ModelCache:
    """The cache with so many tokens in every layer, those of cross-attention included."""
    pos, other = Positions.arange(cache.batch, n), Positions.arange(cache.batch, n + 2)
    draw = torch.Generator().manual_seed(0)
    with cache.step(pos):
        for where, layers in ((pos, cache.layers), (other, cache.cross)):
            for layer in layers:
                codec = layer.store.codec
                shape = (*where.shape[:1], codec.kv_heads, where.shape[1])
                k = torch.randn(*shape, codec.key_dim, generator=draw)
                layer.append(where, k, k[..., : codec.value_dim].repeat(1, 1, 1, 2)[..., : codec.value_dim])
    return cache


def same(a: ModelCache, b: ModelCache) -> bool:
    pairs = list(zip((*a.layers, *a.cross), (*b.layers, *b.cross), strict=True))
    views = [(x.view(), y.view()) for x, y in pairs if x.holding]
    return (
        a.holds() == b.holds()
        and all(x.store.codec == y.store.codec for x, y in pairs)
        and all(torch.equal(x.k, y.k) and torch.equal(x.v, y.v) and x.k.dtype == y.k.dtype for x, y in views)
    )


# ---- what is written is what is read

PLANS: dict[str, dict[str, Any]] = {
    "contiguous": {"plan": [GLOBAL]},
    "two ledgers": {"plan": [GLOBAL, LOCAL, GLOBAL], "kind": "ring", "batch": 2},
    "paged": {"plan": [GLOBAL, LOCAL], "kind": "paged", "capacity": 20, "block": 4},
    "quantised": {"plan": [GLOBAL], "kind": "quantised", "length": 99},
    "cross": {"plan": [GLOBAL], "cross": [CROSS, CROSS]},
    "one stream": {"plan": [LayerPlan(1, 6, 4, Causal(), single_stream=True)]},
    "one stream in 8 bits": {"plan": [LayerPlan(1, 6, 6, Causal(), single_stream=True)], "kind": "quantised"},
    "float64": {"plan": [GLOBAL], "dtype": torch.float64},
    "float16": {"plan": [GLOBAL], "dtype": torch.float16},
    "bfloat16 in 8 bits": {"plan": [GLOBAL], "dtype": torch.bfloat16, "kind": "quantised"},
}


@pytest.mark.parametrize("name", PLANS)
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    cache = given(make_cache(**PLANS[name]))
    cache.recomputed = 3
    save_cache(cache, tmp_path / "c", fingerprint=MINE, extra={"words": ["a", 1]})
    seen = read_cache(tmp_path / "c")
    assert same(seen.cache, cache)
    assert (seen.fingerprint, seen.extra) == (MINE, {"words": ["a", 1]})
    assert (seen.cache.length, seen.cache.recomputed) == (cache.length, 3)
    assert (seen.cache.masks, seen.cache.owner) == ((), None)
    owner = object()
    like = make_cache(**PLANS[name] | {"owner": owner})
    found = read_cache(str(tmp_path / "c"), like=like, fingerprint=MINE)
    assert same(found.cache, cache)
    assert (found.cache.masks, found.cache.owner) == (cache.masks, owner)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
def test_an_empty_cache_is_read_too(tmp_path: Path, kind: str) -> None:
    cache = make_cache([LOCAL], kind=kind)
    save_cache(cache, tmp_path / "c", fingerprint=MINE)
    found = read_cache(tmp_path / "c")
    assert found.cache.tokens == (0,)
    assert found.extra == {}
    assert same(given(found.cache), given(cache))


def test_a_write_that_waits_is_done_first(tmp_path: Path) -> None:
    cache = make_cache([LOCAL], kind="ring")
    pos, x = Positions.arange(1, 8), torch.randn(1, 2, 8, 4)
    cache.layers[0].append(pos, x[..., :3], x)  # longer than the ring: written when it is settled
    cache.ledgers[0].commit()
    save_cache(cache, tmp_path / "c", fingerprint=MINE)
    assert same(read_cache(tmp_path / "c").cache, cache)


def test_whether_it_is_in_8_bits_is_its_own_affair(tmp_path: Path) -> None:
    kinds = ("contiguous", "quantised")
    for saved in kinds:
        cache = given(make_cache([GLOBAL], kind=saved))
        save_cache(cache, tmp_path / "c", fingerprint=MINE)
        for wanted in kinds:
            assert same(read_cache(tmp_path / "c", like=make_cache([GLOBAL], kind=wanted)).cache, cache)


@pytest.mark.parametrize(
    "like",
    [
        {"plan": [GLOBAL]},
        {"plan": [GLOBAL] * 3},
        {"plan": [GLOBAL] * 2, "cross": [CROSS] * 2},
        {"plan": [GLOBAL] * 2},
        {"plan": [LayerPlan(2, 3, 3, Causal()), GLOBAL], "cross": [CROSS]},
        {"plan": [GLOBAL] * 2, "cross": [LayerPlan(1, 3, 4, Everything())]},
        {"plan": [GLOBAL] * 2, "cross": [CROSS], "dtype": torch.float64},
        {"plan": [LayerPlan(2, 4, 4, Causal(), single_stream=True), GLOBAL], "cross": [CROSS]},
    ],
)
def test_a_model_of_other_layers_is_refused(tmp_path: Path, like: dict[str, Any]) -> None:
    save_cache(given(make_cache([GLOBAL] * 2, cross=[CROSS])), tmp_path / "c", fingerprint=MINE)
    read_cache(tmp_path / "c", like=make_cache([GLOBAL] * 2, cross=[CROSS]))
    with pytest.raises(CheckpointError):
        read_cache(tmp_path / "c", like=make_cache(**like))


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    cache = given(make_cache([GLOBAL]))
    save_cache(cache, tmp_path / "c", fingerprint=MINE)
    with pytest.raises(TypeError):
        save_cache(cache, tmp_path / "c", fingerprint=MINE, extra={"x": object()})
    with pytest.raises(BadInput, match="cannot write"):
        save_cache(cache, tmp_path / "no" / "c", fingerprint=MINE)
    assert same(read_cache(tmp_path / "c").cache, cache)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_what_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    class Other(Codec):
        kind = "plain"  # but not the one that a file with this word is read with
        kv_heads, key_dim, value_dim = 2, 3, 4
        streams, encode, decode = PlainCodec.streams, PlainCodec.encode, PlainCodec.decode
        exact, dump, from_dump = PlainCodec.exact, PlainCodec.dump, PlainCodec.from_dump
        dtype = torch.float32

    cache = make_cache([GLOBAL])
    cache.layers[0].store.codec = Other()
    with pytest.raises(BadInput, match="Other cannot be saved"):
        save_cache(cache, tmp_path / "c", fingerprint=MINE)
    cache = make_cache([GLOBAL])
    cache.ledgers[0].kind = "elsewhere"  # pyright: ignore[reportAttributeAccessIssue] (as if it were another class)
    with pytest.raises(BadInput, match="Contiguous cannot be saved"):
        save_cache(cache, tmp_path / "c", fingerprint=MINE)
    assert not list(tmp_path.iterdir())


# ---- whose it is


def test_a_fingerprint_names_the_model_and_begins_its_digest() -> None:
    assert str(MINE) == "tiny (0123456789ab)"
    made = fingerprint("m", "spec", [])
    assert made.model == "m"
    assert len(made.digest) == 64
    assert made != fingerprint("m", "other spec", [])


def test_a_fingerprint_does_not_ask_for_the_order_of_the_weights() -> None:
    weights = [("b", torch.randn(3)), ("a", torch.randn(2, 2)), ("c", torch.empty(0))]
    one = fingerprint("m", "", weights)
    assert one == fingerprint("m", "", reversed(weights))
    assert one != fingerprint("m", "", weights[:2])
    assert one != fingerprint("m", "", [("d" if name == "b" else name, t) for name, t in weights])
    assert one != fingerprint("m", "", [(name, t.double()) for name, t in weights])
    assert one != fingerprint("m", "", [(name, t.reshape(-1)) for name, t in weights])


def test_a_fingerprint_is_that_of_the_numbers_and_not_of_their_memory() -> None:
    weight = torch.randn(5, 7)
    assert fingerprint("m", "", [("w", weight)]) == fingerprint("m", "", [("w", weight.t().contiguous().t())])
    assert fingerprint("m", "", [("w", weight.requires_grad_())]).digest


@pytest.mark.parametrize("size", [1, 2, 64, 65, 1000])
def test_a_fingerprint_reads_64_of_a_weight_evenly_and_the_ends(size: int) -> None:
    weight = torch.zeros(size)
    before, read = fingerprint("m", "", [("w", weight)]), []
    for i in range(size):
        weight[i] = 1
        if fingerprint("m", "", [("w", weight)]) != before:
            read.append(i)
        weight[i] = 0
    assert len(read) == min(size, 64)
    assert (read[0], read[-1]) == (0, size - 1)
    assert all(b - a <= -(-size // 63) for a, b in pairwise(read))


def test_a_cache_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    save_cache(given(make_cache([GLOBAL])), tmp_path / "c", fingerprint=MINE)
    for other in (Fingerprint("other", MINE.digest), Fingerprint("tiny", "f" * 16)):
        with pytest.raises(CacheError, match=r"saved with tiny \(0123456789ab\) and this model is"):
            read_cache(tmp_path / "c", fingerprint=other)


# ---- what is damaged


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_damaged_contents_are_refused(tmp_path: Path, kind: str) -> None:
    save_cache(given(make_cache([GLOBAL], kind=kind)), tmp_path / "c", fingerprint=MINE)
    whole = (tmp_path / "c").read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        (tmp_path / "c").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError, match="cannot read"):
            read_cache(tmp_path / "c")
    for at in range(len(whole) - 1, len(whole) - 60, -7):  # in the tensors
        (tmp_path / "c").write_bytes(bytes([*whole[:at], whole[at] ^ 0x11, *whole[at + 1 :]]))
        with pytest.raises(CheckpointError, match="digest"):
            read_cache(tmp_path / "c")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(pickle.dumps({"cache": 1}))
    save_file({"x": torch.ones(2)}, tmp_path / "s")
    save_file({"x": torch.ones(2)}, tmp_path / "f", {"format": "other"})
    save_file({"x": torch.ones(2)}, tmp_path / "h", {"format": FORMAT})
    cases = {"p": "cannot read", "s": "format", "f": "format is 'other'", "h": "not JSON", "missing": "cannot read"}
    for name, why in cases.items():
        with pytest.raises(CheckpointError, match=why):
            read_cache(tmp_path / name)


def test_a_header_is_no_longer_than_anyone_needs() -> None:
    longest = 2**26
    with pytest.raises(CheckpointError, match=f"{longest + 1:,} characters"):
        _parsed("{}" + " " * (longest - 1))
    with pytest.raises(CheckpointError, match="no 'ledgers'"):
        _parsed("{}" + " " * (longest - 2))
    with pytest.raises(CheckpointError, match="not JSON"):
        _parsed("[" * 10**5)


# ---- what a forger might write


def codec(**changes) -> Callable[..., object]:
    return lambda h, t: h["layers"][0]["codec"].update(changes)


def fewer_tensors(h, t):
    t.pop("layers.1.0")


def more_rows(h, t):
    """One ledger of two rows and one of one: each is right by itself."""
    ledger = h["ledgers"][1]
    assert ledger["kind"] == "ring"
    ledger["batch"] = 2
    for name in ("layers.1.0", "layers.1.1"):
        t[name] = t[name].repeat(2, 1, 1, 1)


FORGERIES = {
    "a list": lambda h, t: h.clear(),
    "no ledgers": lambda h, t: h.update(ledgers=[]),
    "a ledger as a number": lambda h, t: h["ledgers"].__setitem__(0, 7),
    "no layers": lambda h, t: h.update(layers=[]),
    "layers as a number": lambda h, t: h.update(layers=7),
    "cross as text": lambda h, t: h.update(cross="no"),
    "extra as a list": lambda h, t: h.update(extra=[]),
    "recomputed as text": lambda h, t: h.update(recomputed="0"),
    "length as text": lambda h, t: h.update(length="long"),
    "nobody's": lambda h, t: h.update(fingerprint={}),
    "a model as a number": lambda h, t: h["fingerprint"].update(model=1),
    "a digest as a number": lambda h, t: h["fingerprint"].update(digest=1),
    "rows": more_rows,
    "a layer as a number": lambda h, t: h["layers"].__setitem__(0, 7),
    "ledger 2 of 2": lambda h, t: h["layers"][0].update(ledger=2),
    "ledger -1": lambda h, t: h["layers"][0].update(ledger=-1),
    "ledger as text": lambda h, t: h["layers"][0].update(ledger="0"),
    "no ledger": lambda h, t: h["layers"][0].update(ledger=None),
    "no codec": lambda h, t: h["layers"][0].update(codec=None),
    "codec": codec(kind="other"),
    "a kind that is a list": codec(kind=[]),
    "a dtype that is none": codec(dtype="object"),
    "a dtype that is a list": codec(dtype=[]),
    "no sizes": codec(sizes=None),
    "sizes as text": codec(sizes="234"),
    "two sizes": codec(sizes=[2, 3]),
    "other sizes": codec(sizes=[2, 3, 3]),
    "values wider than keys": codec(kind="single"),
    "more than there is memory for": codec(sizes=[2**19, 2**19, 2**19]),
    "8 bits": codec(int8=True),
    "a tensor less": fewer_tensors,
    "another width": lambda h, t: t.update({"layers.0.0": t["layers.0.0"][..., :2].clone()}),
    "another length": lambda h, t: t.update({"layers.0.0": t["layers.0.0"][:, :, :1].clone()}),
    "another dtype": lambda h, t: t.update({"layers.0.0": t["layers.0.0"].double()}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_forged_is_refused(tmp_path: Path, name: str) -> None:
    save_cache(given(make_cache([GLOBAL, LOCAL], kind="ring")), tmp_path / "c", fingerprint=MINE)
    forged(tmp_path / "c", FORGERIES[name])
    with pytest.raises(CheckpointError):
        read_cache(tmp_path / "c")


@pytest.mark.parametrize("header", ["[]", "7", "null", '"text"'])
def test_a_header_that_is_no_object_is_refused(header: str) -> None:
    with pytest.raises(CheckpointError, match="no 'ledgers'"):
        _parsed(header)


def test_a_pool_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_cache(given(make_cache([GLOBAL], kind="paged")), tmp_path / "c", fingerprint=MINE)
    (tmp_path / "d").write_bytes((tmp_path / "c").read_bytes())
    forged(tmp_path / "d", lambda h, t: t.update({"layers.0.0": t["layers.0.0"][:, :-1].clone()}))
    with pytest.raises(CheckpointError):
        read_cache(tmp_path / "d")
    assert load_file(tmp_path / "c")["layers.0.0"].shape == (2, 16, 3)  # one block: neither the bin nor a free one


@pytest.mark.parametrize(
    ("sizes", "right"),
    [
        ([1, 1, 1], True),
        ([1, 2**20 - 1, 2], True),
        ([2**20, 1, 1], False),
        ([1, 2**20, 1], False),
        ([1, 1, 2**20], False),
        ([0, 1, 1], False),
        ([1, 1, 0], False),
        ([1, -1, 1], False),
        ([1, 1.5, 1], False),
        ([1, 1, "1"], False),
    ],
)
def test_sizes(sizes: list[Any], right: bool) -> None:
    saved = {"kind": "plain", "sizes": sizes, "dtype": "float32"}
    if right:
        assert _codec(saved) == PlainCodec(*sizes)
    else:
        with pytest.raises(CheckpointError, match="heads of"):
            _codec(saved)
    assert _codec({"kind": "single", "sizes": [1, 3, 2], "dtype": "float16", "int8": True}) == Int8Codec(
        SingleCodec(1, 3, 2, torch.float16)
    )
