"""Prefixes that were computed before: a radix tree over tokens, whose leaves hold caches.

Tokens are compared one by one, never by a hash, and every tenant has a tree of its own. A leaf
holds the whole path to it; blocks that paths have in common are shared in the pool, not kept twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, final

from vantage.cache import ModelCache
from vantage.generation.cached_sequence import common_length

OTHERS = 64  # tenants that are asked, to say why a prefix missed
MAX_GHOSTS = 64  # evicted prefixes that are remembered by their tokens, to say why a prefix missed


class PrefixKey(NamedTuple):
    """Whose prefixes. Other lengths are other frequencies, other adapters other weights: keys and values differ."""

    tenant: str | None
    length: int | None  # declared
    adapter: str | None = None


@final
@dataclass(eq=False)
class PrefixLeaf:
    """A path and the cache that holds it. ``None`` where the cache was evicted."""

    key: PrefixKey
    tokens: tuple[int, ...]
    cache: ModelCache | None


class Match(NamedTuple):
    """How much of a request was found, and why it was not more.

    The reason is for who runs the engine: it tells of other tenants, so it is not for a tenant to see.
    """

    tokens: int
    reason: str  # "complete", "first seen", "differs at token i", "evicted", "other tenant", or why none was sought


class _Node:
    """An edge of tokens and what follows it."""

    __slots__ = ("children", "edge", "leaf")

    def __init__(self, edge: tuple[int, ...], leaf: PrefixLeaf | None = None):
        self.edge, self.leaf = edge, leaf
        self.children: dict[int, _Node] = {}


@final
class PrefixTree:
    """Token sequences, none of them the beginning of another."""

    def __init__(self) -> None:
        self._root = _Node(())

    def match(self, tokens: Sequence[int]) -> tuple[int, PrefixLeaf | None]:
        """The longest common beginning with any path, and a leaf that has it."""
        node, at, _ = self._walk(tokens)
        if at == 0:
            return 0, None
        return at, next(_leaves(node))

    def add(self, leaf: PrefixLeaf) -> list[PrefixLeaf]:
        """Put a leaf in. Returns what need not be kept: paths that it goes on from, or itself if there is a longer."""
        node, at, edge = self._walk(leaf.tokens)
        if at == len(leaf.tokens):
            return [leaf]
        if edge < len(node.edge):  # the path leaves in the middle of an edge
            rest = _Node(node.edge[edge:], node.leaf)
            rest.children, node.children, node.leaf = node.children, {rest.edge[0]: rest}, None
            node.edge = node.edge[:edge]
        old, node.leaf = node.leaf, None
        if old is not None:  # it ended here: the new path goes on from it
            node.edge += leaf.tokens[at:]
            node.leaf = leaf
            return [old]
        node.children[leaf.tokens[at]] = _Node(leaf.tokens[at:], leaf)
        return []

    def remove(self, leaf: PrefixLeaf) -> None:
        path, at = [self._root], 0
        while at < len(leaf.tokens):
            path.append(path[-1].children[leaf.tokens[at]])
            at += len(path[-1].edge)
        assert path[-1].leaf is leaf, "this leaf is not in the tree"
        parent = path[-2]
        del parent.children[path[-1].edge[0]]
        if parent is not self._root and len(parent.children) == 1:  # an edge without a fork is one edge
            (child,) = parent.children.values()
            parent.edge, parent.leaf, parent.children = parent.edge + child.edge, child.leaf, child.children

    def __bool__(self) -> bool:
        return bool(self._root.children)

    def leaves(self) -> Iterator[PrefixLeaf]:
        return _leaves(self._root)

    def _walk(self, tokens: Sequence[int]) -> tuple[_Node, int, int]:
        """As far as the tokens go: the last node, how many tokens that is, how many of the node's edge."""
        node, at, tokens = self._root, 0, tuple(tokens)  # as edges are, so that they are compared as they are
        while at < len(tokens) and tokens[at] in node.children:
            node = node.children[tokens[at]]
            same = common_length(node.edge, tokens[at : at + len(node.edge)])
            at += same
            if same < len(node.edge):
                return node, at, same
        return node, at, len(node.edge)


