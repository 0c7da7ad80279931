"""Small models of every kind that can be looked into, sharp enough that no weight is a matter of rounding."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

import vantage as vt
from vantage.checkpoints.pull import place
from vantage.conformance.factors import VOCAB, WIDTH, attentions, encodings, masks
from vantage.conformance.scenarios import sharpen
from vantage.model import Model
from vantage.spec.model import ModelSpec

LENGTH = 64


def spec(encoding: str = "rope", attention: str = "grouped", mask: str = "causal", layers: int = 2) -> ModelSpec:
    kind = attentions()[attention]
    made = vt.decoder(
        vocab=VOCAB,
        width=WIDTH,
        layers=layers,
        attention=kind.config,
        position=encodings()[encoding](),
        max_length=LENGTH,
        mask=masks()[mask],
    )
    new = tuple(
        replace(layer, qk=(*kind.qk, *layer.qk), cross=kind.config if kind.cross else None) for layer in made.layers
    )
    inner = vt.encoder(vocab=VOCAB, width=WIDTH, layers=1, heads=4, max_length=LENGTH) if kind.cross else None
    return replace(made, layers=new, encoder=inner)


@functools.cache
def model(encoding: str = "rope", attention: str = "grouped", mask: str = "causal") -> Model:
    """One for all tests: whoever changes it takes a copy."""
    return sharpen(vt.build(spec(encoding, attention, mask)), 0).double().eval()


def tokens(n: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, n), generator=torch.Generator().manual_seed(seed))


def source(of: Model, rows: int = 1) -> torch.Tensor | None:
    return None if of.encoder is None else tokens(7, rows, seed=5)


EACH = [
    *((name, "grouped", "causal") for name in encodings()),
    *(("rope", name, "causal") for name in attentions() if name != "grouped"),
    *((name, "latent", "causal") for name in ("alibi", "xl", "shaw", "cope", "none")),
    *((name, "softcap", "causal") for name in ("alibi", "t5", "xl")),
    *(("rope", "grouped", name) for name in masks() if name != "causal"),
    ("t5", "multi-head", "bidirectional"),
]


@functools.cache
def published(name: str, **options: object) -> Model:
    """A real model, if it was pulled."""
    if not place(name).is_dir():
        pytest.skip(f"{name} is not here: vantage pull {name}")
    return vt.load(name, **options)  # pyright: ignore[reportArgumentType] (as vt.load has them)


TEXT = (
    "The lighthouse keeper counted the ships. Every evening the lighthouse keeper wrote the number of ships into a "
    "book, and every morning he read the number aloud. Nobody knew why the lighthouse keeper did so, and nobody asked."
)
