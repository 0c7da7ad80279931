"""Translation: parallel text, decoding, scores, and the alignment in the cross-attention."""

from vantage.train.translate.align import Alignment, Gold, align, alignment_error_rate, read_gold
from vantage.train.translate.decode import translate
from vantage.train.translate.pairs import PairData, read_pairs
from vantage.train.translate.scores import Scores, bleu, chrf, evaluate
from vantage.train.translate.vocabulary import JointBPE
from vantage.train.translate.words import words

__all__ = [
    "Alignment",
    "Gold",
    "JointBPE",
    "PairData",
    "Scores",
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
