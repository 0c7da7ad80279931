"""A3: the alignment of a translation, from a model that was trained to translate."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vantage.figures import Bars, Figure, Heat
from vantage.model import Model
from vantage.studies.shared.attention import heat_cells
from vantage.studies.shared.findings import compared, held, interval, mean
from vantage.studies.shared.runs import TrainingProgress
from vantage.studies.study import Number, Progress, Result, Values, Verdict
from vantage.studies.text import StudyText
from vantage.training import Trained, train
from vantage.training.translate import Alignment, align, translate

TEXT = StudyText.beside(__file__)

ROWS = {"je": (0.7, 0.2, 0.1), "suis": (0.1, 0.8, 0.1), "en": (0.05, 0.15, 0.8)}  # the document's
SENTENCE = ("i am learning", "je suis en train d'apprendre")

SUBJECTS = (  # English, its be now and then, French, its être now and then
    ("i", "am", "was", "je", "suis", "étais"),
    ("you", "are", "were", "tu", "es", "étais"),
    ("he", "is", "was", "il", "est", "était"),
    ("she", "is", "was", "elle", "est", "était"),
    ("we", "are", "were", "nous", "sommes", "étions"),
    ("they", "are", "were", "ils", "sont", "étaient"),
)
VERBS = {
    "learning": "apprendre",
    "eating": "manger",
    "reading": "lire",
    "singing": "chanter",
    "working": "travailler",
    "writing": "écrire",
    "playing": "jouer",
    "sleeping": "dormir",
    "swimming": "nager",
    "cooking": "cuisiner",
}
NOUNS = {"car": "voiture", "house": "maison", "table": "table", "river": "rivière", "door": "porte", "beach": "plage"}
ADJECTIVES = {
    "red": "rouge",
    "wide": "large",
    "calm": "calme",
    "yellow": "jaune",
    "strange": "étrange",
    "dark": "sombre",
}
TIMES = {"now": "maintenant", "often": "souvent", "here": "ici"}
KINDS = ("subject", "be", "verb", "near", "noun", "adjective", "time")
CONTENT = ("subject", "verb", "noun", "adjective", "time")  # each has one word that it must come from
TRAINED, HELD_OUT = 2300, 200
GOAL = 0.8  # of the words that have a counterpart


@dataclass(frozen=True)
class SentencePair:
    """A sentence and its translation. ``links``: (source word, target word, kind) of each that has a counterpart."""

    source: str
    target: str
    links: tuple[tuple[int, int, str], ...]


def sentence(rng: random.Random) -> SentencePair:
    """[time] subject be verb [near the [adjective] noun]; in French the time and the adjective come later."""
    i, be_now, be_then, je, est, était = rng.choice(SUBJECTS)
    verb, adjective, noun, time = (rng.choice(list(words)) for words in (VERBS, ADJECTIVES, NOUNS, TIMES))
    now = rng.random() < 0.6
    place, which, when = rng.random() < 0.6, rng.random() < 0.7, rng.random() < 0.5
    source = [*([time] if when else []), i, be_now if now else be_then, verb]
    source += [*(["near", "the", *([adjective] if which else []), noun] if place else [])]
    vowel = VERBS[verb][0] in "aeéiou"
    elided = je == "je" and not now
    target = [("j'" if elided else je, i, "subject"), (est if now else était, source[int(when) + 1], "be")]
    target += [("en", "", ""), ("train", "", ""), ("d'" if vowel else "de", "", ""), (VERBS[verb], verb, "verb")]
    if place:
        target += [("près", "near", "near"), ("de", "", ""), ("la", "", ""), (NOUNS[noun], noun, "noun")]
        target += [(ADJECTIVES[adjective], adjective, "adjective")] if which else []
    if when:
        target.append((TIMES[time], time, "time"))
    links = tuple((source.index(of), t, kind) for t, (_, of, kind) in enumerate(target) if of)
    return SentencePair(" ".join(source), " ".join(word for word, _, _ in target).replace("' ", "'"), links)


def language(seed: int) -> tuple[list[SentencePair], list[SentencePair]]:
    """Pairs to train on and others to test on; the document's sentence is among neither."""
    rng = random.Random(seed)
    pairs: dict[str, SentencePair] = {}
    while len(pairs) < TRAINED + HELD_OUT:
        pair = sentence(rng)
        if pair.source != SENTENCE[0]:
            pairs[pair.source] = pair
    examples = list(pairs.values())
    return examples[HELD_OUT:], examples[:HELD_OUT]


