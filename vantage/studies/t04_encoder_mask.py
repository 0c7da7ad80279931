"""T4: an encoder is a decoder without the triangle."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.figures import Bars, Figure, Heat
from vantage.model import Model, build, decoder, encoder
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.parts import Attended, Need, View
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import max_difference, random_tokens, sharp_model
from vantage.studies.study import Parameter, Progress, Result, Study, Values

VOCAB = 11
ROUNDING, SEEN = 1e-10, 1e-4


def run(values: Values, progress: Progress) -> Result:
    count, position = int(values["tokens"]), str(values["position"])

    def spec(make, **more):
        return make(vocab=VOCAB, width=16, layers=1, heads=4, kv_heads=2, position=position, **more)

    dec = sharp_model(spec(decoder))
    weights = {name: value for name, value in dec.state_dict().items() if not name.startswith("head.")}
    enc, masked = (
        build(made).double().eval() for made in (spec(encoder), spec(encoder, mask=Causal() & SameSegment()))
    )
    extra = set(enc.state_dict()) ^ set(weights)
    enc.load_state_dict(weights)
    masked.load_state_dict(weights)
    progress(0.4, "both ways")
    tokens = random_tokens(count, VOCAB)
    (a, seen), (b, whole), (c, _) = (_pass(model, tokens) for model in (dec, enc, masked))
    moved = (a - b)[0].abs().amax(-1)
    above = float(seen.triu(1).sum()), float(whole.triu(1).sum())
    progress(1.0, "done")
    numbers = [
        compared("parameters that one has and the other has not (but for the decoder's head)", len(extra), 0),
        judged(
            "the encoder with a triangle against the decoder: largest difference",
            max_difference(a, c),
            max_difference(a, c) < ROUNDING,
        ),
        judged(
            "without it: difference at the last token, which sees all either way",
            float(moved[-1]),
            float(moved[-1]) < ROUNDING,
        ),
        judged(
            "without it: least difference at an earlier token", float(moved[:-1].min()), float(moved[:-1].min()) > SEEN
        ),
        compared("weight above the diagonal, decoder", above[0], 0.0),
        judged("weight above the diagonal, encoder", above[1], above[1] > SEEN),
    ]
    words = (
        "The same weights fit both, one for one. Without the triangular mask every token but the last comes out "
        "different, because it sees what follows; with it the encoder's block is the decoder's."
    )
    return conclude(words, numbers, _figures(seen, whole, moved))


@torch.no_grad()
def _pass(model: Model, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The last hidden states, and the weights (T, T) of the first head."""
    seen: list[Tensor] = []

    def watch(site: str, index: int, view: View, need: Need, done: Attended) -> None:
        assert done.weights is not None  # somebody watches
        seen.append(done.weights[0, 0])

    return model.hidden(tokens, watch=watch), seen[0]


def _figures(seen: Tensor, whole: Tensor, moved: Tensor) -> list[Figure]:
    def heat(title: str, cells: Tensor) -> Heat:
        return Heat(title, "key", "query", [[w if w > 0 else None for w in row] for row in cells.tolist()])

    names = tuple(str(i + 1) for i in range(len(moved)))
    return [
        Figure(
            "weights",
            "One head with the same weights, with the triangular mask and without. Empty cells are hidden by the mask; "
            "the last row is the same in both.",
            (heat("Decoder", seen), heat("Encoder", whole)),
        ),
        Figure(
            "difference",
            "What the mask changes in the output: nothing at the last token, something at all others.",
            (Bars("Encoder minus decoder", "largest difference", names, (("difference", moved.tolist()),)),),
        ),
    ]


STUDY = Study(
    tag="T4",
    title="An encoder is a decoder without the triangle",
    sources=("S2",),
    statement=(
        "The attention of an encoder block is that of a decoder block with one thing taken away: the triangular mask "
        "that hides later tokens."
    ),
    explanation=(
        "A decoder must not see the token it is about to say, so its mask is a triangle: token i looks at tokens 1 to "
        "i. An encoder has nothing to say, only to understand, so every token may look at all of them. Nothing else "
        "differs: the projections, the scale, the softmax, the feed-forward part are the same, and so are their "
        "weights' names and shapes.\n\n"
        "So the weights of a decoder can be put into an encoder as they are. The last token sees everything either "
        "way, and comes out the same to the last bit of rounding; every earlier token now also sees what follows, and "
        "comes out different. Give the encoder the triangle back and it is the decoder again. In this library both "
        "are the same code: the mask is a piece of data, `Causal()` or `Everything()`."
    ),
    run=run,
    parameters=(
        Parameter("tokens", 8, "tokens that are read", 2, 32),
        Parameter("position", "rope", "the position encoding of both", choices=("none", "rope", "alibi", "sinusoidal")),
    ),
    seconds=0.5,
)
