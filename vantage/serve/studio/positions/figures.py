"""What a position encoding does, as figures. Every number comes out of the part itself, built and called.

Which figures there are follows from where an encoding acts: on the inputs, on queries and keys, on the scores, or on
the positions themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures import Bars, Figure, Heat, Line, Lines
from vantage.kernels.reference import masked_scores, normalise
from vantage.position.axial import AxialRotation
from vantage.position.fope import FourierMix
from vantage.position.lerope import LearnedRotation
from vantage.position.mrope import AxisRotation
from vantage.position.pope import PolarTransform
from vantage.position.rope import Rotation
from vantage.position.xpos import FadingRotation
from vantage.serve.studio.positions.rotary_figures import bands, mixed, polar, turned
from vantage.spec.abilities import CountsKeys, HasBuckets
from vantage.spec.forms import HasForm, Slope
from vantage.spec.kept import KeepsStreams, NeedsEveryKey
from vantage.spec.masks import Causal, Everything
from vantage.spec.normalisers import Softmax
from vantage.spec.parts import BiasInputs, Encoding, Need, Parts, Shape, materialise
from vantage.spec.positions import Pair, Positions

CELLS = 96  # rows and columns of a heat map: more cannot be told apart on a page
POINTS = 512  # of a curve
RANDOM = 32  # random tokens that a mean is over
MAX_NUMBERS = 2**23  # numbers of queries and keys at once
NONE_SEEN = float("-inf")


@final
@dataclass(frozen=True)
class FigureSize:
    """Positions, and a model's width and heads."""

    length: int
    width: int
    heads: int

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def shape(self) -> Shape:
        if self.width % self.heads:
            raise BadInput(f"width {self.width} does not divide into {self.heads} heads: change one of them")
        return Shape(self.width, self.heads, self.heads, self.head, self.head, self.head)

    def spread(self, most: int) -> Tensor:
        """Positions from 0 on, at most so many, evenly apart."""
        step = -(-self.length // most)
        return torch.arange(0, self.length, step)


@final
class Built:
    """An encoding's parts, built in float64 with weights that are the same every time."""

    def __init__(self, encoding: Encoding, size: FigureSize):
        self.parts: Parts = encoding.parts(causal=True)
        self.size = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.inputs = [self._build(part) for part in self.parts.inputs]
            self.qk = [self._build(part) for part in self.parts.qk]
            self.bias = None if self.parts.bias is None else self._build(self.parts.bias)

    def _build(self, part: Any) -> Any:
        return part.build(self.size.shape).double().eval()

    @property
    def trained(self) -> bool:
        """Whether there are weights that only training would give a meaning."""
        return any(next(m.parameters(), None) is not None for m in (*self.inputs, *self.qk, self.bias) if m is not None)

    def at(self, pos: Tensor) -> Positions:
        return Positions.of(pos).declare(self.size.length)

    def split(self, x_NTD: Tensor) -> Tensor:
        return x_NTD.unflatten(-1, (self.size.heads, -1)).transpose(1, 2)

    def placed(self, x_ND: Tensor, pos: Positions) -> Tensor:
        """(N, T, D): tokens put at each of these positions."""
        x = x_ND[:, None].expand(-1, pos.shape[1], -1)
        for module in self.inputs:
            x = module(x, pos)
        return x

    def scores(self, x_ND: Tensor, queries: Positions, keys: Positions) -> Tensor:
        """(N, H, T, S): a token, at each query's place, meets itself at each key's. Projections are left out."""
        inputs = self._inputs(x_ND, queries, keys)
        bias = None if self.bias is None else self.bias.at(inputs)
        return masked_scores(inputs.q, inputs.k, Pair(queries, keys), Need(Everything(), inputs.scale, bias=bias))

    def biases(self, x_ND: Tensor, queries: Positions, keys: Positions) -> Tensor:
        """(N, H, T, S): only what is added to the scores."""
        assert self.bias is not None
        value = self.bias.at(self._inputs(x_ND, queries, keys))
        dense = materialise(value, Pair(queries, keys), self.size.heads, torch.float64)
        if dense is None:  # nothing is added at these places
            dense = torch.zeros(1, self.size.heads, queries.shape[1], keys.shape[1], dtype=torch.float64)
        return dense.expand(len(x_ND), *dense.shape[1:])

    def _inputs(self, x_ND: Tensor, queries: Positions, keys: Positions) -> BiasInputs:
        x_q, x_k = self.placed(x_ND, queries), self.placed(x_ND, keys)
        q_raw = q = self.split(x_q)
        k = self.split(x_k)
        for module in self.qk:
            q, k = module.query(q, queries), module.key(k, keys)
        own, streams = self._streams(x_q, queries), self._streams(x_k, keys)
        return BiasInputs(q_raw, q, k, queries, keys, self.size.head**-0.5, x_q, streams, own)

    def _streams(self, x_NTD: Tensor, pos: Positions) -> tuple[Tensor, ...]:
        """What the bias keeps of these tokens: a running sum as if the token stood everywhere."""
        if not isinstance(self.parts.bias, KeepsStreams):
            return ()
        assert self.bias is not None
        kept = zip(self.bias.keep(x_NTD, pos), self.parts.bias.streams(self.size.shape), strict=True)
        return tuple(x * (pos.pos + 1)[:, None, :, None] if stream.running else x for x, stream in kept)

    @property
    def every_key(self) -> bool:
        """Whether every key matters to every other: then none can be left out between two."""
        return isinstance(self.parts.bias, NeedsEveryKey) and self.parts.bias.every_key

    def distances(self) -> Tensor:
        return torch.arange(self.size.length) if self.every_key else self.size.spread(POINTS)

    def tokens(self, places: int) -> Tensor:
        """(N, D): random tokens, as many as may be computed at once."""
        each = places * max(self.size.width, self.size.heads * places if self.every_key else 0)
        n = max(1, min(RANDOM, MAX_NUMBERS // max(1, each)))
        return torch.randn(n, self.size.width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@torch.inference_mode()
def figures(encoding: Encoding, size: FigureSize) -> list[Figure]:
    """All that make sense for this encoding."""
    if size.length < 2:
        raise BadInput(f"a length of {size.length}: give 2 or more, there must be a distance")
    built = Built(encoding, size)
    all_figures: list[Figure] = []
    if built.parts.sampler is not None:
        all_figures.append(drawn(built.parts.sampler, size))
    if built.inputs:
        all_figures += added(built)
    for part in built.qk:
        # on text, where all axes are alike (of axial RoPE: one of them), and with the frequencies learning begins with
        module = part.rotation if isinstance(part, (AxisRotation, AxialRotation, LearnedRotation)) else part
        if isinstance(module, FourierMix):
            all_figures.append(mixed(module, size.spread(CELLS)))
        if isinstance(module, PolarTransform):
            all_figures.append(polar(module, size.length))
        if isinstance(module, (Rotation, FadingRotation)):
            all_figures += [*bands(module, size.length), *turned(module, size.spread(CELLS), size.length)]
    if built.bias is not None:
        all_figures += _of_the_bias(built)
    all_figures.append(decay(built))
    if not (built.inputs or built.qk or built.bias):
        all_figures.append(mask_alone())
    return all_figures


# ---- added to the embeddings


def added(built: Built) -> list[Figure]:
    size = built.size
    at = size.spread(CELLS)
    nothing = torch.zeros(1, size.width, dtype=torch.float64)
    table = built.placed(nothing, built.at(at))[0]
    columns = torch.arange(0, size.width, -(-size.width // CELLS))
    untrained = " The rows are not trained yet: noise." if built.trained else ""
    heat = Heat(
        "added to the embedding",
        "dimension",
        "position",
        rows(table[:, columns]),
        words(columns),
        words(at),
        diverging=True,
    )
    alike = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    near = Heat("cosine of two positions", "position", "position", rows(alike), words(at), words(at), diverging=True)
    fine = size.spread(POINTS)
    waves = built.placed(nothing, built.at(fine))[0]
    chosen = sorted({0, size.width // 8 * 2, size.width // 4 * 2 - 1, size.width - 1} & set(range(size.width)))
    lines = tuple(Line(f"dimension {d}", fine.tolist(), waves[:, d].tolist()) for d in chosen)
    return [
        Figure("added", f"The vector added to a token's embedding, by position and dimension.{untrained}", (heat,)),
        Figure("similarity", f"Cosine similarity of the vectors of two positions.{untrained}", (near,)),
        Figure(
            "waves",
            f"Some dimensions over the position, fast ones and slow ones.{untrained}",
            (Lines("single dimensions", "position", "value", lines),),
        ),
    ]


# ---- added to the scores


def _of_the_bias(built: Built) -> list[Figure]:
    bias_figures = [bias_over_distance(built), bias_map(built)]
    module = built.bias
    form = module.form() if isinstance(module, HasForm) else None
    if isinstance(form, Slope):
        slopes = tuple(form.slopes.tolist())
        bars = Bars("slopes", "slope", words(range(len(slopes))), (("slope", slopes),))
        bias_figures.insert(0, Figure("slopes", "How much each head lowers a score per position of distance.", (bars,)))
    if isinstance(module, HasBuckets):
        bias_figures.insert(0, buckets(module, built.size))
    if isinstance(module, CountsKeys):
        return [counted(built, module)]  # the table is zero until it is trained: there is only the count to see
    return bias_figures


def bias_over_distance(built: Built) -> Figure:
    distance = built.distances()
    last = built.size.length - 1
    queries, keys = built.at(torch.tensor([last])), built.at(last - distance.flip(0))
    some = built.tokens(len(distance))[:4]
    value = built.biases(some, queries, keys)[:, :, 0].flip(-1)  # (N, H, distances)
    asks = bool((value != value[:1]).any())
    if asks:
        lines = tuple(Line(f"query {n + 1}", distance.tolist(), one[0].tolist()) for n, one in enumerate(value))
        caption = "Bias of the first head by distance, for some random queries: it depends on the query."
    else:
        heads = _some(built.size.heads, 8)
        lines = tuple(Line(f"head {h}", distance.tolist(), value[0, h].tolist()) for h in heads)
        caption = "Bias of each head by distance between query and key; it does not depend on the query."
    caption += " The weights are untrained." if built.trained else ""
    panel = Lines("added to the score", "distance", "bias", lines)
    return Figure("bias", caption, (panel,))


def bias_map(built: Built) -> Figure:
    length = built.size.length
    at = torch.arange(min(length, CELLS)) if built.every_key else built.size.spread(CELLS)
    places = built.at(at)
    value = built.biases(built.tokens(len(at) ** 2 // 8)[:1], places, places)[0, 0]
    hidden = Causal()(*Pair(places, places).places())[0, 0].logical_not()
    heat = Heat("head 0", "key", "query", rows(value.masked_fill(hidden, NONE_SEEN)), words(at), words(at))
    return Figure("bias-map", "Bias of the first head, for every query and key.", (heat,))


def buckets(module: HasBuckets, size: FigureSize) -> Figure:
    past = -size.spread(POINTS)
    distance = torch.cat((past.flip(0), -past[1:])) if module.bidirectional else past
    bucket = module.bucket(distance)
    x = (distance if module.bidirectional else -distance).tolist()
    line = Line("bucket", x, bucket.tolist(), look="dots")
    label = "key - query" if module.bidirectional else "distance"
    caption = "The bucket of each distance: one per short distance, then wider and wider ones."
    return Figure("buckets", caption, (Lines("buckets", label, "bucket", (line,)),))


def counted(built: Built, module: CountsKeys) -> Figure:
    """The count itself."""
    n = min(built.size.length, CELLS // 2)
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, built.size.heads, n, built.size.head, generator=generator).double() * 2 for _ in range(2))
    at = Positions.arange(1, n)
    count = module.counts(q, k, at, at, built.size.head**-0.5)[0, 0]
    hidden = Causal()(*Pair(at, at).places())[0, 0].logical_not()
    heat = Heat("counted position", "key", "query", rows(count.masked_fill(hidden, NONE_SEEN)))
    line = Line("counted", list(range(n)), count[-1].flip(0).tolist())
    plain = Line("one per token", list(range(n)), list(range(n)), look="dashed")
    over = Lines("the last query", "distance in tokens", "counted position", (line, plain))
    caption = (
        "The contextual position of each key as a query counts it: only keys with an open gate count (random tokens)."
    )
    return Figure("counted", caption, (heat, over))


# ---- what comes of it


def decay(built: Built) -> Figure:
    """The score of a token that meets itself, over the distance."""
    distance = built.distances()
    last = built.size.length - 1
    queries, keys = built.at(torch.tensor([last])), built.at(last - distance.flip(0))
    x = distance.tolist()
    ones = built.scores(torch.ones(1, built.size.width, dtype=torch.float64), queries, keys)[0, :, 0].flip(-1)
    different = [h for h in range(len(ones)) if not any(torch.equal(ones[h], ones[g]) for g in range(h))]
    heads = [different[i] for i in _some(len(different), 4)]
    named = "all ones" if len(different) == 1 else "all ones, head {}"
    lines = [Line(named.format(h), x, ones[h].tolist()) for h in heads]
    some = built.scores(built.tokens(len(distance)), queries, keys)[:, :, 0].flip(-1).flatten(0, 1)
    low, high = (torch.quantile(some, share, dim=0) for share in (0.1, 0.9))
    lines.append(Line("random, mean", x, some.mean(0).tolist(), low.tolist(), high.tolist(), look="dashed"))
    caption = "Score of a vector with itself, by distance: for a vector of ones, and the mean over random vectors."
    return Figure("decay", caption, (Lines("score by distance", "distance", "score", tuple(lines)),))


def mask_alone() -> Figure:
    """Nothing but the mask: equal scores, and what a query makes of them."""
    n = 24
    at = Positions.arange(1, n)
    nothing = torch.zeros(1, 1, n, 2, dtype=torch.float64)
    scores = masked_scores(nothing, nothing, Pair(at, at), Need(Causal(), 1.0))
    weights, _ = normalise(scores, None, Softmax())
    heat = Heat("weights of equal scores", "key", "query", rows(weights[0, 0].masked_fill(scores[0, 0] < 0, NONE_SEEN)))
    caption = (
        "Without an encoding a causal query still sees how many keys there are: the more, the smaller each weight."
    )
    return Figure("mask", caption, (heat,))


def drawn(sampler: Any, size: FigureSize) -> Figure:
    """Positions as training would draw them."""
    rank = list(range(size.length))
    keep = size.spread(POINTS).tolist()
    lines = []
    for n in range(3):
        row = sampler.draw(Positions.arange(1, size.length)).pos[0].tolist()
        lines.append(Line(f"draw {n + 1}", keep, [row[i] for i in keep]))
    lines.append(Line("without randomisation", keep, [rank[i] for i in keep], look="dashed"))
    caption = "Positions of the tokens of a training row: ascending, drawn at random below the limit."
    return Figure("drawn", caption, (Lines("drawn positions", "token", "position", tuple(lines)),))


# ---- numbers for a page


def rows(x: Tensor) -> list[list[float | None]]:
    """With four digits that count; None where there is nothing to see."""
    return [[None if v == NONE_SEEN else float(f"{v:.4g}") for v in row] for row in x.tolist()]


def words(numbers: Any) -> tuple[str, ...]:
    return tuple(str(int(n)) for n in numbers)


def _some(count: int, most: int) -> Sequence[int]:
    """Up to so many of them, the first and the last among them."""
    if count <= most:
        return range(count)
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
