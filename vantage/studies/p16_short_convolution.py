"""P16: which token followed last time? A decoder without an encoding, with and without a short convolution."""

from __future__ import annotations

import torch

from vantage.figures import Figure, Lines
from vantage.spec.model import ModelSpec
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.small_training import (
    Questions,
    line_with_band,
    over_seeds,
    repeated,
    right,
    small_decoder,
    test_generator,
    train_small,
    with_convolution,
)
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
SYMBOLS, LENGTH, ROWS, RATE, LAYERS = 32, 8, 64, 5e-3, 2
LONGER = (1, 2, 4)  # times the length
TESTED = 128
FIRST_SEED = 1  # seed 0 was looked at while the sizes were chosen
SURE = 0.95
WITHOUT, WITH, ROPE, ALONE = "none", "none, convolution first", "rope", "convolutions alone"
Shares = dict[str, list[list[float]]]  # of each model and seed, by length


def run(values: Values, progress: Progress) -> Result:
    seeds, steps = range(FIRST_SEED, FIRST_SEED + int(values["seeds"])), int(values["steps"])
    shares, jobs = Shares(), [(name, seed) for name in models() for seed in seeds]
    for n, (name, seed) in enumerate(jobs):

        def report(share: float, doing: str, n: int = n, name: str = name) -> None:
            progress((n + share) / len(jobs), f"{name}: {doing}")

        model = train_small(models()[name], seed, drawn_rows, steps, RATE, report)
        by_length = [
            float(right(model, repeated(test_generator(), TESTED, SYMBOLS, LENGTH * times)).float().mean())
            for times in LONGER
        ]
        shares.setdefault(name, []).append(by_length)
    progress(1.0, "done")
    return _concluded(shares)


def models() -> dict[str, ModelSpec]:
    """All of two layers and one width."""
    none = small_decoder(SYMBOLS, "none", LAYERS)
    return {
        WITHOUT: none,
        WITH: with_convolution(none, 0),
        ROPE: small_decoder(SYMBOLS, "rope", LAYERS),
        ALONE: with_convolution(none, *range(LAYERS)),
    }


def drawn_rows(generator: torch.Generator) -> Questions:
    """A batch of up to the trained length."""
    length = int(torch.randint(LENGTH // 2, LENGTH + 1, (), generator=generator))
    return repeated(generator, ROWS, SYMBOLS, length)


def _concluded(shares: Shares) -> Result:
    near = {name: [one[0] for one in some] for name, some in shares.items()}
    far = {name: [one[-1] for one in some] for name, some in shares.items()}
    chance = 1 / SYMBOLS
    numbers = [
        held("with a convolution it is right more often than without", more_in_pairs(near[WITH], near[WITHOUT])),
        held("with a convolution it is right at the trained lengths", interval(near[WITH])[0] > SURE),
        held("and at four times the length, more often than RoPE", more_in_pairs(far[WITH], far[ROPE])),
        held("control: convolutions without attention find nothing", interval(near[ALONE])[1] < 3 * chance),
    ]
    slips = [held("without a convolution it does no better than chance", interval(near[WITHOUT])[1] < 3 * chance)]
    for name in shares:
        numbers.append(over_seeds(f"{name}: right, as long as trained", near[name]))
        numbers.append(over_seeds(f"{name}: right, {LONGER[-1]} times as long", far[name]))
    numbers.append(Number("a guess", chance))
    words = TEXT.conclusion(
        with_near=mean(near[WITH]),
        with_far=mean(far[WITH]),
        without_near=mean(near[WITHOUT]),
        without_far=mean(far[WITHOUT]),
        rope_near=mean(near[ROPE]),
        rope_far=mean(far[ROPE]),
        alone=mean(near[ALONE]),
    )
    return conclude(words, numbers, [_lengths(shares, chance)], slips)


def _lengths(shares: Shares, chance: float) -> Figure:
    at = [float(LENGTH * times) for times in LONGER]
    lines = tuple(
        line_with_band(name, at, [list(one) for one in zip(*some, strict=True)]) for name, some in shares.items()
    )
    panel = Lines("What followed last time", "symbols", "share right", lines, marks=(("a guess", chance),))
    return Figure("lengths", TEXT.caption("lengths"), (panel,))


STUDY = TEXT.study(
    "P16",
    run,
    (TEXT.parameter("seeds", 3, 2, 10), TEXT.parameter("steps", 800, 10, 5000)),
    seconds=100.0,
    trains=True,
)
