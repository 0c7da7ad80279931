"""Which tokens and entries queries of a compressed layer may see: the stretches of keys that blocks of queries read."""

from __future__ import annotations

import itertools

import pytest
import torch

import vantage as vt
from tests.attention.helpers import attention, run, vectors
from vantage.attention import compressed
from vantage.attention.compressed import NearBias, TokensAndEntries, near_only
from vantage.attention.key_windows import KeyWindows
from vantage.cache.layer_cache import NoCache
from vantage.spec.chosen import ChosenKeys
from vantage.spec.masks import Causal, Everything
from vantage.spec.parts import Dense
from vantage.spec.positions import Positions


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("near", [1, 3, 4])
@pytest.mark.parametrize("first", [0, 5])
def test_stretches_are_the_keys_that_some_query_sees_and_no_others(near: int, causal: bool, first: int):
    tokens, size = 11, 4
    ends = [first + size - 1 + size * e for e in range((tokens - 2) // size)]
    bias = NearBias(None, near, tokens, TokensAndEntries(first, len(ends), ends[0], size, causal))
    for low, high in itertools.combinations_with_replacement(range(first + tokens + 3), 2):
        queries = Positions.arange(1, high - low + 1, start=low)
        seen = [
            k
            for k in range(tokens)
            if any(abs(q - first - k) < near and (not causal or first + k <= q) for q in range(low, high + 1))
        ]
        shown, whole = bias.stretches(queries) or ()
        assert list(range(tokens))[shown] == seen, (low, high)
        entries = [e for e, end in enumerate(ends) if not causal or end <= high]
        assert range(tokens + len(ends))[whole] == range(tokens, tokens + len(entries)), (low, high)


def test_nobody_knows_the_stretches_of_other_arrangements():
    here = TokensAndEntries(0, 2, 3, 4, True)
    run_of_queries = Positions.arange(1, 3, start=4)
    unknown = Positions.rows([3, 2], starts=[4, 1])
    assert NearBias(None, 3, 8, here).stretches(run_of_queries) is not None
    assert NearBias(None, 3, 8, None).stretches(run_of_queries) is None
    assert NearBias(None, 3, 8, here).stretches(unknown) is None


@pytest.mark.parametrize("start", [0, 7])
def test_tokens_and_entries_of_a_run(start: int):
    kept = Positions.arange(2, 13, start=start)
    queries = Positions.arange(2, 3, start=start + 10)
    windows = KeyWindows.of(queries.against(kept), 4, 3, causal=True)
    got = TokensAndEntries.of(windows, kept, causal=True)
    assert got is not None
    near, entries = windows.nearest(kept.order[:, None, :, None]), windows.entries.order[0].tolist()
    assert got.first == int(near.flatten()[0])
    assert (got.entries, got.first_end, got.size, got.causal) == (
        len(entries),
        entries[0],
        entries[1] - entries[0],
        True,
    )


def test_rows_in_any_arrangement_are_no_run():
    kept = Positions.rows([9, 13])
    windows = KeyWindows.of(kept.against(kept), 4, 3, causal=True)
    assert TokensAndEntries.of(windows, kept, causal=True) is None
    run_of_keys = Positions.arange(2, 13)
    assert TokensAndEntries.of(windows, run_of_keys, causal=True) is None, "its windows are gathered"


def test_far_tokens_are_hidden_beside_a_dense_bias():
    pos, heads, near = Positions.arange(1, 5), 3, 2
    values = vectors(1, heads, 5, 5)
    pair, hiding = pos.against(pos), NearBias(None, near, 5)
    dense = near_only(Dense(lambda cut: values[:, :, cut]), hiding, pair, vectors(1, heads, 5, 8))
    assert isinstance(dense, Dense)
    far = (torch.arange(5)[:, None] - torch.arange(5)).abs() >= near
    for cut in (slice(None), slice(1, 4)):
        want = values.masked_fill(far, float("-inf"))[:, :, cut]
        torch.testing.assert_close(dense.of_queries(cut).expand_as(want), want)


@pytest.mark.parametrize(("mask", "ahead"), [(Causal(), 0), (Everything(), 1)], ids=["causal", "bidirectional"])
def test_where_entries_are_chosen_near_tokens_are_too(mask, ahead: int, monkeypatch: pytest.MonkeyPatch):
    columns: list[torch.Tensor] = []

    class Recorded(ChosenKeys):
        def __init__(self, chosen: torch.Tensor, inner):
            columns.append(chosen)
            super().__init__(chosen, inner)

    monkeypatch.setattr(compressed, "ChosenKeys", Recorded)
    choice = vt.EntryChooser(keep=1, heads=2, head_dim=4)
    config = vt.CompressedSparse(2, head_dim=8, ratio=2, near=2, choice=choice, norm=vt.RMSNorm())
    run(attention(config, 12, mask), vectors(1, 9, 12), caches=(NoCache(config.cache_shape(12).streams),))
    (chosen,) = columns
    for query in range(9):
        tokens = sorted(c for c in chosen[0, query].tolist() if 0 <= c < 9)
        assert tokens == [k for k in range(query - 1, query + ahead + 1) if 0 <= k < 9]
