"""The head atlas (A17): every head of a model, measured on a real text and sorted by what it does."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from vantage.errors import BadInput, unknown
from vantage.figures.html import page_table
from vantage.inspect.capture import Progress
from vantage.inspect.measure import MEASURES, measure
from vantage.inspect.select import Numbers, choose_sites, read_source, read_tokens
from vantage.inspect.sites import KernelCall, observing, sites_of
from vantage.model import Model

CLEAREST = 5  # heads of each kind that are printed
LONGEST = 512  # tokens of the text that are read, unless more are asked for


@final
@dataclass(frozen=True)
class Thresholds:
    """From which mean weight on a head is called so. A head may be several things; it is listed by the first."""

    induction: float = 0.3
    previous: float = 0.4
    same: float = 0.3
    first: float = 0.5
    itself: float = 0.4
    diagonal: float = 0.6  # cross-attention that follows along
    last: float = 0.5  # cross-attention on the end of the source
    local: float = 0.7
    positional: float = 0.8

    def _repr_html_(self) -> str:
        return page_table("called so from a mean weight of", ["kind", "weight"], list(asdict(self).items()))


@final
@dataclass(frozen=True)
class HeadFacts:
    """One head. ``kinds``: what it is called, by the thresholds; the measures are means over the text's tokens."""

    site: str
    layer: int
    head: int
    kinds: tuple[str, ...]
    measures: dict[str, float]

    @property
    def kind(self) -> str:
        return self.kinds[0] if self.kinds else "mixed"

    def _repr_html_(self) -> str:
        title = f"{self.site} {self.layer}.{self.head}: {', '.join(self.kinds) or 'mixed'}"
        return page_table(title, ["measure", "mean"], list(self.measures.items()))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Atlas:
    """Every head of a model."""

    heads: tuple[HeadFacts, ...]
    thresholds: Thresholds
    tokens: int

    def of(self, kind: str) -> list[HeadFacts]:
        """The heads that are called so, the clearest first; "mixed": those that are called nothing."""
        if kind == "mixed":
            return [head for head in self.heads if not head.kinds]
        if kind not in asdict(self.thresholds):
            raise BadInput(unknown("kind of head", kind, [*asdict(self.thresholds), "mixed"]))
        named = [head for head in self.heads if kind in head.kinds]
        return sorted(named, key=lambda head: -head.measures[kind])

    @property
    def counts(self) -> dict[str, int]:
        """How many heads are called what; a head may count more than once."""
        return {kind: len(self.of(kind)) for kind in (*asdict(self.thresholds), "mixed")}

    def to_dict(self) -> dict[str, Any]:
        heads = [asdict(head) | {"kinds": list(head.kinds), "kind": head.kind} for head in self.heads]
        for head in heads:  # JSON has no nan
            head["measures"] = {n: None if math.isnan(v) else v for n, v in head["measures"].items()}
        return {"tokens": self.tokens, "thresholds": asdict(self.thresholds), "counts": self.counts, "heads": heads}

    @property
    def header(self) -> list[str]:
        return ["head", "kinds", *self._shown()]

    def rows(self) -> list[list[Any]]:
        return [
            [
                f"{head.site} {head.layer}.{head.head}",
                ", ".join(head.kinds) or "mixed",
                *("" if math.isnan(head.measures[name]) else round(head.measures[name], 3) for name in self._shown()),
            ]
            for head in self.heads
        ]

    def _shown(self) -> list[str]:
        """Measures that mean something somewhere in this model."""
        return [n for n in MEASURES if not all(math.isnan(head.measures[n]) for head in self.heads)]

    @property
    def summary(self) -> str:
        """How many heads are called what, in a line."""
        counts = ", ".join(f"{n} {kind}" for kind, n in self.counts.items() if n)
        return f"{len(self.heads)} heads on {self.tokens} tokens: {counts}"

    def __repr__(self) -> str:
        return f"Atlas({self.summary})"

    def __str__(self) -> str:
        """The summary, and the clearest heads of each kind with their mean weight."""
        lines = [self.summary]
        for kind in asdict(self.thresholds):
            if named := self.of(kind):
                best = ", ".join(f"{head.layer}.{head.head} ({head.measures[kind]:.2f})" for head in named[:CLEAREST])
                lines.append(f"  {kind:<11}{best}{', …' if len(named) > CLEAREST else ''}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from vantage.inspect.plots import plot_atlas

        return page_table(repr(self), self.header, self.rows(), plot_atlas(self))


@torch.inference_mode()
def atlas(
    model: Model,
    text: Any,
    *,
    source: Any = None,
    layers: Numbers = None,
    longest: int = LONGEST,
    repeat: bool = True,
    thresholds: Thresholds = Thresholds(),
    progress: Progress | None = None,
) -> Atlas:
    """Measure every head on a text.

    Of the text the first ``longest`` tokens are read, then, if ``repeat``, the same once more, for induction. For an
    encoder-decoder ``text`` is what the decoder says and ``source`` what it reads.
    """
    if longest < 2:
        raise BadInput(f"longest={longest}: give 2 tokens or more")
    room = model.context_length
    room = None if room is None else room // 2 if repeat else room
    first = read_tokens(model, text, cut=longest if room is None else min(longest, room))[:1]
    tokens = torch.cat((first, first), 1) if repeat else first
    read = read_source(model, source)
    sites = choose_sites(sites_of(model), None, layers)
    heads: list[HeadFacts] = []

    def see(call: KernelCall) -> None:
        kind = call.site.kind
        own = None if kind == "cross" else tokens[0] if kind == "self" else read[0] if read is not None else None
        facts = measure(call, own, first.shape[1] if repeat and kind == "self" else None)
        for head in range(call.site.heads):
            measures = {name: float(value[head]) for name, value in facts.items()}
            heads.append(HeadFacts(kind, call.site.layer, head, _kinds(measures, thresholds), measures))
        if progress is not None:
            progress(len({(h.site, h.layer) for h in heads}), len(sites))

    with observing(sites, see):
        model.hidden(tokens, source=read)
    order = {site.name: i for i, site in enumerate(sites)}
    heads.sort(key=lambda head: (order[f"{head.site} {head.layer}"], head.head))
    return Atlas(tuple(heads), thresholds, tokens.shape[1])


def _kinds(measures: dict[str, float], thresholds: Thresholds) -> tuple[str, ...]:
    return tuple(name for name, least in asdict(thresholds).items() if measures[name] >= least)