def run(values: Values, progress: Progress) -> Result:
    steps, seed = int(values["steps"]), int(values["seed"])
    training, held_out = language(seed)
    trained = _train(training, held_out, steps, seed, progress)
    model = trained.model
    assert isinstance(model, Model)
    progress(0.95, "alignments")
    alignments = align(model, [(p.source, p.target) for p in held_out], when="written")
    hits = _hits(held_out, alignments)
    own = align(model, [SENTENCE], when="written")[0]
    content = [hit for kind in CONTENT for hit in hits[kind]]
    translation = translate(model, [SENTENCE[0]])[0]
    numbers = [compared(f"sum of the document's row for {w}", sum(row), 1.0, within=1e-9) for w, row in ROWS.items()]
    numbers += [
        compared("our model's translation of the sentence", translation, SENTENCE[1]),
        held(f"at least {GOAL:.0%} of words with a counterpart look at it most", mean(content) >= GOAL),
    ]
    rows = [_row(word, own) for word in ROWS]
    exact = trained.scores[0].exact
    also = [Number("sentences translated exactly, of those not trained on", exact)]
    also += [_share(kind, hits[kind]) for kind in KINDS]
    agree = all(n.agrees for n in (*numbers, *rows))
    verdict: Verdict = "agrees" if agree else "mixed"
    words = TEXT.conclusion(trained=TRAINED, right=mean(content)) + " "
    odd = [str(n.what).removeprefix("most looked at by ") for n in rows if not n.agrees]
    if odd:
        words += TEXT.passage("Conclusion/otherwise", words=" and ".join(odd))
    return Result(verdict, words, (*numbers, *rows, *also), _figures(own, hits))


def _train(
    training: Sequence[SentencePair], held_out: Sequence[SentencePair], steps: int, seed: int, progress: Progress
) -> Trained:
    """A small encoder-decoder by the library's own loop; nothing of it stays on the disk."""
    with tempfile.TemporaryDirectory() as place:
        files: dict[str, str] = {}
        for name, pairs in (("", training), ("valid_", held_out)):
            for side in ("source", "target"):
                path = Path(place) / f"{name}{side}.txt"
                path.write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs), encoding="utf-8")
                files[f"{name}{side}"] = str(path)
        settings = {
            "seed": seed,
            "model": {
                "is": "encoder_decoder",
                "width": 64,
                "layers": 1,
                "heads": 1,
                "wiring": "pre",
                "dropout": 0.1,
            },
            "data": {"is": "pairs", **files, "vocabulary": {"is": "jointbpe", "size": 600}},
            "loop": {"steps": steps, "batch": 32},
            "optimiser": {"is": "adamw", "lr": 2e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
            "schedule": {"is": "cosine", "warmup": max(1, steps // 10), "floor": 0.05},
        }
        report = TrainingProgress(progress, 0.0, 0.95, "translation")
        return train(settings, out=Path(place) / "run", device="cpu", report=report)


def _hits(pairs: Sequence[SentencePair], alignments: Sequence[Alignment]) -> dict[str, list[float]]:
    """For each kind of word, 1 where it looked most at its counterpart and 0 where not."""
    hits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for pair, one in zip(pairs, alignments, strict=True):
        links = one.links()
        for s, t, kind in pair.links:
            hits[kind].append(float((s, t) in links))
    return hits


def _share(kind: str, hits: list[float]) -> Number:
    return Number(f"looked most at their counterpart: {kind}", mean(hits), interval=interval(hits))


def _row(word: str, own: Alignment) -> Number:
    """The source word that this one looks at most, in the document and here."""
    weights, document = own.weights[own.target.index(word)], ROWS[word]
    best = own.source[int(weights.argmax())]
    return compared(f"most looked at by {word}", best, own.source[document.index(max(document))])


def _figures(own: Alignment, hits: dict[str, list[float]]) -> tuple[Figure, ...]:
    columns = ("I", "am", "learning")
    document = Heat(
        "The document's rows",
        "source",
        "target",
        [list(row) for row in ROWS.values()],
        x_ticks=columns,
        y_ticks=tuple(ROWS),
        written=True,
    )
    weights = heat_cells(torch.cat([own.weights, own.end[:, None]], 1), 2)
    ours = Heat(
        "Our model's weights",
        "source",
        "target",
        weights,
        x_ticks=(*columns, "(end)"),
        y_ticks=own.target,
        written=True,
    )
    low, high = zip(*(interval(hits[kind]) for kind in KINDS), strict=True)
    bars = Bars(
        "Most weight on the counterpart",
        "share of words",
        KINDS,
        (("words", [mean(hits[kind]) for kind in KINDS]),),
        (low,),
        (high,),
    )
    return (
        Figure("alignment", TEXT.caption("alignment"), (document, ours)),
        Figure("kinds", TEXT.caption("kinds", held_out=HELD_OUT), (bars,)),
    )


STUDY = TEXT.study(
    "A3",
    run,
    (
        TEXT.parameter("steps", 800, 20, 3000),
        TEXT.parameter("seed", 0, 0, 1000),
    ),
    seconds=15.0,
    trains=True,
)
