"""How good translations are: BLEU and chrF by sacrebleu, alignments by their error rate."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.model import Model
from vantage.training.translate.align import Gold, When, align, alignment_error_rate
from vantage.training.translate.decode import translate
from vantage.training.translate.pairs import Pair
from vantage.training.translate.words import words


@final
@dataclass(frozen=True)
class TranslationScores:
    """The scores of a translation, 0 to 100 for BLEU and chrF; ``aer`` from 0 (perfect) to 1, none if not asked."""

    bleu: float
    chrf: float
    aer: float | None
    hypotheses: tuple[str, ...]
    signature: str  # what sacrebleu wants quoted with its BLEU


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lower: bool = True) -> float:
    """Corpus BLEU, one reference each."""
    return _score(_sacrebleu().metrics.BLEU(lowercase=lower), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lower: bool = True) -> float:
    """Corpus chrF2, one reference each."""
    return _score(_sacrebleu().metrics.CHRF(lowercase=lower), hypotheses, references)


def evaluate(
    model: Model,
    pairs: Sequence[Pair],
    *,
    gold: Mapping[int, Gold] | None = None,
    tokenizer: Tokenizer | None = None,
    lower: bool = True,
    beams: int = 1,
    length_penalty: float = 1.0,
    layers: int | Sequence[int] | None = None,
    when: When = "written",
    batch: int = 64,
) -> TranslationScores:
    """Translate the sources and compare with the targets.

    With ``gold``, alignments by hand by the number of their pair, the model also aligns those pairs as they are.
    """
    if not pairs:
        raise BadInput("no pairs: there is nothing to evaluate")
    metric = _sacrebleu().metrics.BLEU(lowercase=lower)  # before the work, in case it is not there
    sources, references = [x for x, _ in pairs], [y for _, y in pairs]
    aer = None if gold is None else _error_rate(model, pairs, gold, tokenizer, layers, when, batch)
    translations = translate(
        model, sources, tokenizer=tokenizer, beams=beams, length_penalty=length_penalty, batch=batch
    )
    score = _score(metric, translations, references)
    signature = str(metric.get_signature())
    return TranslationScores(score, chrf(translations, references, lower=lower), aer, tuple(translations), signature)


def _error_rate(
    model: Model,
    pairs: Sequence[Pair],
    gold: Mapping[int, Gold],
    tokenizer: Tokenizer | None,
    layers: int | Sequence[int] | None,
    when: When,
    batch: int,
) -> float:
    for number, right in gold.items():
        if not 0 <= number < len(pairs):
            raise BadInput(f"an alignment by hand is of pair {number}, and there are {len(pairs)}: give the same file")
        counted = len(words(pairs[number][0])), len(words(pairs[number][1]))
        if counted != (right.source, right.target):
            raise BadInput(
                f"pair {number} has {counted} words, its alignment by hand {(right.source, right.target)}: "
                "they are of different texts"
            )
    alignments = align(model, [pairs[i] for i in gold], tokenizer=tokenizer, layers=layers, when=when, batch=batch)
    return alignment_error_rate([one.links() for one in alignments], list(gold.values()))


def _score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    if len(hypotheses) != len(references) or not references:
        raise BadInput(f"{len(hypotheses)} translations and {len(references)} references: give one for each")
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def _sacrebleu() -> Any:
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as e:
        raise BadInput(
            "translations are scored by sacrebleu, which is missing: pip install 'vantage[translate]'"
        ) from e
