"""Calls of the fused kernel, and how far it is from the float64 reference, gradients included."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from vantage.kernels import kernel_named
from vantage.kernels.fused import Fused
from vantage.position import Fire
from vantage.position.cope import CountedPositions
from vantage.position.shaw import ValueDistances
from vantage.spec.forms import (
    CountTable,
    DistanceKeys,
    DistanceTable,
    LogDistance,
    PowerDistance,
    QueryAndKey,
    RatioPieces,
    RowTable,
    Slope,
)
from vantage.spec.masks import Causal, Chunked, Everything, Mask, Prefix, SameSegment, Window
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import Dense, Need, Shape, View
from vantage.spec.positions import EMPTY, Positions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MISSING = DEVICE == "cpu" and importlib.util.find_spec("triton") is None
# relative to the norm, as inputs and outputs are rounded
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
FORMS = ("none", "slope", "log", "power", "table", "row table", "query and key", "pieces")


LEARNED = {  # what a form has to learn
    "none": (),
    "log": ("bias.a", "bias.p"),
    "power": ("bias.a", "bias.p"),
    "query and key": ("bias.query", "bias.key"),
    "distance keys": ("bias.queries", "bias.table"),
    "own distance keys": ("bias.offset", "bias.table"),
    "counts": ("bias.by_count",),
    "pieces": ("bias.slopes", "bias.offsets", "bias.c", "bias.limit"),
}


@dataclass(frozen=True)
class Case:
    """Sizes, mask, places, form, and what stands between q·k and the weights."""

    form: str = "none"
    mask: Mask = Causal()
    places: str = "run"
    B: int = 1
    G: int = 1
    share: int = 2
    T: int = 27
    S: int = 27
    d: int = 16
    e: int = 16
    softcap: float | None = None
    temperature: float = 1.0
    sinks: str | None = None  # "head" or "query"
    lse: bool = False  # the log-sum-exp has a gradient as well
    width: int = 9  # of a table
    first: int = -2  # the distance of its first entry
    values: int = 0  # there is a vector for each distance up to this one on both sides
    hidden: int = 6  # units of a network
    limit: float = 11.0  # positions below this are as it
    f: int = 16  # width of vectors of distances
    gates: float = 2.0  # scale of what opens gates, times the root of the width; a large one leaves few half open

    @property
    def H(self) -> int:
        return self.G * self.share


def places(case: Case, generator: torch.Generator) -> tuple[Positions, Positions]:
    B, T, S = case.B, case.T, case.S
    if case.places == "run":  # the queries are the last of the keys
        return Positions.arange(B, T, 3 + S - T), Positions.arange(B, S, 3)
    if case.places == "beyond":  # the keys end before the queries do
        return Positions.arange(B, T, 8 + S - T), Positions.arange(B, S, 3)
    if case.places == "before":  # the first queries stand before all keys
        return Positions.arange(B, T, 0), Positions.arange(B, S, T // 2)
    if case.places in ("documents", "filled by documents"):
        rest = S - S // 3 - S // 5
        lengths = [[n for n in (S // 3 - 2 * b, S // 5, rest - 1) if n > 0] for b in range(B)]
        if case.places == "filled by documents":
            lengths = [[S // 3 - 2 * b, S // 5, rest + 2 * b] for b in range(B)]
        at = Positions.packed(lengths, width=S)
        return at if T == S else at.narrow(S - T, T), at
    if case.places == "padded":
        at = Positions.rows([S - 5 * (b + 1) for b in range(B)], width=S, pad="left")
        return at.narrow(S - T, T), at
    if case.places == "blind":  # a row without keys, queries before all keys
        keys = torch.arange(S).expand(B, S) + T // 2
        keys = torch.where((torch.arange(B) > 0)[:, None], keys, EMPTY)
        return Positions.of(torch.arange(T).expand(B, T)), Positions.of(keys)
    order = torch.stack([torch.randperm(2 * S, generator=generator)[:S].sort().values for _ in range(B)])
    pos = (3 * order + 1) if case.places == "stretched" else 0.5 * order
    keys = Positions.of(pos, order=order)
    queries = keys.narrow(S - T, T)
    if case.places == "shuffled":  # as a ring keeps them
        back = torch.randperm(S, generator=generator)
        keys = Positions.of(order[:, back])
        queries = Positions.of(order[:, S - T :])
    return queries, keys


def form(case: Case, generator: torch.Generator, dtype: torch.dtype):
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    B, H, T, S = case.B, case.H, case.T, case.S
    makes = {
        "none": lambda: None,
        "slope": lambda: Slope(normal(H).abs() / 3),
        "log": lambda: LogDistance(normal(H).abs(), normal(H).abs()),
        "power": lambda: PowerDistance(normal(H).abs() / 3, normal(H).sigmoid()),
        "table": lambda: DistanceTable(normal(H, case.width), case.first),
        "row table": lambda: RowTable(normal(B, H, T, case.width), case.first),
        "query and key": lambda: QueryAndKey(normal(B, H, T), normal(B, H, S)),
        "pieces": lambda: pieces(normal, H, case),
        "counts": lambda: Counts(normal(B, H, T, case.width)),
        "own distance keys": lambda: OwnDistanceVectors(normal(H, case.d), normal(H, 2 * (T + S) + 256, case.d)),
        "distance keys": lambda: DistanceVectors(normal(B, H, T, case.f), normal(H, 2 * (T + S) + 256, case.f)),
    }
    return makes[case.form]()


def pieces(normal: Callable[..., Tensor], heads: int, case: Case) -> RatioPieces:
    """FIRE's, with break points among the ratios."""
    fire = Fire(hidden=case.hidden, init_L=case.limit, init_c=0.3, bidirectional=False)
    part = fire.build(Shape(16 * heads, heads, heads, 16, 16, 16)).double()
    with torch.no_grad():
        for parameter in (*part.f[0].parameters(), *part.f[2].parameters()):
            parameter.copy_(normal(*parameter.shape))
        part.f[0].bias.copy_(-part.f[0].weight[:, 0] * normal(case.hidden).sigmoid())
        form = part.form().pieces()
    return replace(
        form, **{f.name: x.to(torch.float32) for f in fields(form) if isinstance(x := getattr(form, f.name), Tensor)}
    )


