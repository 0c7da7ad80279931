"""What HCA and CSA share (DeepSeek-V4 2026): a query attends to near tokens, and to windows of keys as one entry each.

There is one key head, and a key is its own value. What DeepSeek-V4 adds can be asked for: sinks (``scores``), values
that are turned as keys are and turned back with the output, so that each arrives turned by its distance, and maps
through a small width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vantage.attention.differential import UnitLength
from vantage.attention.head_width import head_width
from vantage.attention.key_windows import KeyWindows, WindowPool
from vantage.attention.scorer import Scorer, head_outputs, merge_heads
from vantage.errors import BadInput, Refused
from vantage.spec.abilities import TurnsBack
from vantage.spec.attention import ActivationColumns, PositionParts
from vantage.spec.chosen import ChosenKeys, near_columns
from vantage.spec.dense import WHOLE
from vantage.spec.kept import KeptStream
from vantage.spec.masks import Mask
from vantage.spec.model import BuildContext, CacheShape, NormConfig, Scores
from vantage.spec.operations import AttentionWork, linear_operations
from vantage.spec.parts import INIT_STD, Context, Dense, Pointwise, Shape, View, materialise
from vantage.spec.positions import Pair, Place, Positions
from vantage.spec.transforms import chain


@dataclass(frozen=True)
class SmallMaps:
    """Low-rank projections for queries and outputs."""

    q_rank: int | None = None  # None: queries are projected directly
    q_norm: float | None = None  # the eps of an RMS norm without weights, of each query head; None: no norm
    out_rank: int | None = None  # of each group of heads; None: one map for all
    out_groups: int = 1


@dataclass(frozen=True)
class CompressedConfig(ABC):
    """The fields of both. ``near`` tokens are seen as they are, the query itself among them."""

    heads: int
    head_dim: int | None = None  # None: width / heads
    ratio: int = 128  # m, keys that become one
    near: int = 128
    rope_dim: int | None = None  # the last of each head, which position acts on; None: all
    turned_values: bool = False
    norm: NormConfig | None = None  # of keys, entries and small queries; None: RMS without weights
    maps: SmallMaps = SmallMaps()
    scores: Scores = Scores()

    pools_keys = True  # no annotation: not a field
    overlap: ClassVar[bool]  # an entry is made of its window and of the one before

    @abstractmethod
    def kept(self, dim: int) -> tuple[KeptStream, ...]:
        """What entries are made of, for heads of this width."""

    def shape(self, width: int) -> Shape:
        dim = head_width(width, self.heads, self.head_dim)
        rope_dim = dim if self.rope_dim is None else self.rope_dim
        if self.ratio < 2 or self.near < 1:
            raise BadInput(f"ratio={self.ratio}, near={self.near}: 2 keys or more become one, and a query sees itself")
        if dim < 1 or not 0 <= rope_dim <= dim:
            raise BadInput(
                f"heads of {dim}, of which position acts on {rope_dim}: give 1 or more, and no more than that"
            )
        if self.maps.out_groups < 1 or self.heads % self.maps.out_groups:
            raise BadInput(f"{self.heads} heads do not divide into {self.maps.out_groups} groups: change one")
        return Shape(width, self.heads, 1, dim, dim, rotary_dim=rope_dim)

    def cache_shape(self, width: int) -> CacheShape:
        """Tokens as they are, and beside them what entries are made of: whatever is taken back, no window is lost."""
        dim = self.shape(width).key_dim
        before = (2 if self.overlap else 1) * self.ratio - 1
        return CacheShape(1, dim, dim, self.turned_values, self.kept(dim), every_key=True, before=before)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise Refused("compressed windows are for self-attention only; use GroupedQuery for cross-attention")


class ChoiceInputs(NamedTuple):
    """What a choice among entries may look at."""

    x: Tensor  # (B, T, D)
    low: Tensor  # (B, T, r): what queries are made of
    kept: Tensor  # (B, 1, S, w)
    windows: KeyWindows
    pos: Positions  # of the queries
    mask: Mask


class ChoosesEntries(Protocol):
    """Which entries a query attends to (CSA)."""

    def keep(self, x_BTD: Tensor) -> Tensor:
        """(B, 1, T, w)"""
        ...

    def choose(self, inputs: ChoiceInputs) -> Tensor | None:
        """(B, T, K): the entries that a query attends to; ``None``: to all it sees."""
        ...

    def operations(self, tokens: int, entries: int) -> tuple[int, int]:
        """Of its maps, and of its scores."""
        ...


class CompressedAttention(nn.Module):
    crosses = False

    def __init__(
        self, config: CompressedConfig, shape: Shape, context: BuildContext, choice: ChoosesEntries | None = None
    ):
        super().__init__()
        if context.indexer is not None:
            raise Refused(
                "an indexer chooses tokens, and these are windows of them: use CompressedSparse, which chooses"
            )
        c, s, rank = config, shape, config.maps.q_rank
        self.config, self.shape, self.index = config, shape, context.index
        self.q_down = nn.Identity() if rank is None else context.linear(s.width, rank, False)
        self.q_low_norm = nn.Identity() if rank is None else build_norm(c.norm, rank)
        self.q = context.linear(s.width if rank is None else rank, s.heads * s.key_dim, False)
        self.q_norm = nn.Identity() if c.maps.q_norm is None else UnitLength(c.maps.q_norm)
        self.kv = context.linear(s.width, s.key_dim, False)
        self.kv_norm = build_norm(c.norm, s.key_dim)
        self.pool = WindowPool(context.linear, s.width, s.key_dim, c.ratio, overlap=c.overlap)
        self.entry_norm = build_norm(c.norm, s.key_dim)
        self.choice: Any = choice
        self.qk = nn.ModuleList(context.qk)  # pyright: ignore[reportArgumentType] (every transform is a module)
        self.scorer = Scorer(c.scores, s, context)
        self.out = _output(c.maps, s, context)
        if c.turned_values:
            for transform in context.qk:
                if not isinstance(transform, TurnsBack):
                    raise Refused(
                        f"turned_values: {type(transform).__name__} cannot turn an output back. Use RoPE, or leave "
                        "values as they are (turned_values=False)"
                    )

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        low = self.q_low_norm(self.q_down(x_BTD))
        q_raw = self.q_norm(self.q(low).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2))
        q = self.placed("query", q_raw, ctx.pos)
        kept = self.keep(x_BTD, ctx)
        pair, causal = ctx.pos.against(kept.pos), self.scorer.mask.causal
        windows = KeyWindows.of(pair, self.config.ratio, self.config.near, causal=causal)
        view = self.seen(kept, windows)
        need = self.scorer.need(q_raw, q, view, ctx.pos, x_BTD)
        chosen = None
        if self.choice is not None:
            chosen = self.choice.choose(ChoiceInputs(x_BTD, low, kept.streams[1], windows, ctx.pos, self.scorer.mask))
        near = self.config.near
        if chosen is None:
            run = TokensAndEntries.of(windows, kept.pos, causal=causal)
            bias = near_only(need.bias, NearBias(None, near, windows.tokens, run), ctx.pos.against(view.pos), q)
        else:
            tokens = view.pos.order[:, : windows.tokens]
            nearest = near_columns(ctx.pos.order, tokens, near, 0 if causal else near - 1)
            columns = torch.cat([nearest, chosen + windows.tokens], -1)
            bias = ChosenKeys(columns, need.bias).bias(ctx.pos.against(view.pos), self.shape.heads, q.dtype)
        out = ctx.attend("self", self.index, q, view, replace(need, bias=bias))
        return self.out(merge_heads(self.turned_back(out, ctx.pos)))

    def keep(self, x_BTD: Tensor, ctx: Context) -> View:
        """Take tokens into the layer's cache; all that are there."""
        cache = ctx.caches[self.index]
        if cache.late or ctx.pos.axes is not None:
            raise Refused("a window of keys stands where its first token stood: use positions of one axis that stay")
        kv = self.kv_norm(self.kv(x_BTD))[:, None]
        k = self.placed("key", kv, ctx.pos)
        streams = [part.keep(x_BTD) for part in (self.pool, self.choice) if part is not None]
        v = k if self.config.turned_values else kv
        return cache.append(ctx.pos, k, v, *streams, *self.scorer.streams(x_BTD, ctx.pos))

    def seen(self, kept: View, windows: KeyWindows) -> View:
        """The tokens that are near some query, and behind them the entries of all windows."""
        entry = self.entry_norm(self.pool(kept.streams[0], windows))
        k = self.placed("key", entry, windows.entries)
        v = k if self.config.turned_values else entry
        n = 1 if self.choice is None else 2
        streams = tuple(torch.cat([windows.nearest(x), windows.last(x)], 2) for x in kept.streams[n:])
        return View(
            torch.cat([windows.nearest(kept.k), k.to(kept.k.dtype)], 2),
            torch.cat([windows.nearest(kept.v), v.to(kept.v.dtype)], 2),
            windows.seen,
            streams,
            kept.own[n:],
        )

    def placed(self, side: str, x_BHTd: Tensor, pos: Positions) -> Tensor:
        """With position, which acts on the last ``rotary_dim`` of a head."""
        return self._behind(x_BHTd, lambda x: chain(self.qk, side, x, pos))

    def turned_back(self, out_BHTd: Tensor, pos: Positions) -> Tensor:
        """A value was turned by its own position: what is left is its distance."""
        if not self.config.turned_values:
            return out_BHTd

        def back(x: Tensor) -> Tensor:
            for transform in reversed(list(self.qk)):
                x = transform.back(x, pos)  # pyright: ignore[reportCallIssue] (asked when it was built)
            return x

        return self._behind(out_BHTd, back)

    def _behind(self, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        s = self.shape
        if s.rotary_dim == s.key_dim:
            return act(x)
        still, moving = x.split((s.key_dim - s.rotary_dim, s.rotary_dim), -1)
        return torch.cat([still, act(moving)], -1)

    # ---- what others ask

    def activations(self) -> dict[str, ActivationColumns]:
        s = self.shape
        return {
            "q": ActivationColumns("q", 0, s.heads * s.key_dim, s.heads),
            "kv": ActivationColumns("kv", 0, s.key_dim, 1),
            "heads": head_outputs(s),
        }

    def position_parts(self) -> PositionParts:
        return self.scorer.position_parts(self.qk)

    def score_width(self, queries: int, keys: int) -> int:
        return self.shape.key_dim

    def keys_given(self, queries: int, keys: int) -> int:
        return min(keys, queries + self.config.near - 1) + keys // self.config.ratio

    def operations(self, work: AttentionWork) -> dict[str, int]:
        tokens = work.size.tokens
        maps = sum(linear_operations(m, tokens) for m in (self.q_down, self.q, self.kv, self.pool.maps))
        core = work.core(self.shape.value_dim)
        if self.choice is not None:
            more, scores = self.choice.operations(tokens, work.size.keys // self.config.ratio)
            maps, core["scores"] = maps + more, core["scores"] + scores
        out = self.out.operations(tokens) if isinstance(self.out, GroupedMap) else linear_operations(self.out, tokens)
        return core | {"projections": maps, "output": out}


def build_norm(norm: NormConfig | None, width: int) -> nn.Module:
    return UnitLength() if norm is None else norm.build(width)


def _output(maps: SmallMaps, shape: Shape, context: BuildContext) -> nn.Module:
    width = shape.heads * shape.value_dim
    if maps.out_rank is None:
        return context.linear(width, shape.width, False)
    return GroupedMap(width, maps.out_rank, maps.out_groups, shape.width, context)


class GroupedMap(nn.Module):
    """Each group of heads through a small width of its own, and then all of them together to the model's."""

    def __init__(self, inputs: int, rank: int, groups: int, width: int, context: BuildContext):
        super().__init__()
        self.down = nn.Parameter(torch.empty(groups, rank, inputs // groups))
        nn.init.normal_(self.down, std=INIT_STD)
        self.up = context.linear(groups * rank, width, False)

    def forward(self, x_BTn: Tensor) -> Tensor:
        small = torch.einsum("btgn,grn->btgr", x_BTn.unflatten(-1, (len(self.down), -1)), self.down)
        return self.up(small.flatten(2))

    def operations(self, tokens: int) -> int:
        return 2 * tokens * self.down.numel() + linear_operations(self.up, tokens)


class TokensAndEntries(NamedTuple):
    """Tokens that stand one after another, and the entries of their windows."""

    first: int  # order of the first token
    entries: int
    first_end: int  # order of the first entry
    size: int  # tokens from one entry to the next
    causal: bool

    @staticmethod
    def of(windows: KeyWindows, kept: Positions, *, causal: bool) -> TokensAndEntries | None:
        """``None``: they stand in any arrangement."""
        near, members, first = windows.near, windows.members, kept.known.first
        if first is None or not (isinstance(near, slice) and isinstance(members, slice)):
            return None
        end = first + members.start + windows.size - 1
        return TokensAndEntries(first + near.start, windows.entries.shape[1], end, windows.size, causal)


@dataclass(frozen=True, eq=False)
class NearBias(Pointwise):
    """Another bias, and -inf at tokens that are not near: the first ``tokens`` of the keys are tokens."""

    inner: Pointwise | None
    near: int
    tokens: int
    run: TokensAndEntries | None = None  # where they stand one after another

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        assert k.column is not None
        far = (k.column < self.tokens) & ((q.order - k.order).abs() >= self.near)
        value = torch.zeros((), device=far.device) if self.inner is None else self.inner(b, h, i, q, k)
        return torch.where(far, float("-inf"), value)

    def key(self) -> Any:
        return (NearBias, None if self.inner is None else self.inner.key(), self.near, self.tokens)

    def stretches(self, queries: Positions) -> tuple[slice, ...] | None:
        """The tokens near some of these queries, and entries."""
        if self.run is None or queries.known.first is None or queries.known.order is None:
            return None
        (first, last), run = queries.known.order, self.run
        low = min(max(first - self.near + 1 - run.first, 0), self.tokens)
        ahead = 1 if run.causal else self.near
        high = min(max(last + ahead - run.first, low), self.tokens)
        whole = run.entries
        if run.causal:
            whole = min(max((last - run.first_end) // run.size + 1, 0), run.entries)
        return slice(low, high), slice(self.tokens, self.tokens + whole)


def near_only(bias: Pointwise | Dense | None, hiding: NearBias, pair: Pair, q: Tensor) -> Pointwise | Dense:
    """The bias, and -inf at far tokens."""
    if not isinstance(bias, Dense):
        return replace(hiding, inner=bias)
    heads, dtype = q.shape[1], torch.promote_types(q.dtype, torch.float32)

    def made(cut: slice) -> Tensor:
        some = pair if cut == WHOLE else Pair(pair.q.narrow(cut.start, cut.stop - cut.start), pair.k)
        hidden = materialise(hiding, some, heads, dtype)
        assert hidden is not None
        return hidden + bias.of_queries(cut)

    return Dense(made)
