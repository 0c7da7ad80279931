"""A4: scaled dot-product attention, and what the scale is for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Figure, Line, Lines
from vantage.spec.masks import Everything
from vantage.spec.model import Scores
from vantage.studies.shared.attention import run_attention, set_projections, sharp_attention, site_and_weights
from vantage.studies.shared.findings import compared, conclude, interval
from vantage.studies.shared.models import F64, random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

WIDTHS = (4, 16, 64, 256)
AT = 64  # the width of which the numbers are told
NAMES = {"scaled": "times 1/√d", "plain": "no scale", "misprint": "over 1/√d"}


@dataclass(frozen=True)
class Measured:
    """Of one width and one scale: each a mean over texts, with its interval."""

    variance: float
    variance_in: tuple[float, float]
    entropy: float
    entropy_in: tuple[float, float]


def run(values: Values, progress: Progress) -> Result:
    texts, tokens = int(values["texts"]), int(values["tokens"])
    measured: dict[str, list[Measured]] = {name: [] for name in NAMES}
    for i, d in enumerate(WIDTHS):
        progress(i / len(WIDTHS), f"keys of width {d}")
        x = random_normal(texts, tokens, 2 * d, seed=d)
        for name, scale in (("scaled", None), ("plain", 1.0), ("misprint", d**0.5)):
            measured[name].append(_measured(site_and_weights(_half_and_half(d, Scores(scale=scale)), x)[1]))
    scaled, plain, misprint = (measured[name][WIDTHS.index(AT)] for name in NAMES)
    scale = _half_and_half(AT, Scores()).scorer.scale
    most = math.log(tokens)
    right = [
        _variance(f"variance of the scores without a scale, d = {AT}", plain, float(AT)),
        _variance(f"variance of the scaled scores, d = {AT}", scaled, 1.0),
        compared(f"what scores are multiplied by, d = {AT}", scale, 1 / math.sqrt(AT), within=1e-12),
        compared("width of the output, values of width 3 and keys of width 4", _output_width(4, 3), 3),
    ]
    slips = [_variance(f"variance when divided by 1/√d, as printed once, d = {AT}", misprint, 1.0)]
    also = [
        Number(f"entropy of the weights, scaled, d = {AT}", scaled.entropy, interval=scaled.entropy_in),
        Number(f"entropy of the weights, no scale, d = {AT}", plain.entropy, interval=plain.entropy_in),
        Number(f"highest possible entropy of {tokens} tokens", most),
    ]
    words = TEXT.conclusion(
        scaled_entropy=scaled.entropy,
        most=most,
        width=AT,
        plain_entropy=plain.entropy,
        misprint_variance=misprint.variance,
    )
    return conclude(words, [*right, *also], _figures(measured, most), slips)


def _half_and_half(d: int, scores: Scores, value_dim: int | None = None):
    """A head whose query is the first half of a token and whose key the second, so that both are as drawn."""
    value_dim = d if value_dim is None else value_dim
    attention = sharp_attention(GroupedQuery(1, head_dim=d, value_dim=value_dim, scores=scores), 2 * d, Everything())
    eye = torch.eye(2 * d, dtype=F64)
    set_projections(attention, eye[:, :d], eye[:, d:], eye[:, :value_dim])
    return attention


def _output_width(key_dim: int, value_dim: int) -> int:
    """How many numbers the weighted sum of values has, from a pass: those of the output that are not 0."""
    attention = _half_and_half(key_dim, Scores(), value_dim)
    return int((run_attention(attention, random_normal(1, 3, 2 * key_dim)) != 0).any(1).sum())


def _measured(weights_BHTT: Tensor) -> Measured:
    """A weight is exp(score) over a sum that all keys of its row share, so its log varies as the score does."""
    w = weights_BHTT[:, 0]
    variance = w.clamp_min(1e-300).log().var(-1).mean(-1).tolist()
    entropy = torch.special.entr(w).sum(-1).mean(-1).tolist()
    return Measured(sum(variance) / len(w), interval(variance), sum(entropy) / len(w), interval(entropy))


def _variance(what: str, measured: Measured, document: float) -> Number:
    """Agrees if within a tenth: the draws are what they are."""
    return compared(what, measured.variance, document, within=0.1 * document, interval=measured.variance_in)


def _figures(measured: dict[str, list[Measured]], most: float) -> list[Figure]:
    x = [float(d) for d in WIDTHS]

    def line(name: str, what: str) -> Line:
        y = [getattr(m, what) for m in measured[name]]
        low, high = zip(*(getattr(m, f"{what}_in") for m in measured[name]), strict=True)
        return Line(NAMES[name], x, y, low, high)

    variance = Lines(
        "Variance of the scores",
        "width of a key, d",
        "variance",
        tuple(line(name, "variance") for name in NAMES),
        log_x=True,
        log_y=True,
    )
    entropy = Lines(
        "Entropy of the weights",
        "width of a key, d",
        "nats",
        tuple(line(name, "entropy") for name in NAMES),
        log_x=True,
        marks=(("uniform", most),),
    )
    return [Figure("scale", TEXT.caption("scale"), (variance, entropy))]


STUDY = TEXT.study(
    "A4",
    run,
    (
        TEXT.parameter("texts", 100, 50, 200),
        TEXT.parameter("tokens", 16, 8, 64),
    ),
    seconds=1.0,
)
