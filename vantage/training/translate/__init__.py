"""Translation: parallel text, decoding, scores, and the alignment in the cross-attention."""

from vantage.training.translate.align import Alignment, Gold, align, alignment_error_rate, read_gold
from vantage.training.translate.decode import translate
from vantage.training.translate.pairs import PairData, read_pairs
from vantage.training.translate.scores import TranslationScores, bleu, chrf, evaluate
from vantage.training.translate.vocabulary import JointBPE
from vantage.training.translate.words import words

__all__ = [
    "Alignment",
    "Gold",
    "JointBPE",
    "PairData",
    "TranslationScores",
    "align",
    "alignment_error_rate",
    "bleu",
    "chrf",
    "evaluate",
    "read_gold",
    "read_pairs",
    "translate",
    "words",
]
