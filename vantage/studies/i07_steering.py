"""I7: the difference between two sets of sentences, added to the residual stream of another text."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from vantage.figures import Figure, Lines
from vantage.interventions import Edit, steering_vector, trace
from vantage.model import Model
from vantage.studies.shared.findings import conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.intervals import mean_bars, mean_line
from vantage.studies.shared.models import random_normal, smollm2
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
SUBJECTS = (
    "The soup",
    "Our guide",
    "The hotel",
    "My neighbour",
    "The old town",
    "Her sister",
    "The bread",
    "The beach",
)
LIKED = "{} was lovely and I liked every moment."
DISLIKED = "{} was nasty and I hated every moment."
BEGINNINGS = (
    "I saw the new film yesterday. I think it is",
    "She read the whole book. She says it is",
    "We listened to the concert. It was",
    "He bought a new phone. He finds it",
    "They moved into the house. The house is",
    "I finished the course last week. The course was",
    "Our team played on Sunday. The game was",
    "I tried the new software. It is",
)
PRAISE = (" great", " good", " wonderful", " excellent", " amazing", " fantastic", " perfect", " beautiful")
BLAME = (" bad", " terrible", " awful", " horrible", " poor", " boring", " worst", " disappointing")
CONTROLS = 3  # random vectors, and mixed sets, for each beginning
STRENGTHS = (-2, -1, -0.5, 0.5, 1, 2)  # of the chosen one, for the line


def run(values: Values, progress: Progress) -> Result:
    model, layer, strength = smollm2(), int(values["layer"]), float(values["strength"])
    name = f"layers.{layer}.residual_after"
    liked, disliked = ([sentence.format(one) for one in SUBJECTS] for sentence in (LIKED, DISLIKED))
    progress(0.05, "making the vectors")
    vector = steering_vector(model, liked, disliked, activation=name)
    randoms = [_sized(random_normal(len(vector), seed=n, dtype=vector.dtype), vector) for n in range(CONTROLS)]
    mixed = [
        _sized(steering_vector(model, *_mixed(liked, disliked, seed=n), activation=name), vector)
        for n in range(CONTROLS)
    ]
    by_strength: dict[float, list[float]] = {step * strength: [] for step in STRENGTHS}
    moved: dict[str, list[float]] = {"random": [], "mixed sets": []}
    for n, beginning in enumerate(BEGINNINGS):
        progress(0.2 + 0.8 * n / len(BEGINNINGS), f"text {n + 1} of {len(BEGINNINGS)}")
        plain = _balance(model, beginning, [])

        def change(some: Tensor, beginning: str = beginning, plain: float = plain) -> float:
            return _balance(model, beginning, [Edit(name, some, add=True)]) - plain

        for times, samples in by_strength.items():
            samples.append(change(times * vector))
        moved["random"].append(mean([change(strength * one) for one in randoms]))
        moved["mixed sets"].append(mean([change(strength * one) for one in mixed]))
    moved |= {"added": by_strength[strength], "taken away": by_strength[-strength]}
    twice = by_strength[2 * strength]
    right = [
        held("added, it moves further than random vectors", more_in_pairs(moved["added"], moved["random"])),
        held("and further than mixed sets", more_in_pairs(moved["added"], moved["mixed sets"])),
        held(
            "taken away, it moves the other way, further than random",
            more_in_pairs(moved["random"], moved["taken away"]),
        ),
        held("and than mixed sets", more_in_pairs(moved["mixed sets"], moved["taken away"])),
        held("twice as much moves further", more_in_pairs(twice, moved["added"])),
    ]
    also = [Number(f"moved, {which}", mean(some), interval=interval(some)) for which, some in moved.items()]
    also.append(Number("moved, added twice as strongly", mean(twice), interval=interval(twice)))
    words = TEXT.conclusion(
        strength=f"{strength:g}", layer=layer, added=mean(moved["added"]), taken=mean(moved["taken away"]),
        random=mean(moved["random"]), mixed=mean(moved["mixed sets"]), twice=mean(twice),
    )  # fmt: skip
    return conclude(words, [*right, *also], [_bars(moved), _line(by_strength)])


def _sized(vector: Tensor, like: Tensor) -> Tensor:
    """A vector as long as another one."""
    return vector * (like.norm() / vector.norm())


def _mixed(liked: list[str], disliked: list[str], seed: int) -> tuple[list[str], list[str]]:
    """Two sets that have as many sentences of either kind."""
    drawn, half = random.Random(seed), len(liked) // 2
    first, second = drawn.sample(liked, len(liked)), drawn.sample(disliked, len(disliked))
    return first[:half] + second[:half], first[half:] + second[half:]


def _balance(model: Model, beginning: str, edits: list[Edit]) -> float:
    """The mean log-probability of words of praise less that of words of blame, as the next word."""
    tokens = model.tokenizer.encode(beginning)
    logs = trace(model, tokens, edits=edits).logits[0, -1].float().log_softmax(-1)
    praise, blame = ([model.tokenizer.encode(word, special=False)[0] for word in some] for some in (PRAISE, BLAME))
    return float(logs[torch.tensor(praise)].mean() - logs[torch.tensor(blame)].mean())


def _bars(moved: dict[str, list[float]]) -> Figure:
    panel = mean_bars("Praise over blame", "moved by, nats", moved)
    return Figure("steered", TEXT.caption("steered"), (panel,))


def _line(by_strength: dict[float, list[float]]) -> Figure:
    line = mean_line("the vector", list(by_strength), list(by_strength.values()))
    panel = Lines("How strongly", "times the vector", "moved by, nats", (line,), marks=(("unchanged", 0.0),))
    return Figure("strengths", TEXT.caption("strengths"), (panel,))


STUDY = TEXT.study(
    "I7",
    run,
    (TEXT.parameter("layer", 12, 0, 29), TEXT.parameter("strength", 2.0, 0.25, 8.0)),
    seconds=15.0,
    needs=("smollm2",),
)
