"""Caches that forget: sinks with a window, by position and by place (StreamingLLM), and heavy hitters (H2O).

Each is held to its rule written out over the whole row, without a cache (``forgetting_rules.py``).
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.cache.forgetting_rules import (
    CUTS,
    HEADS,
    KINDS,
    KV_HEADS,
    RULES,
    SINKS,
    TOKENS,
    WINDOW,
    Forgetful,
    close,
    decoder,
    model,
    run,
    written_out,
)
from vantage.cache import ModelCache
from vantage.cache.dump import DumpReader, LedgerDump
from vantage.cache.kinds.quantised import QuantisedCache
from vantage.cache.kinds.sinks import SinkCache
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.cache.selective import Selective
from vantage.conformance.scenarios import sharpen
from vantage.errors import CacheError, CheckpointError, Refused
from vantage.inspect.cache_bytes import CacheSettings, layer_bytes
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.positions import Positions

# ---- cached is that rule


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_cached_is_the_rule_written_out(kind, cuts):
    wanted, layers = written_out(kind)
    m = model()
    cache = m.new_cache(1, kind=KINDS[kind])
    close(run(m, cache, TOKENS, cuts), wanted)
    assert (wanted - m(TOKENS)).abs().max() > 0.1  # and not what everything shows
    if kind == "heavy hitters":  # every head of every layer has its own, and the next query adds itself
        held = [[list(orders(row)) for row in layer.rows] for layer in cache.holds().layers]
        more = written_out(kind, torch.cat([TOKENS, TOKENS[:, :1]], 1))[1]
        assert held == [[[k for k in seen[-1] if k != 17] for seen in layer.kept] for layer in more]
        assert len({str(rows) for layer in held for rows in layer}) > 2
    assert {len(head[-1]) for layer in layers for head in layer.kept} == {6 if kind == "heavy hitters" else 5}


def orders(row):
    return [n for first, last in row.order for n in range(int(first), int(last) + 1)]


OTHERS = ["alibi", "t5", "kerple", "fire", "shaw", "xl", "fox", "bank", "shifted", "xpos", "mrope", "learned"]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sinks", "heavy hitters"])
@pytest.mark.parametrize("position", OTHERS)
def test_every_encoding_with_the_same_keys_masked(kind, position):
    """Biases, tables for values and running sums follow the keys of each head."""
    held_to_the_kernel(kind, decoder(position, max_length=17))


@pytest.mark.parametrize("kind", ["sinks", "heavy hitters"])
def test_every_attention_with_the_same_keys_masked(kind):
    norm = vt.RMSNorm()
    for attention in (
        vt.GroupedQuery(HEADS, 1),
        vt.GroupedQuery(HEADS, HEADS, value_dim=6),
        vt.GroupedQuery(HEADS, KV_HEADS, scores=vt.Scores(sinks=True, softcap=3.0)),
        vt.GroupedQuery(HEADS, KV_HEADS, scores=vt.Scores(normalise=vt.Sparsemax())),
        vt.Latent(HEADS, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=norm),
    ):
        held_to_the_kernel(kind, vt.decoder(vocab=19, width=32, layers=2, attention=attention, position="rope"))


def held_to_the_kernel(kind: str, spec: vt.ModelSpec) -> None:
    groups = spec.layers[0].attention.cache_shape(spec.width).kv_heads  # of MLA one latent, for all heads
    m, plain = (sharpen(vt.build(spec, kernel=k).double()) for k in ("auto", Forgetful(RULES[kind], groups)))
    tokens = torch.cat([TOKENS, TOKENS.flip(1)])
    with torch.no_grad():
        wanted = plain(tokens)
    for cuts in ((17,), (7, 1, 1, 8)):
        close(run(m, m.new_cache(2, kind=KINDS[kind]), tokens, cuts), wanted)


# ---- every other thing that is done with a cache


@pytest.mark.parametrize("kind", KINDS)
def test_forked_and_reordered(kind):
    m, other = model(), (TOKENS + 7) % 19
    wanted, branch = written_out(kind)[0], torch.cat([TOKENS[:, :9], other[:, 9:]], 1)
    cache = m.new_cache(1, kind=KINDS[kind])
    run(m, cache, TOKENS[:, :9], (9,))
    fork = cache.fork()
    fork.reorder([0, 0])
    both = run(m, fork, torch.cat([branch, TOKENS])[:, 9:], (4, 4))
    close(both, torch.cat([written_out(kind, branch)[0], wanted])[:, 9:])
    close(run(m, cache, TOKENS[:, 9:], (8,)), wanted[:, 9:])


@pytest.mark.parametrize("kind", ["sinks", "by place"])
def test_drafts_are_taken_back(kind):
    m, wrong = model(), (TOKENS + 7) % 19
    wanted = written_out(kind)[0]
    cache = m.new_cache(1, kind=KINDS[kind], draft=3)
    parts, at = [], 0
    for n in (5, 1, 4, 1, 3, 3):
        parts.append(run(m, cache, TOKENS[:, at : at + n], (n,)))
        at += n
        run(m, cache, wrong[:, :3], (2, 1))
        cache.crop(at)
    close(torch.cat(parts, 1), wanted)
    with pytest.raises(CacheError, match="cannot take row 0 back from 17 to 13: what it would see there is gone"):
        cache.crop(13)
    cache.crop(0)
    close(run(m, cache, TOKENS, (17,)), wanted)


def test_a_short_row_goes_back_anywhere():
    m = model()
    cache = m.new_cache(1, kind=KINDS["sinks"])
    run(m, cache, TOKENS[:, :4], (4,))
    cache.crop(1)
    close(run(m, cache, TOKENS[:, 1:], (16,)), written_out("sinks")[0][:, 1:])


def test_a_row_does_not_go_back_into_an_earlier_document():
    m = model()
    cache = m.new_cache(1, kind=SinkCache(SINKS, WINDOW), draft=3)
    with torch.no_grad():
        m(TOKENS[:, :12], positions=Positions.packed([[10, 2]]), cache=cache)
        with pytest.raises(CacheError, match="cannot take row 0 back from 12 to 9"):
            cache.crop(9)
        with pytest.raises(CacheError, match="cannot take row 0 back from 12 to 10"):
            cache.crop(10)  # the first document could go on from there, and its sinks are gone
        cache.crop(11)


def test_heavy_hitters_do_not_go_back():
    m = model()
    cache = m.new_cache(1, kind=KINDS["heavy hitters"])
    run(m, cache, TOKENS[:, :4], (4,))
    with pytest.raises(CacheError, match="cannot take row 0 back from 4 to 3: later queries have had a say"):
        cache.crop(3)
    cache.crop(4)
    cache.crop(0)
    close(run(m, cache, TOKENS, (17,)), written_out("heavy hitters")[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounded", [False, True])
def test_saved_and_restored(kind, rounded, tmp_path):
    m = model()
    used = QuantisedCache(KINDS[kind]) if rounded else KINDS[kind]
    cache, whose, path = m.new_cache(2, kind=used), Fingerprint("m", "0"), tmp_path / "cache.safetensors"
    tokens = torch.cat([TOKENS, TOKENS.flip(1)])
    run(m, cache, tokens[:, :9], (9,))
    save_cache(cache, path, fingerprint=whose)
    wanted = run(m, cache, tokens[:, 9:], (8,))
    again = read_cache(path, like=m.new_cache(2, kind=used), fingerprint=whose).cache
    assert str(again.holds()) != str(cache.holds())
    assert torch.equal(run(m, again, tokens[:, 9:], (8,)), wanted)
    assert str(again.holds()) == str(cache.holds())


@pytest.mark.parametrize("kind", KINDS)
def test_in_eight_bits(kind):
    """What is rounded is forgotten alike: as near to the exact one as eight bits are, and nowhere near the whole."""
    m = model()
    exact = written_out(kind)[0]
    cache = m.new_cache(1, kind=QuantisedCache(KINDS[kind]))
    got = run(m, cache, TOKENS, (17,))
    assert (got - exact).abs().mean() < 0.1
    assert (got - m(TOKENS)).abs().mean() > 0.2
    again = run(m, m.new_cache(1, kind=QuantisedCache(KINDS[kind])), TOKENS, (1,) * 17)
    if kind != "sinks":  # a wide pass there shows the keys of the pass before they are rounded
        close(again, got)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_fails_leaves_all_as_it_was(kind):
    m = model()
    cache = m.new_cache(1, kind=KINDS[kind])
    run(m, cache, TOKENS[:, :9], (9,))
    pos = Positions.arange(1, 1, 9)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    hook = m.blocks[1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        m(TOKENS[:, 9:10], positions=pos, cache=cache)
    hook.remove()
    close(run(m, cache, TOKENS[:, 9:], (8,)), written_out(kind)[0][:, 9:])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_and_is_told_beforehand(kind):
    m = model()
    cache = m.new_cache(2, kind=KINDS[kind])
    before = cache.bytes
    run(m, cache, TOKENS.expand(2, -1), (17,))
    assert cache.bytes == before
    name = {"heavy hitters": "heavy-hitters"}.get(kind, "sinks")
    like = m.new_cache(2, kind=name)
    settings = CacheSettings(17, 2, torch.float64, name)
    assert sum(layer_bytes(shape, mask, settings) for shape, mask in m.spec.caches) == like.bytes


def test_what_it_says_of_itself():
    m = model()
    cache = m.new_cache(1, kind=KINDS["heavy hitters"])
    assert "nothing" in str(cache.holds())
    run(m, cache, TOKENS, (17,))
    text = str(cache.holds())
    assert "HeavyHitters(heavy=3, recent=2)" in text
    assert "row 0, head 1: " in text
    assert "(5 tokens, 12 evicted)" in text
    cache = m.new_cache(1, kind=KINDS["sinks"])
    run(m, cache, TOKENS, (17,))
    assert "row 0: 0..1, 15..16 (4 tokens, 13 evicted)" in str(cache.holds())


def test_generation_with_them():
    """Beams, and guessing ahead, by the same rule as one token after the other."""
    m, kind = model(), SinkCache(4, 6)
    greedy = m.new_cache(1, kind=kind)
    out = run(m, greedy, TOKENS[:, :9], (9,))[:, -1:]
    said = []
    for _ in range(8):
        said.append(int(out.argmax()))
        out = run(m, greedy, torch.tensor([[said[-1]]]), (1,))
    beam = vt.beam_search(m, TOKENS[0, :9], beams=1, max_tokens=8, kind=kind, ends=False)
    assert list(beam.tokens) == said


def test_joined_rows_are_for_paged_caches():
    m = model()
    caches = [m.new_cache(1, kind=KINDS["sinks"]) for _ in range(2)]
    with pytest.raises(Refused, match="only paged caches can be joined and split"):
        ModelCache.join(caches)


# ---- what cannot be


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_count_keys(kind):
    with pytest.raises(Refused, match="looks at every key before a query"):
        model("cope").new_cache(1, kind=KINDS[kind])


@pytest.mark.parametrize("kind", ["by place", "heavy hitters"])
def test_models_that_look_ahead(kind):
    m = model(bidirectional=True)
    with pytest.raises(Refused, match="need causal attention"):
        m.new_cache(1, kind=KINDS[kind])


def test_axes_have_no_place():
    m = model("mrope")
    axes = Positions.of_axes(torch.arange(3).expand(3, 1, 3))
    with pytest.raises(Refused, match="tokens on several axes have no one place"), torch.no_grad():
        m(TOKENS[:, :3], positions=axes, cache=m.new_cache(1, kind=KINDS["by place"]))


def test_weights_of_heads_that_keep_their_own_cannot_be_watched():
    m = model()
    with pytest.raises(Refused, match="weights have no common columns"), torch.no_grad():
        m.hidden(TOKENS, cache=m.new_cache(1, kind=KINDS["heavy hitters"]), watch=lambda *_: None)
    seen = []
    with torch.no_grad():
        m.hidden(TOKENS, cache=m.new_cache(1, kind=KINDS["sinks"]), watch=lambda *args: seen.append(args))
    assert len(seen) == 2


def test_a_pass_that_is_too_wide_is_the_models_to_cut():
    cache = model().new_cache(1, kind=KINDS["heavy hitters"])
    assert cache.widest(Positions.arange(1, 17)) == 5
    with (
        pytest.raises(CacheError, match="a pass of 17 tokens: this cache takes 5 now"),
        cache.step(Positions.arange(1, 17)),
    ):
        pass
    assert model().new_cache(1).widest(Positions.arange(1, 17)) == 17


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("policy", {"kind": "other"}, "policy is"),
        ("policy", {"kind": "heavy hitters", "heavy": 3}, "policy"),
        ("policy", {"kind": "heavy hitters", "heavy": -3, "recent": 2}, "policy"),
        ("heads", 3, "shape"),
        ("most", 1, "does not hold what it says"),
    ],
)
def test_damaged_files(field, value, says):
    m = model()
    cache = m.new_cache(1, kind=KINDS["heavy hitters"])
    run(m, cache, TOKENS, (17,))
    dump = cache.ledgers[0].dump()
    dump = LedgerDump(json.loads(json.dumps(dump.numbers)), dump.tables)
    whole = Selective.from_dump(DumpReader(dump), torch.device("cpu"))
    assert str(whole.holds()) == str(cache.ledgers[0].holds())
    with pytest.raises(CheckpointError, match=says):
        Selective.from_dump(DumpReader(LedgerDump({**dump.numbers, field: value}, dump.tables)), torch.device("cpu"))
    twice = {**dump.tables, "order": dump.tables["order"].clone()}
    twice["order"][:, :2] = 3
    with pytest.raises(CheckpointError):
        Selective.from_dump(DumpReader(LedgerDump(dump.numbers, twice)), torch.device("cpu"))


def test_the_window_of_a_layer_holds_as_well():
    """A layer that shows less than the cache keeps shows that."""
    m = model(mask=Causal() & vt.Window(2) & SameSegment())
    cache = m.new_cache(1, kind=SinkCache(2, 6))
    close(run(m, cache, TOKENS, (9, 8)), m(TOKENS).detach())
    assert replace(SinkCache(2, 6), by_place=True).mask is None