def _leaves(node: _Node) -> Iterator[PrefixLeaf]:
    stack = [node]
    while stack:
        node = stack.pop()
        if node.leaf is not None:
            yield node.leaf
        stack += node.children.values()


@final
class Prefixes:
    """The trees of all tenants, and the order in which their leaves were used."""

    def __init__(self) -> None:
        self._trees: dict[PrefixKey, PrefixTree] = {}
        self._used: OrderedDict[int, PrefixLeaf] = OrderedDict()  # least recently used first
        self._ghosts: dict[PrefixKey, PrefixTree] = {}
        self._ghost_order: OrderedDict[int, PrefixLeaf] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def find(self, key: PrefixKey, tokens: Sequence[int]) -> tuple[Match, ModelCache | None]:
        """What of these tokens is held for this tenant. The cache is the tree's own: fork it."""
        tree = self._trees.get(key)
        at, leaf = tree.match(tokens) if tree else (0, None)
        if leaf is not None:
            self._used.move_to_end(id(leaf))
        return Match(at, self._reason(key, tokens, at)), None if leaf is None else leaf.cache

    def _reason(self, key: PrefixKey, tokens: Sequence[int], at: int) -> str:
        if at == len(tokens):
            return "complete"
        ghosts = self._ghosts.get(key)
        if ghosts and ghosts.match(tokens)[0] > at:
            return "evicted"
        alike = (tree for other, tree in self._trees.items() if other != key and other[1:] == key[1:])
        if any(tree.match(tokens)[0] > at for tree in islice(alike, OTHERS)):
            return "other tenant"
        seen = bool(self._trees.get(key)) or bool(ghosts)
        return f"differs at token {at}" if seen else "first seen"

    def keep(self, key: PrefixKey, tokens: Sequence[int], cache: ModelCache) -> None:
        """Hold this cache, which the tree now owns, for these tokens; or free it if they are held already."""
        leaf = PrefixLeaf(key, tuple(tokens), cache)
        self._used[id(leaf)] = leaf
        for old in self._trees.setdefault(key, PrefixTree()).add(leaf):
            self._free(old)

    def evict(self, *, shared: bool = False) -> bool:
        """Let go of the least recently used prefix whose going frees a block. False: there is none.

        ``shared``: of any. One that ends in a part-full block which a request shares frees nothing
        itself, but the request need not copy that block any more.
        """
        for leaf in self._used.values():
            assert leaf.cache is not None
            if shared or leaf.cache.freeable:
                _remove(self._trees, leaf)
                self._free(leaf)
                self._haunt(leaf)
                return True
        return False

    def clear(self) -> None:
        for leaf in list(self._used.values()):
            self._free(leaf)
        self._trees.clear()

    def _free(self, leaf: PrefixLeaf) -> None:
        del self._used[id(leaf)]
        if leaf.cache is not None:
            leaf.cache.free()
            leaf.cache = None

    def _haunt(self, leaf: PrefixLeaf) -> None:
        """Remember an evicted path by its tokens."""
        self._ghost_order[id(leaf)] = leaf
        for old in self._ghosts.setdefault(leaf.key, PrefixTree()).add(leaf):
            del self._ghost_order[id(old)]
        if len(self._ghost_order) > MAX_GHOSTS:
            _, oldest = self._ghost_order.popitem(last=False)
            _remove(self._ghosts, oldest)


def _remove(trees: dict[PrefixKey, PrefixTree], leaf: PrefixLeaf) -> None:
    """Take a leaf out, and its tenant's tree if that was all."""
    trees[leaf.key].remove(leaf)
    if not trees[leaf.key]:
        del trees[leaf.key]
