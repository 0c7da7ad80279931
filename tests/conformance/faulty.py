"""Broken parts: each is what somebody could have written, and runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import vantage as vt
from vantage.attention.grouped import GroupedQueryAttention
from vantage.attention.scorer import merge_heads
from vantage.cache.codecs import PlainCodec
from vantage.cache.contiguous import Contiguous
from vantage.cache.facts import NextPositions
from vantage.cache.kinds import LedgerNeed
from vantage.cache.kinds.contiguous import ContiguousCache
from vantage.cache.layer_cache import NoCache
from vantage.cache.ledger import Step
from vantage.cache.moves import BufferRead, BufferWrite
from vantage.cache.ring import Ring
from vantage.kernels.reference import Reference, grouped_matmul
from vantage.position.rope import Rotation
from vantage.spec.masks import Causal, Mask, SameSegment, dense, visible
from vantage.spec.model import BuildContext, CacheShape, Scores
from vantage.spec.parts import Attended, BiasInputs, Context, Dense, Need, Parts, Pointwise, Shape, View
from vantage.spec.positions import Pair, Place, Positions
from vantage.spec.transforms import chain

# ---- score biases


@dataclass(frozen=True, eq=False)
class StepBySlot(Pointwise):
    """README's own example with ``i`` for ``q.pos``."""

    far: int
    slot: bool

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, q: Place, k: Place) -> Tensor:
        at = i if self.slot else q.pos
        return torch.where((at - k.pos).abs() < self.far, 0.0, -4.0) + 0.0 * h


class DenseDistance(nn.Module):
    """-|i - j| as a matrix; by slots where it should be by positions."""

    def __init__(self, slot: bool):
        super().__init__()
        self.slot = slot

    def at(self, inputs: BiasInputs) -> Dense:
        q_pos, k_pos = inputs.q_pos, inputs.k_pos
        rows = torch.arange(k_pos.shape[1]).expand(k_pos.shape) if self.slot else k_pos.pos
        return Dense(-0.7 * (q_pos.pos[:, :, None] - rows[:, None]).abs()[:, None].float())


class StepModule(nn.Module):
    def __init__(self, slot: bool):
        super().__init__()
        self.slot = slot

    def at(self, inputs: BiasInputs) -> Pointwise:
        return StepBySlot(4, self.slot)


# ---- rotations and tables


class OffRotation(Rotation):
    """RoPE that reads something else than the position."""

    def __init__(self, config: vt.Rope, dim: int, reads: str):
        super().__init__(config, dim)
        self.reads = reads

    def turn(self, x_BHTd: Tensor, pos: Positions) -> Tensor:
        return super().turn(x_BHTd, read_as(pos, self.reads))


class OffTable(nn.Module):
    """A learned table that reads something else than the position."""

    def __init__(self, width: int, reads: str):
        super().__init__()
        self.table, self.reads = nn.Parameter(torch.randn(64, width)), reads

    def forward(self, x_BTD: Tensor, pos: Positions) -> Tensor:
        return x_BTD + self.table[read_as(pos, self.reads).pos.clamp_min(0)]


def read_as(pos: Positions, reads: str) -> Positions:
    if reads == "slot":
        return Positions.of(torch.arange(pos.shape[1]).expand(pos.shape), order=pos.order)
    if reads == "order":
        return Positions.of(pos.order)
    if reads == "one low once cached" and int(pos.pos.max()) >= 0 and int(pos.pos[pos.filled].min()) > 0:
        return Positions.of(pos.pos - 1, order=pos.order)
    return pos


@dataclass(frozen=True)
class Broken:
    """An encoding that builds what it is told."""

    what: str
    reads: str = ""

    @property
    def shared(self) -> bool:
        return True

    @property
    def max_positions(self) -> int | None:
        return 64 if self.what == "table" else None

    def parts(self, *, causal: bool) -> Parts:
        if self.what == "rotation":
            return Parts(qk=(self,))
        return Parts(inputs=(self,)) if self.what == "table" else Parts(bias=self)

    def build(self, shape: Shape) -> nn.Module:
        made: dict[str, Any] = {
            "rotation": lambda: OffRotation(vt.Rope(), shape.rotary_dim, self.reads),
            "table": lambda: OffTable(shape.width, self.reads),
            "step": lambda: StepModule(self.reads == "slot"),
            "dense": lambda: DenseDistance(self.reads == "slot"),
        }
        return made[self.what]()


