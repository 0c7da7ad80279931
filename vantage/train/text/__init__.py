"""Text to train on: vocabularies, tokens on disk, and what is made of them."""

from vantage.train.text.data import Masked, TextData
from vantage.train.text.files import expand
from vantage.train.text.labelled import Labelled, LabelledData, read_labelled
from vantage.train.text.prepare import prepare
from vantage.train.text.prompts import PromptData
from vantage.train.text.shards import Shards
from vantage.train.text.vocabulary import (
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
