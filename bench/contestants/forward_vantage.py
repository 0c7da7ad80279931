"""A forward pass of our decoder, logits for every token."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt

sys.path.insert(0, str(Path(__file__).parent))
from shapes import HEADS, HIDDEN, LAYERS, VOCAB, WIDTH


def setup(tokens: int = 1024) -> None:
    global model, batch
    ffn = vt.FeedForward(HIDDEN)
    model = vt.build(vt.decoder(vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, ffn=ffn)).eval()
    batch = torch.randint(VOCAB, (1, tokens), generator=torch.Generator().manual_seed(0))


def round() -> dict[str, list[float]]:
    with torch.inference_mode():
        start = perf_counter()
        model(batch)
        return {"seconds": [perf_counter() - start]}
