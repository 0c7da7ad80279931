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

from vantage.compare.conduct import STUDY
from vantage.compare.extension.lora import adapt
from vantage.compare.extension.measure import found, hide, spread, token_losses
from vantage.compare.extension.rules import rescaled, search_divisors, turned_of
from vantage.compare.extension.settings import Extension
from vantage.compare.report import machine
from vantage.compare.results import FILE, Key, Result, Score, read_results, write_results
from vantage.compare.text import over_position
from vantage.errors import BadInput, Refused
from vantage.files import write_text
from vantage.model import Model
from vantage.position import Rope
from vantage.training.batch import random
from vantage.training.text import expand
from vantage.training.text.files import pieces as pieces_of

PERPLEXITY, PLACES, PASSKEY, NEEDLES = "perplexity", "perplexity, over position", "passkey", "multi-needle"
TRAINED = " + LoRA"
ADAPTERS, DIVISORS = "adapters", "longrope.json"


class Watcher(Protocol):
    """Who is told how it goes."""

    def began(self, total: int, done: int) -> None: ...
    def finished(self, results: list[Result]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Laid:
    """The model with what it reads: tokens to train on, and the pieces that are measured."""

    model: Model
    context: int
    lengths: tuple[int, ...]
    train: torch.Tensor
    pieces: tuple[list[int], ...]


def lay_out(how: Extension, model: Model) -> Laid:
    """The text in parts. What is too short, or no model for this, is refused."""
    if model.tokenizer is None:
        raise BadInput("this model has no tokenizer, and texts are read here: load one that has")
    if model.kind != "decoder":
        raise Refused("perplexity and retrieval are measured on decoders: this model is not one")
    turned_of(model.spec)
    context = how.context or model.context_length
    if context is None:
        raise BadInput("this model does not say what its context is: say it (--context N)")
    lengths = how.lengths(context)
    text = "".join(part for path in expand(how.text) for part, _ in pieces_of(path))
    tokens = model.tokenizer.encode(text)
    row = how.row(context) if how.lora_steps else 0
    searched = round(how.stretch * context) if "longrope" in how.scalings else 0
    each = lengths[-1] + 1
    needed = how.pieces * each + max(row, searched) + (1 if row or searched else 0)
    if len(tokens) < needed:
        raise BadInput(
            f"the text has {len(tokens):,} tokens, and {needed:,} are needed: {how.pieces} pieces of {each - 1:,}"
            f"{', and as much to train or search on' if row or searched else ''}. Give a longer text, fewer pieces, "
            "smaller times or a smaller context"
        )
    cut = len(tokens) - how.pieces * each
    pieces = tuple(tokens[cut + i * each : cut + (i + 1) * each] for i in range(how.pieces))
    for n in lengths if how.tries else ():
        spare = 8 * how.needles  # other names and numbers may take more tokens
        hide(model.tokenizer, pieces[0], n - spare, spread(how.needles), 0)  # refuses a length without room, now
    return Laid(model, context, lengths, torch.tensor(tokens[:cut]), pieces)


def entries(how: Extension) -> list[tuple[str, bool]]:
    """Each scaling as is, and then, where some training is asked for, trained."""
    return [(rule, trained) for rule in how.scalings for trained in ([False, True] if how.lora_steps else [False])]


def wanted(how: Extension) -> list[Key]:
    tasks = [PERPLEXITY, PLACES, *([PASSKEY, NEEDLES] if how.tries else [])]
    return [
        Key(task, rule + TRAINED * trained, "multi-head", piece)
        for task in tasks
        for rule, trained in entries(how)
        for piece in range(how.pieces)
    ]


def carry_out(how: Extension, laid: Laid, folder: Path, told: Watcher, *, resume: bool = False) -> list[Result]:
    """Every reading, in the order of its key."""
    _claim(how, folder, resume)
    done = {result.key: result for result in read_results(folder / FILE)}
    told.began(len(entries(how)) * how.pieces, len([key for key in done if key.task == PERPLEXITY]))
    for rule, trained in entries(how):
        name = rule + TRAINED * trained
        missing = sorted({key.seed for key in wanted(how) if key.position == name and key not in done})
        if missing:
            for results in _readings(how, laid, folder, (rule, trained), missing, told):
                write_results(folder / FILE, results)
                done |= {result.key: result for result in results}
                told.finished(results)
    return [done[key] for key in wanted(how)]


def _readings(
    how: Extension, laid: Laid, folder: Path, entry: tuple[str, bool], missing: list[int], told: Watcher
) -> Iterator[list[Result]]:
    rule, trained = entry
    divisors = _divisors(how, laid, folder, told) if rule == "longrope" else []
    model = rescaled(laid.model, rule, how.stretch, laid.context, divisors)
    count = sum(p.numel() for p in model.parameters())
    if trained:
        every = max(1, how.lora_steps // 5)

        def tell(step: int, loss: float) -> None:
            if step % every == 0 or step == how.lora_steps:
                told.note(f"{rule}: {step} of {how.lora_steps} steps of LoRA, loss {loss:.3f}")

        row = how.row(laid.context)
        count += adapt(model, laid.train, how, row, folder / ADAPTERS / rule, tell)
    for piece in missing:
        started = time.perf_counter()
        scores = _scores(how, laid, model.eval(), piece)
        seconds = time.perf_counter() - started
        rate, steps = (how.lora_rate, how.lora_steps) if trained else (0.0, 0)
        keys = {task: Key(task, rule + TRAINED * trained, "multi-head", piece) for task in scores}
        yield [Result(keys[t], rate, steps, count, 0.0, seconds, False, scores[t]) for t in scores]


def _scores(how: Extension, laid: Laid, model: Model, piece: int) -> dict[str, tuple[Score, ...]]:
    tokens = laid.pieces[piece]
    losses = {n: token_losses(model, tokens[: n + 1]) for n in laid.lengths}
    longest = laid.lengths[-1]
    scores = {
        PERPLEXITY: tuple(Score(n, 0.0, 0.0, _mean(losses[n]), n) for n in laid.lengths),
        PLACES: over_position(losses[longest], longest, sorted({max(1, laid.context // 2), *laid.lengths})),
    }
    if how.tries:
        asked = [(n, [_hit(how, laid, model, n, piece, trial) for trial in range(how.tries)]) for n in laid.lengths]
        scores[PASSKEY] = tuple(_share(n, hits) for n, hits in asked)
        several = [(n, _hits(how, laid, model, n, piece)) for n in laid.lengths]
        scores[NEEDLES] = tuple(_share(n, hits) for n, hits in several)
    return scores


def _hit(how: Extension, laid: Laid, model: Model, n: int, piece: int, trial: int) -> bool:
    """Depths differ from piece to piece, so that together they cover the text."""
    depth = spread(how.tries * how.pieces)[trial * how.pieces + piece]
    hidden = hide(model.tokenizer, laid.pieces[piece], n, [depth], _seed(how, piece, 1 + trial, n))
    return found(model, hidden, n)[0]


def _hits(how: Extension, laid: Laid, model: Model, n: int, piece: int) -> list[bool]:
    hidden = hide(model.tokenizer, laid.pieces[piece], n, spread(how.needles), _seed(how, piece, 0, n))
    return found(model, hidden, n)


def _seed(how: Extension, piece: int, which: int, n: int) -> int:
    """Every text hides other numbers, and every entry the same ones."""
    return int(random(how.seed, (piece * (1 + how.tries) + which) << 32 | n).integers(2**62))


def _share(n: int, hits: list[bool]) -> Score:
    right = sum(hits) / len(hits)
    return Score(n, right, right, math.nan, len(hits))


def _mean(losses: torch.Tensor) -> float:
    return float(losses.double().mean())


# ---- files


def _divisors(how: Extension, laid: Laid, folder: Path, told: Watcher) -> list[float]:
    """LongRoPE's, searched once on text that is not measured, and kept."""
    path = folder / DIVISORS
    if path.exists():
        return json.loads(path.read_text())["long"]
    spec = laid.model.spec
    rope = next(part for layer in spec.layers for part in layer.qk if isinstance(part, Rope))
    tokens = laid.train[: round(how.stretch * laid.context) + 1].tolist()

    def loss(divisors: Any) -> float:
        model = rescaled(laid.model, "longrope", how.stretch, laid.context, divisors).eval()
        return _mean(token_losses(model, tokens))

    told.note("longrope: a brief search for its divisors")
    best, tried = search_divisors(turned_of(spec), rope.base, how.stretch, laid.context, loss, how.seed)
    write_text(path, json.dumps({"long": best, "tried": tried}, indent=1))
    return best


def _claim(how: Extension, folder: Path, resume: bool) -> None:
    path = folder / STUDY
    if path.exists():
        before = json.loads(path.read_text())
        if not resume:
            raise BadInput(f"{folder} holds a study already: go on with it (--resume), or say another folder (--out)")
        if before["fingerprint"] != how.fingerprint():
            raise BadInput(f"{folder} holds another study: give the same settings and text, or another folder (--out)")
        return
    folder.mkdir(parents=True, exist_ok=True)
    said = {"fingerprint": how.fingerprint(), "extension": asdict(how), "versions": machine()}
    write_text(path, json.dumps(said, indent=1))