@dataclass(frozen=True)
class DistanceVectors:
    """A vector for each query and one for each distance, whose product is the bias; further out it is 0."""

    queries: Tensor  # (B, H, T, f)
    table: Tensor  # (H, W, f), from the distance -W // 2 on
    factor: float = 0.4

    def dense(self, q_pos: Positions, k_pos: Positions) -> Dense:
        middle = self.table.shape[1] // 2

        def keys(highest: int, n: int) -> Tensor:
            return self.table[:, highest - torch.arange(n, device=self.table.device) + middle]

        def whole(cut: slice) -> Tensor:
            every = self.queries @ self.table.transpose(-1, -2)
            distance = q_pos.pos[:, None, :, None] - k_pos.pos[:, None, None, :] + middle
            return (self.factor * every.gather(-1, distance.expand(-1, every.shape[1], -1, -1)))[:, :, cut]

        return Dense(whole, lambda: DistanceKeys(self.queries, keys, self.factor))


@dataclass(frozen=True)
class OwnDistanceVectors:
    """The same for the attention's own queries and an offset to them."""

    offset: Tensor  # (H, d)
    table: Tensor  # (H, W, d)
    factor: float = 0.4

    def dense(self, q: Tensor, q_pos: Positions, k_pos: Positions) -> Dense:
        given = DistanceVectors(q + self.offset[:, None], self.table, self.factor).dense(q_pos, k_pos)
        form = given.form()
        return Dense(lambda cut: given.of_queries(cut), lambda: DistanceKeys(None, form.keys, self.factor, self.offset))


