"""I4: what the residual stream says of the answer, read by the model's own head and through fitted maps."""

from __future__ import annotations

import itertools

import torch

from vantage.figures import Figure, Lines
from vantage.interventions import TunedLens, fit_lens, logit_lens
from vantage.interventions.trace import trace
from vantage.model import Model
from vantage.studies import registry
from vantage.studies.a17_head_atlas import STORY
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars, mean_line
from vantage.studies.shared.models import smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText, read_sections

TEXT = StudyText.beside(__file__)
PIECE = 256  # tokens of a text that maps are fitted on
THIRDS = ("first", "middle", "last")
EVERY = 3  # of the tokens of a passage one in so many is read: the head costs more than the layers
Distances = list[list[float]]  # by passage, and in each after every layer but the last


def run(values: Values, progress: Progress) -> Result:
    model = smollm2()
    progress(0.05, "fitting the maps")
    texts = _pieces(model, int(values["fitted_tokens"]))
    fitted = fit_lens(model, texts)
    lenses: dict[str, TunedLens | None] = {
        "logit lens": None,
        "tuned lens": fitted,
        "exchanged maps": _exchanged(fitted),
        "average": _average(model, texts),
    }
    passages = _passages(model, int(values["passages"]))
    distances: dict[str, Distances] = {name: [] for name in lenses}
    for (n, passage), (name, lens) in itertools.product(enumerate(passages), lenses.items()):
        progress(0.6 + 0.4 * n / len(passages), f"passage {n + 1} of {len(passages)}")
        where = range(1, len(passage), EVERY)
        read = logit_lens(model, passage, tuned=lens, positions=where, top=1).divergence[1:-1]
        distances[name].append(read.mean(1).tolist())
    thirds = {name: _thirds(some) for name, some in distances.items()}
    plain, tuned, exchanged, average = (thirds[name] for name in lenses)
    right = [
        held("the logit lens is nearer in the last third than in the middle one", more_in_pairs(plain[1], plain[2])),
        *_nearer("the tuned lens is nearer than the logit lens", tuned, plain),
        *_nearer("the tuned lens is nearer than the average", tuned, average)[1:],
        *_nearer("the tuned lens is nearer than with exchanged maps", tuned, exchanged),
    ]
    slips = [
        held("the logit lens is nearer in the middle third than in the first one", more_in_pairs(plain[0], plain[1]))
    ]
    also = [
        Number(f"KL, {name}, {third} third", mean(some), interval=interval(some))
        for name, by_third in thirds.items()
        for third, some in zip(THIRDS, by_third, strict=True)
    ]
    means = [[mean(some) for some in by_third] for by_third in (plain, tuned, exchanged)]
    words = TEXT.conclusion(
        plain_first=means[0][0], plain_middle=means[0][1], plain_last=means[0][2],
        tuned_first=means[1][0], tuned_middle=means[1][1], tuned_last=means[1][2],
        exchanged_first=means[2][0], exchanged_middle=means[2][1], exchanged_last=means[2][2],
        average=mean(average[1]),
    )  # fmt: skip
    return conclude(words, [*right, *also], [_layers(distances), _bars(thirds)], slips)


def _nearer(what: str, near: list[list[float]], far: list[list[float]]) -> list[Number]:
    """Whether the first is nearer than the second, in each third."""
    return [
        held(f"{what} in the {third} third", more_in_pairs(b, a)) for third, a, b in zip(THIRDS, near, far, strict=True)
    ]


def _pieces(model: Model, count: int) -> list[list[int]]:
    """So many tokens of what the other studies explain, in pieces."""
    folder = TEXT.path.parent
    stems = [stem for stem in registry.tags().values() if stem != TEXT.path.stem]
    text = "\n\n".join(read_sections(folder / f"{stem}.md")[1]["Explanation"] for stem in stems)
    tokens = model.tokenizer.encode(text)[:count]
    return [tokens[low : low + PIECE] for low in range(0, len(tokens), PIECE)]


def _passages(model: Model, count: int) -> list[list[int]]:
    """The story in so many passages of as many tokens."""
    tokens = model.tokenizer.encode(STORY)
    length = len(tokens) // count
    return [tokens[n * length : (n + 1) * length] for n in range(count)]


def _exchanged(lens: TunedLens) -> TunedLens:
    """Each layer with the map of one a third of the model away."""
    numbers = sorted(lens.maps)
    step = max(1, len(numbers) // 3)
    return TunedLens({n: lens.maps[numbers[(i + step) % len(numbers)]] for i, n in enumerate(numbers)})


def _average(model: Model, texts: list[list[int]]) -> TunedLens:
    """Maps that take whatever stands there to the mean of what leaves the last block, each token at the same size."""
    last = f"layers.{len(model.blocks) - 1}.residual_after"
    seen = torch.cat([trace(model, text, read=last)[last][0] for text in texts])
    centre = (seen * seen.square().mean(-1, keepdim=True).rsqrt()).mean(0, keepdim=True)
    constant = torch.cat((-torch.eye(len(centre[0])), centre))
    return TunedLens(dict.fromkeys(range(len(model.blocks)), constant))


def _thirds(distances: Distances) -> list[list[float]]:
    """For each third of the layers the mean of each passage."""
    count = len(distances[0])
    edges = [round(count * n / 3) for n in range(4)]
    return [[mean(passage[low:high]) for passage in distances] for low, high in itertools.pairwise(edges)]


def _layers(distances: dict[str, Distances]) -> Figure:
    lines = tuple(
        mean_line(name, [float(n) for n in range(len(some[0]))], list(zip(*some, strict=True)))
        for name, some in distances.items()
    )
    panel = Lines("Distance to the final answer", "after layer", "KL, nats", lines)
    return Figure("layers", TEXT.caption("layers"), (panel,))


def _bars(thirds: dict[str, list[list[float]]]) -> Figure:
    panels = tuple(
        mean_bars(f"The {third} third", "KL, nats", {name: by_third[n] for name, by_third in thirds.items()})
        for n, third in enumerate(THIRDS)
    )
    return Figure("thirds", TEXT.caption("thirds"), panels)


STUDY = TEXT.study(
    "I4",
    run,
    (TEXT.parameter("passages", 5, 2, 10), TEXT.parameter("fitted_tokens", 1536, 256, 8192)),
    seconds=25.0,
    needs=("smollm2",),
)
