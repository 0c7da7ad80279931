"""Training speed on a GPU, as a share of its peak, beside nanoGPT's model: ``python -m bench.training``.

Not one of the benches that ``make bench`` runs: it needs a GPU and, for the peer, nanoGPT's ``model.py`` (not on
PyPI; clone https://github.com/karpathy/nanoGPT and give the folder). Both are compiled, compute in bfloat16 over
1,024 tokens and take the same batch; rounds alternate. The count is nanoGPT's: 6 N + 12 L d T operations a token.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from vantage.model import build, decoder
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.training.batch import Batch
from vantage.training.compiled import compiled_loss, in_precision
from vantage.training.learners import TokenLearner
from vantage.training.optimise import AdamW, clip

TOKENS, VOCAB, PEAK = 1024, 50304, 990e12  # H100 and H200, dense bfloat16
SHAPES = {"124M": (12, 768, 12, 128), "1.3B": (24, 2048, 16, 32)}  # layers, width, heads, rows

STEPS = 20  # of a round; few of them would time the wait for the first and not the work

Step = Callable[[], object]


def ours(shape: str, position: str, rows: int) -> tuple[Step, int]:
    layers, width, heads, _ = SHAPES[shape]
    ffn = FeedForward(4 * width, "gelu", gated=False, bias=False)
    spec = decoder(
        vocab=VOCAB,
        width=width,
        layers=layers,
        heads=heads,
        position=position,
        max_length=TOKENS,
        ffn=ffn,
        norm=LayerNorm(bias=False),  # as nanoGPT without biases
        tied=True,
    )
    learner = TokenLearner(build(spec).to("cuda")).train()
    optimiser = AdamW(lr=1e-4).build(learner)
    loss = compiled_loss(in_precision(learner, torch.bfloat16), 0.0, print)
    tokens, targets = _tokens(rows)
    batch = Batch(tokens, targets)

    def step() -> None:
        (loss(batch) / targets.numel()).backward()
        clip(learner.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    counted = [p for name, p in learner.named_parameters() if "inputs" not in name]  # nanoGPT leaves positions out
    return step, sum(p.numel() for p in counted)


def nanogpt(shape: str, folder: str, rows: int) -> tuple[Step, int]:
    sys.path.insert(0, folder)
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]

    layers, width, heads, _ = SHAPES[shape]
    config = GPTConfig(TOKENS, VOCAB, layers, heads, width, dropout=0.0, bias=False)
    model = GPT(config).to("cuda")
    optimiser = model.configure_optimizers(0.1, 1e-4, (0.9, 0.95), "cuda")
    compiled = torch.compile(model)
    tokens, targets = _tokens(rows)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens, targets)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step, model.get_num_params()


def _tokens(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (rows, TOKENS + 1), device="cuda")
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def timed(step: Step, n: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n


def measure(shape: str, args: argparse.Namespace) -> list[dict[str, object]]:
    layers, width, _, rows = SHAPES[shape]
    rows = args.rows or rows
    steps = {f"vantage, {position}": ours(shape, position, rows) for position in args.positions}
    if args.nanogpt:
        steps["nanoGPT"] = nanogpt(shape, args.nanogpt, rows)
    for step, _ in steps.values():
        timed(step, 4)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, (step, _) in steps.items():
            times[name].append(timed(step, STEPS))
    lines: list[dict[str, object]] = []
    for name, (_, parameters) in steps.items():
        seconds = statistics.median(times[name])
        operations = (6 * parameters + 12 * layers * width * TOKENS) * rows * TOKENS
        share, rate = operations / seconds / PEAK, rows * TOKENS / seconds
        spread = f"{min(times[name]) * 1e3:.1f} to {max(times[name]) * 1e3:.1f}"
        line = f"{shape}  {name:18s} {rows} x {TOKENS}  {rate:10,.0f} tokens/s  {share:6.1%} of peak"
        print(f"{line}  {seconds * 1e3:.1f} ms a step ({spread})", flush=True)
        lines.append({"shape": shape, "who": name, "share": share, "rate": rate, "seconds": times[name]})
    steps.clear()
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--positions", nargs="+", default=["learned", "rope"])
    parser.add_argument("--rows", type=int, help="of a batch, for all of them; default: 128 of 124M, 32 of 1.3B")
    parser.add_argument("--nanogpt", metavar="FOLDER", help="a clone of nanoGPT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU")
    lines = [line for shape in args.shapes for line in measure(shape, args)]
    if args.json:
        with open(args.json, "w") as file:
            json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
