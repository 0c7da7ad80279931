"""The running model with another encoding: perplexity, perplexity over position, and what it says next."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vantage.errors import BadInput, Refused
from vantage.figures import Figure, Line, Lines
from vantage.generation.api import generate
from vantage.inspect.extend import BINS, token_losses
from vantage.model import Model
from vantage.serve.studio.positions.answers import EncodingSwapAnswer, PerplexityPair, TextPair
from vantage.serve.studio.swapped_models import EncodingRequest, swapped_model
from vantage.serve.studio.texts import encode_fitting

LEAST, MOST = 2 * BINS, 1024  # tokens of the text


def swap_encoding(model: Model, text: str, position: EncodingRequest, tokens: int) -> EncodingSwapAnswer:
    """Before and after. Encodings with weights of their own start untrained, and that is said."""
    if model.kind != "decoder":
        raise Refused("an encoding is swapped on a decoder, which has a perplexity: this model is none")
    ids = encode_fitting(model, text, MOST, tokens)
    if len(ids) < LEAST:
        raise BadInput(f"the text has {len(ids)} tokens: give {LEAST} or more, so that there is a curve to see")
    other = swapped_model(model, position, len(ids) + tokens)
    both = {"before": model, "after": other.model}
    with torch.inference_mode():
        losses = {which: token_losses(one, ids).double() for which, one in both.items()}
    texts = {which: generate(one, ids, max_tokens=tokens).text for which, one in both.items()}
    return EncodingSwapAnswer(
        perplexity=PerplexityPair(**{which: _perplexity(loss) for which, loss in losses.items()}),
        text=TextPair(**texts),
        over_position=_curve(losses),
        untrained=bool(other.fresh),
        tokens=len(ids),
    )


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.mean()), 700.0))


def _curve(losses: dict[str, Tensor]) -> Figure:
    lines = []
    for which, loss in losses.items():
        at = torch.arange(1, len(loss) + 1).double()
        middles = [float(part.mean()) for part in at.tensor_split(BINS)]
        lines.append(Line(which, middles, [_perplexity(part) for part in loss.tensor_split(BINS)]))
    panel = Lines("perplexity by position", "position", "perplexity", tuple(lines), log_y=True)
    caption = "Perplexity of equal sections of the text, with the model's own encoding and with the new one."
    return Figure("over-position", caption, (panel,))
