"""The top-k indexer of sparse attention (DSA, DeepSeek-V3.2 2025): each query attends to its K best keys alone.

I(t, s) = Σ_h w_h(t) · relu(q_h(t) · k(s) / √d), with small queries and one small key a token, which is kept in the
cache. The choice is the same for all heads. It has no gradient: an indexer is trained by a loss of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput, Refused
from vantage.spec.indexing import IndexerInputs
from vantage.spec.kept import KeptStream
from vantage.spec.masks import Mask, dense, visible
from vantage.spec.operations import AttentionWork
from vantage.spec.parts import INIT_STD, Buildable, Shape
from vantage.spec.positions import Pair, Positions
from vantage.spec.query_blocks import query_blocks
from vantage.spec.registry import Entry
from vantage.spec.ties import without_last_bits
from vantage.spec.transforms import chain

EPS = 1e-6  # of the keys' norm
SCORE_SIZED_TENSORS = 8  # tensors as large as I that are there at the same time, sorting included


@dataclass(frozen=True)
class TopKIndexer:
    """``keep`` keys for each query; ``heads`` small queries of ``head_dim``.

    ``qk`` are the indexer's own position transforms, which need not be the attention's: DeepSeek-V3.2 pairs halves
    here and neighbours there.
    """

    keep: int = 2048
    heads: int = 64
    head_dim: int = 128
    qk: tuple[Buildable, ...] = ()
    rank: int | None = None  # of latent attention's small queries, from which these are made; None: from x

    shared = False  # no annotation: not a field, and so below
    every_key = True

    def __post_init__(self) -> None:
        if min(self.keep, self.heads, self.head_dim) < 1:
            raise BadInput(f"keep={self.keep}, heads={self.heads}, head_dim={self.head_dim}: each must be 1 or more")

    def describe(self) -> str:
        return f"top {self.keep:,} keys"

    def streams(self, shape: Shape) -> tuple[KeptStream, ...]:
        return (KeptStream(1, self.head_dim),)

    def build(self, shape: Shape) -> nn.Module:
        return KeyChoice(self, shape.width)

    def operations(self, work: AttentionWork) -> int:
        size, width = work.size, self.head_dim
        maps = work.shape.width * width
        if work.keys > self.keep:
            source = work.shape.width if self.rank is None else self.rank
            maps += source * self.heads * width + work.shape.width * self.heads
            maps += work.keys * self.heads * width
        return 2 * size.tokens * maps


class KeyChoice(nn.Module):
    kept = 1

    def __init__(self, config: TopKIndexer, width: int):
        super().__init__()
        self.config, self.rank = config, config.rank
        heads, d = config.heads, config.head_dim
        self.q = nn.Linear(width if config.rank is None else config.rank, heads * d, bias=False)
        self.k = nn.Linear(width, d, bias=False)
        self.k_norm = nn.LayerNorm(d, EPS)
        self.weights = nn.Linear(width, heads, bias=False)
        for linear in (self.q, self.k, self.weights):
            nn.init.normal_(linear.weight, std=INIT_STD)
        own = Shape(width, heads, 1, d, d, rotary_dim=d)
        self.qk = nn.ModuleList(part.build(own) for part in config.qk)

    def keep(self, x_BTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        return (chain(self.qk, "key", self.k_norm(self.k(x_BTD))[:, None], pos),)

    @torch.no_grad()
    def choose(self, inputs: IndexerInputs) -> Tensor | None:
        (k_B1Sd,) = inputs.streams
        if k_B1Sd.shape[2] <= self.config.keep:
            return None
        q_BHTd, weights_BTH = self.queries(inputs)
        return best_keys(q_BHTd, k_B1Sd[:, 0], weights_BTH, inputs.pair, inputs.mask, self.config.keep)

    def queries(self, inputs: IndexerInputs) -> tuple[Tensor, Tensor]:
        """The small queries, and the weight of each."""
        source = inputs.x if self.rank is None else inputs.low
        assert source is not None
        q_BHTd = self.q(source).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        return chain(self.qk, "query", q_BHTd, inputs.pair.q), self.weights(inputs.x)


def index_scores(q_BHTd: Tensor, k_BSd: Tensor, weights_BTH: Tensor) -> Tensor:
    """I, (B, T, S), one head after the other: all at once would be as large as attention's own."""
    heads, dim = q_BHTd.shape[1], q_BHTd.shape[-1]
    wide = torch.promote_types(k_BSd.dtype, torch.float32)
    weights_BTH = weights_BTH.to(wide) * heads**-0.5
    keys, scale = k_BSd.to(wide).mT, dim**-0.5
    total = torch.zeros(())
    for head in range(heads):
        total = total + weights_BTH[..., head, None] * F.relu(q_BHTd[:, head].to(wide) @ keys * scale)
    return total


