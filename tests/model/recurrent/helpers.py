"""Small recurrent models in float64, with sharp weights, and sources of different lengths."""

import torch

from tests.attention.helpers import sharpen
from vantage.model.recurrent import RecurrentSpec, build_recurrent

VOCAB = 11
WAYS = [(None, None), *((a, f) for a in ("dot", "general", "additive") for f in ("nothing", "attended", "context"))]
SHAPES = [("rnn", 1, False), ("gru", 2, True), ("lstm", 1, True), ("lstm", 2, False)]


def spec_of(way=(None, None), shape=("gru", 1, False), *, width=6, **more):
    (attention, feed), (cell, layers, both) = way, shape
    return RecurrentSpec(
        VOCAB, width, cell=cell, layers=layers, bidirectional=both, attention=attention, feed=feed, **more
    )


def model_of(*args, seed=0, **options):
    return sharpen(build_recurrent(spec_of(*args, **options)).double(), seed)


def tokens(*shape, seed=0):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def padded(lengths, seed=0):
    """Sources of these lengths, side by side, and their mask."""
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return tokens(len(lengths), max(lengths), seed=seed), mask
