"""SmolLM2 in float32 over a long text: a plain pass, or one whose attention is captured."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_text import text


def setup(captured: bool, tokens: int = 4096) -> None:
    global model, row, capture
    model, capture = vt.load("smollm2"), captured
    ids = model.tokenizer.encode(text())
    row = torch.tensor([(ids * (tokens // len(ids) + 1))[:tokens]])
    with torch.inference_mode():
        model.hidden(row[:, :64])  # libraries load their code on first use


def round() -> dict[str, list[float]]:
    start = perf_counter()
    if capture:
        vt.capture(model, row, keep="top32")
    else:
        with torch.inference_mode():
            model.hidden(row)
    return {"seconds": [perf_counter() - start]}