def best_keys(q_BHTd: Tensor, k_BSd: Tensor, weights_BTH: Tensor, pair: Pair, mask: Mask, count: int) -> Tensor:
    """(B, T, count): the columns of the keys with the highest I among those that the mask shows. Some queries at a
    time: I itself is as large as all pairs."""
    chosen, (B, S) = [], k_BSd.shape[:2]
    for cut in query_blocks(q_BHTd.shape[2], SCORE_SIZED_TENSORS * B * S, q_BHTd.device):
        some = pair if cut.stop - cut.start == pair.q.shape[1] else Pair(_narrowed(pair.q, cut), pair.k)
        shown = dense(visible(mask, some), some)[:, 0]
        scores = index_scores(q_BHTd[:, :, cut], k_BSd, weights_BTH[:, cut]).masked_fill(~shown, float("-inf"))
        chosen.append(best(scores, pair.k, count))
    return torch.cat(chosen, 1) if chosen else torch.zeros(B, 0, count, dtype=torch.long, device=k_BSd.device)


def _narrowed(pos: Positions, cut: slice) -> Positions:
    return pos.narrow(cut.start, cut.stop - cut.start)


def best(scores_BTS: Tensor, keys: Positions, count: int) -> Tensor:
    """(B, T, count): the columns of the highest. Of equal ones, which a ReLU makes, the later token is taken, wherever
    it lies."""
    scores_BTS = without_last_bits(scores_BTS)
    latest_first = keys.order.argsort(dim=-1, descending=True)[:, None].expand_as(scores_BTS)
    ranked = scores_BTS.gather(-1, latest_first).argsort(dim=-1, descending=True, stable=True)[..., :count]
    return latest_first.gather(-1, ranked)


@dataclass(frozen=True)
class SharedIndexer:
    """The keys that an earlier layer has chosen in the same pass (GLM-5): this layer has no indexer of its own."""

    layer: int

    shared = False  # no annotation: not a field, and so below
    every_key = True

    def describe(self) -> str:
        return f"the keys of layer {self.layer}'s indexer"

    def build(self, shape: Shape) -> nn.Module:
        return EarlierChoice(self.layer)

    def operations(self, work: AttentionWork) -> int:
        return 0


class EarlierChoice(nn.Module):
    kept = 0
    rank = None

    def __init__(self, layer: int):
        super().__init__()
        self.layer = layer

    def choose(self, inputs: IndexerInputs) -> Tensor | None:
        return inputs.pair.once(choice_of(self.layer), self._missing)

    def _missing(self) -> NoReturn:
        raise Refused(f"layer {self.layer} has chosen no keys in this pass: run the layers in their order")


def choice_of(layer: int) -> tuple[str, int]:
    """Under which name a pass holds what a layer has chosen."""
    return ("chosen", layer)


ENTRY = Entry(
    "top-k",
    TopKIndexer,
    "Top-k indexer",
    "Each query attends to its K best keys by a small score of its own, the same for all heads (DeepSeek-V3.2 2025).",
    default=lambda number: TopKIndexer(keep=8, heads=4, head_dim=16),  # by name: for small models
    components={"indexer": (TopKIndexer,)},
    variants={
        "indexer": lambda size: TopKIndexer(keep=5, heads=3, head_dim=size.head_dim),
    },
)
SHARED_ENTRY = Entry(
    "shared",
    SharedIndexer,
    "Shared indexer",
    "The keys that an earlier layer has chosen (GLM-5).",
    components={"indexer": (SharedIndexer,)},
    compared=False,  # it follows an earlier layer, which a comparison does not name
    variants={},  # in the matrix by hand: it needs a layer before it
)
