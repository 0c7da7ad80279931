"""An extension carried out: every scaling, as is and trained a little, over the same pieces of text.

Each reading of a piece is kept as soon as it is done, adapters and searched divisors too. Whatever stops it, ``resume``
goes on with what is missing, and the report is the same.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from vantage.compare.extension.lora import adapt
from vantage.compare.extension.measure import even_depths, hide_numbers, recall, token_losses
from vantage.compare.extension.rules import rescaled, rotated_dims, search_divisors
from vantage.compare.extension_settings import ExtensionSettings
from vantage.compare.results import FILE, Key, RunResult, TestScore, read_results, write_results
from vantage.compare.run import claim_folder
from vantage.compare.text import over_position
from vantage.errors import BadInput, Refused
from vantage.files import write_text
from vantage.model import Model
from vantage.position import ropes_among
from vantage.training.batch import random
from vantage.training.text import expand
from vantage.training.text.files import pieces as pieces_of

PERPLEXITY, OVER_POSITION, PASSKEY, NEEDLES = "perplexity", "perplexity, over position", "passkey", "multi-needle"
TRAINED = " + LoRA"
ADAPTERS, DIVISORS = "adapters", "longrope.json"


class ReadingObserver(Protocol):
    """Who is told how it goes."""

    def began(self, total: int, finished: int) -> None: ...
    def finished(self, results: list[RunResult]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class PreparedTexts:
    """The model with what it reads: tokens to train on, and the pieces that are measured."""

    model: Model
    context: int
    lengths: tuple[int, ...]
    train: torch.Tensor
    pieces: tuple[list[int], ...]


def prepare_texts(settings: ExtensionSettings, model: Model) -> PreparedTexts:
    """The text in parts. What is too short, or no model for this, is refused."""
    if model.tokenizer is None:
        raise BadInput("this model has no tokenizer, and texts are read here: load one that has")
    if model.kind != "decoder":
        raise Refused("perplexity and retrieval are measured on decoders: this model is not one")
    rotated_dims(model.spec)
    context = settings.context or model.context_length
    if context is None:
        raise BadInput("this model does not state its context: give it (--context N)")
    lengths = settings.lengths(context)
    text = "".join(part for path in expand(settings.text) for part, _ in pieces_of(path))
    tokens = model.tokenizer.encode(text)
    row = settings.row(context) if settings.lora_steps else 0
    searched = round(settings.stretch * context) if "longrope" in settings.scalings else 0
    each = lengths[-1] + 1
    needed = settings.pieces * each + max(row, searched) + (1 if row or searched else 0)
    if len(tokens) < needed:
        raise BadInput(
            f"the text has {len(tokens):,} tokens, and {needed:,} are needed: {settings.pieces} pieces of {each - 1:,}"
            f"{', and as much to train or search on' if row or searched else ''}. Give a longer text, fewer pieces, "
            "smaller times or a smaller context"
        )
    cut = len(tokens) - settings.pieces * each
    pieces = tuple(tokens[cut + i * each : cut + (i + 1) * each] for i in range(settings.pieces))
    for n in lengths if settings.tries else ():
        spare = 8 * settings.needles  # other names and numbers may take more tokens
        hide_numbers(
            model.tokenizer, pieces[0], n - spare, even_depths(settings.needles), 0
        )  # refuses a length without room, now
    return PreparedTexts(model, context, lengths, torch.tensor(tokens[:cut]), pieces)


def entries(settings: ExtensionSettings) -> list[tuple[str, bool]]:
    """Each scaling as is, and then, where some training is asked for, trained."""
    return [
        (rule, trained) for rule in settings.scalings for trained in ([False, True] if settings.lora_steps else [False])
    ]


def wanted(settings: ExtensionSettings) -> list[Key]:
    tasks = [PERPLEXITY, OVER_POSITION, *([PASSKEY, NEEDLES] if settings.tries else [])]
    return [
        Key(task, rule + TRAINED * trained, "multi-head", piece)
        for task in tasks
        for rule, trained in entries(settings)
        for piece in range(settings.pieces)
    ]


def run_extension(
    settings: ExtensionSettings,
    prepared: PreparedTexts,
    folder: Path,
    observer: ReadingObserver,
    *,
    resume: bool = False,
) -> list[RunResult]:
    """Every reading, in the order of its key."""
    claim_folder(folder, settings.fingerprint(), {"extension": asdict(settings)}, resume)
    finished = {result.key: result for result in read_results(folder / FILE)}
    observer.began(len(entries(settings)) * settings.pieces, len([key for key in finished if key.task == PERPLEXITY]))
    for rule, trained in entries(settings):
        name = rule + TRAINED * trained
        missing = sorted({key.seed for key in wanted(settings) if key.position == name and key not in finished})
        if missing:
            for results in _readings(settings, prepared, folder, (rule, trained), missing, observer):
                write_results(folder / FILE, results)
                finished |= {result.key: result for result in results}
                observer.finished(results)
    return [finished[key] for key in wanted(settings)]


def _readings(
    settings: ExtensionSettings,
    prepared: PreparedTexts,
    folder: Path,
    entry: tuple[str, bool],
    missing: list[int],
    observer: ReadingObserver,
) -> Iterator[list[RunResult]]:
    rule, trained = entry
    divisors = _divisors(settings, prepared, folder, observer) if rule == "longrope" else []
    model = rescaled(prepared.model, rule, settings.stretch, prepared.context, divisors)
    count = sum(p.numel() for p in model.parameters())
    if trained:
        every = max(1, settings.lora_steps // 5)

        def on_step(step: int, loss: float) -> None:
            if step % every == 0 or step == settings.lora_steps:
                observer.note(f"{rule}: {step} of {settings.lora_steps} steps of LoRA, loss {loss:.3f}")

        row = settings.row(prepared.context)
        count += adapt(model, prepared.train, settings, row, folder / ADAPTERS / rule, on_step)
    for piece in missing:
        started = time.perf_counter()
        scores = _scores(settings, prepared, model.eval(), piece)
        seconds = time.perf_counter() - started
        rate, steps = (settings.lora_rate, settings.lora_steps) if trained else (0.0, 0)
        keys = {task: Key(task, rule + TRAINED * trained, "multi-head", piece) for task in scores}
        yield [RunResult(keys[t], rate, steps, count, 0.0, seconds, False, scores[t]) for t in scores]


def _scores(
    settings: ExtensionSettings, prepared: PreparedTexts, model: Model, piece: int
) -> dict[str, tuple[TestScore, ...]]:
    tokens = prepared.pieces[piece]
    losses = {n: token_losses(model, tokens[: n + 1]) for n in prepared.lengths}
    longest = prepared.lengths[-1]
    scores = {
        PERPLEXITY: tuple(TestScore(n, 0.0, 0.0, _mean(losses[n]), n) for n in prepared.lengths),
        OVER_POSITION: over_position(
            losses[longest], longest, sorted({max(1, prepared.context // 2), *prepared.lengths})
        ),
    }
    if settings.tries:
        passkeys = [
            (n, [_hit(settings, prepared, model, n, piece, trial) for trial in range(settings.tries)])
            for n in prepared.lengths
        ]
        scores[PASSKEY] = tuple(_share(n, hits) for n, hits in passkeys)
        several = [(n, _hits(settings, prepared, model, n, piece)) for n in prepared.lengths]
        scores[NEEDLES] = tuple(_share(n, hits) for n, hits in several)
    return scores


def _hit(settings: ExtensionSettings, prepared: PreparedTexts, model: Model, n: int, piece: int, trial: int) -> bool:
    """Depths differ from piece to piece, so that together they cover the text."""
    depth = even_depths(settings.tries * settings.pieces)[trial * settings.pieces + piece]
    hidden = hide_numbers(model.tokenizer, prepared.pieces[piece], n, [depth], _seed(settings, piece, 1 + trial, n))
    return recall(model, hidden, n)[0]


def _hits(settings: ExtensionSettings, prepared: PreparedTexts, model: Model, n: int, piece: int) -> list[bool]:
    hidden = hide_numbers(
        model.tokenizer, prepared.pieces[piece], n, even_depths(settings.needles), _seed(settings, piece, 0, n)
    )
    return recall(model, hidden, n)


def _seed(settings: ExtensionSettings, piece: int, which: int, n: int) -> int:
    """Every text hides other numbers, and every entry the same ones."""
    return int(random(settings.seed, (piece * (1 + settings.tries) + which) << 32 | n).integers(2**62))


def _share(n: int, hits: list[bool]) -> TestScore:
    right = sum(hits) / len(hits)
    return TestScore(n, right, right, math.nan, len(hits))


def _mean(losses: torch.Tensor) -> float:
    return float(losses.double().mean())


# ---- files


def _divisors(
    settings: ExtensionSettings, prepared: PreparedTexts, folder: Path, observer: ReadingObserver
) -> list[float]:
    """LongRoPE's, searched once on text that is not measured, and kept."""
    path = folder / DIVISORS
    if path.exists():
        return json.loads(path.read_text())["long"]
    spec = prepared.model.spec
    rope = next(rope for layer in spec.layers for rope in ropes_among(layer.qk))
    tokens = prepared.train[: round(settings.stretch * prepared.context) + 1].tolist()

    def loss(divisors: Any) -> float:
        model = rescaled(prepared.model, "longrope", settings.stretch, prepared.context, divisors).eval()
        return _mean(token_losses(model, tokens))

    observer.note("longrope: a brief search for its divisors")
    best, tried = search_divisors(
        rotated_dims(spec), rope.base, settings.stretch, prepared.context, loss, settings.seed
    )
    write_text(path, json.dumps({"long": best, "tried": tried}, indent=1))
    return best
