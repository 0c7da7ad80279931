"""A90: attention over keys that are all alike."""

from __future__ import annotations

import torch

from vantage.figures import Bars, Figure
from vantage.studies.shared.attention import attend
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import ROUNDING, random_normal
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)


def run(values: Values, progress: Progress) -> Result:
    count = int(values["keys"])
    keys, query = torch.ones(count, 4, dtype=torch.float64), random_normal(1, 4)
    _, weights = attend(query, keys, random_normal(count, 4, seed=1))
    largest = float(weights.max())
    progress(1.0, "done")
    numbers = [compared("largest weight", largest, 1 / count, within=ROUNDING)]
    labels = tuple(str(i + 1) for i in range(count))
    panel = Bars("Weights", "weight", labels, (("weights", weights[0].tolist()),))
    figures = [Figure("weights", TEXT.caption("weights", keys=count), (panel,))]
    return conclude(TEXT.conclusion(keys=count, weight=largest), numbers, figures)


STUDY = TEXT.study("A90", run, (TEXT.parameter("keys", 5, 1, 100),), seconds=0.1)
