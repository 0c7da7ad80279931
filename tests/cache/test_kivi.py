"""KIVI: the worked numbers, what each query reads packed, and a cache that is taken back, forked, grown and saved."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.cache.forgetting_rules import close, run
from tests.spec.helpers import check_facts
from vantage.cache import facts, grouped
from vantage.cache.codecs import PlainCodec, SingleCodec, token_bytes
from vantage.cache.contiguous import Contiguous
from vantage.cache.dump import DumpReader, LedgerDump
from vantage.cache.grouped import Grouped, Grouping
from vantage.cache.kinds.kind import LayerPlan, LedgerNeed
from vantage.cache.kinds.kivi import KiviCache
from vantage.cache.kivi import KiviCodec
from vantage.cache.memory import FOLLOWS
from vantage.cache.moves import Span
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.cache.stores import Store
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, CacheError, CheckpointError, Refused
from vantage.spec.positions import Positions

F64 = torch.float64
KIND = KiviCache(bits=4, group=3, newest=4, channels=4)
TOKENS = torch.randint(19, (2, 23), generator=torch.Generator().manual_seed(1))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def model(layers: int = 2, **options) -> vt.Model:
    options = {"heads": 4, "kv_heads": 2, "position": "rope"} | options
    return sharpen(vt.build(vt.decoder(vocab=19, width=32, layers=layers, **options))).double()


# ---- the codec


def test_the_worked_number():
    """A channel 0 1 2 9 in 2 bits: codes 0 0 1 3, read 0 0 3 9. The channel beside it does not matter."""
    codec = KiviCodec(PlainCodec(1, 2, 2, F64), bits=2, group=4, channels=2)
    k = torch.tensor([[0.0, 100], [1, 101], [2, 102], [9, 109]], dtype=F64)[None, None]
    streams = codec.encode(k, torch.zeros(1, 1, 4, 2, dtype=F64))
    codes = streams[0] & 3  # the first channel of each token
    assert codes.flatten().tolist() == [0, 0, 1, 3]
    read, _ = codec.decode(streams)
    assert read[0, 0].tolist() == [[0, 100], [0, 100], [3, 103], [9, 109]]


def test_values_are_rounded_token_by_token_in_groups_of_channels():
    codec = KiviCodec(PlainCodec(1, 2, 5, F64), bits=2, group=2, channels=4)
    v = torch.tensor([[0.0, 1, 2, 9, 7], [30, 0, 10, 19, 7]], dtype=F64)[None, None]
    _, read = codec.decode(codec.encode(torch.zeros(1, 1, 2, 2, dtype=F64), v))
    assert read[0, 0].tolist() == [[0, 0, 3, 9, 7], [30, 0, 10, 20, 7]]  # the last channel is a group by itself


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("group", [2, 5, 32])
def test_what_is_read_is_off_by_half_a_step(bits, group):
    codec = KiviCodec(PlainCodec(3, 7, 9, F64), bits, group, 4)
    k, v = randn(2, 3, 4 * group, 7), randn(2, 3, 4 * group, 9, seed=1)
    k[..., 0] *= 50  # a large channel costs no other its precision
    streams = codec.encode(k, v)
    assert [tuple(s.shape[:3]) for s in streams] == [(2, 3, 4 * group)] * 4
    assert [(s.shape[3], s.dtype) for s in streams] == [(s.width, s.dtype) for s in codec.streams()]
    read_k, read_v = codec.decode(streams)
    of_group = k.unflatten(2, (-1, group))
    step = ((of_group.amax(3) - of_group.amin(3)) / (2**bits - 1)).repeat_interleave(group, 2)
    assert ((read_k - k).abs() <= step / 2 + 1e-9).all()
    for part, read in zip(v.split(4, -1), read_v.split(4, -1), strict=True):
        step = (part.amax(-1, keepdim=True) - part.amin(-1, keepdim=True)) / (2**bits - 1)
        assert ((read - part).abs() <= step / 2 + 1e-9).all()
    low = of_group.amin(3, keepdim=True)
    steps = (of_group.amax(3, keepdim=True) - low) / (2**bits - 1)
    written_out = low + ((of_group - low) / steps).clamp(0, 2**bits - 1).round() * steps  # as in the authors' code
    torch.testing.assert_close(read_k, written_out.flatten(2, 3), rtol=1e-12, atol=1e-12)
    cut = codec.decode([s[:, :, : 3 * group + 1] for s in streams])  # the last group is not whole
    assert torch.equal(cut[0][:, :, : 3 * group], read_k[:, :, : 3 * group])


def test_what_a_token_takes():
    """A head of 128 in 2 bits, groups of 32: 96 bytes, 5.3 times fewer than in 16 bits; in 4 bits 160."""
    plain = PlainCodec(1, 128, 128, torch.bfloat16)
    assert token_bytes(KiviCodec(plain)) == 2 * (128 * 2 // 8 + 2 * 128 // 32 * 2) == 96
    assert token_bytes(KiviCodec(plain, 4)) == 160
    assert KiviCodec(plain) == KiviCodec(plain, bits=2, group=32, channels=32)  # as in the paper
    assert token_bytes(KiviCodec(SingleCodec(1, 96, 64, torch.bfloat16))) == 96 * 2 // 8 + 2 * 96 // 32 * 2


# ---- what a query reads


def by_hand(m: vt.Model, tokens: Tensor, kind: KiviCache) -> Tensor:
    """What the heads of one layer say: query after query, over groups that are packed and tokens that are not."""
    attention = m.blocks[0].sublayers[0]
    pos = Positions.arange(1, tokens.shape[1])
    q, k, v = attention.project(m.blocks[0].steps[0].before(m.embed(tokens, pos, None)))
    q, k = attention.qk[0].query(q, pos), attention.qk[0].key(k, pos)
    codec, out = KiviCodec(PlainCodec(2, 8, 8, F64), kind.bits, kind.group, kind.channels), []
    for i in range(tokens.shape[1]):
        packed = max(0, i + 1 - kind.newest) // kind.group * kind.group
        read = codec.decode(codec.encode(k[:, :, :packed], v[:, :, :packed])) if packed else (k[:, :, :0], v[:, :, :0])
        ks, vs = (
            torch.cat([old, new[:, :, packed : i + 1]], 2).repeat_interleave(2, 1)
            for old, new in zip(read, (k, v), strict=True)
        )
        out.append((q[:, :, i : i + 1] @ ks.transpose(-1, -2) * 8**-0.5).softmax(-1) @ vs)
    return torch.cat(out, 2).transpose(1, 2).flatten(2)


@torch.no_grad()
@pytest.mark.parametrize("cuts", [(23,), (1,) * 23, (9, 1, 1, 5, 7)], ids=["whole", "steps", "pieces"])
@pytest.mark.parametrize("kind", [KIND, KiviCache(2, 4, 1, 4), KiviCache(4, 2, 9, 32)], ids=["3+4", "4+1", "2+9"])
def test_a_query_reads_what_its_place_in_the_row_says(kind, cuts):
    m, seen = model(layers=1), []
    m.blocks[0].sublayers[0].out.register_forward_pre_hook(lambda module, x: seen.append(x[0]))
    run(m, m.new_cache(1, kind=kind), TOKENS[:1], cuts)
    close(torch.cat(seen, 1), by_hand(m, TOKENS[:1], kind))


@torch.no_grad()
def test_nothing_is_packed_before_there_is_a_group_behind_the_newest():
    m = model()
    few = KIND.group + KIND.newest - 1
    close(run(m, m.new_cache(2, kind=KIND), TOKENS[:, :few], (few,)), m(TOKENS[:, :few]))
    more = run(m, m.new_cache(2, kind=KIND), TOKENS, (23,)) - m(TOKENS)
    assert more[:, :few].abs().max() < 1e-9
    assert 1e-3 < more[:, few:].abs().mean() < 0.5


@torch.no_grad()
def test_rows_of_unequal_length_are_packed_each_by_itself():
    m, sizes = model(), (23, 9)
    cache = m.new_cache(2, kind=KIND)
    first = m(TOKENS[:, :9], positions=Positions.rows([9, 4], pad="left"), cache=cache)
    rest = m(TOKENS[:, 9:], positions=Positions.rows([14, 5], [9, 4], width=14), cache=cache)
    for row, (n, cut) in enumerate(zip(sizes, (9, 4), strict=True)):
        tokens = torch.cat([TOKENS[row, 9 - cut : 9], TOKENS[row, 9 : 9 + n - cut]])[None]
        alone = run(m, m.new_cache(1, kind=KIND), tokens, (n,))
        close(torch.cat([first[row, 9 - cut :], rest[row, : n - cut]])[None], alone)
    assert cache.tokens == sizes


@torch.no_grad()
def test_a_device_that_is_not_read_back_gives_the_same(monkeypatch):
    m = model()
    want = run(m, m.new_cache(2, kind=KIND), TOKENS, (23,))
    monkeypatch.setattr(grouped, "on_host", lambda device: False)
    close(run(m, m.new_cache(2, kind=KIND), TOKENS, (9, 14)), want)
    cache = m.new_cache(2, kind=KIND)
    got = m(TOKENS, positions=Positions.rows([23, 9]), cache=cache)
    close(got[1:, :9], want[1:, :9])
    close(got[:1], want[:1])


# ---- taken back, undone, forked, grown, saved


@torch.no_grad()
@pytest.mark.parametrize("back", range(1, 8))
@pytest.mark.parametrize("at", [11, 12, 13])
def test_a_draft_is_taken_back_over_packed_groups(at, back):
    m = model()
    want = run(m, m.new_cache(2, kind=KIND), TOKENS, (23,))
    cache = m.new_cache(2, kind=KIND, draft=7)
    run(m, cache, TOKENS[:, :at], (at,))
    run(m, cache, TOKENS[:, 23 - back :].flip(1), (1,) * back)  # other tokens
    cache.crop(at)
    close(run(m, cache, TOKENS[:, at:], (2, 23 - at - 2)), want[:, at:])


@torch.no_grad()
def test_further_back_is_refused_and_changes_nothing():
    m = model()
    cache = m.new_cache(2, kind=KIND)
    run(m, cache, TOKENS[:, :20], (20,))
    with pytest.raises(CacheError, match=r"row 0 cannot be taken back from 20 to 9: groups of 3 tokens were packed"):
        cache.crop([9, 20])
    with pytest.raises(CacheError, match="make the cache with a draft of 11 or more"):
        cache.crop(9)
    close(run(m, cache, TOKENS[:, 20:], (3,)), run(m, m.new_cache(2, kind=KIND), TOKENS, (23,))[:, 20:])
    cache.crop([0, 23])
    assert cache.tokens == (0, 23)
    cache.crop(0)
    close(run(m, cache, TOKENS, (23,)), run(m, m.new_cache(2, kind=KIND), TOKENS, (23,)))


def allowed_crops(ledger: Grouped, start: int = 0) -> list[int]:
    allowed = []
    for to in range(ledger.tokens[0] + 1):
        try:
            allowed.append(ledger.check_crop(start + to)[0] - start)
        except CacheError:
            continue
    return allowed


@pytest.mark.parametrize("start", [0, 30])
def test_the_oldest_place_that_a_row_goes_back_to(start):
    """Of 20 tokens, 10 exact places: those from 10 on are there as they came, so 12 is packed to 6 in vain."""
    ledger = Grouped(1, Grouping(3, 4))
    append(ledger, Positions.arange(1, 20, start))
    assert allowed_crops(ledger, start) == [0, 16, 17, 18, 19, 20]  # 16 reads 12 packed
    append(ledger, Positions.arange(1, 1, start + 20))
    before = ledger.savepoint()
    ledger.place(Positions.arange(1, 3, start + 21))
    ledger.roll_back(before)
    assert allowed_crops(ledger, start) == [0, 19, 20, 21]  # 18 reads 12 packed, and 12 and 13 were written over
    empty = Grouped(1, Grouping(3, 4))
    before = empty.savepoint()
    empty.place(Positions.arange(1, 1))
    empty.roll_back(before)
    assert not empty.holding


@torch.no_grad()
@pytest.mark.parametrize("at", range(8, 14))
def test_a_pass_that_fails_leaves_no_trace(at):
    m = model()
    want = run(m, m.new_cache(2, kind=KIND), TOKENS, (23,))
    cache = m.new_cache(2, kind=KIND)
    run(m, cache, TOKENS[:, :at], (at,))
    hook = m.blocks[1].sublayers[0].out.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        m(TOKENS[:, :3], cache=cache)
    hook.remove()
    cache.crop(at)  # a long pass is several, and those before the one that failed are kept
    close(run(m, cache, TOKENS[:, at:], (23 - at,)), want[:, at:])


@torch.no_grad()
@pytest.mark.parametrize("at", [3, 11, 12])
def test_forked_reordered_and_saved(at, tmp_path):
    m, path, whose = model(), tmp_path / "cache.safetensors", Fingerprint("m", "0")
    cache = m.new_cache(2, kind=KIND, draft=2)
    run(m, cache, TOKENS[:, :at], (at,))
    save_cache(cache, path, fingerprint=whose)
    again = read_cache(path, like=m.new_cache(2, kind=KIND, draft=2), fingerprint=whose).cache
    fork = cache.fork()
    fork.reorder([1, 0, 0])
    wanted = run(m, cache, TOKENS[:, at:], (23 - at,))
    assert torch.equal(run(m, again, TOKENS[:, at:], (23 - at,)), wanted)
    close(run(m, fork, TOKENS[[1, 0, 0], at:], (23 - at,)), wanted[[1, 0, 0]])
    again.crop(21)
    close(run(m, again, TOKENS[:, 21:], (1, 1)), wanted[:, 21 - at :])


@torch.no_grad()
def test_rows_grow():
    m = model()
    tokens = torch.randint(19, (1, 2 * FOLLOWS + 9), generator=torch.Generator().manual_seed(2))
    cache = m.new_cache(1, kind=KIND)
    whole = run(m, cache, tokens, (2 * FOLLOWS + 9,))
    fixed = m.new_cache(1, kind=KIND, capacity=2 * FOLLOWS + 9)
    close(run(m, fixed, tokens, (FOLLOWS, FOLLOWS + 9)), whole)
    with pytest.raises(CacheError, match="this cache is full: it has 137 places and 138 tokens"):
        m(tokens[:, :1], cache=fixed)
    need = LedgerNeed(1, None, 2 * FOLLOWS + 9)
    plans = [LayerPlan.of(shape, mask) for shape, mask in m.spec.caches]
    assert fixed.bytes == sum(KIND.bytes(plan, need, F64) for plan in plans)


@torch.no_grad()
def test_latent_keys_and_values_are_one_stream_and_a_source_is_kept_as_it_is():
    attention = vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=vt.RMSNorm())
    m = sharpen(vt.build(vt.decoder(vocab=19, width=32, layers=2, attention=attention, position="rope"))).double()
    cache = m.new_cache(2, kind=KIND)
    close(run(m, cache, TOKENS, (23,)), run(m, m.new_cache(2, kind=KIND), TOKENS, (5, 18)))
    assert len(cache.layers[0].store.tensors) == 3  # codes, ranges, and what is not packed
    both = sharpen(vt.build(vt.encoder_decoder(vocab=19, width=32, layers=2, heads=4))).double()
    cache = both.new_cache(2, kind=KIND)
    both(TOKENS[:, :5], source=TOKENS[:, :7], cache=cache)
    assert cache.cross[0].store.codec == PlainCodec(4, 8, 8, F64)


# ---- the ledger by itself


def test_how_much_is_packed_and_how_many_stay_exact():
    tokens = torch.arange(9)
    assert Grouping(3, 4).packed(tokens).tolist() == [0, 0, 0, 0, 0, 0, 0, 3, 3]
    assert Grouping(1, 2).packed(tokens).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert Grouping(3, 4).exact_places(5) == 4 + 3 + 3 + 5
    for wrong in ((0, 4), (3, 0)):
        with pytest.raises(BadInput, match="give 1 or more of each"):
            Grouping(*wrong)


def append(ledger: Grouped, pos: Positions) -> list[int]:
    """How wide the passes are in which these go in; each must show all that its row holds."""
    widths = []
    while (done := sum(widths)) < pos.shape[1]:
        part = pos.narrow(done, pos.shape[1] - done)
        widths.append(ledger.widest(part))
        before = ledger.grouping.packed(torch.tensor(ledger.tokens))
        step = ledger.place(part.narrow(0, widths[-1]))
        packs = bool((ledger.grouping.packed(torch.tensor(ledger.tokens)) > before).any())
        assert step.packing is not None
        if grouped.on_host(ledger.device):
            assert (step.packing.group is not None) == packs
        shown = step.view_pos
        for row in range(ledger.batch):
            held = shown.order[row][shown.filled[row]].tolist()
            end = int(ledger.next_positions.order[row])
            assert held == list(range(end - len(held), end))
            assert shown.pos[row][shown.filled[row]].tolist() == held
            assert ledger.tokens[row] == len(held)
        check_facts(shown)
        ledger.commit()
        look = ledger.look()
        assert torch.equal(look.view_pos.order, shown.order)
        assert look.read == step.read == Span(0, shown.shape[1])
    return widths


@pytest.mark.parametrize("start", [0, 10])
@pytest.mark.parametrize("read_back", [True, False])
def test_passes_end_where_a_group_is_packed(start, read_back, monkeypatch):
    """Of 3 behind the newest 4: tokens 7, 10 and 13 of a row pack a group, wherever the row begins."""
    monkeypatch.setattr(grouped, "on_host", lambda device: read_back)
    ledger = Grouped(2, Grouping(3, 4))
    assert append(ledger, Positions.arange(2, 14, start)) == [6, 3, 3, 2]
    assert ledger.next_positions.order.tolist() == [start + 14] * 2
    assert append(ledger, Positions.arange(2, 1, start + 14)) == [1]
    assert ledger.tokens == (15, 15)
    shown = ledger.look().view_pos
    assert (shown.known.first, shown.known.counts, shown.shape) == (start, (15, 15), (2, 15))
    assert ledger.next_positions.host == start + 15
    with pytest.raises(BadInput, match=f"expects {start + 15}"):
        ledger.place(Positions.arange(2, 1, start + 17))


def test_of_rows_that_differ_the_first_to_pack_ends_a_pass():
    ledger = Grouped(2, Grouping(3, 4))
    assert append(ledger, Positions.rows([6, 4], [10, 0])) == [6]
    assert ledger.look().view_pos.known.order == (0, 15)
    assert append(ledger, Positions.rows([5, 5], [16, 4])) == [2, 1, 2]  # row 1 packs its 7th, row 0 its 10th
    assert append(ledger, Positions.rows([0, 5], [21, 9], width=5)) == [3, 2]  # its 13th
    assert ledger.tokens == (11, 14)
    assert ledger.look().view_pos.shape == (2, 14)
    assert ledger.look().view_pos.known.first is None
    ledger.crop([10, 13])
    assert ledger.tokens == (0, 13)
    assert ledger.next_positions.order.tolist() == [0, 13]
    shown = ledger.look().view_pos
    assert shown.order.tolist() == [[-1] * 13, list(range(13))]
    check_facts(shown)
    assert append(ledger, Positions.rows([2, 1], [3, 13])) == [2]  # row 0 begins anew
    assert ledger.tokens == (2, 14)


@pytest.mark.parametrize("read_back", [True, False])
def test_what_is_known_of_rows_that_were_taken_back(read_back, monkeypatch):
    monkeypatch.setattr(grouped, "on_host", lambda device: read_back)
    ledger = Grouped(2, Grouping(3, 4))
    append(ledger, Positions.arange(2, 9))
    for to, same in ((8, True), ([7, 8], False)):
        ledger.crop(to)
        shown = ledger.look().view_pos
        check_facts(shown)
        assert shown.known.same_rows == same
        assert shown.shape[1] == (8 if read_back else 9)  # what is not read keeps the width it had
    assert (shown.known.counts == (7, 8)) == read_back


def test_rows_that_are_the_same_and_no_plain_run():
    ledger = Grouped(2, Grouping(3, 4))
    ledger.place(Positions.of(torch.tensor([[0, 2]] * 2), order=torch.tensor([[0, 1]] * 2)))
    shown = ledger.look().view_pos
    assert (shown.known.first, shown.known.same_rows, shown.pos.tolist()) == (None, True, [[0, 2]] * 2)
    assert ledger.next_positions.order.tolist() == [2, 2]
    assert str(ledger.holds()).splitlines()[1] == "  row 0: 0..1 (2 tokens, positions 0, 2)"


def test_rows_that_differ_and_are_not_read_go_on_one_by_one(monkeypatch):
    monkeypatch.setattr(grouped, "on_host", lambda device: False)
    ledger = Grouped(2, Grouping(3, 4))
    assert ledger.widest(Positions.rows([9, 4])) == 6  # of no row more than 6 tokens: none is packed yet
    ledger.place(Positions.rows([2, 1]))
    assert ledger.look().view_pos.shape == (2, 2)
    onward = Positions.onward(torch.tensor([2, 1]), 5)
    assert ledger.widest(onward) == 4
    ledger.place(onward.narrow(0, 4))
    assert ledger.widest(Positions.onward(torch.tensor([6, 5]), 5)) == 1


def test_places_are_as_many_as_asked_for_and_what_follows_or_twice_what_there_was():
    ledger = Grouped(1, Grouping(3, 4))
    assert (ledger.places, ledger.capacity, ledger.used, ledger.kept_places) == (1, None, 0, 0)
    assert not ledger.holding
    append(ledger, Positions.arange(1, 64))
    first = ledger.places - 1
    assert 64 < first <= 64 + FOLLOWS
    assert (ledger.used, ledger.kept_places) == (64, 64)
    append(ledger, Positions.arange(1, first - 64, 64))
    assert ledger.places == first + 1
    append(ledger, Positions.arange(1, 17, first))
    assert ledger.places == 2 * first + 1
    assert ledger.used == first + 17
    assert ledger.holding
    fixed = Grouped(1, Grouping(3, 4), capacity=1)
    append(fixed, Positions.arange(1, 1))
    assert (fixed.places, fixed.capacity) == (2, 1)
    with pytest.raises(CacheError, match="full"):
        fixed.place(Positions.arange(1, 1, 1))
    with pytest.raises(BadInput, match="a capacity of 0"):
        Grouped(1, Grouping(3, 4), capacity=0)


@pytest.mark.parametrize("start", [0, 10])
def test_a_run_is_known_as_one_after_every_pass(start):
    ledger = Grouped(1, Grouping(3, 4))
    for n in range(9):
        assert ledger.place(Positions.arange(1, 1, start + n)).view_pos.known.first == start
        ledger.commit()
    ledger.crop(start + 1)
    assert ledger.tokens == (1,)


def test_the_longest_row_is_not_all_that_counts():
    ledger = Grouped(2, Grouping(3, 4))
    append(ledger, Positions.arange(2, 9))
    ledger.crop([5, 9])
    assert ledger.widest(Positions.onward(torch.tensor([5, 9]), 5)) == 1  # the 7th token of row 0 packs a group


def test_rows_that_are_not_read_are_as_long_as_they_may_be(monkeypatch):
    monkeypatch.setattr(grouped, "on_host", lambda device: False)
    ledger = Grouped(2, Grouping(3, 4))
    for lengths, starts in (([1, 0], [0, 0]), ([0, 1], [1, 0])):
        ledger.place(Positions.rows(lengths, starts))
        ledger.commit()
    assert ledger.look().view_pos.shape == (2, 2)


def through_a_file(ledger: Grouped, tables: dict[str, Tensor] | None = None, **numbers) -> Grouped:
    dump = ledger.dump()
    plain = json.loads(json.dumps(dump.numbers | numbers))
    return Grouped.from_dump(DumpReader(LedgerDump(plain, dump.tables | (tables or {}))), torch.device("cpu"))


@pytest.mark.parametrize("rows", [[9], [9, 9], [9, 4]], ids=str)
@pytest.mark.parametrize("start", [0, 10])
def test_a_ledger_from_a_file_goes_on(rows, start, monkeypatch):
    starts = [start] * len(rows)
    alike = len(set(rows)) == 1
    pos = Positions.arange(len(rows), 9, start) if alike else Positions.rows(rows, starts)
    ledger = Grouped(len(rows), Grouping(3, 4), capacity=9)
    append(ledger, pos)
    restored = through_a_file(ledger)
    assert (restored.tokens, restored.places, restored.capacity) == (tuple(rows), 10, 9)
    assert torch.equal(restored.look().view_pos.order, ledger.look().view_pos.order)
    if alike:
        monkeypatch.setattr(facts, "on_host", lambda device: False)
        assert restored.next_positions.host == start + 9
    empty = through_a_file(Grouped(1, Grouping(3, 4)))
    assert (empty.places, empty.capacity, empty.exact_places, empty.tokens) == (1, None, 10, (0,))
    assert not empty.holding


def test_rows_from_a_file_are_each_as_long_as_they_are():
    ledger = Grouped(2, Grouping(3, 4))
    append(ledger, Positions.rows([9, 5], [0, 2]))
    onward = Positions.onward(torch.tensor([9, 7]), 5)
    assert through_a_file(ledger).widest(onward) == ledger.widest(onward) == 1  # the 7th token of row 1 packs a group


def test_a_ledger_from_a_damaged_file():
    ledger = Grouped(1, Grouping(3, 4), capacity=9)
    append(ledger, Positions.arange(1, 9, 10))
    for numbers in ({"room": 8}, {"most": 8}, {"most": 10}):
        with pytest.raises(CheckpointError):
            through_a_file(ledger, **numbers)
    dump = ledger.dump()
    without = LedgerDump(json.loads(json.dumps(dump.numbers)), {k: t for k, t in dump.tables.items() if k != "order"})
    with pytest.raises(CheckpointError, match="it holds 9 tokens in 9 places"):
        Grouped.from_dump(DumpReader(without), torch.device("cpu"))
    for tables in ({"start": [9]}, {"next": [18]}, {"top": [8]}):
        with pytest.raises(CheckpointError, match="its rows do not hold what they say"):
            through_a_file(ledger, {name: torch.tensor(t) for name, t in tables.items()})


def test_what_a_store_writes_down_it_takes_back():
    ledger = Grouped(1, Grouping(3, 4))
    store, other = (Store(KiviCodec(PlainCodec(1, 8, 8), 4, 3, 4), ledger) for _ in range(2))
    pos = Positions.arange(1, 6)
    k, v = randn(1, 1, 6, 8).float(), randn(1, 1, 6, 8, seed=1).float()
    step = ledger.place(pos)
    store.write(step, k, v)
    ledger.commit()
    other.reserve(ledger.places)
    other.load(store.dump(6), 6)
    assert all(torch.equal(a, b) for a, b in zip(other.read(ledger.look())[:2], (k, v), strict=True))


# ---- what cannot be


@torch.no_grad()
def test_what_cannot_be():
    m = model()
    with pytest.raises(Refused, match="give each document a row of its own"):
        m(TOKENS[:, :7], positions=Positions.packed([[3, 4], [7]]), cache=m.new_cache(2, kind=KIND))
    prefix = model(mask=vt.Causal() | vt.Prefix(3))
    with pytest.raises(Refused, match="needs causal attention"):
        prefix.new_cache(kind="kivi")
    ledger = Grouped(1, Grouping(3, 4))
    with pytest.raises(CacheError, match="a pass of 9 tokens: this cache takes 6 now"):
        ledger.place(Positions.arange(1, 9))
    for wrong, says in (
        ({"bits": 3}, "bits=3: keys and values are packed in 2 or 4 bits"),
        ({"group": 1}, "groups of 1 tokens and 32 channels"),
        ({"channels": 1}, "groups of 32 tokens and 1 channels"),
        ({"newest": 0}, "groups of 32 tokens behind the newest 0"),
    ):
        with pytest.raises(BadInput, match=says):
            KiviCache(**wrong)
    codec = KiviCodec(PlainCodec(1, 8, 8))
    for other in (Grouped(1, Grouping(3, 4)), Contiguous(1)):
        with pytest.raises(BadInput, match="cannot be kept in a cache that is"):
            Store(codec, other)
    with pytest.raises(BadInput, match="cannot be kept in a cache that is groups of 3 packed behind the newest 4"):
        Store(PlainCodec(1, 8, 8), Grouped(1, Grouping(3, 4)))
    with pytest.raises(BadInput, match="a draft of -1"):
        Grouped(1, Grouping(3, 4), draft=-1)


def test_damaged_files():
    whole = KiviCodec(PlainCodec(1, 8, 8), 4, 16, 8).dump()
    assert KiviCodec.from_dump(whole) == KiviCodec(PlainCodec(1, 8, 8), 4, 16, 8)
    for wrong in ({"of": "kivi"}, {"bits": True}, {"group": "2"}, {"sizes": [1]}):
        with pytest.raises(CheckpointError):
            KiviCodec.from_dump({**whole, **wrong})
