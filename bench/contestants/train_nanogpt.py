"""The same training step with nanoGPT's model, from the folder that NANOGPT names."""

import os
import sys
from time import perf_counter

import torch
from train_shape import HEADS, LAYERS, TOKENS, VOCAB, WIDTH, adamw, text


def setup(compiled: bool) -> None:
    global step, optimiser, tokens, targets
    sys.path.insert(0, os.environ["NANOGPT"])
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    model = GPT(GPTConfig(TOKENS, VOCAB, LAYERS, HEADS, WIDTH, dropout=0.0, bias=True)).train()
    optimiser = adamw(model)
    tokens, targets = text()
    step = torch.compile(model) if compiled else model


def round() -> dict[str, object]:
    start = perf_counter()
    mean = step(tokens, targets)[1]
    mean.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return {"seconds": [perf_counter() - start], "loss": mean.item()}