@dataclass(frozen=True)
class Counts:
    """Numbers of each query for each count of the keys that it cares about."""

    by_count: Tensor  # (B, H, T, P)
    beside: float = 0.0  # added to a count to choose the two numbers that it lies between

    def dense(self, q: Tensor, k: Tensor, q_pos: Positions, k_pos: Positions, scale: float) -> Dense:
        counted = CountedPositions(self.by_count.shape[-1], q.shape[-1])

        def whole(cut: slice) -> Tensor:
            count = counted.counts(q, k, q_pos, k_pos, scale)
            last = self.by_count.shape[-1] - 1
            below = (count.detach() + self.beside).floor().long().clamp(0, last)
            above = (below + 1).clamp_max(last)
            by_count = self.by_count.to(count.dtype)
            return torch.lerp(by_count.gather(-1, below), by_count.gather(-1, above), count - below)[:, :, cut]

        by_token = self.by_count.transpose(1, 2).contiguous()  # as a layer has it: heads of a token side by side
        return Dense(whole, lambda: CountTable(by_token.transpose(1, 2), scale))


@dataclass
class Ran:
    """What came out, and the gradients of everything that went in."""

    out: Tensor
    lse: Tensor
    grads: list[Tensor]


class Inputs:
    """Random inputs of a case, rounded to a dtype once, and then wide or not."""

    def __init__(self, case: Case, dtype: torch.dtype, seed: int = 0, device: str = DEVICE):
        g = torch.Generator().manual_seed(seed)
        self.case, self.device, self.dtype = case, device, dtype
        q_pos, k_pos = places(case, g)
        self.k_pos = k_pos.to(device)
        self.q_pos = self.k_pos if q_pos is k_pos else q_pos.to(device)
        B, H, G, T, S = case.B, case.H, case.G, case.T, case.S
        shapes = ((B, T, H, case.d), (B, S, G, case.d), (B, S, G, case.e), (B, T, H, case.e))
        self.q, self.k, self.v, self.grad = (
            torch.randn(*shape, generator=g).to(device, dtype).transpose(1, 2) for shape in shapes
        )
        self.bias = form(case, g, torch.float32)
        shape = {None: (0,), "head": (H,), "query": (B, H, T)}[case.sinks]
        self.sinks = torch.randn(*shape, generator=g).to(device)
        self.vectors = torch.randn(2 * case.values + 1, case.e, generator=g).to(device)
        self.grad_lse = torch.randn(B, H, T, generator=g).to(device) if case.lse else None

    def run(
        self,
        kernel: object,
        dtype: torch.dtype | None = None,
        poison: bool = False,
        lse: bool = True,
        learned: bool = True,
    ) -> Ran:
        """``poison``: what lies in empty places is NaN. ``learned``: a bias has a gradient as well."""
        case = self.case
        dtype, wide = dtype or self.dtype, torch.float64 if dtype == torch.float64 else torch.float32
        q, k, v = (x.detach().clone().to(dtype) for x in (self.q, self.k, self.v))
        if poison:
            gone = (~self.k_pos.filled)[:, None, :, None]
            k, v = k.masked_fill(gone, float("nan")), v.masked_fill(gone, float("nan"))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        bias = self.bias
        if bias is not None:
            tables = {f.name: x for f in fields(bias) if isinstance(x := getattr(bias, f.name), Tensor)}  # pyright: ignore[reportArgumentType]
            tables = {name: x.to(self.device, wide).detach() for name, x in tables.items()}
            leaves += [x.requires_grad_() for name, x in tables.items() if learned and name != "breaks"]
            bias = replace(bias, **tables)  # pyright: ignore[reportArgumentType]
            if isinstance(bias, DistanceVectors):
                bias = bias.dense(self.q_pos, self.k_pos)
            elif isinstance(bias, OwnDistanceVectors):
                bias = bias.dense(q, self.q_pos, self.k_pos)
            elif isinstance(bias, Counts):
                bias = bias.dense(q, k, self.q_pos, self.k_pos, case.gates * case.d**-0.5)
        sinks = None
        if case.sinks:
            sinks = self.sinks.to(wide).detach().requires_grad_()
            leaves.append(sinks)
        value_bias = None
        if case.values:
            value_bias = ValueDistances(case.values, case.e)
            value_bias.table = torch.nn.Parameter(self.vectors.to(wide))
            leaves.append(value_bias.table)
        need = Need(
            case.mask,
            case.d**-0.5 * 2,
            case.softcap,
            bias,
            sinks,
            Softmax(case.temperature),
            value_bias=value_bias,
            lse=lse,
        )
        view = View(k, v, self.k_pos)
        assert kernel.refuses(need, q, view) is None, kernel.refuses(need, q, view)
        got = kernel(q, view, self.q_pos.against(self.k_pos), need)
        outputs, grads = [got.out], [self.grad.to(dtype)]
        if self.grad_lse is not None:
            outputs, grads = [*outputs, got.lse], [*grads, self.grad_lse.to(got.lse.dtype)]
        lse_BHT = got.out.new_zeros(0) if got.lse is None else got.lse.detach()
        return Ran(got.out.detach(), lse_BHT, list(torch.autograd.grad(outputs, leaves, grads)))


