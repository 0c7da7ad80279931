"""The grid of best guesses, and one token's vector on its way through the blocks."""

from __future__ import annotations

import time
from itertools import pairwise

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.figures import Bars, Figure, Heat, Line, Lines
from vantage.inspect.select import labels, numbers
from vantage.interventions import Attribution, Trace, activations, attribute, logit_lens, trace
from vantage.interventions.targets import read_token
from vantage.model import Model
from vantage.serve.studio.lens.answers import LensAnswer, StreamPart, VectorAnswer, VectorStep
from vantage.serve.studio.progress_events import Report

GUESSES = 10  # that are kept of each place
HEAD_BATCH = 16  # places that go through the head together


Turn = tuple[int | None, StreamPart, Tensor, Tensor]  # layer, part, what it added, the residual stream afterwards


def guess_grid(model: Model, ids: list[int], target: str | None, report: Report) -> LensAnswer:
    began = time.perf_counter()
    lens = logit_lens(
        model,
        ids,
        target=target,
        top=min(GUESSES, model.spec.vocab),
        progress=lambda done, of: report(done / of, f"{done} of {of} places read"),
    )
    return LensAnswer(
        tokens=list(lens.labels),
        stages=list(lens.stages),
        guesses=[[list(words) for words in row] for row in lens.guesses],
        probabilities=lens.probabilities.tolist(),
        entropy=lens.entropy.tolist(),
        divergence=lens.divergence.tolist(),
        target=None if lens.target is None else lens.target.tolist(),
        rank=None if lens.rank is None else lens.rank.tolist(),
        ms=1e3 * (time.perf_counter() - began),
    )


@torch.inference_mode()
def follow_vector(model: Model, ids: list[int], position: int, target: str | None, report: Report) -> VectorAnswer:
    """Every part's turn at one token: what it added, how long the vector became, what the model would write then."""
    at = numbers(position, len(ids), "token", " in this text")[0]
    token = None if target is None else read_token(model, target, "target")
    report(0.1, "reading the text")
    known = activations(model)
    kinds = ("residual_before", "residual_mid", "residual_after", "attention", "feed_forward")
    names = [name for n in range(len(model.blocks)) for kind in kinds if (name := f"layers.{n}.{kind}") in known]
    seen = trace(model, ids, read=["embedding", *names])
    turns = _turns(model, seen, at)
    report(0.4, "asking what it would write after each part")
    guesses = _guesses(model, [stream for _, _, _, stream in turns])
    report(0.7, "asking what each part adds to the logit")
    try:
        attribution, note = attribute(model, ids, target=token, position=at, groups=1), None
    except Refused as e:
        attribution, note = None, str(e)
    steps = [
        VectorStep(
            layer=layer,
            part=part,
            size=float(added.norm()),
            length=float(stream.norm()),
            guess=guess,
            probability=probability,
            adds=None if attribution is None else _adds(attribution, layer, part),
        )
        for (layer, part, added, stream), (guess, probability) in zip(turns, guesses, strict=True)
    ]
    return VectorAnswer(
        token=seen.labels[at],
        measure=None if attribution is None else attribution.measure,
        logit=None if attribution is None else attribution.logit,
        steps=steps,
        figures=_figures(steps, attribution),
        note=note,
    )


def _turns(model: Model, seen: Trace, at: int) -> list[Turn]:
    def value(name: str) -> Tensor:
        return seen[name][0, at].float()

    turns: list[Turn] = [(None, "embedding", value("embedding"), value("embedding"))]
    for n in range(len(model.blocks)):
        here = f"layers.{n}"
        added = value(f"{here}.attention")
        middle = f"{here}.residual_mid"  # blocks whose parts run side by side have none
        mid = value(middle) if middle in seen else value(f"{here}.residual_before") + added
        turns.append((n, "attention", added, mid))
        turns.append((n, "feed-forward", value(f"{here}.feed_forward"), value(f"{here}.residual_after")))
    return turns


def _guesses(model: Model, streams: list[Tensor]) -> list[tuple[str, float]]:
    """The likeliest token, and how likely it is, through the last norm and the head."""
    ids, shares = list[int](), list[float]()
    edges = [*range(0, len(streams), HEAD_BATCH), len(streams)]
    for low, high in pairwise(edges):
        logits = model.head(model.norm(torch.stack(streams[low:high])[None].to(model.dtype)))[0].float()
        best = logits.softmax(-1).max(-1)
        ids += best.indices.tolist()
        shares += best.values.tolist()
    return list(zip(labels(model, ids), shares, strict=True))


def _adds(attribution: Attribution, layer: int | None, part: StreamPart) -> float:
    if layer is None:
        return sum(one.value for one in attribution.parts if one.kind == "embedding")
    kinds = ("head", "attention") if part == "attention" else ("neurons", "feed-forward")
    return attribution.total(layer, *kinds)


def _figures(steps: list[VectorStep], attribution: Attribution | None) -> list[Figure]:
    def of(part: str) -> list[VectorStep]:
        return [step for step in steps if step.part == part]

    attention, feed_forward = of("attention"), of("feed-forward")
    layers = [float(step.layer or 0) for step in attention]
    sizes = Lines(
        "vector norms",
        "layer",
        "length",
        (
            Line("residual stream after the layer", layers, [step.length for step in feed_forward]),
            Line("added by attention", layers, [step.size for step in attention]),
            Line("added by feed-forward", layers, [step.size for step in feed_forward]),
        ),
        log_y=True,
    )
    figures = [
        Figure(
            "vector-lengths", "Norm of the residual stream at this token, and of what each part adds to it.", (sizes,)
        )
    ]
    if attribution is None:
        return figures
    bars = Bars(
        "contribution of each layer",
        "logit",
        tuple(str(step.layer) for step in attention),
        (
            ("attention", [step.adds or 0.0 for step in attention]),
            ("feed-forward", [step.adds or 0.0 for step in feed_forward]),
        ),
    )
    heads = Heat("contribution of each head", "head", "layer", attribution.by_layer("head").tolist(), diverging=True)
    words = (
        f"Direct logit attribution: the effect of each part alone on the {attribution.measure}, with the final norm's "
        "scale fixed."
    )
    return [*figures, Figure("vector-layers", words, (bars,)), Figure("vector-heads", words, (heads,))]
