"""K2: generation with a cache, one step at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Figure, Heat, Line, Lines
from vantage.model import Model, decoder
from vantage.spec.parts import Attended, Need, View
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import count_projections, greedy_tokens, max_difference, sharp_model
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB, PROMPT = 11, [3, 7, 1]
ROUNDING = 1e-10
KINDS = ("contiguous", "paged", "quantised")


def run(values: Values, progress: Progress) -> Result:
    steps, kind = int(values["steps"]), str(values["kind"])
    model = sharp_model(decoder(vocab=VOCAB, width=16, layers=2, heads=2))
    tokens = torch.tensor([greedy_tokens(model, PROMPT, steps, cached=False)])
    progress(0.3, "step by step")
    loss = ROUNDING if kind != "quantised" else 0.5  # eight bits a number lose something
    read, weights, keys, same = _steps(model, tokens, kind)
    progress(0.7, "in one pass")
    whole, held = _whole(model, tokens[:, :-1])
    drawn = [_drawn(model, steps, seed, cached) for seed in (0, 1) for cached in (True, False)]
    error = max(max_difference(row, whole[t, : len(row)]) for t, row in zip(_queries(steps), weights, strict=True))
    numbers = [
        compared("most tokens projected in a step after the prompt", max(read[1:]), 1),
        compared("tokens projected in all: prompt and steps", sum(read), len(PROMPT) + steps - 1),
        judged("largest difference of K≤t and V≤t from those of one pass", _far(keys, held), _far(keys, held) <= loss),
        judged("largest difference of a step's weights from those of one pass", error, error <= loss),
        compared(
            "likeliest tokens that are the same with and without", same, steps, within=0 if kind != KINDS[2] else 2
        ),
        compared(
            "random draws that are the same with and without (of 2 seeds)",
            sum(drawn[i] == drawn[i + 1] for i in (0, 2)),
            2,
        ),
    ]
    progress(1.0, "done")
    words = TEXT.conclusion()
    return conclude(words, numbers, _figures(weights, whole, read, len(PROMPT)))


def _queries(steps: int) -> range:
    return range(len(PROMPT) - 1, len(PROMPT) - 1 + steps)


@torch.no_grad()
def _steps(model: Model, tokens: Tensor, kind: str) -> tuple[list[int], list[Tensor], tuple[Tensor, Tensor], int]:
    """The prompt, then a token a step: tokens read, the last query's weights, what is kept, and how many agree."""
    cache, rows, read, same = model.new_cache(kind=kind), [], [], 0
    at = len(PROMPT)
    with count_projections(model) as counts:
        for end in range(at, tokens.shape[1]):
            new = tokens[:, :at] if end == at else tokens[:, end - 1 : end]
            seen: list[Tensor] = []
            before = sum(counts[0].values())
            hidden = model.hidden(new, cache=cache, watch=_last_layer(model, seen))
            read.append(sum(counts[0].values()) - before)
            rows.append(seen[0][-1])
            same += int(model.head(hidden)[0, -1].argmax()) == int(tokens[0, end])
    view = cache.layers[-1].view()
    filled = view.pos.order[0] >= 0
    return read, rows, (view.k[0, :, filled].double(), view.v[0, :, filled].double()), same


@torch.no_grad()
def _whole(model: Model, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    seen: list[Tensor] = []
    views: list[View] = []
    model.hidden(tokens, watch=_last_layer(model, seen, views))
    return seen[0], (views[0].k[0], views[0].v[0])


def _last_layer(model: Model, seen: list[Tensor], views: list[View] | None = None):
    """Takes the weights (T, S) of the first head of the last layer as they are used."""

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        if index == len(model.blocks) - 1:
            assert attended.weights is not None  # somebody watches
            filled = view.pos.order[0] >= 0
            seen.append(attended.weights[0, 0][:, filled])
            if views is not None:
                views.append(view)

    return watch


def _far(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> float:
    return max(max_difference(one, other) for one, other in zip(a, b, strict=True))


def _drawn(model: Model, steps: int, seed: int, cached: bool) -> list[int]:
    from vantage.generation import Engine, Sampling

    engine = Engine(model, cache=cached)
    request = engine.submit(PROMPT, max_tokens=steps, sampling=Sampling(temperature=1.0, seed=seed))
    engine.run()
    return list(request.outputs[0].tokens)


def _figures(weights: list[Tensor], whole: Tensor, read: list[int], prompt: int) -> list[Figure]:
    wide = whole.shape[1]
    stepwise = [[*row.tolist(), *[None] * (wide - len(row))] for row in weights]
    at_once = [[*whole[t, : t + 1].tolist(), *[None] * (wide - t - 1)] for t in range(prompt - 1, wide)]
    names = tuple(str(i) for i in range(wide))
    steps = tuple(f"step {i + 1}" for i in range(len(weights)))
    heats = (
        Heat("A row for each cached step", "key", "", stepwise, names, steps),
        Heat("The same rows of one pass", "key", "", at_once, names, steps),
    )
    x = list(range(1, len(read) + 1))
    tokens_done = [prompt + i for i in range(len(read))]
    lines = (Line("with a cache", x, read), Line("everything again", x, tokens_done, look="dashed"))
    return [
        Figure("steps", TEXT.caption("steps"), heats),
        Figure(
            "read",
            TEXT.caption("read"),
            (Lines("Tokens that are projected", "step", "tokens", lines),),
        ),
    ]


STUDY = TEXT.study(
    "K2",
    run,
    (
        TEXT.parameter("steps", 10, 2, 32),
        TEXT.parameter("kind", "contiguous", choices=KINDS),
    ),
    seconds=1.0,
)
