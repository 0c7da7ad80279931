"""K7: where caches that forget lose what is asked for: sinks with a window, H2O, TOVA and SnapKV, by depth."""

from __future__ import annotations

import torch
from torch import Tensor

from vantage.cache import CacheKind, cache_kind
from vantage.cache.kinds.heavy_hitters import HeavyHitterCache
from vantage.cache.kinds.sinks import SinkCache
from vantage.cache.kinds.snapkv import SnapKVCache
from vantage.cache.kinds.tova import TovaCache
from vantage.figures import Figure, Lines
from vantage.inspect.sites import KernelCall, observing, sites_of
from vantage.interventions import Edit, trace
from vantage.model import Model
from vantage.studies.p16_short_convolution import RATE, SYMBOLS, WITH, drawn_rows, models
from vantage.studies.shared.findings import checked, conclude, held, interval, mean, more_in_pairs
from vantage.studies.shared.small_training import HEADS, line_with_band, test_generator, train_small
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)
WHOLE, SINKS = "all kept", "sinks and a window"
BUDGET, WINDOW = 12, 10  # of SYMBOLS tokens
KINDS: dict[str, CacheKind] = {
    WHOLE: cache_kind("contiguous"),
    SINKS: SinkCache(BUDGET - WINDOW, WINDOW),
    "H2O": HeavyHitterCache(BUDGET // 2, BUDGET // 2),
    "TOVA": TovaCache(BUDGET),
    "SnapKV": SnapKVCache(BUDGET - 4, 4, 3),
}
BY_WEIGHT = ("H2O", "TOVA", "SnapKV")
ATTENTION = 1  # the layer that has one, behind the convolution
CHECKED = 4  # texts that are compared with one pass
SEED = 1
ROUNDING = 1e-4  # what float32 may lose
SURE = 0.95
Correct = dict[str, Tensor]  # by kind of cache: (texts, depths), 1 where the answer was right


def run(values: Values, progress: Progress) -> Result:
    steps, count = int(values["steps"]), int(values["texts"])
    model = train_small(
        models()[WITH], SEED, drawn_rows, steps, RATE, lambda share, doing: progress(0.8 * share, doing)
    )
    texts = torch.rand(count, SYMBOLS, generator=test_generator()).argsort(1)
    correct, furthest = Correct(), dict[str, float]()
    for n, (name, kind) in enumerate(KINDS.items()):
        progress(0.8 + 0.2 * n / len(KINDS), f"reading with {name}")
        correct[name] = answers(model, texts, kind)
        furthest[name] = _from_one_pass(model, texts[:CHECKED], kind)
    progress(1.0, "done")
    return _concluded(correct, furthest)


@torch.inference_mode()
def answers(model: Model, texts: Tensor, kind: CacheKind) -> Tensor:
    """(texts, depths): whether what followed the symbol at a depth is known, once the text has been read."""
    cache = model.new_cache(batch=len(texts), kind=kind)
    model.hidden(texts, cache=cache)
    known = []
    for depth in range(SYMBOLS - 1):
        logits = model(texts[:, depth : depth + 1], cache=cache.fork())[:, -1]
        known.append(logits.argmax(-1) == texts[:, depth + 1])
    return torch.stack(known, 1).float()


@torch.inference_mode()
def _from_one_pass(model: Model, texts: Tensor, kind: CacheKind) -> float:
    """How far the logits are from those of one pass over the text and the question with the forgotten keys masked.

    There is one layer with keys, so what was forgotten before the question shows in no other key or value.
    """
    cache = model.new_cache(batch=len(texts), kind=kind)
    model.hidden(texts, cache=cache)
    furthest = 0.0
    for depth in range(0, SYMBOLS - 1, 6):
        calls = list[KernelCall]()
        asked = texts[:, depth : depth + 1]
        with observing(sites_of(model), calls.append):
            logits = model(asked, cache=cache.fork())[:, -1]
        seen = calls[0].pair.k.order.view(len(texts), -1, calls[0].pair.k.shape[1])  # of heads that differ, or of all
        for row, text in enumerate(torch.cat([texts, asked], 1).tolist()):
            edits = _hidden([set(head) for head in seen[row].tolist()])
            whole = trace(model, text, edits=edits).logits[0, -1]
            furthest = max(furthest, float((whole - logits[row]).abs().max()))
    return furthest


def _hidden(seen: list[set[int]]) -> list[Edit]:
    """Edits by which the question sees only what each head has kept."""
    name, forgotten = f"layers.{ATTENTION}.scores", float("-inf")
    edits = []
    for head in range(HEADS):
        kept = seen[head if len(seen) > 1 else 0]
        if gone := [key for key in range(SYMBOLS) if key not in kept]:
            edits.append(Edit(name, forgotten, positions=SYMBOLS, keys=gone, heads=head))
    return edits


def _concluded(correct: Correct, furthest: dict[str, float]) -> Result:
    early, late = range(2, SYMBOLS - WINDOW - 1), range(SYMBOLS - WINDOW + 2, SYMBOLS - 1)

    def share(name: str, depths: range) -> list[float]:
        return correct[name][:, depths.start : depths.stop].mean(1).tolist()

    numbers = [
        held("control: with all kept it is right at every depth", float(correct[WHOLE].mean()) > SURE),
        held("with sinks and a window, right in the window", interval(share(SINKS, late))[0] > SURE),
        held("and wrong before it", interval(share(SINKS, early))[1] < 0.2),
    ]
    for name in BY_WEIGHT:
        lost = more_in_pairs(share(WHOLE, early), share(name, early))
        numbers.append(held(f"{name} loses what stood before the last {WINDOW}", lost))
        more = more_in_pairs(share(name, early), share(SINKS, early))
        numbers.append(held(f"{name} keeps more of it than sinks and a window", more))
    numbers += [
        checked(f"{name}: furthest from one pass with the same keys masked", away, 0.0, within=ROUNDING)
        for name, away in furthest.items()
    ]
    for name in correct:
        whole = correct[name].mean(1).tolist()
        numbers.append(Number(f"{name}: right, at all depths together", mean(whole), interval=interval(whole)))
        for what, depths in (("early", early), ("late", late)):
            some = share(name, depths)
            numbers.append(Number(f"{name}: right, asked for what stood {what}", mean(some), interval=interval(some)))
    words = TEXT.conclusion(
        whole=float(correct[WHOLE].mean()),
        sinks_late=mean(share(SINKS, late)),
        sinks_early=mean(share(SINKS, early)),
        h2o_early=mean(share("H2O", early)),
        tova_early=mean(share("TOVA", early)),
        snapkv_early=mean(share("SnapKV", early)),
        sinks_all=float(correct[SINKS].mean()),
        weight_all=mean([float(correct[name].mean()) for name in BY_WEIGHT]),
        share=BUDGET / SYMBOLS,
        budget=BUDGET,
        symbols=SYMBOLS,
        furthest=max(furthest.values()),
    )
    return conclude(words, numbers, [_depths(correct)])


def _depths(correct: Correct) -> Figure:
    at = [float(depth) for depth in range(SYMBOLS - 1)]
    lines = tuple(line_with_band(name, at, some.T.tolist()) for name, some in correct.items())
    title = f"{BUDGET} of {SYMBOLS} tokens kept"
    return Figure(
        "depths", TEXT.caption("depths"), (Lines(title, "depth of what is asked for", "share right", tuple(lines)),)
    )


STUDY = TEXT.study(
    "K7",
    run,
    (TEXT.parameter("texts", 64, 4, 512), TEXT.parameter("steps", 800, 10, 5000)),
    seconds=15.0,
    trains=True,
)