def far_off(
    case: Case, dtype: torch.dtype, block: int | None, *, seed: int = 0, poison: bool = False
) -> dict[str, float]:
    """The relative error of everything that the fused kernel gives."""
    inputs = Inputs(case, dtype, seed)
    got = inputs.run(Fused(block), dtype, poison=poison)
    return errors(case, got, inputs.run(kernel_named("reference"), torch.float64))


def errors(case: Case, got: Ran, right: Ran) -> dict[str, float]:
    names = ["q", "k", "v", *LEARNED.get(case.form, ("bias",))]
    names += (["sinks"] if case.sinks else []) + (["values"] if case.values else [])
    values = {"out": error(got.out, right.out), "lse": error(got.lse, right.lse)}
    return values | {f"{name}.grad": error(a, b) for name, a, b in zip(names, got.grads, right.grads, strict=True)}


def either_side(case: Case, dtype: torch.dtype) -> dict[str, float]:
    """How far apart the reference's gradients are if counts that float32 cannot tell from a whole number belong to the
    piece above it, and if to the one below. Some among a million counts lie so."""
    inputs, reference = Inputs(case, dtype), kernel_named("reference")
    counted = CountedPositions(case.width, case.d)
    with torch.no_grad():
        rounded, right = (
            counted.counts(inputs.q.to(wide), inputs.k.to(wide), inputs.q_pos, inputs.k_pos, case.gates * case.d**-0.5)
            for wide in (torch.float32, torch.float64)
        )
    off = 3 * float((rounded - right).abs().max())
    ran = []
    for beside in (off, -off):
        assert isinstance(inputs.bias, Counts)
        inputs.bias = replace(inputs.bias, beside=beside)
        ran.append(inputs.run(reference, torch.float64))
    return errors(case, *ran)


def error(got: Tensor, right: Tensor) -> float:
    same = right.isinf() & (got == right.to(got.dtype))
    got, right = (x.double().masked_fill(same, 0.0) for x in (got, right))
    return float((got - right).norm() / right.norm().clamp_min(1e-6))


