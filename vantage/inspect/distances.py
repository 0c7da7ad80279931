"""Which distances a head can tell apart, and which lie outside what the model was trained on.

A query and a key taken from a real text are held fixed while the distance between them grows. What changes in the
score is all that position can say to this head. Two distances are told apart if, over many such pairs, the score
differs by more than a threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.figures.html import page_table
from vantage.inspect.capture import Progress
from vantage.inspect.recording import RecordedPass, bands_of, recording
from vantage.inspect.select import choose_sites, read_source, read_tokens
from vantage.inspect.sites import sites_of
from vantage.kernels.reference import masked_scores
from vantage.model import Model
from vantage.position.cope import CountedPositions
from vantage.spec.abilities import Bands
from vantage.spec.attention import QueriesAndKeys
from vantage.spec.masks import Everything
from vantage.spec.parts import BiasInputs
from vantage.spec.positions import Pair, Positions

PAIRS = 16
THRESHOLD = 0.1  # nats: one key gets 10 % more weight than the other
QUERIES_PER_BLOCK = 512


@final
@dataclass(frozen=True, eq=False, repr=False)
class Distances:
    """What position can say to each head of one layer."""

    layer: int
    trained: int | None  # the model's context: distances from here on were never met
    threshold: float
    at: tuple[int, ...]  # distances
    resolution: Tensor  # (heads, at): the step that changes the score by the threshold; 0: none does
    swing: Tensor  # (heads, upto): how far the score at each distance is from that at distance 0, root mean square
    frequency: Tensor | None  # (bands,) radians a position, where the layer turns its queries and keys
    turns: Tensor | None  # (bands,): whole turns within the context; below 1 some angles were never met

    @property
    def upto(self) -> int:
        return self.swing.shape[1]

    @property
    def untrained_bands(self) -> int | None:
        """Bands that make less than a turn within the context: past it they reach angles never met."""
        return None if self.turns is None else int((self.turns < 1).sum())

    def outside(self, distance: int) -> bool:
        """Whether the model never met this distance in training, as far as it says."""
        return self.trained is not None and distance >= self.trained

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "trained": self.trained,
            "threshold": self.threshold,
            "distances": list(self.at),
            "outside": [self.outside(d) for d in self.at],
            "resolution": [[int(n) or None for n in row] for row in self.resolution.tolist()],
            "swing": self.swing[:, list(self.at)].tolist(),
            "frequency": None if self.frequency is None else self.frequency.tolist(),
            "turns": None if self.turns is None else self.turns.tolist(),
        }

    @property
    def header(self) -> list[str]:
        return ["head", *(f"{d:,}{'*' if self.outside(d) else ''}" for d in self.at)]

    def rows(self) -> list[list[Any]]:
        """Each head: the step it can tell at each distance; – where it can tell none."""
        return [[h, *(f"{n:,}" if n else "–" for n in row)] for h, row in enumerate(self.resolution.int().tolist())]

    @property
    def summary(self) -> str:
        """What was measured, in a line."""
        slow = (
            "" if self.turns is None else f"; {self.untrained_bands} of {len(self.turns)} bands make less than a turn"
        )
        return f"layer {self.layer}: distances up to {self.upto:,}, context {self.trained}{slow}"

    def __repr__(self) -> str:
        return f"Distances({self.summary})"

    def _repr_html_(self) -> str:
        return page_table(repr(self), self.header, self.rows())


@torch.inference_mode()
def distinguishable(
    model: Model,
    text: Any,
    *,
    layer: int,
    source: Any = None,
    upto: int | None = None,
    threshold: float = THRESHOLD,
    pairs: int = PAIRS,
    seed: int = 0,
    beyond: bool = False,
    progress: Progress | None = None,
) -> Distances:
    """Which distances the heads of one layer could tell apart, for queries and keys as they occur in ``text``.

    ``upto``: the longest distance looked at; twice the model's context if not said, 16,384 at most.
    """
    tokens = read_tokens(model, text, beyond=beyond)
    trained = model.context_length
    upto = min(2 * trained if trained else 4096, 16384) if upto is None else upto
    if type(layer) is not int:
        raise BadInput(f"layer={layer!r}: give the number of one layer")
    for name, n, least in (("upto", upto, 2), ("pairs", pairs, 1)):
        if type(n) is not int or n < least:
            raise BadInput(f"{name}={n!r}: give a whole number, {least} or more")
    if not isinstance(threshold, (int, float)) or not 0 < threshold < math.inf:
        raise BadInput(f"threshold={threshold!r}: give a positive number")
    site = choose_sites(sites_of(model), "self", layer)[0]
    with recording([site]) as passes:
        model.hidden(tokens[:1], source=read_source(model, source))
    curve = _curve(passes[site.name], upto, pairs, seed, progress)
    at = tuple(sorted({0, 1, *(2**i for i in range(1, 20) if 2**i < upto), *(() if not trained else (trained - 1,))}))
    at = tuple(d for d in at if d < upto - 1)
    resolution = torch.stack([_first_step(curve, d, threshold) for d in at], 1)
    swing = (curve - curve[..., :1]).square().mean(0).sqrt()
    bands = _bands(passes[site.name], upto)
    turns = None if bands is None or not trained else bands.frequency * trained / (2 * torch.pi)
    return Distances(site.layer, trained, threshold, at, resolution, swing, bands and bands.frequency, turns)


def _bands(recorded: RecordedPass, upto: int) -> Bands | None:
    return bands_of(recorded, Positions.arange(1, upto))


def _curve(recorded: RecordedPass, upto: int, pairs: int, seed: int, progress: Progress | None) -> Tensor:
    """(pairs, heads, upto): scores over the distance, with the query at the last position."""
    raw, n = recorded.queries_and_keys(), recorded.call.q.shape[2]
    generator = torch.Generator().manual_seed(seed)
    i, j = (torch.randint(0, n, (pairs,), generator=generator) for _ in range(2))
    q = raw.q[0, :, i].transpose(0, 1)[:, :, None]  # (N, H, 1, d)
    k = raw.k[0, :, j].transpose(0, 1)[:, :, None]  # (N, G, 1, d)
    x = recorded.x[0, i][:, None]  # (N, 1, D)
    if recorded.call.view.streams:
        name = type(recorded.bias).__name__
        raise Refused(f"{name} goes by the tokens between query and key: there is no curve over the distance")
    last = Positions.arange(pairs, 1, upto - 1, q.device).declare(upto)
    need = replace(recorded.call.need, mask=Everything())
    curves = []
    each = (
        upto if isinstance(recorded.bias, CountedPositions) else QUERIES_PER_BLOCK
    )  # a count goes over all keys at once
    for start in range(0, upto, each):
        width = min(each, upto - start)
        keys = Positions.arange(pairs, width, start, q.device).declare(upto)
        transforms = [(module, last, keys) for _, module in recorded.transforms]
        whole = recorded.transformed(QueriesAndKeys(q, k.expand(-1, -1, width, -1)), transforms)
        bias = recorded.bias.at(BiasInputs(q, whole.q, whole.k, last, keys, need.scale, x, softcap=need.softcap))
        scores = masked_scores(whole.q, whole.k, Pair(last, keys), replace(need, bias=bias))
        curves.append(scores[:, :, 0])
        if progress is not None:
            progress(start + width, upto)
    return torch.cat(curves, -1).flip(-1)  # from the query backwards: distance 0 first


def _first_step(curve: Tensor, distance: int, threshold: float) -> Tensor:
    """(heads,): how much further a key must be to change the score by the threshold; 0: no step does."""
    change = (curve[..., distance + 1 :] - curve[..., distance : distance + 1]).square().mean(0).sqrt()
    beyond = change > threshold
    return torch.where(beyond.any(-1), beyond.int().argmax(-1) + 1, 0)
