"""Native sparse attention (NSA, Yuan et al. 2025): blocks of keys as one, the best blocks, and near tokens, each gated.

out = g₁ · softmax over blocks + g₂ · softmax over the tokens of chosen blocks + g₃ · softmax over near tokens, the
gates σ(W x) for each query and head. A block is the mean of its keys and of its values, so all three are weights over
the same tokens, made of the same scores: a normaliser, of which queries, keys, caches and encodings know nothing.
Blocks are counted by rank in a document.

The paper's own blocks overlap and are made by a small network, with keys of its own for each branch. Those here are
the means of flash-linear-attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.attention.grouped import GroupedQuery, GroupedQueryAttention
from vantage.attention.indexer import best
from vantage.attention.key_windows import KeyWindows
from vantage.errors import BadInput, Refused
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.normalisers import Softmax
from vantage.spec.operations import linear_operations
from vantage.spec.parts import Shape
from vantage.spec.positions import Pair
from vantage.spec.registry import Entry, Refusal

BRANCHES = 3  # blocks as one, chosen blocks, near tokens
FORMS = ("nsa", "nsa-sinks")  # in the conformance matrix
FORGETTING = ("sinks", "sinks-by-place", "heavy-hitters", "tova", "snapkv")
HIDDEN = float("-inf")


@dataclass(frozen=True)
class BlockChooser:
    """``keep`` blocks of ``size`` tokens for each query: the first ones of its document, the most recent ones, its own
    among them, and of the others those which its group of heads gives most weight. Where a query sees what comes later,
    as many that follow it are added."""

    size: int = 64
    keep: int = 16
    first: int = 1
    recent: int = 2

    def __post_init__(self) -> None:
        if self.size < 1 or self.first < 0 or self.recent < 1:
            raise BadInput(f"size={self.size}, first={self.first}, recent={self.recent}: a query sees its own block")
        if self.others < 0:
            raise BadInput(f"keep={self.keep}: the first {self.first} and the last {self.recent} are always among them")

    @property
    def others(self) -> int:
        """How many are left to choose."""
        return self.keep - self.first - self.recent


@dataclass(frozen=True)
class NativeSparse:
    """``near`` tokens are seen as they are, the query itself among them."""

    heads: int
    kv_heads: int | None = None  # None: as many as heads. The heads of one choose the same blocks
    head_dim: int | None = None  # None: width / heads
    near: int = 512
    blocks: BlockChooser = BlockChooser()
    scores: Scores = Scores()

    def __post_init__(self) -> None:
        if self.near < 1:
            raise BadInput(f"near={self.near}: a query sees itself")
        if not isinstance(self.scores.normalise, Softmax):
            name = type(self.scores.normalise).__name__
            raise Refused(f"each branch is a softmax, not {name}: leave scores.normalise out, or use GroupedQuery")

    @property
    def grouped(self) -> GroupedQuery:
        """Its queries, keys and values."""
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, scores=self.scores)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return replace(self.grouped.cache_shape(width), every_key=True)

    def divided(self, ranks: int, width: int) -> NativeSparse:
        """Key heads with all queries of each: they choose together."""
        s = self.shape(width)
        if s.kv_heads % ranks:
            raise Refused(f"{s.kv_heads} key/value heads do not divide among {ranks} processes, and each chooses once")
        return replace(self, heads=s.heads // ranks, kv_heads=s.kv_heads // ranks, head_dim=s.key_dim)

    def describe(self, width: int) -> tuple[str, ...]:
        s, blocks = self.shape(width), self.blocks
        heads = f"native sparse, {s.heads} / {s.kv_heads} × {s.key_dim}"
        return heads, f"{blocks.keep:,} blocks of {blocks.size}", f"{self.near} near", *self.scores.describe()

    def build(self, width: int, context: BuildContext) -> nn.Module:
        if context.indexer is not None:
            raise Refused("an indexer chooses tokens, and NativeSparse chooses blocks by itself: leave the indexer out")
        shape = self.shape(width)
        return GroupedQueryAttention(self.grouped, shape, context, BranchGates(self, shape, context.linear))

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("native sparse attention is self-attention only; use GroupedQuery for cross-attention")


class BranchGates(nn.Module):
    """From what queries are made of to the normaliser of a pass."""

    def __init__(self, config: NativeSparse, shape: Shape, linear: Callable[[int, int, bool], nn.Module]):
        super().__init__()
        self.config, self.kv_heads = config, shape.kv_heads
        self.map = linear(shape.width, shape.heads * BRANCHES, False)

    def forward(self, x_BTD: Tensor) -> GatedBranches:
        gates = self.map(x_BTD).unflatten(-1, (-1, BRANCHES)).transpose(1, 2)
        return GatedBranches(self.config, self.kv_heads, gates.sigmoid())

    def operations(self, tokens: int) -> int:
        return linear_operations(self.map, tokens)


@dataclass(frozen=True)
class GatedBranches:
    """The three softmaxes over one pass's scores, gated and added up. Weights sum to the sum of the gates, unless there
    are sinks, or no block that a query sees whole."""

    config: NativeSparse
    kv_heads: int
    gates: Tensor = field(compare=False, repr=False)  # (B, H, T, 3)

    def of_queries(self, columns: Tensor) -> GatedBranches:
        return replace(self, gates=self.gates[:, :, columns])

    def __call__(
        self, scores_BHTS: Tensor, sinks: Tensor | None = None, pair: Pair | None = None
    ) -> tuple[Tensor, Tensor]:
        assert pair is not None, "it asks which tokens are near, and which make a block"
        softmax, near, size = self.config.scores.normalise, self.config.near, self.config.blocks.size
        windows = KeyWindows.of(pair, size, near, causal=True)
        block_scores = windows.mean_scores(scores_BHTS)
        of_blocks, _ = softmax(block_scores, sinks)
        chosen = self.chosen(block_scores.detach(), of_blocks.detach(), windows, pair)
        of_chosen, _ = softmax(scores_BHTS.masked_fill(~chosen, HIDDEN), sinks)
        q, k = pair.places()
        of_near, _ = softmax(scores_BHTS.masked_fill((q.order - k.order).abs() >= near, HIDDEN), sinks)
        first, second, third = self.gates.to(scores_BHTS.dtype)[..., None].unbind(-2)
        weights = first * windows.at_tokens(of_blocks) / size + second * of_chosen + third * of_near
        return weights, torch.zeros_like(scores_BHTS[..., 0])

    def chosen(self, block_scores: Tensor, of_blocks: Tensor, windows: KeyWindows, pair: Pair) -> Tensor:
        """(B, H, T, S), or what broadcasts to it: true at the tokens of a query's blocks."""
        blocks, heads = self.config.blocks, of_blocks.shape[1]
        always = _always(blocks, pair)
        if not blocks.others:
            return always
        by_group = (self.kv_heads, heads // self.kv_heads)
        others = (block_scores[..., :-1] > HIDDEN).unflatten(1, by_group).any(2)
        others = others & ~_always(blocks, pair.q.against(windows.entries))
        weight = of_blocks[..., :-1].unflatten(1, by_group).sum(2).masked_fill(~others, HIDDEN)
        ranked = best(weight.flatten(1, 2), windows.entries, blocks.others).unflatten(1, weight.shape[1:3])
        chosen = torch.zeros_like(others).scatter(-1, ranked, True) & others
        in_chosen = windows.at_tokens(F.pad(chosen, (0, 1)))
        return in_chosen.repeat_interleave(by_group[1], 1) | always


def _always(blocks: BlockChooser, pair: Pair) -> Tensor:
    """(R, 1, T, S): true at keys of the first blocks, and of a query's own and those beside it."""

    def make() -> Tensor:
        q, k = (place.rank // blocks.size for place in pair.places())
        return (k < blocks.first) | ((q - k).abs() < blocks.recent)

    return pair.once(blocks, make)


ENTRY = Entry(
    "native-sparse",
    NativeSparse,
    "Native sparse (NSA)",
    "Blocks of keys as one, the best blocks token by token, and near tokens: three softmaxes, each with a gate for "
    "every query and head (Yuan et al. 2025).",
    default=lambda heads: NativeSparse(heads or 1, near=16, blocks=BlockChooser(8, keep=4)),
    variants={
        "nsa": lambda size: NativeSparse(size.heads, size.heads // 2, near=3, blocks=BlockChooser(2, keep=4)),
        "nsa-sinks": lambda size: NativeSparse(
            size.heads, 1, near=2, blocks=BlockChooser(3, keep=2, first=0, recent=1), scores=Scores(sinks=True)
        ),
    },
    refusals=(
        Refusal({"attention": FORMS, "kernel": ("sdpa",)}, "sdpa has "),
        Refusal({"attention": FORMS, "kernel": ("flex",)}, "flex has softmax alone"),
        Refusal({"attention": FORMS, "cache": FORGETTING}, "looks at every key before a query"),
    ),
)