AROUND = {"width": 9, "first": -4, "values": 4}
VALUES = [
    *(
        Case("row table", mask, **AROUND)
        for mask in (Causal(), Everything(), Causal() & Window(9), Causal() | Prefix(13))
    ),
    Case(
        "row table",
        Causal() & SameSegment(),
        "documents",
        B=2,
        T=33,
        S=33,
        softcap=1.5,
        sinks="query",
        lse=True,
        **AROUND,
    ),
    *(Case("row table", places=places, B=2, **AROUND) for places in ("stretched", "padded", "shuffled")),
    Case("row table", places="blind", B=2, T=30, S=18, sinks="head", **AROUND),
    Case("row table", T=19, S=51, share=3, e=24, temperature=0.7, **AROUND),
    Case("row table", T=1, S=51, **AROUND),
    Case("none", T=40, S=40, values=4),
]
MASKS = {
    "causal": Causal(),
    "everything": Everything(),
    "window": Causal() & Window(9),
    "both sides": Window(7),
    "chunked": Causal() & Chunked(10),
    "prefix": Causal() | Prefix(13),
}
SMALL = [
    *(Case(form, mask, B=1 + (n + m) % 2) for n, form in enumerate(FORMS) for m, mask in enumerate(MASKS.values())),
    *(Case(form, Causal() & SameSegment(), "documents", B=2, T=33, S=33) for form in FORMS),
    *(Case(form, Causal(), "padded", B=2, T=20, S=30) for form in FORMS),
    *(Case(form, Causal() & Window(20), "stretched", B=2) for form in FORMS),
    *(Case(form, Causal(), "shuffled", B=2, T=5, S=30) for form in FORMS),
    *(Case(form, Causal(), "blind", B=2, T=30, S=18, sinks="head") for form in FORMS),
    *(Case(form, Causal(), "fractional", B=2) for form in ("slope", "log", "power")),
    *(Case(form, Causal(), T=19, S=51) for form in FORMS),  # a chunk behind a cache
    *(Case(form, Causal(), T=1, S=51, share=3) for form in FORMS),
    *(Case(form, Everything(), T=33, S=20) for form in FORMS),  # across
    *(Case(form, softcap=1.5, sinks="query", temperature=0.7, lse=True) for form in FORMS),
    *(Case(form, Causal(), "documents", softcap=1.5, sinks="head", temperature=2.0, B=2) for form in FORMS),
    Case("table", width=60, first=0),
    *(Case(form, T=100, S=100) for form in ("log", "power", "pieces")),  # with tiles far from the diagonal
    Case("pieces", T=90, S=90, hidden=30, limit=60.0),  # several break points in a tile that is far
    Case("pieces", hidden=1),
    *VALUES,
    Case("table", width=1, first=4),
    Case("row table", width=70, first=-10, T=40, S=90),
    Case("slope", Causal() & Chunked(9) & SameSegment(), "documents", B=2),
    Case("table", (Causal() | Prefix(6)) & SameSegment(), "documents", B=2),
    Case("slope", share=1, G=3, d=32, e=16),
    Case("none", share=4, G=1, d=24, e=40),
]


PRODUCTS = ("distance keys", "own distance keys")  # where places run on
SMALL_PRODUCTS = [
    *(Case(form, mask, B=1 + n % 2) for form in PRODUCTS for n, mask in enumerate(MASKS.values())),
    *(Case(form, T=19, S=51) for form in PRODUCTS),
    *(Case(form, T=1, S=51, share=3) for form in PRODUCTS),
    *(Case(form, Causal() & Window(5), T=19, S=51, G=2) for form in PRODUCTS),  # nothing but the nearest distances
    *(Case(form, Everything(), T=33, S=20) for form in PRODUCTS),
    *(Case(form, softcap=1.5, sinks="query", temperature=0.7, lse=True) for form in PRODUCTS),
    Case("distance keys", share=1, G=3, d=32, e=16, f=8),
    Case("distance keys", share=4, G=1, d=24, e=40, f=40),
    Case("own distance keys", share=4, G=1, d=24, e=40),
]


SMALL_COUNTS = [
    *(
        Case("counts", mask, B=1 + n % 2, width=5)
        for n, mask in enumerate(MASKS[x] for x in ("causal", "window", "chunked"))
    ),
    Case("counts", T=60, S=60, width=4),  # most tiles are beyond the last count
    Case("counts", T=60, S=60, width=40, B=2),  # and here none is
    Case("counts", T=50, S=70, width=9, gates=40.0),  # gates open or shut: counts are whole numbers
    Case("counts", T=19, S=51, width=6, G=2),
    Case("counts", T=1, S=51, share=3, width=7),
    Case("counts", T=33, S=20, width=6),  # the first queries see nothing
    Case("counts", softcap=1.5, sinks="query", temperature=0.7, lse=True, width=6),
    Case("counts", T=40, S=40, sinks="head", share=4, G=1, d=24, e=40, width=2),
    Case("counts", Causal() & Window(30), T=80, S=80, width=8, share=3),
]


