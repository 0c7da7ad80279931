"""What was captured, as data that answers questions and draws itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures.html import page_table
from vantage.spec.model import ModelSpec


@final
@dataclass(frozen=True, eq=False)
class CapturedPass:
    """What one pass left of one attention: tensors (B, heads, queries, …)."""

    heads: tuple[int, ...]
    order: Tensor  # (B, queries): where each query stands in its row
    data: dict[str, Tensor]
    width: int  # one more than the highest order of a key
    kernel: str
    error: float | None  # largest difference between weights times values and the output that was used

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for t in (*self.data.values(), self.order))


class TokensRead(NamedTuple):
    """What one pass read."""

    tokens: Tensor | None  # (B, T); None: images
    order: Tensor  # (B, T), -1 where a place is empty


@final
@dataclass(eq=False, repr=False)
class Capture:
    """Attention weights of a run. ``keep`` says what is left of each row: "weights", "stats" or "top…".

    What is asked of a layer is put together from all passes, which must be those of one sequence (or of one batch)
    read on and on. The passes of several are kept too, each by itself in ``parts``.
    """

    keep: str
    spec: ModelSpec
    parts: dict[tuple[str, int], list[CapturedPass]]
    read: dict[str, list[TokensRead]] = field(default_factory=dict)  # by "self" and "encoder", pass by pass
    label: Callable[[Sequence[int]], list[str]] = field(default=lambda tokens: [str(n) for n in tokens])

    # ---- what there is

    @property
    def sites(self) -> list[tuple[str, int]]:
        """(kind, layer) of every attention that was captured."""
        return list(self.parts)

    @property
    def bytes(self) -> int:
        """What is kept."""
        return sum(part.bytes for parts in self.parts.values() for part in parts)

    @property
    def error(self) -> float | None:
        """The largest difference between captured weights times values and what the model used; if ``verify``."""
        errors = [part.error for parts in self.parts.values() for part in parts if part.error is not None]
        return max(errors, default=None)

    @property
    def kernels(self) -> set[str]:
        """Which kernels ran."""
        return {part.kernel for parts in self.parts.values() for part in parts}

    def kind(self, layer: int, kind: str | None = None) -> str:
        """Which attention is meant: a decoder's own where nothing is said and it was captured."""
        kinds = [k for k, n in self.parts if n == layer and kind in (None, k)]
        if not kinds:
            raise BadInput(f"layer {layer}{f' ({kind})' if kind else ''} was not captured: there are {self._names()}")
        return "self" if kind is None and "self" in kinds else kinds[0]

    def heads(self, layer: int, kind: str | None = None) -> tuple[int, ...]:
        return self.parts[self.kind(layer, kind), layer][0].heads

    def queries(self, layer: int, kind: str | None = None) -> Tensor:
        """(B, queries): the order of each query."""
        return torch.cat([part.order for part in self._of(layer, kind)], 1)

    def tokens(self, kind: str = "self", row: int = 0) -> list[str]:
        """The tokens of a row as text, by their order; kind "encoder" for the source."""
        self._one_sequence(kind)
        token_at: dict[int, int] = {}
        for tokens, order in self.read.get(kind, []):
            _check_row(row, order)
            if tokens is not None:
                token_at |= zip(order[row].tolist(), tokens[row].tolist(), strict=True)
        return self.label([token_at[o] for o in sorted(token_at) if o >= 0])

    # ---- numbers

    def weights(self, layer: int, head: int | None = None, *, kind: str | None = None, row: int = 0) -> Tensor:
        """(queries, keys) of one head, (heads, queries, keys) of all. Of "top…", what was not kept is 0."""
        parts = self._of(layer, kind, row)
        if self.keep == "stats":
            raise BadInput('keep="stats" left no weights: capture again with keep="weights" or "top32"')
        width = max(part.width for part in parts)
        dense = torch.cat([_dense(part, row, width) for part in parts], 1)
        return dense if head is None else dense[self._head(parts[0], head)]

    def stats(self, layer: int, head: int | None = None, *, kind: str | None = None, row: int = 0) -> dict[str, Tensor]:
        """(queries,) of one head, (heads, queries) of all."""
        parts = self._of(layer, kind, row)
        if self.keep != "stats":
            raise BadInput(f'keep={self.keep!r} kept weights, not statistics: capture again with keep="stats"')
        joined = {name: torch.cat([part.data[name][row] for part in parts], 1) for name in parts[0].data}
        return joined if head is None else {n: t[self._head(parts[0], head)] for n, t in joined.items()}

    def top(
        self, layer: int, head: int, query: int, *, kind: str | None = None, row: int = 0
    ) -> list[tuple[int, float]]:
        """(order of the key, weight) of one query's largest weights, the largest first."""
        parts = self._of(layer, kind, row)
        order = torch.cat([part.order[row] for part in parts]).tolist()
        if query not in order:
            raise BadInput(f"query {query} was not captured: there are {len(order)}, {order[0]} to {order[-1]}")
        line = self.weights(layer, head, kind=kind, row=row)[order.index(query)]
        best = line.topk(min(32, len(line)))
        return [(int(k), float(w)) for w, k in zip(best.values, best.indices, strict=True) if w > 0]

    def to_dict(self, most: int = 8) -> dict[str, Any]:
        """As plain data: of each row the ``most`` largest weights, or its statistics."""
        return {
            "keep": self.keep,
            "bytes": self.bytes,
            "kernels": sorted(self.kernels),
            "error": self.error,
            "tokens": self.tokens(),
            "source": self.tokens("encoder"),
            "attention": [self._one(kind, layer, most) for kind, layer in self.parts],
        }

    def _one(self, kind: str, layer: int, most: int) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": kind, "layer": layer, "heads": list(self.heads(layer, kind))}
        facts["queries"] = self.queries(layer, kind)[0].tolist()
        if self.keep == "stats":
            return facts | {name: t.tolist() for name, t in self.stats(layer, kind=kind).items()}
        dense = self.weights(layer, kind=kind)
        best = dense.topk(min(most, dense.shape[-1]), -1)
        return facts | {"weights": best.values.tolist(), "keys": best.indices.tolist()}

    # ---- showing

    def __repr__(self) -> str:
        count = sum(len(part.heads) for parts in self.parts.values() for part in parts[:1])
        queries = max((sum(p.order.shape[1] for p in parts) for parts in self.parts.values()), default=0)
        return (
            f"Capture({self.keep}: {len(self.parts)} layers, {count} heads, {queries} queries, "
            f"{self.bytes / 2**20:.1f} MiB, by {', '.join(sorted(self.kernels)) or 'nobody yet'})"
        )

    def _repr_html_(self) -> str:
        from vantage.inspect.plots import plot_heads

        rows = [
            [kind, layer, len(parts[0].heads), sum(p.order.shape[1] for p in parts), parts[0].kernel]
            for (kind, layer), parts in self.parts.items()
        ]
        kind, layer = self.sites[0] if self.parts else ("self", 0)
        drawn = self.keep != "stats" and self.parts and all(self._broken(of) is None for of in self.read)
        figure = plot_heads(self, layer, kind) if drawn else None
        return page_table(repr(self), ["attention", "layer", "heads", "queries", "kernel"], rows, figure)

    # ---- inside

    def _of(self, layer: int, kind: str | None, row: int = 0) -> list[CapturedPass]:
        kind = self.kind(layer, kind)
        self._one_sequence("encoder" if kind == "encoder" else "self")
        parts = self.parts[kind, layer]
        _check_row(row, parts[0].order)
        return parts

    def _one_sequence(self, of: str) -> None:
        """Put together, the passes of several sequences would look like one."""
        if (why := self._broken(of)) is not None:
            raise BadInput(
                f"{why}: several sequences were captured, and they cannot be put together. Capture one sequence at a "
                "time, or read each pass by itself in .parts"
            )

    def _broken(self, of: str) -> str | None:
        """Which pass does not go on from the one before it; ``None``: all do."""
        end: Tensor | None = None
        for i, (_, order) in enumerate(self.read.get(of, [])):
            last = order.amax(1)
            if end is not None:
                if len(order) != len(end):
                    return f"pass {i} has {len(order)} rows, and the one before it {len(end)}"
                first = order.masked_fill(order < 0, torch.iinfo(order.dtype).max).amin(1)
                for b in ((last >= 0) & (first != end + 1)).nonzero().flatten().tolist():
                    return f"pass {i} starts at token {int(first[b])}, and the one before it ended at {int(end[b])}"
                last = torch.maximum(last, end)
            end = last
        return None

    def _names(self) -> str:
        return ", ".join(f"{kind} {layer}" for kind, layer in self.parts) or "none"

    def _head(self, part: CapturedPass, head: int) -> int:
        if head not in part.heads:
            raise BadInput(f"head {head} was not captured: there are {', '.join(map(str, part.heads))}")
        return part.heads.index(head)


def _dense(part: CapturedPass, row: int, width: int) -> Tensor:
    """(heads, queries, keys) of one row of the batch."""
    kept = part.data["weights"][row]
    out = kept.new_zeros(*kept.shape[:2], width)
    if "keys" not in part.data:
        out[..., : kept.shape[-1]] = kept
        return out
    return out.scatter_add_(-1, part.data["keys"][row].clamp_min(0).long(), kept)


def _check_row(row: int, order: Tensor) -> None:
    if type(row) is not int or not 0 <= row < len(order):
        raise BadInput(f"there is no row {row!r}: there are {len(order)}, 0 to {len(order) - 1}")
