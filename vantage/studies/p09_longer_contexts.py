"""P9: RoPE for longer contexts: slower frequencies, or layers without position in between."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vantage.families.table import systems
from vantage.figures import Bars, Figure, Line, Lines
from vantage.functional import apply_rope
from vantage.inspect import decompose
from vantage.model import Model, decoder
from vantage.position import Rope, ropes_among
from vantage.position.scaling import Default, DynamicNTK, Linear, Llama3, Rule, YaRN
from vantage.spec.model import Layer
from vantage.studies.shared.findings import checked, conclude, judged
from vantage.studies.shared.models import ROUNDING, max_difference, random_normal, sharp_model
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

BASE = 10000.0
EXACT = 1e-9
LAYERS, COUNT, VOCAB = 8, 24, 29
SYSTEM = "LLaMA-4"


@dataclass(frozen=True)
class Scaled:
    """What a rule makes of every pair's frequency at the longer length."""

    name: str
    freq: Tensor
    ratio: Tensor  # of the plain frequency
    unseen: int  # pairs that meet angles at the long length which they never met in training


def run(values: Values, progress: Progress) -> Result:
    dim, original, factor = int(values["dim"]), int(values["original"]), float(values["factor"])
    dim += dim % 2
    length = round(original * factor)
    factor = length / original  # lengths are whole numbers: this is the factor that is applied
    rules: dict[str, Rule] = {
        "unscaled": Default(),
        "linear": Linear(factor),
        "NTK": DynamicNTK(1.0, original),
        "YaRN": YaRN(factor, original),
        "LLaMA-3": Llama3(factor, 1.0, 4.0, original),
    }
    frequencies = {name: scaled(name, rule, dim, original, length) for name, rule in rules.items()}
    progress(0.3, "layers without position")
    pattern, shares = _published(), _shares(_published())
    numbers = [*_bands(frequencies, original, factor), _interpolation(factor), *_interleaved(pattern, shares)]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_ratios(frequencies, original), _layers(pattern, shares)])


def scaled(name: str, rule: Rule, dim: int, original: int, length: int) -> Scaled:
    plain, _ = Default().frequencies(dim, BASE, None)
    freq, _ = rule.frequencies(dim, BASE, length)
    slow = plain * original < 2 * math.pi  # has not come round in training: larger angles are new to it
    unseen = int((slow & (freq * length > plain * original * (1 + EXACT))).sum())
    return Scaled(name, freq, freq / plain, unseen)


def _bands(frequencies: dict[str, Scaled], original: int, factor: float) -> list[Number]:
    once = int((frequencies["unscaled"].freq * original < 2 * math.pi).sum())
    ends = {name: (float(one.ratio[0]), float(one.ratio[-1])) for name, one in frequencies.items()}
    numbers = [
        Number(f"pairs that turn less than once within {original:,}, of {len(frequencies['linear'].freq)}", once)
    ]
    linear = frequencies["linear"].ratio
    spread = float((linear - 1 / factor).abs().max())
    numbers.append(checked("linear: furthest from ω / factor, over all pairs", spread, 0.0, within=EXACT))
    for name in ("NTK", "YaRN", "LLaMA-3"):
        numbers.append(checked(f"{name}: the fastest pair, as a share of ω", ends[name][0], 1.0, within=EXACT))
        numbers.append(checked(f"{name}: the slowest pair", ends[name][1], 1 / factor, within=EXACT))
    for name, one in frequencies.items():
        what = f"{name}: pairs that meet new angles at {factor:g} times the length"
        if name == "NTK":
            numbers.append(Number(what, one.unseen))  # the slowest is exactly safe, those near it are not quite
        else:
            numbers.append(judged(what, one.unseen, one.unseen == (once if name == "unscaled" else 0)))
    return numbers


def _interpolation(factor: float) -> Number:
    """Linear scaling is nothing but positions divided by the factor."""
    x, pos, times = random_normal(4, 16, 32), torch.arange(16), max(2, int(factor))
    slowed = apply_rope(x, pos * times, Rope(scaling=Linear(times)))
    what = f"linear scaling by {times}: position {times}·t against position t unscaled"
    return checked(what, max_difference(slowed, apply_rope(x, pos)), 0.0, within=ROUNDING)


# ---- iRoPE


def turns(layer: Layer) -> bool:
    return bool(ropes_among(layer.qk))


def _published() -> list[bool]:
    """Which layers of LLaMA-4 turn their queries and keys."""
    spec = next(system for system in systems() if system.name == SYSTEM).spec()
    return [turns(layer) for layer in spec.layers]


def _shares(pattern: list[bool]) -> list[float]:
    """In a small model with the same pattern: how much of what makes a query prefer a key is position."""
    model = _model(pattern[:LAYERS])
    tokens = torch.randint(VOCAB, (1, COUNT), generator=torch.Generator().manual_seed(0))
    return [float(decompose(model, tokens, layer=i, bands=False).share().mean()) for i in range(LAYERS)]


def _model(pattern: list[bool]) -> Model:
    spec = decoder(vocab=VOCAB, width=32, layers=LAYERS, heads=2)
    layers = tuple(
        layer if turning else replace(layer, qk=()) for layer, turning in zip(spec.layers, pattern, strict=True)
    )
    model = sharp_model(replace(spec, layers=layers))
    return model


def _interleaved(pattern: list[bool], shares: list[float]) -> list[Number]:
    bare = [i for i, turning in enumerate(pattern) if not turning]
    every = {b - a for a, b in itertools.pairwise(bare)}
    still = [share for share, turning in zip(shares, pattern[:LAYERS], strict=True) if not turning]
    rotary_shares = [share for share, turning in zip(shares, pattern[:LAYERS], strict=True) if turning]
    return [
        judged(f"{SYSTEM}: layers without position, of {len(pattern)}", len(bare), every == {4}),
        checked("share of position in the scores of a layer without it", max(still), 0.0),
        judged("the same in a layer with RoPE, the least", min(rotary_shares), min(rotary_shares) > 0.05),
    ]


# ---- figures


def _ratios(frequencies: dict[str, Scaled], original: int) -> Figure:
    pairs = list(range(len(frequencies["linear"].freq)))
    lines = tuple(
        Line(one.name, pairs, one.ratio.tolist(), look="dashed" if one.name == "unscaled" else "solid")
        for one in frequencies.values()
    )
    turned = (frequencies["unscaled"].freq * original / (2 * math.pi)).tolist()
    panels = (
        Lines("what is left of ω", "pair", "scaled ω / ω", lines),
        Lines(
            f"turns within {original:,} positions",
            "pair",
            "turns",
            (Line("unscaled", pairs, turned),),
            log_y=True,
            marks=(("one turn", 1.0),),
        ),
    )
    return Figure("frequencies", TEXT.caption("frequencies"), panels)


def _layers(pattern: list[bool], shares: list[float]) -> Figure:
    labels = tuple(f"{i}{'' if turning else ' (none)'}" for i, turning in enumerate(pattern[:LAYERS]))
    bars = Bars("a model with LLaMA-4's pattern", "share of position", labels, (("share", shares),))
    return Figure("interleaved", TEXT.caption("interleaved"), (bars,))


STUDY = TEXT.study(
    "P9",
    run,
    (
        TEXT.parameter("dim", 128, 32, 256),
        TEXT.parameter("original", 4096, 256, 16384),
        TEXT.parameter("factor", 8.0, 1.5, 64.0),
    ),
    seconds=1.5,
)
