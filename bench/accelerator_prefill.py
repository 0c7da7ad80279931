"""``python -m bench.accelerator_prefill``: a long prompt through a whole model on a GPU, in chunks behind a cache.

LLaMA's 8B shape with random weights in bfloat16. Operations are those of the linear maps and of visible pairs; the head
sees the last token alone, as in generation. Memory is the most that was in use, weights and cache included.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.accelerator_generation import HEADS, RESULTS, VOCAB, model_of
from vantage.model import Model
from vantage.spec.positions import Positions

CHUNK = 8192
LENGTHS = (32_768, 131_072)
FLOOR, GOAL, MOST_MEMORY = 450.0, 520.0, 45.0  # TFLOP/s, and GiB at the longest
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One prompt."""

    tokens: int
    seconds: float
    operations: float
    peak: int  # bytes

    @property
    def rate(self) -> float:
        """TFLOP/s."""
        return self.operations / self.seconds / 1e12

    def __str__(self) -> str:
        verdict = "goal met" if self.rate >= GOAL else "floor met" if self.rate >= FLOOR else "missed"
        memory = (
            f"{self.peak / GIB:.1f} GiB ({'within' if self.peak / GIB <= MOST_MEMORY else 'beyond'} {MOST_MEMORY:g})"
        )
        return (
            f"8B, prompt of {self.tokens:,} in chunks of {CHUNK:,}: {self.tokens / self.seconds:,.0f} tokens/s, "
            f"{self.rate:.0f} TFLOP/s ({verdict}: floor {FLOOR:g}, goal {GOAL:g}), {memory}, {self.seconds:.2f} s"
        )


def operations(model: Model, tokens: int) -> float:
    """Two for each weight of a linear map and token, and four for each visible pair and number of a head."""
    maps = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and name.startswith("blocks"))
    pairs = tokens * (tokens + 1) / 2
    return 2.0 * maps * tokens + 4.0 * pairs * len(model.blocks) * HEADS * (model.spec.width // HEADS)


def prefill(model: Model, tokens_T: torch.Tensor, capacity: int) -> float:
    """Seconds until the logits after the last token are there."""
    cache = model.new_cache(1, capacity=capacity)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    hidden = None
    for start, part in zip(range(0, len(tokens_T), CHUNK), tokens_T.split(CHUNK), strict=True):
        hidden = model.hidden(part[None], positions=Positions.arange(1, len(part), start), cache=cache)
    assert hidden is not None
    model.head(hidden[:, -1:]).float().argmax(-1).item()
    return time.perf_counter() - begun


def measure(model: Model, tokens: int, *, twice: bool) -> Row:
    prompt = torch.randint(VOCAB, (tokens,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds = min(prefill(model, prompt, tokens) for _ in range(1 + twice))
    return Row(tokens, seconds, operations(model, tokens), torch.cuda.max_memory_allocated())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_prefill", description=__doc__)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=list(LENGTHS), help="of prompts; default: %(default)s"
    )
    out = RESULTS / "accelerator_prefill.json"
    parser.add_argument("--out", type=Path, default=out, help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with torch.inference_mode():
        model = model_of("8B")
        prefill(model, torch.randint(VOCAB, (2 * CHUNK,), device="cuda"), 2 * CHUNK)  # compiling is not counted
        for tokens in args.lengths:
            rows.append(measure(model, tokens, twice=tokens == min(args.lengths)))
            print(rows[-1], flush=True)
            args.out.write_text(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}, indent=1))
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
