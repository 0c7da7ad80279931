"""P1: a test for permutation equivariance, put to real layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.model.feed_forward import FeedForward
from vantage.position.rope import Rope, Rotation
from vantage.position.sinusoidal import sinusoid
from vantage.spec.masks import Causal, Everything
from vantage.studies.exercises.differences import describe_value
from vantage.studies.exercises.exercise import StudentCode
from vantage.studies.exercises.library_parts import attention_module, run_module, with_seeded_weights
from vantage.studies.exercises.text import ExerciseText

TEXT = ExerciseText.beside(__file__)


TOKENS, WIDTH = 6, 8
Layer = Callable[[Tensor], Tensor]


def _attention(causal: bool = False, rope: bool = False, seed: int = 0) -> Layer:
    turns = (Rotation(Rope(), WIDTH // 2),) if rope else ()
    real = attention_module(GroupedQuery(2), WIDTH, Causal() if causal else Everything(), seed, turns)
    return lambda x: run_module(real, x[None])[0]


def _feed_forward(seed: int = 1) -> Layer:
    real = with_seeded_weights(FeedForward(12, "relu", gated=False, bias=True).build(WIDTH), seed)

    def layer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return real(x)

    return layer


def _plus(table: Tensor) -> Layer:
    return lambda x: x + table


def _chain(*layers: Layer) -> Layer:
    def layer(x: Tensor) -> Tensor:
        for one in layers:
            x = one(x)
        return x

    return layer


def _encoding() -> Tensor:
    return sinusoid(torch.arange(TOKENS), WIDTH).float()


def _last() -> Tensor:
    table = torch.zeros(TOKENS, WIDTH)
    table[-1] = _encoding()[-1]
    return table


def _mirrored() -> Tensor:
    middle = torch.arange(TOKENS).minimum(torch.arange(TOKENS).flip(0))
    return sinusoid(middle, WIDTH).float()


ARE: dict[str, Callable[[], Layer]] = {
    "one that does nothing": lambda: lambda x: x.clone(),
    "attention without a mask": _attention,
    "a feed-forward layer with biases": _feed_forward,
    "attention and then a feed-forward layer": lambda: _chain(_attention(seed=3), _feed_forward()),
}
ARE_NOT: dict[str, Callable[[], Layer]] = {
    "attention with a causal mask": lambda: _attention(causal=True),
    "attention with rotary positions": lambda: _attention(rope=True),
    "a sum with the sinusoidal encoding, then attention": lambda: _chain(_plus(_encoding()), _attention()),
    "a sum with the sinusoidal encoding": lambda: _plus(_encoding()),
}
HARD: dict[str, tuple[Callable[[], Layer], str]] = {
    "one that treats only the last place differently": (lambda: _plus(_last()), TEXT.feedback("last place")),
    "one that is the same from both ends": (lambda: _plus(_mirrored()), TEXT.feedback("both ends")),
    "a sum with an encoding of 1 % of the size": (lambda: _plus(0.01 * _encoding()), TEXT.feedback("tolerance")),
}


def _sees(student: StudentCode, layer: Layer) -> tuple[object, list[Tensor]]:
    """What the student's test says of a layer, and what it called the layer with."""
    inputs: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.shape != (TOKENS, WIDTH):
            raise ValueError(TEXT.feedback("shape", tokens=TOKENS, width=WIDTH, value=describe_value(x)))
        inputs.append(x.clone())
        return layer(x.float())

    got = student.call("is_equivariant", watched, TOKENS, WIDTH)
    if isinstance(got, Tensor) and got.numel() == 1:
        got = bool(got.item())
    return got, inputs


def _method(got: object, inputs: list[Tensor]) -> str | None:
    """What is wrong with how the layer was tried, whatever came of it."""
    if not isinstance(got, bool):
        return TEXT.feedback("no truth value", value=describe_value(got))
    if len(inputs) < 2:
        return TEXT.feedback("too few calls", calls=len(inputs))
    first = inputs[0]
    if bool((first == first[0]).all()):
        return TEXT.feedback("tokens alike")
    if all(torch.equal(x, first) for x in inputs):
        return TEXT.feedback("nothing moved")
    if not any(torch.equal(_sorted(x), _sorted(first)) and not torch.equal(x, first) for x in inputs):
        return TEXT.feedback("never permuted")
    return None


def _sorted(x: Tensor) -> Tensor:
    return x[torch.argsort(x[:, 0])]


def yes(student: StudentCode) -> str | None:
    for name, make in ARE.items():
        layer = make()
        got, inputs = _sees(student, layer)
        wrong = _method(got, inputs)
        if wrong is not None:
            return wrong
        if got is True:
            continue
        if name == "one that does nothing":
            return TEXT.feedback("invariance")
        return TEXT.feedback("not equivariant", layer=name)
    return None


def no(student: StudentCode) -> str | None:
    for name, make in ARE_NOT.items():
        got, inputs = _sees(student, make())
        wrong = _method(got, inputs)
        if wrong is not None:
            return wrong
        if got is not False:
            return TEXT.feedback("equivariant", layer=name)
    return None


def hard(student: StudentCode) -> str | None:
    for name, (make, hint) in HARD.items():
        for _ in range(3):
            got, inputs = _sees(student, make())
            wrong = _method(got, inputs)
            if wrong is not None:
                return wrong
            if got is not False:
                return TEXT.feedback("hidden well", layer=name, hint=hint)
    return None


EXERCISE = TEXT.exercise(
    "P1",
    ("is_equivariant",),
    (("layers that are", yes), ("layers that are not", no), ("layers that hide it well", hard)),
)
