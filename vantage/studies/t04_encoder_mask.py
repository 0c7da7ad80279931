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
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB = 11
ROUNDING, SEEN = 1e-10, 1e-4


def run(values: Values, progress: Progress) -> Result:
    count, position = int(values["tokens"]), str(values["position"])

    def spec(make, **more):
        return make(vocab=VOCAB, width=16, layers=1, heads=4, kv_heads=2, position=position, **more)

    dec = sharp_model(spec(decoder))
    weights = {name: value for name, value in dec.state_dict().items() if not name.startswith("head.")}
    enc, masked = (
        build(description).double().eval()
        for description in (spec(encoder), spec(encoder, mask=Causal() & SameSegment()))
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
    words = TEXT.conclusion()
    return conclude(words, numbers, _figures(seen, whole, moved))


@torch.no_grad()
def _pass(model: Model, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The last hidden states, and the weights (T, T) of the first head."""
    seen: list[Tensor] = []

    def watch(site: str, index: int, view: View, need: Need, attended: Attended) -> None:
        assert attended.weights is not None  # somebody watches
        seen.append(attended.weights[0, 0])

    return model.hidden(tokens, watch=watch), seen[0]


def _figures(seen: Tensor, whole: Tensor, moved: Tensor) -> list[Figure]:
    def heat(title: str, cells: Tensor) -> Heat:
        return Heat(title, "key", "query", [[w if w > 0 else None for w in row] for row in cells.tolist()])

    names = tuple(str(i + 1) for i in range(len(moved)))
    return [
        Figure(
            "weights",
            TEXT.caption("weights"),
            (heat("Decoder", seen), heat("Encoder", whole)),
        ),
        Figure(
            "difference",
            TEXT.caption("difference"),
            (Bars("Encoder minus decoder", "largest difference", names, (("difference", moved.tolist()),)),),
        ),
    ]


STUDY = TEXT.study(
    "T4",
    run,
    (
        TEXT.parameter("tokens", 8, 2, 32),
        TEXT.parameter("position", "rope", choices=("none", "rope", "alibi", "sinusoidal")),
    ),
    seconds=0.5,
)
