"""Greedy decoding with transformers' generate: seconds per step, after a prompt that is not counted."""

import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parent))
from forward_transformers import llama
from shapes import VOCAB


def setup(context: int = 256, steps: int = 16) -> None:
    global model, prompt, count
    model, count = llama(context + steps + 1), steps
    prompt = torch.randint(VOCAB, (1, context), generator=torch.Generator().manual_seed(0))
    model.generation_config.eos_token_id = None  # never stops early
    model.generation_config.pad_token_id = 0


class Clock:
    """generate calls this with the prompt and then with every new token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


def round() -> dict[str, list[float]]:
    clock = Clock()
    with torch.inference_mode():
        model.generate(prompt, max_new_tokens=count + 1, do_sample=False, streamer=clock)
    after_prompt, *_, last = clock.times[1:]  # the first call hands over the prompt, the second the first token
    return {"seconds": [(last - after_prompt) / count]}
