"""P15: the n-th last value, with any number of fillers in between: CoPE, FoX and PaTH beside RoPE and none."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Bars, Figure
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.small_training import (
    Questions,
    over_seeds,
    right,
    small_decoder,
    test_generator,
    train_small,
)
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
VALUES, FILLERS, ASKED = 8, 4, 3  # symbols of each kind: an asking symbol says how far back
LENGTH, GAP, ROWS, RATE = 32, 5, 64, 3e-3
TESTED = 512
MORE = 4  # times the fillers, in the harder test
FIRST_SEED = 1  # seed 0 was looked at while the sizes were chosen
BY_CONTENT = ("cope", "fox", "path")
BY_DISTANCE = ("rope", "none")
SURE = 0.9
Shares = dict[str, list[list[float]]]  # of each encoding and seed, by how far back


def run(values: Values, progress: Progress) -> Result:
    seeds, steps = range(FIRST_SEED, FIRST_SEED + int(values["seeds"])), int(values["steps"])
    jobs = [(name, seed, False) for name in (*BY_CONTENT, *BY_DISTANCE) for seed in seeds]
    jobs += [(name, seed, True) for name in BY_DISTANCE for seed in seeds]
    near, far, fixed = Shares(), Shares(), Shares()
    for n, (name, seed, even) in enumerate(jobs):

        def report(share: float, doing: str, n: int = n, name: str = name) -> None:
            progress((n + share) / len(jobs), f"{name}: {doing}")

        spec = small_decoder(VALUES + FILLERS + ASKED, name, layers=1)
        drawn = even_gaps if even else random_gaps
        model = train_small(spec, seed, lambda g, drawn=drawn: drawn(g, ROWS, LENGTH, GAP), steps, RATE, report)
        tested = drawn(test_generator(), TESTED, LENGTH, GAP)
        (fixed if even else near).setdefault(name, []).append(_by_asked(right(model, tested), tested))
        if not even:
            more = random_gaps(test_generator(), TESTED, MORE * LENGTH, MORE * GAP)
            far.setdefault(name, []).append(_by_asked(right(model, more), more))
    progress(1.0, "done")
    return _concluded(near, far, fixed)


def random_gaps(generator: torch.Generator, rows: int, length: int, gap: int) -> Questions:
    """Values with 0 to ``gap`` fillers before each next one. The last token asks for one of the last three."""
    gaps = torch.randint(gap + 1, (rows, length), generator=generator)
    return _asked(generator, length - 1 - (gaps + 1).cumsum(1), length)


def even_gaps(generator: torch.Generator, rows: int, length: int, gap: int) -> Questions:
    """The same with as many fillers between any two: here a distance in tokens is a count of values."""
    return _asked(generator, (length - 2 - torch.arange(0, length, gap // 2 + 1)).expand(rows, -1), length)


def _asked(generator: torch.Generator, at: Tensor, length: int) -> Questions:
    """Rows with values ``at`` these places, the last one first; below 0 is none."""
    rows, kept = len(at), at >= 0
    is_value = torch.zeros(rows, length, dtype=torch.bool)
    is_value[torch.arange(rows)[:, None].expand_as(at)[kept], at[kept]] = True
    drawn = torch.randint(VALUES, (rows, length), generator=generator)
    fillers = VALUES + torch.randint(FILLERS, (rows, length), generator=generator)
    tokens = torch.where(is_value, drawn, fillers)
    back = torch.randint(ASKED, (rows,), generator=generator)
    tokens[:, -1] = VALUES + FILLERS + back
    return Questions(tokens, tokens.gather(1, at.gather(1, back[:, None])))


def _by_asked(correct: Tensor, questions: Questions) -> list[float]:
    """The share right, of the questions for the last value, the one before, and so on."""
    back = questions.tokens[:, -1] - VALUES - FILLERS
    return [float(correct[back == n].float().mean()) for n in range(ASKED)]


def _means(shares: Shares, name: str) -> list[float]:
    return [mean(one) for one in shares[name]]


def _concluded(near: Shares, far: Shares, fixed: Shares) -> Result:
    rope = _means(far, "rope")
    numbers = [
        held(f"{name} is right more often than RoPE, with more fillers", more_in_pairs(_means(far, name), rope))
        for name in BY_CONTENT
    ]
    numbers += [
        held(f"{name} is right more often than no encoding", more_in_pairs(_means(near, name), _means(near, "none")))
        for name in BY_CONTENT
    ]
    numbers.append(held("control: RoPE counts where gaps are even", interval(_means(fixed, "rope"))[0] > SURE))
    numbers.append(held("more fillers cost RoPE", more_in_pairs(_means(near, "rope"), rope)))
    slips = [held(f"{name} finds all three", min(min(one) for one in near[name]) > SURE) for name in ("fox", "path")]
    for name in near:
        numbers.append(over_seeds(f"{name}: right, fillers as trained", _means(near, name)))
        numbers.append(over_seeds(f"{name}: right, {MORE} times the fillers", _means(far, name)))
    numbers += [over_seeds(f"{name}: right, even gaps", _means(fixed, name)) for name in BY_DISTANCE]
    for name in BY_CONTENT:
        last, *_, third = (mean([one[n] for one in near[name]]) for n in range(ASKED))
        numbers.append(Number(f"{name}: right on the last one, and on the third last", f"{last:.2f}, {third:.2f}"))
    words = TEXT.conclusion(
        cope_near=mean(_means(near, "cope")),
        cope_far=mean(_means(far, "cope")),
        path_near=mean(_means(near, "path")),
        path_far=mean(_means(far, "path")),
        fox_near=mean(_means(near, "fox")),
        fox_far=mean(_means(far, "fox")),
        rope_near=mean(_means(near, "rope")),
        rope_far=mean(_means(far, "rope")),
        none_near=mean(_means(near, "none")),
        none_far=mean(_means(far, "none")),
        rope_even=mean(_means(fixed, "rope")),
        fox_last=mean([one[0] for one in near["fox"]]),
        fox_third=mean([one[-1] for one in near["fox"]]),
        path_last=mean([one[0] for one in near["path"]]),
        path_third=mean([one[-1] for one in near["path"]]),
    )
    return conclude(words, numbers, [_gaps(near, far), _back(near)], slips)


def _gaps(near: Shares, far: Shares) -> Figure:
    series, low, high = [], [], []
    for label, shares in (("as trained", near), (f"{MORE} times the fillers", far)):
        ends = [interval(_means(shares, name)) for name in shares]
        series.append((label, [mean(_means(shares, name)) for name in shares]))
        low.append([one for one, _ in ends])
        high.append([one for _, one in ends])
    bars = Bars("The n-th last value", "share right", tuple(near), tuple(series), tuple(low), tuple(high))
    return Figure("gaps", TEXT.caption("gaps"), (bars,))


def _back(near: Shares) -> Figure:
    names = ("the last", "the second last", "the third last")
    series = tuple((name, [mean([one[n] for one in near[name]]) for n in range(ASKED)]) for name in near)
    return Figure("back", TEXT.caption("back"), (Bars("By how far back", "share right", names, series),))


STUDY = TEXT.study(
    "P15",
    run,
    (TEXT.parameter("seeds", 3, 2, 10), TEXT.parameter("steps", 400, 10, 5000)),
    seconds=120.0,
    trains=True,
)
