"""What a rotation does: its wavelengths against the context, what a scaling makes of each band, and the turning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.position.angles import frequencies
from vantage.position.fope import FourierMix
from vantage.position.pope import PolarTransform
from vantage.position.rope import Rotation, join
from vantage.position.scaling import Default
from vantage.position.xpos import FadingRotation
from vantage.spec.masks import Causal
from vantage.spec.positions import Positions

CONTEXT = "the context"


def bands(module: Rotation | FadingRotation, length: int) -> list[Figure]:
    """Wavelengths of all pairs, before and after the rule, and how much slower the rule makes each."""
    base = module.config.base
    before = frequencies(_turning(module), base)
    after, factor = before, 1.0
    rule = module.config.rule if isinstance(module, Rotation) else Default()
    scaled = rule != Default()
    if scaled:
        after, factor = rule.frequencies(_turning(module), base, length)
    lines = [_waves("before" if scaled else "wavelength", before, dashed=scaled)]
    if scaled:
        lines.append(_waves("after", after))
    still = int((after == 0).sum())
    slow = int(((after > 0) & (after * length < 2 * math.pi)).sum())
    caption = (
        f"Wavelength of each pair of dimensions. {slow} of {len(after)} make less than one turn within the context"
    )
    caption += f"; {still} are not rotated." if still else "."
    waves = Lines("wavelengths", "pair", "positions", tuple(lines), log_y=True, marks=((CONTEXT, float(length)),))
    band_figures = [Figure("wavelengths", caption, (waves,))]
    if scaled:
        turning = (after > 0).nonzero().flatten()
        ratio = (before[turning] / after[turning]).tolist()
        slower = Lines("slow-down by pair", "pair", "factor", (Line("slow-down", turning.tolist(), ratio),))
        caption = "The factor by which the scaling rule slows each pair, from the fastest to the slowest."
        caption += f" Cosines and sines are multiplied by {factor:.4g}." if factor != 1 else ""
        band_figures.append(Figure("bands", caption, (slower,)))
    return band_figures


def turned(module: Rotation | FadingRotation, at: Tensor, length: int) -> list[Figure]:
    """A vector whose pairs all point one way, turned to each position; and single pairs that meet themselves."""
    turning = _turning(module)
    pairs = turning // 2
    config = module.config
    first = join(torch.ones(pairs), torch.zeros(pairs), config.pairing).double()
    x = torch.cat((first, torch.zeros(module.dim - turning, dtype=torch.float64)))
    places = Positions.of(at).declare(length)
    table = module.query(x.expand(1, 1, len(at), -1), places)[0, 0]
    columns = torch.arange(0, turning, -(-turning // 96))
    ticks, across = tuple(map(str, at.tolist())), tuple(map(str, columns.tolist()))
    heat = Heat("one vector, rotated", "dimension", "position", _rows(table[:, columns]), across, ticks, diverging=True)
    keys = module.key(x.expand(1, 1, len(at), -1), places)[0, 0]
    alike = table @ keys.T / pairs
    seen = Causal()(*places.against(places).places())[0, 0]  # into the future xPos only grows
    near = Heat(
        "dot product by position", "key position", "query position", _rows(alike, seen), ticks, ticks, diverging=True
    )
    caption = "The same vector rotated for every position: each pair of dimensions has its own frequency."
    meet = "The dot product of one vector as a query and as a key: it depends only on the distance."
    return [
        Figure("turned", caption, (heat,)),
        Figure("similarity", meet, (near,)),
        _single_pairs(module, length),
    ]


def _single_pairs(module: Rotation | FadingRotation, length: int) -> Figure:
    turning = _turning(module)
    pairs = turning // 2
    chosen = sorted({0, pairs // 4, pairs // 2, pairs - 1})
    distance = torch.arange(0, length, -(-length // 512))
    last = Positions.of(torch.tensor([length - 1])).declare(length)
    keys = Positions.of((length - 1 - distance).flip(0)).declare(length)
    lines = []
    for pair in chosen:
        one = torch.zeros(pairs, dtype=torch.float64)
        one[pair] = 1.0
        head = join(one, torch.zeros_like(one), module.config.pairing)
        x = torch.cat((head, torch.zeros(module.dim - turning, dtype=torch.float64)))
        q = module.query(x.expand(1, 1, 1, -1), last)
        k = module.key(x.expand(1, 1, len(distance), -1), keys)
        lines.append(Line(f"pair {pair}", distance.tolist(), (q @ k.transpose(-1, -2))[0, 0, 0].flip(0).tolist()))
    panel = Lines("single pairs", "distance", "dot product", tuple(lines))
    return Figure(
        "waves",
        "Dot product of single pairs: fast pairs repeat within the context, slow pairs tell far distances apart.",
        (panel,),
    )


@torch.no_grad()
def mixed(module: FourierMix, at: Tensor) -> Figure:
    """What each pair of the first head has in the place of its cosine and sine."""
    ticks, across = tuple(map(str, at.tolist())), tuple(map(str, range(module.dim // 2)))
    panels = (
        Heat(name, "pair", "position", _rows(table[0, 0]), across, ticks, diverging=True)
        for name, table in zip(("cosines", "sines"), module.tables(Positions.of(at), torch.float64), strict=True)
    )
    caption = "Mixtures of the cosines and sines of all frequencies, at initialisation. Slow pairs are not rotated."
    return Figure("mixes", caption, tuple(panels))


@torch.no_grad()
def polar(module: PolarTransform, length: int) -> Figure:
    """What single numbers of the first head add to a score, where both radii are 1."""
    distance = torch.arange(0, length, -(-length // 512))
    unit = torch.full((1, 1, 1, module.dim), math.log(math.e - 1), dtype=torch.float64)  # of which softplus is 1
    q = module.query(unit.expand(-1, -1, len(distance), -1), Positions.of(distance))[0, 0]
    k = module.key(unit.expand(-1, len(module.delta), -1, -1), Positions.of(torch.zeros(1, dtype=torch.long)))[0, 0]
    each = (q * k).unflatten(-1, (2, -1)).sum(-2)  # a cosine and a sine for each number
    chosen = sorted({0, module.dim // 4, module.dim // 2, module.dim - 1})
    lines = tuple(Line(f"number {c}", distance.tolist(), each[:, c].tolist()) for c in chosen)
    return Figure(
        "waves",
        "What single numbers of a head add to a score by distance, at initialisation: every one has a frequency.",
        (Lines("radii of 1", "distance", "product", lines),),
    )


def _turning(module: Any) -> int:
    return module.turned if isinstance(module, Rotation) else module.dim


def _waves(name: str, frequency: Tensor, *, dashed: bool = False) -> Line:
    turning = (frequency > 0).nonzero().flatten()
    lengths = (2 * math.pi / frequency[turning]).tolist()
    return Line(name, turning.tolist(), lengths, look="dashed" if dashed else "solid")


def _rows(x: Tensor, seen: Tensor | None = None) -> list[list[float | None]]:
    seen = torch.ones_like(x, dtype=torch.bool) if seen is None else seen
    rows = zip(x.tolist(), seen.tolist(), strict=True)
    return [[float(f"{v:.4g}") if s else None for v, s in zip(*row, strict=True)] for row in rows]