def long(forms: tuple[str, ...] = FORMS, mask: Mask = Causal(), places: str = "run", **sizes) -> list[Case]:
    return [Case(form, mask, places, **sizes) for form in forms]


# for a GPU: several tiles of the size that is used there, every width, odd lengths
LARGE = [
    *long(B=2, G=2, share=2, T=1000, S=1000, d=128, e=128, width=129, first=0),
    *long(G=1, share=4, T=300, S=1324, d=64, e=64, width=33, first=-16),
    *long(
        mask=Causal() & SameSegment(), places="documents", B=2, G=2, T=1500, S=1500, d=128, e=128, width=129, first=-128
    ),
    *(
        Case(
            form, Causal() & SameSegment(), "filled by documents", B=3, G=2, T=1500, S=1500, d=width, e=width, lse=True
        )
        for form in ("none", "slope", "query and key")
        for width in (64, 128)
    ),
    *(Case(form, B=2, G=1, share=3, T=n, S=n, d=64, e=64) for form in ("none", "slope") for n in (128, 1025)),
    Case("slope", Causal(), "filled by documents", B=2, T=700, S=700, d=128, e=128),  # which see each other
    *long(mask=Everything(), G=2, share=1, T=700, S=900, d=32, e=32, width=65, first=-32),
    *long(mask=Causal() & Window(200), T=1100, S=1100, d=256, e=256, width=33, first=-16, softcap=5.0, sinks="head"),
    *long(G=2, share=1, T=600, S=600, d=192, e=128, width=129, first=0, sinks="query", lse=True, temperature=0.8),
    *long(places="stretched", B=2, T=800, S=800, d=128, e=128, width=129, first=0),
    *long(places="padded", B=2, T=800, S=900, d=128, e=128, width=129, first=0),
    Case("row table", B=2, G=2, T=1000, S=1000, d=128, e=128, width=33, first=-16, values=16),
    Case("row table", Everything(), G=2, T=500, S=700, d=64, e=64, width=33, first=-16, values=16),
    *long(mask=Causal() | Prefix(300), T=800, S=800, d=64, e=64, width=129, first=0),
]
LARGE_COUNTS = [
    Case("counts", B=2, G=2, share=2, T=1000, S=1000, d=128, e=128, width=64),
    Case("counts", B=1, G=2, share=1, T=700, S=700, d=128, e=128, width=64, gates=40.0),
    Case("counts", G=1, share=4, T=300, S=1324, d=64, e=64, width=33),
    Case("counts", G=2, share=1, T=2500, S=2500, d=64, e=64, width=1024),  # every tile counts, and not all are kept
    Case("counts", Causal() & Window(200), T=1100, S=1100, d=256, e=256, width=17, softcap=5.0, sinks="head"),
    Case("counts", G=2, share=1, T=600, S=600, d=192, e=128, width=100, sinks="query", lse=True, temperature=0.8),
    Case("counts", T=1, S=900, d=128, e=128, width=64),
]
LARGE_PRODUCTS = [
    *long(PRODUCTS, B=2, G=2, share=2, T=1000, S=1000, d=128, e=128, f=128),
    *long(PRODUCTS, G=1, share=4, T=300, S=1324, d=64, e=64, f=64),
    *long(PRODUCTS, mask=Everything(), G=2, share=1, T=700, S=900, d=32, e=32, f=32),
    *long(PRODUCTS, mask=Causal() & Window(200), T=1100, S=1100, d=256, e=256, f=256, softcap=5.0, sinks="head"),
    *long(PRODUCTS, G=2, share=1, T=600, S=600, d=192, e=128, f=64, sinks="query", lse=True, temperature=0.8),
    *long(PRODUCTS, mask=Causal() | Prefix(300), T=800, S=800, d=64, e=64, f=64),
]
