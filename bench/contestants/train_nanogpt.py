"""The same training step with nanoGPT's model, from the folder that NANOGPT names."""

import os
import sys

import torch
from train_shape import HEADS, LAYERS, TOKENS, VOCAB, WIDTH, adamw, text, timed


def setup(compiled: bool) -> None:
    global step, optimiser, tokens, targets
    sys.path.insert(0, os.environ["NANOGPT"])
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    model = GPT(GPTConfig(TOKENS, VOCAB, LAYERS, HEADS, WIDTH, dropout=0.0, bias=True)).train()
    optimiser = adamw(model)
    tokens, targets = text()
    step = torch.compile(model) if compiled else model


def train() -> torch.Tensor:
    mean = step(tokens, targets)[1]
    mean.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return mean.detach()


def round() -> dict[str, object]:
    return timed(train)
