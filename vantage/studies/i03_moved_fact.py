"""I3: a fact that is asked for, with the position numbers of its words changed and no word."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from vantage.figures import Figure, Lines
from vantage.model import Model
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars, mean_line
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
NAMES = (" Anna", " Ben", " Carl", " Emma", " Jack", " Lucy", " Mark", " Paul", " Rose", " Sarah", " Tom", " Mary")
THINGS = (" apples", " books", " cats", " cars", " dogs", " flowers", " games", " horses", " music", " birds", " bread")
SENTENCES = 3
STEPS = (0.125, 0.5, 2.0)  # of the distance, for the line


@dataclass(frozen=True)
class FactPrompt:
    """A text that tells facts of as many tokens each and asks for one. ``starts``: where each sentence begins."""

    tokens: list[int]
    starts: list[int]
    length: int  # of a sentence
    asked: int
    other: int
    answer: int
    wrong: list[int]  # what the other sentences say


def run(values: Values, progress: Progress) -> Result:
    model, count, distance = smollm2(), int(values["prompts"]), int(values["distance"])
    lost: dict[str, list[float]] = {}
    before, by_place = list[float](), [list[float]() for _ in range(SENTENCES)]
    away = {round(step * distance): ([], []) for step in STEPS}
    for n in range(count):
        progress(n / count, f"text {n + 1} of {count}")
        prompt = _prompt(model, n, asked=n % SENTENCES)
        changes = {
            "the asked one moved": _moved(prompt, prompt.asked, distance),
            "another moved": _moved(prompt, prompt.other, distance),
            "the asked one torn": _torn(prompt, prompt.asked, n),
            "another torn": _torn(prompt, prompt.other, n),
        }
        far = [_moved(prompt, which, step) for step in away for which in (prompt.asked, prompt.other)]
        whole, *others = _measured(model, prompt, [_plain(prompt), *changes.values(), *far])
        before.append(whole)
        for name, value in zip(changes, others, strict=False):
            lost.setdefault(name, []).append(whole - value)
        for (own, control), first, second in zip(
            away.values(), others[len(changes) :: 2], others[len(changes) + 1 :: 2], strict=True
        ):
            own.append(whole - first)
            control.append(whole - second)
        for place in range(SENTENCES):
            variant = _prompt(model, n, asked=place)
            by_place[place].append(_measured(model, variant, [_plain(variant)])[0])
    later = [last - first for last, first in zip(by_place[-1], by_place[0], strict=True)]
    right = [
        held("the model answers from the text", interval(before)[0] > 0),
        held(
            "torn, the asked sentence costs more than another",
            more_in_pairs(lost["the asked one torn"], lost["another torn"]),
        ),
        held("tearing costs more than moving", more_in_pairs(lost["the asked one torn"], lost["the asked one moved"])),
    ]
    slips = [
        held(
            "moved away, it costs more than another", more_in_pairs(lost["the asked one moved"], lost["another moved"])
        ),
    ]
    also = [Number("how far the answer is ahead", mean(before), interval=interval(before))]
    also += [Number(f"lost, {name}", mean(some), interval=interval(some)) for name, some in lost.items()]
    also.append(Number("further ahead, told last and not first", mean(later), interval=interval(later)))
    words = TEXT.conclusion(
        before=mean(before),
        distance=distance,
        moved=mean(lost["the asked one moved"]),
        moved_other=mean(lost["another moved"]),
        torn=mean(lost["the asked one torn"]),
        torn_other=mean(lost["another torn"]),
        later=mean(later),
        later_low=interval(later)[0],
        later_high=interval(later)[1],
    )
    return conclude(words, [*right, *also], [_bars(lost), _distances(away), _places(by_place)], slips)


def _prompt(model: Model, seed: int, asked: int) -> FactPrompt:
    """The same facts for the same seed; the asked one, which is always the same, stands at the place ``asked``."""
    drawn = random.Random(seed)
    names, things = drawn.sample(NAMES, SENTENCES), drawn.sample(THINGS, SENTENCES)
    encode = model.tokenizer.encode
    rows = [encode(f" The secret word of{name} is{thing}.") for name, thing in zip(names, things, strict=True)]
    lengths = {len(row) for row in rows}
    assert len(lengths) == 1, "names and things are one token each"
    order = list(range(1, SENTENCES))
    order.insert(asked, 0)  # fact 0 is asked for
    begin, end = encode("Listen."), encode(f" Remember: the secret word of{names[0]} is")
    tokens, starts = list(begin), list[int]()
    for fact in order:
        starts.append(len(tokens))
        tokens += rows[fact]
    other = (asked + 1) % SENTENCES
    answer, *wrong = (encode(thing)[0] for thing in things)
    return FactPrompt([*tokens, *end], starts, lengths.pop(), asked, other, answer, wrong)


def _plain(prompt: FactPrompt) -> Tensor:
    return torch.arange(len(prompt.tokens))


def _moved(prompt: FactPrompt, sentence: int, distance: int) -> Tensor:
    """(T,): positions with one sentence further back, as a whole."""
    pos = _plain(prompt)
    start = prompt.starts[sentence]
    pos[start : start + prompt.length] -= distance
    return pos


def _torn(prompt: FactPrompt, sentence: int, seed: int) -> Tensor:
    """(T,): positions with those of one sentence exchanged, none at its place."""
    drawn, pos, start = random.Random(seed), _plain(prompt), prompt.starts[sentence]
    places = list(range(prompt.length))
    while any(place == n for n, place in enumerate(places)):
        drawn.shuffle(places)
    pos[start : start + prompt.length] = start + torch.tensor(places)
    return pos


@torch.inference_mode()
def _measured(model: Model, prompt: FactPrompt, positions: list[Tensor]) -> list[float]:
    """The log-probability of the answer, less the mean of those of the other sentences' words, with each of these."""
    pos = torch.stack(positions)
    pos = pos - pos.min()  # numbers begin at 0; a rotation knows only differences
    order = _plain(prompt).expand_as(pos)
    rows = torch.tensor([prompt.tokens]).expand(len(pos), -1)
    hidden = model.hidden(rows, positions=Positions.of(pos, order=order))
    logs = model.head(hidden[:, -1:])[:, 0].float().log_softmax(-1)
    return (logs[:, prompt.answer] - logs[:, prompt.wrong].mean(-1)).tolist()


def _bars(lost: dict[str, list[float]]) -> Figure:
    bars = mean_bars("Position numbers of one sentence changed", "lost, nats", lost)
    return Figure("moved", TEXT.caption("moved"), (bars,))


def _distances(away: dict[int, tuple[list[float], list[float]]]) -> Figure:
    steps = [float(step) for step in away]
    own, control = ([pair[which] for pair in away.values()] for which in (0, 1))
    lines = (mean_line("the asked sentence", steps, own), mean_line("another", steps, control))
    panel = Lines("Moved away", "positions", "lost, nats", lines, log_x=True)
    return Figure("distances", TEXT.caption("distances"), (panel,))


def _places(by_place: list[list[float]]) -> Figure:
    line = mean_line("the answer", [float(n) for n in range(SENTENCES)], by_place)
    panel = Lines("Told at another place", "place of its sentence", "ahead by, nats", (line,))
    return Figure("told", TEXT.caption("told"), (panel,))


STUDY = TEXT.study(
    "I3",
    run,
    (TEXT.parameter("prompts", 20, 2, 200), TEXT.parameter("distance", 256, 8, 2048)),
    seconds=25.0,
    needs=("smollm2",),
)
