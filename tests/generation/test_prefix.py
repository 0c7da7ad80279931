"""The radix tree against a plain list of sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.cache.helpers import Oracle, paged, ragged, run
from vantage.generation.prefix import MAX_GHOSTS, Prefixes, PrefixLeaf, PrefixTree

KEY = (None, None)
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), max_size=12)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def kept(sequences):
    """Those that are the beginning of no other."""
    return {a for a in sequences if not any(a != b and common(a, b) == len(a) for b in sequences)}


@given(sequences=SEQUENCES, asked=SEQUENCES, data=st.data())
def test_the_tree_finds_what_a_search_of_all_finds(sequences, asked, data):
    tree, held = PrefixTree(), {}
    for tokens in sequences:
        leaf = PrefixLeaf(KEY, tokens, None)
        held[tokens] = held.get(tokens, leaf)
        for gone in tree.add(leaf):
            if held.get(gone.tokens) is gone:
                del held[gone.tokens]
    assert set(held) == kept(sequences)
    for gone in data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []:
        tree.remove(held.pop(gone))
    assert {leaf.tokens for leaf in tree.leaves()} == set(held)
    assert bool(tree) == bool(held)
    for tokens in asked:
        at, leaf = tree.match(tokens)
        assert at == max((common(tokens, other) for other in held), default=0)
        assert (leaf is None) == (at == 0)
        assert leaf is None or common(leaf.tokens, tokens) == at


def filled(parent, n):
    cache = parent.fresh(1)
    run(cache, ragged(Oracle([[]]).next(), [n]))
    return cache


def test_prefixes_own_their_caches_and_free_them():
    parent = paged(1, 80)
    pool, prefixes = parent.ledgers[0].pool, Prefixes()
    prefixes.keep(KEY, range(8), filled(parent, 8))
    prefixes.keep(KEY, range(5), filled(parent, 5))  # a longer one is there
    assert (len(prefixes), pool.blocks - pool.free) == (1, 2)
    prefixes.keep(KEY, range(12), filled(parent, 12))  # it goes on from the old one
    assert (len(prefixes), pool.blocks - pool.free) == (1, 3)
    prefixes.keep(("b", None), range(4), filled(parent, 4))
    prefixes.clear()
    assert (len(prefixes), pool.free) == (0, pool.blocks)
    assert prefixes.find(KEY, range(8)) == ((0, "first seen"), None)


def test_a_prefix_whose_blocks_are_all_in_use_stays_unless_it_must_go():
    parent = paged(1, 80)
    prefixes = Prefixes()
    prefixes.keep(KEY, range(8), filled(parent, 8))
    _, cache = prefixes.find(KEY, range(8))
    user = cache.fork()
    assert not prefixes.evict()
    assert prefixes.evict(shared=True)
    assert not prefixes.evict(shared=True)
    user.free()
    assert parent.ledgers[0].pool.free == parent.ledgers[0].pool.blocks


def test_evicted_prefixes_are_remembered_for_a_while():
    parent = paged(1, None)
    prefixes = Prefixes()
    for i in range(MAX_GHOSTS + 5):
        prefixes.keep(KEY, [i, i, i], filled(parent, 3))
        assert prefixes.evict()
    assert prefixes.find(KEY, [MAX_GHOSTS + 4] * 4)[0] == (0, "evicted")
    assert prefixes.find(KEY, [0, 0, 0])[0] == (0, "differs at token 0")  # long ago
    assert len(prefixes._ghost_order) == MAX_GHOSTS
