"""The same in transformers, float32 from the same GGUF file: its own forward with its own cache."""

import sys
from pathlib import Path
from time import perf_counter

import torch

sys.path.insert(0, str(Path(__file__).parent))
from smollm2_file import default_file
from smollm2_text import text

STEPS = 8


def setup(task: str = "decode", context: int = 512) -> None:
    global model, tokens, what, n
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file, what, n = Path(default_file()), task, context
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokens = torch.tensor([tokenizer(text())["input_ids"][: context + 1]])
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0


class Clock:
    """generate calls this with the prompt and then with every new token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass


@torch.inference_mode()
def round() -> dict[str, list[float]]:
    clock = Clock()
    start = perf_counter()
    model.generate(tokens[:, :n], max_new_tokens=STEPS + 1, do_sample=False, streamer=clock)
    if what == "prefill":
        return {"seconds": [clock.times[1] - start]}
    return {"seconds": [(clock.times[-1] - clock.times[1]) / STEPS]}
