"""K4: what a cache saves, counted: projections and scores."""

from __future__ import annotations

import math

from vantage.figures import Figure, Line, Lines
from vantage.model import Model, decoder
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import CountingKernel, count_projections, greedy_tokens, sharp_model
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB, FIRST = 11, 3
NEAR = 0.2  # of a power: N(N+1)/2 grows a little slower than a square
KINDS = ((False, "without a cache"), (True, "with a cache"))


def run(values: Values, progress: Progress) -> Result:
    most = int(values["tokens"])
    lengths = [most // 8, most // 4, most // 2, most]
    model = sharp_model(decoder(vocab=VOCAB, width=16, layers=1, heads=1))
    keys: dict[bool, list[int]] = {False: [], True: []}
    scores: dict[bool, list[int]] = {False: [], True: []}
    for i, n in enumerate(lengths):
        for cached, name in KINDS:
            progress(i / len(lengths), f"{n} tokens {name}")
            projected, scored = _counted(model, n, cached)
            keys[cached].append(projected)
            scores[cached].append(scored)
    progress(1.0, "done")
    power = {(what, c): _power(lengths, of[c]) for what, of in (("keys", keys), ("scores", scores)) for c in of}
    n = lengths[-1]
    numbers = [
        compared(f"key projections for {n} tokens, without a cache", keys[False][-1], n * (n + 1) // 2),
        compared(f"key projections for {n} tokens, with a cache", keys[True][-1], n),
        Number(f"scores for {n} tokens, without a cache", scores[False][-1]),
        Number(f"scores for {n} tokens, with a cache", scores[True][-1]),
        compared("projections without a cache grow with the power (S1)", power["keys", False], 2, within=NEAR),
        compared("projections with a cache grow with the power (S1)", power["keys", True], 1, within=NEAR),
        compared("scores without a cache grow with the power (S2)", power["scores", False], 3, within=NEAR),
        compared("scores with a cache grow with the power (S2)", power["scores", True], 2, within=NEAR),
        Number("times fewer projections", keys[False][-1] / keys[True][-1]),
        Number("times fewer scores", scores[False][-1] / scores[True][-1]),
    ]
    slips = [compared("all work with a cache, if S1's O(N) were all of it", power["scores", True], 1, within=NEAR)]
    words = TEXT.conclusion()
    return conclude(words, numbers, [_picture(lengths, keys, scores)], slips)


def _counted(model: Model, n: int, cached: bool) -> tuple[int, int]:
    """Keys projected and scores formed while ``n`` tokens are generated, in one layer of one head."""
    counting = CountingKernel()
    was, model.kernel = model.kernel, counting
    try:
        with count_projections(model) as counts:
            greedy_tokens(model, [FIRST], n, cached=cached)
    finally:
        model.kernel = was
    return sum(counts[0].values()), counting.scores


def _power(lengths: list[int], work: list[int]) -> float:
    """Between the last two lengths: how many times the work doubles when the length does."""
    return math.log(work[-1] / work[-2]) / math.log(lengths[-1] / lengths[-2])


def _picture(lengths: list[int], keys: dict[bool, list[int]], scores: dict[bool, list[int]]) -> Figure:
    panels = tuple(
        Lines(
            title,
            "tokens generated",
            "count",
            tuple(Line(name, lengths, of[cached]) for cached, name in KINDS),
            log_x=True,
            log_y=True,
        )
        for title, of in (("Key projections", keys), ("Scores: queries times keys", scores))
    )
    return Figure("work", TEXT.caption("work"), panels)


STUDY = TEXT.study(
    "K4",
    run,
    (TEXT.parameter("tokens", 64, 16, 128),),
    seconds=2.0,
)
