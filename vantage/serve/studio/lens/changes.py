"""A model without one of its parts, without each head in turn, and with activations of another text."""

from __future__ import annotations

import contextlib
from typing import Literal

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.figures import Figure, Heat
from vantage.generation.api import generate
from vantage.inspect.capture import Progress
from vantage.inspect.select import labels, numbers
from vantage.interventions import Edit, Sweep, ablate, ablation, activations, patch, tracing
from vantage.model import Model
from vantage.serve.studio.lens.answers import AblationAnswer, CandidatePair, SweepAnswer, SweepCell
from vantage.serve.studio.progress_events import Report

CANDIDATES = 8  # of each case
TOP = 8  # cells of a sweep that are named
TOLERANCE = 1e-6  # a difference of measures that counts as none
AblatedPart = Literal["head", "attention", "feed_forward", "layer"]
Way = Literal["zero", "mean"]
PatchedActivation = Literal["residual_before", "attention", "feed_forward", "heads"]


def ablate_part(
    model: Model, ids: list[int], part: AblatedPart, layer: int, head: int, how: Way, tokens: int, report: Report
) -> AblationAnswer:
    """How it goes on with a text, with all its parts and without this one."""
    edits, name = _edits(model, ids, part, layer, head, how)
    total = 2 * (tokens + 1)
    texts, shares = list[str](), list[Tensor]()
    cases: tuple[tuple[tuple[Edit, ...], str], ...] = (((), "with all its parts"), (edits, f"without {name}"))
    for n, (changes, doing) in enumerate(cases):
        with tracing(model, edits=changes) if changes else contextlib.nullcontext():
            shares.append(_next_token(model, ids))
            report((n * (tokens + 1) + 1) / total, f"writing {doing}")
            pieces = list[str]()
            for piece in generate(model, ids, max_tokens=tokens, stream=True):
                pieces.append(piece.text)
                report((n * (tokens + 1) + 1 + len(pieces)) / total, f"writing {doing}")
            texts.append("".join(pieces))
    best = [share.topk(min(CANDIDATES, len(share))).indices.tolist() for share in shares]
    both = sorted({*best[0], *best[1]}, key=lambda token: -max(float(share[token]) for share in shares))
    return AblationAnswer(
        part=name,
        before=texts[0],
        after=texts[1],
        candidates=[
            CandidatePair(text=text, before=float(shares[0][token]), after=float(shares[1][token]))
            for token, text in zip(both, labels(model, both), strict=True)
        ],
        moved=float((shares[0] - shares[1]).abs().sum()) / 2,
    )


def _edits(
    model: Model, ids: list[int], part: AblatedPart, layer: int, head: int, how: Way
) -> tuple[tuple[Edit, ...], str]:
    """The edits that take a part away, and the part's name."""
    numbers(layer, len(model.blocks), "layer")
    known = activations(model)
    kinds = {"head": ("heads",), "layer": ("attention", "feed_forward")}.get(part, (part,))
    for kind in kinds:
        if f"layers.{layer}.{kind}" not in known:
            raise Refused(f"layer {layer} of this model has no {kind} by name: choose another part")
    if part == "head":
        numbers(head, known[f"layers.{layer}.heads"].heads, "head", f" in layer {layer}")
    edits = [
        edit
        for kind in kinds
        for edit in ablation(
            model,
            f"layers.{layer}.{kind}",
            how=how,
            heads=head if part == "head" else None,
            reference=None if how == "zero" else [ids],
        )
    ]
    names = {
        "head": f"head {head} of layer {layer}",
        "attention": f"the attention of layer {layer}",
        "feed_forward": f"the feed-forward part of layer {layer}",
        "layer": f"layer {layer}",
    }
    return tuple(edits), names[part]


@torch.inference_mode()
def _next_token(model: Model, ids: list[int]) -> Tensor:
    """(V,): how likely each token comes next."""
    hidden = model.hidden(torch.tensor([ids], device=model.device))
    return model.head(hidden[:, -1:])[0, 0].float().softmax(-1).cpu()


def ablate_heads(
    model: Model, ids: list[int], how: Way, target: str | None, against: str | None, report: Report
) -> SweepAnswer:
    """One head at a time, all of them."""
    sweep = ablate(model, ids, how=how, target=target, against=against, progress=_layers(report))
    return _answer(sweep, "ablation", f"What the {sweep.measure} changes by when one head is taken away ({how}).")


def patch_texts(
    model: Model,
    clean: list[int],
    corrupted: list[int],
    activation: PatchedActivation,
    target: str | None,
    against: str | None,
    report: Report,
) -> SweepAnswer:
    """The second text read with one activation at a time as it was in the first."""
    sweep = patch(
        model, clean, corrupted, activation=activation, target=target, against=against, progress=_layers(report)
    )
    assert sweep.goal is not None
    if abs(sweep.goal - sweep.before) < TOLERANCE:
        raise Refused(f"both texts give the same {sweep.measure}: choose a target that they disagree about")
    words = (
        f"The second text with one activation from the first: how far that brings the {sweep.measure} from that of the "
        "second text (0) to that of the first (1)."
    )
    return _answer(sweep, "patching", words)


def _layers(report: Report) -> Progress:
    return lambda done, of: report(done / of, f"{done} of {of} layers")


def _answer(sweep: Sweep, name: str, words: str) -> SweepAnswer:
    places = dict(zip(sweep.cells, sweep.labels, strict=True))
    effects = [[None if value != value else value for value in row] for row in sweep.effects.tolist()]
    cell = "position" if sweep.by == "positions" else "head"
    panel = Heat(
        f"effect of each layer and {cell}",
        cell,
        "layer",
        effects,
        x_ticks=sweep.labels,
        y_ticks=tuple(map(str, sweep.layers)),
        diverging=True,
    )
    top = [
        SweepCell(layer=layer, cell=cell, label=places[cell], effect=effect) for layer, cell, effect in sweep.top(TOP)
    ]
    return SweepAnswer(
        by="positions" if sweep.by == "positions" else "heads",
        measure=sweep.measure,
        before=sweep.before,
        goal=sweep.goal,
        layers=list(sweep.layers),
        cells=list(sweep.cells),
        figure=Figure(name, words, (panel,)),
        top=top,
    )
