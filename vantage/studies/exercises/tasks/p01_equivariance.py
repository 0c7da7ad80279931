"""P1: a test for permutation equivariance, put to real layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.model.feed_forward import FeedForward
from vantage.model.linear import dense
from vantage.position.rope import Rope, Rotation
from vantage.position.sinusoidal import sinusoid
from vantage.spec.masks import Causal, Everything
from vantage.studies.exercises.exercise import Ask, Exercise
from vantage.studies.exercises.real import module, run, seeded
from vantage.studies.exercises.words import article

TASK = """\
A layer is permutation equivariant if permuting its input permutes its output in the same way: layer(P x) = P
layer(x).

Write is_equivariant(layer, tokens, width). layer is a function that takes a tensor (tokens, width) and returns
one; you choose what you call it with. Return True if the layer is equivariant and False if it is not.

The layers it is put to are real ones: attention with and without a causal mask, with rotary positions,
feed-forward layers, and sums with position encodings, some of which act at a single place or are very weak (1 %
of the size of x). They compute in float32, so equal means equal up to rounding."""

STARTER = """\
# vantage exercise P1: which layers are permutation equivariant?
import torch


def is_equivariant(layer, tokens, width):
    \"\"\"True if layer(P x) = P layer(x) for every permutation P\"\"\"
    raise NotImplementedError
"""

ANSWER = """\
# vantage exercise P1: which layers are permutation equivariant?
import torch


def is_equivariant(layer, tokens, width):
    \"\"\"True if layer(P x) = P layer(x) for every permutation P\"\"\"
    x = torch.randn(tokens, width)
    out = layer(x)
    for i in range(tokens - 1):
        order = torch.arange(tokens)
        order[i], order[i + 1] = i + 1, i
        if not torch.allclose(layer(x[order]), out[order], atol=1e-4):
            return False
    return True
"""

WORDS = """\
The output of the permuted input is compared with the permuted output. Comparing it with the output as it was
would be a test for invariance, which attention does not pass (some documents use the wrong word). x must be
random: if all tokens are alike, permuting them does nothing. Swapping neighbours, at every place, is enough for
all permutations, since each is a chain of such swaps, while one fixed permutation can be fooled: turning the
sequence around does not notice an encoding that is the same from both ends. The comparison needs a tolerance,
because sums in another order round differently, and a small one, because an encoding may be weak."""

TOKENS, WIDTH = 6, 8
Layer = Callable[[Tensor], Tensor]


def _attention(causal: bool = False, rope: bool = False, seed: int = 0) -> Layer:
    turns = (Rotation(Rope(), WIDTH // 2),) if rope else ()
    real = module(GroupedQuery(2), WIDTH, Causal() if causal else Everything(), seed, turns)
    return lambda x: run(real, x[None])[0]


def _feed_forward(seed: int = 1) -> Layer:
    real = seeded(FeedForward(12, "relu", gated=False, bias=True).build(WIDTH, dense), seed)

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
    "one that treats only the last place differently": (
        lambda: _plus(_last()),
        "a permutation that leaves the last token where it is cannot notice. Move every place",
    ),
    "one that is the same from both ends": (
        lambda: _plus(_mirrored()),
        "turning the sequence around does not notice. Try other permutations as well",
    ),
    "a sum with an encoding of 1 % of the size": (
        lambda: _plus(0.01 * _encoding()),
        "the tolerance is too wide: float32 rounds at about 1e-6 of the size",
    ),
}


def _sees(ask: Ask, layer: Layer) -> tuple[object, list[Tensor]]:
    """What the student's test says of a layer, and what it called the layer with."""
    inputs: list[Tensor] = []

    def watched(x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.shape != (TOKENS, WIDTH):
            raise ValueError(f"the layer takes a tensor of shape ({TOKENS}, {WIDTH}), and it got {article(x)}")
        inputs.append(x.clone())
        return layer(x.float())

    got = ask.call("is_equivariant", watched, TOKENS, WIDTH)
    if isinstance(got, Tensor) and got.numel() == 1:
        got = bool(got.item())
    return got, inputs


def _method(got: object, inputs: list[Tensor]) -> str | None:
    """What is wrong with how the layer was tried, whatever came of it."""
    if not isinstance(got, bool):
        return f"is_equivariant returns {article(got)}; return True or False"
    if len(inputs) < 2:
        return f"the layer was called {len(inputs)} time(s): a test compares its output for x and for x permuted"
    first = inputs[0]
    if bool((first == first[0]).all()):
        return "all tokens of x are the same, so that permuting them changes nothing: use random numbers"
    if all(torch.equal(x, first) for x in inputs):
        return "the permutation moves nothing: the layer was called with the same x every time"
    if not any(torch.equal(_sorted(x), _sorted(first)) and not torch.equal(x, first) for x in inputs):
        return "the layer was never called with the tokens (the rows) of the same x in another order"
    return None


def _sorted(x: Tensor) -> Tensor:
    return x[torch.argsort(x[:, 0])]


def yes(ask: Ask) -> str | None:
    for name, make in ARE.items():
        layer = make()
        got, inputs = _sees(ask, layer)
        wrong = _method(got, inputs)
        if wrong is not None:
            return wrong
        if got is True:
            continue
        if name == "one that does nothing":
            return (
                "it says that the layer that does nothing is not equivariant. Is the output for the permuted x "
                "compared with the output as it was? That is invariance: compare it with the permuted output"
            )
        more = "Is == used? Sums in another order round differently: allow about 1e-4"
        return f"it says that {name} is not equivariant, but it is. {more}"
    return None


def no(ask: Ask) -> str | None:
    for name, make in ARE_NOT.items():
        got, inputs = _sees(ask, make())
        wrong = _method(got, inputs)
        if wrong is not None:
            return wrong
        if got is not False:
            return f"it says that {name} is equivariant, but it is not: where a token stands matters there"
    return None


def hard(ask: Ask) -> str | None:
    for name, (make, hint) in HARD.items():
        for _ in range(3):
            got, inputs = _sees(ask, make())
            wrong = _method(got, inputs)
            if wrong is not None:
                return wrong
            if got is not False:
                return f"it says that {name} is equivariant: {hint}"
    return None


EXERCISE = Exercise(
    tag="P1",
    title="Which layers are permutation equivariant?",
    task=TASK,
    starter=STARTER,
    answer=ANSWER,
    words=WORDS,
    names=("is_equivariant",),
    checks=(("layers that are", yes), ("layers that are not", no), ("layers that hide it well", hard)),
)
