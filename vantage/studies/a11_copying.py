"""A11: when one key's score dominates, attention copies its value."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Line, Lines
from vantage.studies.shared.attention import attend
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

STRONG = 30.0
GAINS = tuple(0.5 * i for i in range(61))
VALUE_DIM = 3


def run(values: Values, progress: Progress) -> Result:
    n, gain = int(values["keys"]), float(values["gain"])
    keys = torch.linalg.qr(random_normal(n, n, seed=n)).Q
    content = random_normal(n, VALUE_DIM, seed=n + 1)
    strong = [_distance(keys, content, j, STRONG) for j in range(n)]
    weight, distance = _weight(keys, content, 0, gain), _distance(keys, content, 0, gain)
    right = [
        compared(f"largest distance of c from v_j over all j, score {STRONG:g}", max(strong), 0.0, within=1e-9),
        compared(f"weight of the key, score {STRONG:g}", _weight(keys, content, 0, STRONG), 1.0, within=1e-9),
    ]
    also = [
        Number("weight of the key with your score", weight),
        Number("distance of c from v_1 with your score", distance),
        Number("distance of c from v_1 with score 0, the mean of all values", _distance(keys, content, 0, 0.0)),
    ]
    words = TEXT.conclusion(strong=STRONG, n=n, gain=gain, weight=weight)
    return conclude(words, [*right, *also], [_figure(keys, content)])


def _attend_to(keys: Tensor, content: Tensor, j: int, gain: float) -> tuple[Tensor, Tensor]:
    """q = g·k_j over orthonormal keys: the score of key j is g, of every other 0."""
    out, weights = attend(gain * keys[j : j + 1], keys, content)
    return out[0], weights[0]


def _distance(keys: Tensor, content: Tensor, j: int, gain: float) -> float:
    return float((_attend_to(keys, content, j, gain)[0] - content[j]).norm())


def _weight(keys: Tensor, content: Tensor, j: int, gain: float) -> float:
    return float(_attend_to(keys, content, j, gain)[1][j])


def _figure(keys: Tensor, content: Tensor) -> Figure:
    weights = [_weight(keys, content, 0, g) for g in GAINS]
    far = [_distance(keys, content, 0, g) for g in GAINS]
    panels = (
        Lines("Weight of the key", "score above the others", "weight", (Line("key 1", GAINS, weights),)),
        Lines("What is missing", "score above the others", "|c − v₁|", (Line("distance", GAINS, far),), log_y=True),
    )
    return Figure("copying", TEXT.caption("copying"), panels)


STUDY = TEXT.study(
    "A11",
    run,
    (
        TEXT.parameter("keys", 6, 2, 500),
        TEXT.parameter("gain", 5.0, 0.0, 50.0),
    ),
    seconds=0.3,
)
