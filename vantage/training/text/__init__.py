"""Text to train on: vocabularies, tokens on disk, and what is made of them."""

from vantage.files import expand
from vantage.training.text.data import Masked, TextData
from vantage.training.text.labelled import Labelled, LabelledData, read_labelled
from vantage.training.text.prepare import prepare
from vantage.training.text.prompts import PromptData
from vantage.training.text.shards import Shards
from vantage.training.text.vocabulary import (
    BPE,
    END,
    MASK,
    PAD,
    START,
    Bytes,
    Characters,
    Existing,
    Vocabulary,
    build_vocabulary,
    fingerprint,
)

__all__ = [
    "BPE",
    "END",
    "MASK",
    "PAD",
    "START",
    "Bytes",
    "Characters",
    "Existing",
    "Labelled",
    "LabelledData",
    "Masked",
    "PromptData",
    "Shards",
    "TextData",
    "Vocabulary",
    "build_vocabulary",
    "expand",
    "fingerprint",
    "prepare",
    "read_labelled",
]
