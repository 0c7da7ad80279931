"""Cells of the conformance matrix with their tokens over processes, against one process in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vantage.attention import Canon
from vantage.conformance.covering import cover
from vantage.conformance.factors import LENGTH, NUMBER, VOCAB, allowed_by, attentions, encodings, masks, rules
from vantage.conformance.scenarios import sharpen, spec_for
from vantage.errors import VantageError
from vantage.model import Model, build
from vantage.parallel import ContextParallel
from vantage.spec.positions import Positions

ROWS, WIDTH = 2, 13  # tokens that do not divide into equal shares

WHERE = {
    "plain": lambda: Positions.arange(ROWS, WIDTH),
    "left-padded": lambda: Positions.rows((WIDTH, 9), pad="left"),
    "right-padded": lambda: Positions.rows((5, WIDTH)),
    "packed": lambda: Positions.packed(((4, 9), (3, 2, 6)), width=WIDTH),
}


def loss_of(logits: Tensor, weights: Tensor, filled: Tensor) -> Tensor:
    """A number that every logit of a token has its own part in."""
    return (logits * weights)[filled].sum()


class Cell:
    """A model of the matrix, and tokens for it."""

    def __init__(self, cell: tuple[str, ...], dtype: torch.dtype = torch.float64):
        encoding, attention, mask, *self.how = cell
        spec = spec_for((encoding, attention, mask, "none", "reference", "full"))
        self.model: Model = sharpen(build(spec, kernel="reference")).to(dtype)
        gen = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(VOCAB, (ROWS, WIDTH), generator=gen)
        self.source = None if spec.encoder is None else torch.randint(VOCAB, (ROWS, 5), generator=gen)
        self.weights = torch.randn(ROWS, WIDTH, VOCAB, generator=gen, dtype=torch.float64).to(dtype)
        self.pos = WHERE[self.how[2]]()

    def arguments(self) -> dict[str, object]:
        return {"positions": self.pos, "length": LENGTH, "source": self.source}

    def alone(self) -> tuple[Tensor, list[Tensor | None]]:
        self.model.zero_grad()
        logits = self.model(self.tokens, **self.arguments())
        loss_of(logits, self.weights, self.pos.filled).backward()
        return logits.detach(), [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]

    def shared(self) -> tuple[Tensor, list[Tensor | None]]:
        self.model.zero_grad()
        parallel = ContextParallel(cut=self.how[0], exchange=self.how[1])
        share = parallel.hidden(self.model, self.tokens, **self.arguments())
        logits = self.model.head(share.hidden)
        loss_of(logits, share.take(self.weights), share.positions.filled).backward()
        parallel.sum_gradients(self.model)
        return share.whole(logits.detach()), [p.grad for p in self.model.parameters()]


def gaps(cells: list[tuple[str, ...]]) -> list[tuple[float, float, str]]:
    """For each cell how far logits and gradients are off, the latter as a share of the largest; or the refusal."""
    found = []
    for names in cells:
        cell = Cell(names)
        wanted, wanted_grads = cell.alone()
        try:
            got, grads = cell.shared()
        except VantageError as e:
            found.append((0.0, 0.0, str(e)))
            continue
        filled = cell.pos.filled
        largest = max(float(w.abs().max()) for w in wanted_grads if w is not None)
        worst = max(
            float((g - (torch.zeros_like(g) if w is None else w)).abs().max())
            for g, w in zip(grads, wanted_grads, strict=True)
            if g is not None
        )
        found.append((float((got - wanted)[filled].abs().max()), worst / max(largest, 1.0), ""))
    return found


# ---- which cells there are

CUTS, EXCHANGES = ("contiguous", "zigzag"), ("gather", "ring")
NAMES = ("encoding", "attention", "mask", "cut", "exchange", "where")
STATES = tuple(n for n, case in attentions().items() if case.between is not None or isinstance(case.config, Canon))

# Attention whose weights cannot be merged by the log-sum-exp.
WITHOUT_LSE = (
    *("hard", "sparsemax", "entmax", "sigmoid", "stick-breaking"),
    *("nsa", "nsa-sinks", "moba", "moba-sinks"),
)

# What is refused, and the words of the refusal: all that a cut or an exchange cannot do. docs/scale.md repeats it.
REASONS: tuple[tuple[dict[str, tuple[str, ...]], str], ...] = (
    ({"attention": STATES, "cut": ("zigzag",)}, "a state goes through the tokens in their order"),
    (
        {"attention": WITHOUT_LSE, "exchange": ("ring",)},
        "a ring merges by the log-sum-exp",
    ),
    (
        {"encoding": ("fox", "path", "selective-rope"), "exchange": ("ring",)},
        "keeps more of each token than its key and value",
    ),
    (
        {
            "attention": ("indexer", "indexer-shared", "hca", "hca-turned", "csa", "csa-turned"),
            "exchange": ("ring",),
        },
        "keeps more of each token than its key and value",
    ),
    (
        {"encoding": ("shifted", "xl", "fire", "cope", "dape", "self-extend", "dual-chunk"), "exchange": ("ring",)},
        "exists as a whole only",
    ),
)


def reason(cell: Mapping[str, str]) -> str | None:
    """Why a cell is refused; ``None``: it must be equal."""
    for where, because in REASONS:
        if all(cell.get(name, "") in values for name, values in where.items()):
            return because
    return None


def covering(strength: int, *, refused: bool) -> list[tuple[str, ...]]:
    """Cells that hold every ``strength``-combination of those that must be equal, or else one for each refusal."""
    parts_fit = allowed_by(rules())
    fixed = {NUMBER["cache"]: "none", NUMBER["kernel"]: "reference", NUMBER["scenario"]: "full"}

    def allowed(chosen: Mapping[int, str]) -> bool:
        named = {NAMES[i]: value for i, value in chosen.items()}
        parts = {i: value for i, value in chosen.items() if i < NUMBER["cache"]} | fixed
        return parts_fit(parts) and (refused or reason(named) is None)

    values = (tuple(encodings()), tuple(attentions()), tuple(masks()), CUTS, EXCHANGES, tuple(WHERE))
    if not refused:
        return cover(dict(zip(NAMES, values, strict=True)), strength, allowed)
    cells = cover(dict(zip(NAMES, values, strict=True)), 2, allowed)
    return [cell for cell in cells if reason(dict(zip(NAMES, cell, strict=True))) is not None]


# ---- other ways in


def prefilled(cases: list[tuple[str, str]]) -> list[float]:
    """Fill a cache over all processes, then go on in this one alone; the largest difference from one pass."""
    worst = []
    for attention, kind in cases:
        cell = Cell(("rope", attention, "causal", "contiguous", "gather", "plain"))
        model, parallel = cell.model, ContextParallel()
        with torch.no_grad():
            cache = model.new_cache(ROWS, kind=kind, length=LENGTH)
            share = parallel.hidden(model, cell.tokens[:, :10], cache=cache)
            first = share.whole(model.head(share.hidden))
            rest = [model(cell.tokens[:, t : t + 1], cache=cache) for t in range(10, WIDTH)]
            whole = model(cell.tokens, length=LENGTH)
        worst.append(float((torch.cat([first, *rest], 1) - whole).abs().max()))
    return worst


def undeclared() -> float:
    """RoPE whose frequencies depend on the longest row, which no process but the last has seen the end of."""
    cell = Cell(("rope-ntk", "grouped", "causal", "zigzag", "gather", "plain"))
    with torch.no_grad():
        share = ContextParallel(cut="zigzag").hidden(cell.model, cell.tokens)
        got = share.whole(cell.model.head(share.hidden))
        return float((got - cell.model(cell.tokens)).abs().max())


def in_type(name: str) -> list[tuple[float, float]]:
    """For each exchange: how far this type over processes, and in one process, is from float64."""
    dtype, found = getattr(torch, name), []
    for exchange in EXCHANGES:
        cell = ("rope", "grouped", "causal", "zigzag", exchange, "packed")
        exact = Cell(cell)
        wanted, _ = exact.alone()
        rounded = Cell(cell, dtype)
        shared, alone = rounded.shared()[0].double(), rounded.alone()[0].double()
        filled = exact.pos.filled
        found.append((float((shared - wanted)[filled].abs().max()), float((alone - wanted)[filled].abs().max())))
    return found


def bytes_sent(exchange: str) -> dict[str, int]:
    """What a forward and a backward pass of a small model send."""
    cell = Cell(("rope", "grouped", "causal", "contiguous", exchange, "plain"))
    parallel = ContextParallel(exchange=exchange)
    share = parallel.hidden(cell.model, cell.tokens[:, :12])
    share.hidden.sum().backward()
    return dict(parallel.wire.bytes)
