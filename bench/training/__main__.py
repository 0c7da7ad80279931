"""Training speed on a GPU, as a share of its peak, beside nanoGPT's model: ``python -m bench.training``.

Not one of the benches that ``make bench`` runs: it needs a GPU and, for the peer, nanoGPT's ``model.py`` (not on
PyPI; clone https://github.com/karpathy/nanoGPT and give the folder). Both are compiled, compute in bfloat16 over
1,024 tokens and take the same batch; rounds alternate. The count is nanoGPT's: 6 N + 12 L d T operations a token.
``--apart`` has one model in memory at a time, where all of them do not fit: the first comes once more at the end, so
that a GPU which grew slower shows. ``--eager`` compiles nothing. ``python -m bench.training.turns`` has each model in a
process of its own, which all compile at once, and profiles them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from vantage.model import build, decoder
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm
from vantage.training.batch import Batch
from vantage.training.compiled import compiled_loss, in_precision, loss_of
from vantage.training.learners import TokenLearner
from vantage.training.optimise import AdamW, clip

TOKENS, VOCAB, PEAK = 1024, 50304, 990e12  # H100 and H200, dense bfloat16
SHAPES = {"124M": (12, 768, 12, 128), "1.3B": (24, 2048, 16, 32)}  # layers, width, heads, rows

WINDOW = "window of 256"
POSITIONS: dict[str, dict[str, Any]] = {
    **{name: {"position": name} for name in ("learned", "rope", "alibi", "t5", "kerple")},
    WINDOW: {"position": "learned", "window": 256},
}
STEPS = 20  # of a round; few of them would time the wait for the first and not the work

Step = Callable[[], object]


def ours(shape: str, position: str, rows: int, *, compiled: bool = True, kernel: str = "auto") -> tuple[Step, int]:
    layers, width, heads, _ = SHAPES[shape]
    ffn = FeedForward(4 * width, "gelu", gated=False, bias=False)
    spec = decoder(
        vocab=VOCAB,
        width=width,
        layers=layers,
        heads=heads,
        max_length=TOKENS,
        ffn=ffn,
        norm=LayerNorm(bias=False),  # as nanoGPT without biases
        tied=True,
        **POSITIONS[position],
    )
    with torch.device("cuda"):  # a billion random numbers take long on a host
        learner = TokenLearner(build(spec, kernel=kernel)).train()
    optimiser = AdamW(lr=1e-4).build(learner)
    logits = in_precision(learner, torch.bfloat16)
    loss = compiled_loss(logits, 0.0, print) if compiled else loss_of(logits, 0.0)
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


def makers(shape: str, args: argparse.Namespace, rows: int) -> dict[str, Callable[[], tuple[Step, int]]]:
    """Who is measured, by name; a model is made when it is called."""

    def of(position: str) -> Callable[[], tuple[Step, int]]:
        return lambda: ours(shape, position, rows, compiled=not args.eager)

    chosen = {f"vantage, {position}": of(position) for position in args.positions}
    return chosen | ({"nanoGPT": lambda: nanogpt(shape, args.nanogpt, rows)} if args.nanogpt else {})


def forget() -> None:
    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def in_turn(shape: str, args: argparse.Namespace, rows: int) -> Iterator[tuple[str, int, list[float]]]:
    """Name, parameters and seconds of each, all in memory and round by round."""
    steps = {name: make() for name, make in makers(shape, args, rows).items()}
    for step, _ in steps.values():
        timed(step, 4)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, (step, _) in steps.items():
            times[name].append(timed(step, args.steps))
    yield from ((name, parameters, times[name]) for name, (_, parameters) in steps.items())


def apart(shape: str, args: argparse.Namespace, rows: int) -> Iterator[tuple[str, int, list[float]]]:
    """The same with one in memory at a time."""
    chosen = list(makers(shape, args, rows).items())
    for name, make in [*chosen, (f"{chosen[0][0]}, again", chosen[0][1])] if len(chosen) > 1 else chosen:
        if time.perf_counter() > args.until:
            print(f"{shape}  {name}: not run, time is up", flush=True)
            continue
        begun = time.perf_counter()
        step, parameters = make()
        timed(step, 4)
        print(f"{shape}  {name}: first steps after {time.perf_counter() - begun:.1f} s", flush=True)
        yield name, parameters, [timed(step, args.steps) for _ in range(args.rounds)]
        del step
        forget()


def measure(shape: str, args: argparse.Namespace) -> list[dict[str, object]]:
    layers, width, _, rows = SHAPES[shape]
    rows = args.rows or rows
    lines: list[dict[str, object]] = []
    first = 0.0
    for name, parameters, times in (apart if args.apart else in_turn)(shape, args, rows):
        seconds = statistics.median(times)
        first = first or seconds
        operations = (6 * parameters + 12 * layers * width * TOKENS) * rows * TOKENS
        share, rate = operations / seconds / PEAK, rows * TOKENS / seconds
        spread = f"{min(times) * 1e3:.1f} to {max(times) * 1e3:.1f}"
        line = f"{shape}  {name:24s} {rows} x {TOKENS}  {rate:10,.0f} tokens/s  {share:6.1%} of peak"
        print(f"{line}  {seconds * 1e3:.1f} ms a step ({spread})  {seconds / first:.3f} of the first", flush=True)
        compiled = not args.eager
        lines.append(
            {"shape": shape, "who": name, "compiled": compiled, "share": share, "rate": rate, "seconds": times}
        )
    forget()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument(
        "--positions", nargs="+", default=["learned", "rope"], choices=POSITIONS, metavar="NAME",
        help=f"of: {'; '.join(POSITIONS)}; default: learned rope",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, help="of a batch, for all of them; default: 128 of 124M, 32 of 1.3B")
    parser.add_argument("--nanogpt", metavar="FOLDER", help="a clone of nanoGPT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round; default: %(default)s")
    parser.add_argument("--apart", action="store_true", help="one model in memory at a time")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="with --apart: begin no model later")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    args.until = time.perf_counter() + args.seconds
    if not torch.cuda.is_available():
        sys.exit("this bench needs a GPU")
    lines = [line for shape in args.shapes for line in measure(shape, args)]
    if args.json:
        with open(args.json, "w") as file:
            json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
