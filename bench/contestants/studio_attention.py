"""A text of 2,000 tokens: as the studio reads it, as a pass of modules, and as a plain pass."""

import sys
from pathlib import Path
from time import perf_counter

import torch

import vantage as vt
from vantage.inspect.sites import sites_of
from vantage.serve.studio.attention.read_texts import read_text

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_text import text

TOKENS, LAYER = 2000, 12


def setup(how: str) -> None:
    global model, ids, what
    model, what = vt.load("smollm2"), how
    whole = list(model.tokenizer.encode(text()))
    ids = (whole * (TOKENS // len(whole) + 1))[:TOKENS]
    with torch.inference_mode():
        model.hidden(torch.tensor([ids[:64]]))  # libraries load their code on first use
    if what == "module by module":  # whole steps stand aside where somebody listens
        for site in sites_of(model):
            site.module.register_forward_pre_hook(lambda module, args: None)


def round() -> dict[str, list[float]]:
    start = perf_counter()
    if what == "studio":
        read = read_text("smollm2", model, ids, None, None)
        for head in range(9):
            assert read.head("self", LAYER, head).shape == (TOKENS, TOKENS)
        read.heads("self", LAYER)
        read.atlas()
    else:
        with torch.inference_mode():
            model.hidden(torch.tensor([ids]))
    return {"seconds": [perf_counter() - start]}