# ---- masks


@dataclass(frozen=True)
class OwnMask(Mask):
    """Causal, and what else is said: a window, documents; or a mistake."""

    mistake: str = ""
    window: int | None = None
    documents: bool = True

    def __call__(self, q: Place, k: Place) -> Tensor:
        if self.mistake == "slots":
            rows, columns = q.order.shape[-2], k.order.shape[-1]
            return torch.arange(columns)[None, None, None] <= torch.arange(rows)[None, None, :, None]
        ahead = {"sees the next": 1, "not itself": -1}.get(self.mistake, 0)
        seen = k.order <= q.order + ahead
        if self.window is not None:
            seen &= q.order - k.order < self.window + (self.mistake == "one too wide")
        if self.documents and q.segment is not None and k.segment is not None:
            same = q.segment == k.segment
            seen &= same | (k.segment == 0) if self.mistake == "first document" else same
        return seen

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return vt.Everything() if self.mistake == "simplified" and q.known.first is not None else self

    def reach(self) -> int | None:
        return self.window

    def settled(self, start: int) -> bool:
        return True


# ---- kernels


class OffKernel(Reference):
    """The reference, with a mistake."""

    name = "off"

    def __init__(self, mistake: str):
        self.mistake = mistake

    def __call__(self, q: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        mistake = self.mistake
        if mistake == "scale twice":
            need = replace(need, scale=need.scale**2)
        elif mistake == "scale forgotten":
            need = replace(need, scale=1.0)
        elif mistake == "heads by turns":
            times = q.shape[1] // view.k.shape[1]
            view = View(view.k.repeat(1, times, 1, 1), view.v.repeat(1, times, 1, 1), view.pos)
        elif mistake == "window narrow":
            need = replace(need, mask=Causal() & vt.Window(3) & SameSegment())
        elif mistake == "documents":
            need = replace(need, mask=Causal())
        elif mistake in ("padding", "low softmax", "slots"):
            return self.written_out(q, view, pair, need)
        return super().__call__(q, view, pair, need)

    def written_out(self, q: Tensor, view: View, pair: Pair, need: Need) -> Attended:
        scores = grouped_matmul(q, view.k.transpose(-1, -2)) * need.scale
        seen = dense(need.mask if self.mistake == "padding" else visible(need.mask, pair), pair)
        if self.mistake == "slots":
            seen = torch.ones(scores.shape[-2:]).tril().bool()[None, None]
        scores = scores.masked_fill(~seen, float("-inf"))
        low = scores.bfloat16() if self.mistake == "low softmax" else scores
        return Attended(grouped_matmul(low.softmax(-1).nan_to_num(0.0).to(q.dtype), view.v))


# ---- attentions


@dataclass(frozen=True)
class OwnAttention:
    """Grouped-query attention written anew, with a mistake."""

    heads: int
    kv_heads: int
    mistake: str = ""
    scores: Scores = Scores()

    @property
    def grouped(self) -> vt.GroupedQuery:
        return vt.GroupedQuery(self.heads, self.kv_heads)

    def shape(self, width: int) -> Shape:
        return self.grouped.shape(width)

    def cache_shape(self, width: int) -> CacheShape:
        return self.grouped.cache_shape(width)

    def build(self, width: int, context: BuildContext) -> nn.Module:
        return OwnAttentionModule(self, self.shape(width), context)

    def build_cross(self, width: int, context: BuildContext) -> nn.Module:
        raise NotImplementedError


class OwnAttentionModule(GroupedQueryAttention):
    def __init__(self, config: OwnAttention, shape: Shape, context: BuildContext):
        super().__init__(config.grouped, shape, context)
        self.mistake = config.mistake

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        q_raw, k, v = self.project(x_BTD)
        q = chain(self.qk, "query", q_raw, ctx.pos)
        k = chain(self.qk, "key", k, ctx.pos)
        cache = ctx.caches[self.index]
        view = cache.append(ctx.pos, k, v)
        need = self.scorer.need(q_raw, q, view, ctx.pos, x_BTD)
        if self.mistake == "scale forgotten":
            need = replace(need, scale=1.0)
        if self.mistake == "scale twice":
            q = q * need.scale
        if self.mistake == "heads by turns":
            times = self.shape.heads // self.shape.kv_heads
            view = View(view.k.repeat(1, times, 1, 1), view.v.repeat(1, times, 1, 1), view.pos)
        if self.mistake == "keys rotated twice" and not isinstance(cache, NoCache):
            view = View(chain(self.qk, "key", view.k, view.pos), view.v, view.pos)
        return self.out(merge_heads(ctx.attend("self", self.index, q, view, need)))


# ---- caches


class OffLedger(Contiguous):
    """Contiguous, with a mistake."""

    mistake = ""
    went_back = False

    def _crop(self, to: tuple[int, ...]) -> None:
        super()._crop(to)
        self.went_back = True

    def _append(self, pos: Positions) -> Step:
        step = super()._append(pos)
        if self.mistake == "stale" and self.went_back:
            self.went_back = False
            return replace(step, write=Unwritten())
        n = step.view_pos.shape[1]
        if self.mistake == "loses" and n > 10:
            return replace(step, read=Without(step.read, 0, n), view_pos=step.view_pos.narrow(1, n - 1))
        if self.mistake == "shared rows":
            return replace(step, read=FirstRow(step.read))
        if self.mistake == "overwrites" and n > 12:
            return replace(step, read=Overwritten(step.read))
        return step

    @property
    def next_positions(self) -> NextPositions:
        right = super().next_positions
        if self.mistake != "counts one too many" or not self.holding:
            return right
        return NextPositions(right.order + 1, None if right.host is None else right.host + 1)


class Unwritten(BufferWrite):
    """What is there already is left as it is."""

    def put(self, buffer: Tensor, x_BGTw: Tensor) -> None:
        pass


@dataclass(frozen=True)
class FirstRow(BufferRead):
    right: BufferRead

    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor:
        return self.right.get(buffer, x_BGTw)[:1].expand(len(buffer), -1, -1, -1)


@dataclass(frozen=True)
class Without(BufferRead):
    right: BufferRead
    slot: int
    n: int

    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor:
        return self.right.get(buffer, x_BGTw)[:, :, self.slot + 1 :]


@dataclass(frozen=True)
class Overwritten(BufferRead):
    """The last entry stands where the third should."""

    right: BufferRead

    def get(self, buffer: Tensor, x_BGTw: Tensor | None) -> Tensor:
        held = self.right.get(buffer, x_BGTw).clone()
        held[:, :, 2] = held[:, :, -1]
        return held


@dataclass(frozen=True)
class OffCache:
    """A kind of cache with a mistake."""

    mistake: str = ""

    ledgers: ClassVar[tuple[type, ...]] = (OffLedger, Ring)
    codecs: ClassVar[tuple[type, ...]] = (PlainCodec,)
    exact: ClassVar[bool] = True
    evicts: ClassVar[bool] = False

    def refuses(self, layers: Any) -> str | None:
        return None

    def ledger(self, need: LedgerNeed) -> Any:
        if self.mistake == "ring":
            return Ring(need.batch, window=(need.reach or 1) - 1, device=need.device)
        if self.mistake == "right ring":
            return Ring(need.batch, window=need.reach or 1, device=need.device)
        ledger = OffLedger(need.batch, window=need.reach, device=need.device)
        ledger.mistake = self.mistake
        return ledger

    def codec(self, layer: Any, dtype: torch.dtype) -> Any:
        return layer.codec(torch.bfloat16 if self.mistake == "bfloat16" else dtype)

    def bytes(self, layer: Any, need: LedgerNeed, dtype: torch.dtype) -> int:
        return ContiguousCache().bytes(layer, need, dtype)


# ---- norms and feed-forward layers


@dataclass(frozen=True)
class OffNorm:
    mistake: str = ""

    def build(self, width: int) -> nn.Module:
        return OffNormModule(width, self.mistake)


class OffNormModule(nn.Module):
    """RMS norm; its mean may be taken over the batch, noise or a counter be added, or a nan."""

    def __init__(self, width: int, mistake: str):
        super().__init__()
        self.norm, self.mistake, self.calls = nn.RMSNorm(width), mistake, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.mistake == "batch":
            return self.norm(x - 0.1 * x.mean(0, keepdim=True))
        if self.mistake == "noise":
            return self.norm(x) + 0.01 * torch.randn_like(x)
        if self.mistake == "state":
            return self.norm(x) * (1 + 0.001 * self.calls)
        if self.mistake == "nan":
            return torch.where(x > x.mean(), self.norm(x), float("nan"))
        return self.norm(x)
