"""What ``bench.accelerator`` measures: sizes, inputs, and what each row asks of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.position import CoPE, Fire, Shaw, Shifted, TransformerXL
from vantage.spec.forms import DistanceTable, LogDistance, PowerDistance, QueryAndKey, RowTable, Slope, alibi_slopes
from vantage.spec.parts import Encoding, Pointwise
from vantage.spec.positions import Positions

TABLE = 128  # distances of T5
REACH = 1024


@dataclass(frozen=True)
class Size:
    batch: int
    heads: int
    kv_heads: int
    length: int
    width: int
    past: int = 0  # keys before the first query

    @property
    def name(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        behind = f" after {self.past}" if self.past else ""
        return f"B{self.batch} H{heads} N{self.length}{behind} D{self.width}"


CHUNKS = tuple(Size(1, 32, 8, 8192, 128, past) for past in (24_576, 122_880))  # of a prompt, LLaMA's 8B shape
SIZES = (Size(4, 16, 16, 4096, 128), Size(1, 16, 16, 16384, 128), Size(4, 32, 8, 4096, 128), Size(4, 16, 16, 4096, 64))


@dataclass
class Inputs:
    """Random tensors of one size."""

    size: Size

    def __post_init__(self) -> None:
        s = self.size

        def normal(heads: int, length: int) -> Tensor:
            x = torch.randn(s.batch, length, heads, s.width, device="cuda", dtype=torch.bfloat16)
            return x.transpose(1, 2).requires_grad_()

        self.q = normal(s.heads, s.length)
        self.k, self.v = (normal(s.kv_heads, s.past + s.length) for _ in range(2))
        self.grad = torch.randn(s.batch, s.length, s.heads, s.width, device="cuda", dtype=torch.bfloat16).transpose(
            1, 2
        )


def documents(size: Size) -> Positions:
    """Rows of documents of 512 to 4,096 tokens."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(size.batch):
        row: list[int] = []
        while sum(row) < size.length:
            row.append(min(int(torch.randint(512, 4097, (1,), generator=g)), size.length - sum(row)))
        rows.append(row)
    return Positions.packed(rows).to("cuda")


def gathered(size: Size) -> Positions:
    """Rising positions with gaps, as randomised positions are."""
    steps = torch.randint(1, 4, (size.batch, size.length), generator=torch.Generator().manual_seed(0))
    pos = steps.cumsum(1)
    order = torch.arange(size.length).expand_as(pos)
    at = Positions.of(pos, order=order)
    return at.to("cuda")


@dataclass(frozen=True)
class Task:
    """What a row asks of a kernel."""

    name: str
    bias: Callable[[Size], Pointwise | None] = lambda size: None
    window: int | None = None
    places: Callable[[Size], Positions] | None = None
    softcap: float | None = None
    sinks: bool = False
    rope: bool = False
    encoding: Encoding | None = None  # its parts act, all that they work out counted
    flex: bool = True  # FlexAttention by hand has this row
    by_keys: bool = True  # FlexAttention's way back takes less than seconds


def learned(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda").requires_grad_()


def slopes(size: Size) -> Slope:
    numbers = alibi_slopes(size.heads)
    return Slope(torch.tensor(numbers, device="cuda"), numbers)


TASKS = (
    Task("none"),
    Task("RoPE, its pass counted", rope=True, flex=False),
    Task("ALiBi", slopes),
    Task("documents", places=documents),
    Task("ALiBi, gathered positions", slopes, places=gathered, flex=False),
    Task("T5", lambda s: DistanceTable(learned(s.heads, TABLE + 1), 0), by_keys=False),
    Task("softcap", softcap=20.0),
    Task("sinks", sinks=True, flex=False),
    Task("KERPLE log", lambda s: LogDistance(learned(s.heads), learned(s.heads)), by_keys=False),
    Task("KERPLE power", lambda s: PowerDistance(learned(s.heads), learned(s.heads)), flex=False),
    Task("Shaw, keys", lambda s: RowTable(learned(s.batch, s.heads, s.length, 33), -16), flex=False),
    Task("Shaw, keys and values", encoding=Shaw(), flex=False),
    Task("FIRE", encoding=Fire(), flex=False),
    Task("Transformer-XL, W_r R counted", encoding=TransformerXL(), flex=False),
    Task("CoPE", encoding=CoPE(), flex=False),
    Task("shifted positions", encoding=Shifted(), flex=False),
    Task("FoX", lambda s: QueryAndKey(*(learned(s.batch, s.heads, s.length) for _ in range(2))), flex=False),
    Task(f"window {REACH:,}", window=REACH),
)


def positions_of(task: Task, size: Size) -> Positions:
    """Of the keys, of which the queries are the last."""
    length = size.past + size.length
    return Positions.arange(size.batch, length, device="cuda") if task.places is None else task.places(size)


def visible_pairs(task: Task, size: Size, at: Positions) -> int:
    n = size.past + size.length
    if task.name == "documents":
        rank = (at.order - at.segment)[at.filled]  # pyright: ignore[reportOptionalOperand]
        return int((rank + 1).sum())
    each = min(n, task.window or n)
    of_all = each * (each + 1) // 2 + (n - each) * each
    return size.batch * (of_all - size.past * (size.past + 1) // 2)
