"""SnapKV: held to its rule written out over whole rows, and to the authors' formula where it decides once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vantage as vt
from tests.cache.forgetting_rules import (
    CUTS,
    HEADS,
    KV_HEADS,
    TOKENS,
    Forgetful,
    Rule,
    check_bytes,
    check_copies,
    check_no_way_back,
    close,
    decoder,
    model,
    run,
)
from vantage.cache.kinds.snapkv import SnapKVCache
from vantage.cache.policies import Entries, ObservedByLast
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput
from vantage.spec.positions import Positions

SIZE, WINDOW, POOL = 6, 2, 3
KIND = SnapKVCache(SIZE, WINDOW, POOL)


class HeaviestOfWindow(Rule):
    """At size + window tokens the last ones and the heaviest by the last queries' weights stay, neighbours averaged."""

    def __init__(self) -> None:
        self.cache: list[int] = []
        self.given: list[dict[int, float]] = []  # by each of the last queries

    def sees(self, i: int) -> list[int]:
        self.cache.append(i)
        return list(self.cache)

    def weighed(self, i: int, keys: list[int], weights: list[float]) -> None:
        self.given = [*self.given, dict(zip(keys, weights, strict=True))][-WINDOW:]
        if len(self.cache) < SIZE + WINDOW:
            return
        older, last = self.cache[:-WINDOW], self.cache[-WINDOW:]
        sums = [sum(query.get(key, 0.0) for query in self.given) for key in older]
        padded = [0.0, *sums, 0.0]
        pooled = {key: sum(padded[j : j + POOL]) / POOL for j, key in enumerate(older)}
        self.cache = sorted(sorted(older, key=lambda key: (-pooled[key], key))[: SIZE - WINDOW]) + last


def written_out(spec: vt.ModelSpec, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    plain = sharpen(vt.build(spec, kernel=Forgetful(HeaviestOfWindow, KV_HEADS)).double())
    with torch.no_grad():
        return plain(tokens)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_cached_is_the_rule_written_out(cuts):
    m, wanted = model(), written_out(decoder())
    close(run(m, m.new_cache(1, kind=KIND), TOKENS, cuts), wanted)
    with torch.no_grad():
        assert (wanted - m(TOKENS)).abs().max() > 0.1  # and not what everything shows


@pytest.mark.parametrize("position", ["alibi", "fox", "self-extend"])
def test_other_encodings(position):
    spec = decoder(vt.SelfExtend(2, 4) if position == "self-extend" else position, max_length=17)
    m = sharpen(vt.build(spec).double())
    close(run(m, m.new_cache(1, kind=KIND), TOKENS, (7, 1, 9)), written_out(spec))


@torch.no_grad()
def test_a_prompt_that_fills_it_is_the_authors_formula():
    """update_kv of FasterDecoding/SnapKV: weights of the last queries, summed, pooled, the best of each head kept."""
    n, size, window, pool = 17, 12, 5, 5
    spec = vt.decoder(vocab=19, width=32, layers=1, heads=HEADS, kv_heads=HEADS)
    m = sharpen(vt.build(spec, kernel="reference").double())
    weights = vt.capture(m, TOKENS).weights(0)  # (H, T, S)
    summed = weights[:, -window:, : n - window].sum(1)
    pooled = F.avg_pool1d(summed[:, None], pool, 1, pool // 2)[:, 0]
    wanted = pooled.topk(size - window, dim=-1).indices
    cache = m.new_cache(1, kind=SnapKVCache(size, window, pool))
    m(TOKENS, cache=cache)
    cache.layers[0].ledger.commit()
    held = cache.layers[0].view().pos.order
    for head in range(HEADS):
        kept = {*wanted[head].tolist(), *range(n - window, n)}
        assert set(held[head][held[head] >= 0].tolist()) == kept


def test_rows_of_unequal_length_decide_for_themselves():
    m, other = model(), (TOKENS + 7) % 19
    cache, at, parts = m.new_cache(2, kind=KIND), [0, 0], []
    with torch.no_grad():
        for widths in ((9, 4), (8, 13)):
            rows = [row[0, a : a + n] for row, a, n in zip((TOKENS, other), at, widths, strict=True)]
            tokens = torch.stack([F.pad(row, (0, max(widths) - len(row))) for row in rows])
            out = m(tokens, positions=Positions.rows(widths, at, width=max(widths)), cache=cache)
            parts.append([out[b, :n] for b, n in enumerate(widths)])
            at = [a + n for a, n in zip(at, widths, strict=True)]
    for b, tokens in enumerate((TOKENS, other)):
        close(torch.cat([part[b] for part in parts])[None], written_out(decoder(), tokens))


def test_the_model_runs_a_window_at_a_time():
    """Between decisions nothing is decided, so that many tokens make one pass."""
    m = model()
    cache, widths = m.new_cache(1, kind=KIND), []
    ledger = cache.layers[0].ledger
    for start in range(17):
        widths.append(ledger.widest(Positions.arange(1, 17, start)))
        run(m, cache, TOKENS[:, start : start + 1], (1,))
    assert widths[:8] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert widths[8:] == [2, 1] * 4 + [2]


def test_the_policy():
    policy = ObservedByLast(3, 1, 1)
    order = torch.tensor([[3, 0, 2, 1]])
    entries = Entries(order, None, torch.tensor([[9.0, 1.0, 1.0, 0.5]]), torch.tensor([[4]]))
    assert policy.stay(entries, 0).tolist() == [[True, True, True, False]]  # the lightest of those before the last
    few = Entries(torch.tensor([[2, 0, -1, 1]]), None, torch.ones(1, 4), torch.tensor([[3]]))
    assert policy.stay(few, 0).tolist() == [[True, True, False, True]]  # there is room
    tied = Entries(order, None, torch.ones(1, 4), torch.tensor([[4]]))
    assert order[policy.stay(tied, 0)].tolist() == [3, 0, 1]  # of equals the oldest
    for wrong, words in (((2, 2, 1), "a window of 2"), ((3, 0, 1), "a window of 0"), ((3, 1, 2), "pool=2")):
        with pytest.raises(BadInput, match=words):
            SnapKVCache(*wrong)


def test_what_is_weighed_between_two_decisions():
    """Of 5 + 3: the queries of rank 5, 6 and 7 decide, then 8, 9 and 10; those before 5 have no say."""
    policy, given = ObservedByLast(5, 3, 1), torch.tensor([[[0.25, 0.75]]])
    for rank, wanted in ((4, [1, 1]), (5, [0.25, 0.75]), (6, [1.25, 1.75]), (7, [1.25, 1.75]), (8, [0.25, 0.75])):
        pos = Positions.of(torch.tensor([[rank]]))
        assert policy.weighed(torch.ones(1, 2), given, pos).tolist() == [wanted]


def test_forked_reordered_saved_and_in_eight_bits(tmp_path):
    check_copies(KIND, written_out(decoder()), tmp_path / "cache.safetensors")


def test_it_does_not_go_back():
    check_no_way_back(KIND)


def test_what_it_takes_is_what_the_costs_say():
    check_bytes("snapkv")
