"""``python -m bench.perplexity FILE``: what fewer bits cost, as perplexity of a text against float32.

The text is read in windows of 512 tokens, each by itself; every token but a window's first is predicted.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

import vantage as vt

WAYS: dict[str, tuple[torch.dtype | str, str | None]] = {  # weights; keys and values
    "float32": (torch.float32, None),
    "auto, keys and values float32": ("auto", None),
    "auto, keys and values float16": ("auto", "float16"),
    "auto, keys and values int8": ("auto", "int8"),
    "int8": ("int8", "auto"),
    "int4": ("int4", "auto"),
}


@torch.inference_mode()
def loss(model: vt.Model, windows_NT: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The mean negative log-probability, and the most likely tokens."""
    total, best = 0.0, []
    for window in windows_NT:
        logits = model(window[None])[0, :-1]
        total += float(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum"))
        best.append(logits.argmax(-1))
    return total / windows_NT[:, 1:].numel(), torch.cat(best)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.perplexity", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--window", type=int, default=512)
    args = parser.parse_args()
    tokens = vt.load(args.model).tokenizer.encode(args.file.read_text(encoding="utf-8"))
    windows = torch.tensor(tokens[: args.windows * args.window]).view(-1, args.window)
    first: tuple[float, torch.Tensor] | None = None
    for name, (dtype, kv_dtype) in WAYS.items():
        model = vt.load(args.model, dtype=dtype)
        model.kv_dtype = kv_dtype
        nats, best = loss(model, windows)
        first = first or (nats, best)
        agree = (best == first[1]).float().mean()
        print(
            f"{name:30s} perplexity {math.exp(nats):8.4f}  against float32 {math.exp(nats - first[0]) - 1:+.3%}  "
            f"same best token {agree:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
