"""P1: attention does not know the order of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.attention import GroupedQuery
from vantage.figures import Bars, Figure, Heat
from vantage.model import Model, build, decoder, encoder
from vantage.model.feed_forward import FeedForward
from vantage.position import Sinusoidal
from vantage.spec.masks import Everything
from vantage.spec.parts import Shape
from vantage.spec.positions import Positions
from vantage.studies.shared.attention import build_attention, run_attention
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import (
    F64,
    ROUNDING,
    max_difference,
    on_log_axis,
    random_normal,
    sharpen,
)
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

WIDTH = 16
VOCAB = 31
ENCODINGS = ("sinusoidal", "learned", "shifted", "rope", "xpos", "alibi", "t5", "shaw", "xl", "kerple", "fire")
BROKEN = 1e-3  # a difference above this is one; rounding is a billion times smaller


def run(values: Values, progress: Progress) -> Result:
    count, seed = int(values["tokens"]), int(values["seed"])
    order = shuffled(count, seed)
    parts = _parts(count, order, seed)
    tokens = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[None, :count]
    bare = _model("none", count, seed)
    straight, mixed = _hidden(bare, tokens), _hidden(bare, tokens[:, order])
    errors = {"no encoding": max_difference(mixed, straight[:, order])}
    for i, name in enumerate(ENCODINGS):
        progress(i / len(ENCODINGS), name)
        errors[name] = _error(_model(name, count, seed), tokens, order)
    errors["causal mask"] = _error(_model("none", count, seed, causal=True), tokens, order)
    rope = _model("rope", count, seed)
    moved = max_difference(_hidden(rope, tokens[:, order], order), _hidden(rope, tokens)[:, order])
    least = min(errors[name] for name in ENCODINGS)
    pooled = max_difference(mixed.mean(1), straight.mean(1))
    numbers = [
        *parts,
        compared("a whole encoder: |f(PX) − P·f(X)|", errors["no encoding"], 0.0, within=ROUNDING),
        judged(f"the same with an encoding, the least of {len(ENCODINGS)}", least, least > BROKEN),
        compared("RoPE, the positions shuffled along with the tokens", moved, 0.0, within=ROUNDING),
        compared("the mean over the tokens is invariant: its change", pooled, 0.0, within=ROUNDING),
    ]
    slips = [
        compared("invariant? |f(PX) − f(X)|", max_difference(mixed, straight), 0.0, within=BROKEN),
        compared("with a causal mask: |f(PX) − P·f(X)|", errors["causal mask"], 0.0, within=BROKEN),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_picture(straight[0], mixed[0], order), _bars(errors)], slips)


def shuffled(count: int, seed: int) -> Tensor:
    """A permutation that changes distances: neither as it was nor turned round, which ALiBi would not notice."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    steps = order.diff().abs()
    return order if bool((steps > 1).any()) else order.roll(1)[torch.tensor([1, 0, *range(2, count)])]


def _parts(count: int, order: Tensor, seed: int) -> list[Number]:
    """Attention, the feed-forward layer after it, and the sum at the input, each alone."""
    x = random_normal(1, count, WIDTH, seed=seed)
    module = sharpen(build_attention(GroupedQuery(4, 2, bias=True, out_bias=True), WIDTH, Everything()), seed)
    ffn = sharpen(FeedForward(2 * WIDTH, "relu", gated=False, bias=True).build(WIDTH).to(F64), seed + 1)
    straight, mixed = run_attention(module, x), run_attention(module, x[:, order])
    with torch.no_grad():
        through = max_difference(ffn(mixed), ffn(straight)[:, order])
    add = Sinusoidal().build(Shape(WIDTH, 4, 2, 4, 4, 4))
    pos = Positions.arange(1, count)
    unequal = max_difference(add(x[:, order], pos), add(x, pos)[:, order])
    return [
        compared("attention: |A(PX) − P·A(X)|", max_difference(mixed, straight[:, order]), 0.0, within=ROUNDING),
        compared("and feed-forward with biases after it", through, 0.0, within=ROUNDING),
        judged("the sum at the input: |(PX + Φ) − P(X + Φ)|", unequal, unequal > BROKEN),
    ]


def _model(position: str, count: int, seed: int, *, causal: bool = False) -> Model:
    make = decoder if causal else encoder
    spec = make(
        vocab=VOCAB,
        width=WIDTH,
        layers=2,
        attention=GroupedQuery(2, bias=True, out_bias=True),
        position=position,
        ffn="gelu",
        norm="layer",
        max_length=count,
    )
    model = sharpen(build(spec, seed=seed).double(), seed)
    return model


@torch.no_grad()
def _hidden(model: Model, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    return model.hidden(tokens, positions=positions)


def _error(model: Model, tokens: Tensor, order: Tensor) -> float:
    return max_difference(_hidden(model, tokens[:, order]), _hidden(model, tokens)[:, order])


def _picture(straight: Tensor, mixed: Tensor, order: Tensor) -> Figure:
    names = [chr(ord("A") + i % 26) for i in range(len(order))]
    dims = tuple(str(i) for i in range(straight.shape[1]))
    panels = tuple(
        Heat(
            title, "dimension", "token", (out - out.mean(0)).tolist(), dims, tuple(names[i] for i in at), diverging=True
        )
        for title, out, at in (
            ("output for X, less its mean", straight, list(range(len(order)))),
            ("output for PX, less its mean", mixed, order.tolist()),
        )
    )
    return Figure("equivariant", TEXT.caption("equivariant"), panels)


def _bars(errors: dict[str, float]) -> Figure:
    heights = [on_log_axis(error) for error in errors.values()]
    bars = Bars("what breaks it", "largest |f(PX) − P·f(X)|", tuple(errors), (("difference", heights),), log_y=True)
    return Figure("broken", TEXT.caption("broken"), (bars,))


STUDY = TEXT.study(
    "P1",
    run,
    (
        TEXT.parameter("tokens", 6, 5, 24),
        TEXT.parameter("seed", 0, 0, 1000),
    ),
    seconds=1.0,
)
