"""``python -m bench.perplexity.quantisers --train FILE --test FILE``: our quantiser against llama.cpp's.

A model of width 512 is trained on a text, for some minutes and once. Our ``save_gguf`` and llama.cpp write it in
each type, and llama.cpp reads both files: the perplexity of a text, ours as a ratio to theirs (asked: at most 1.005).
The same files are read here, with weights in their blocks and with the same weights in float32 (asked: within 0.1 %).

The text is read in windows of 256 tokens, each by itself; every token but a window's first is predicted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import vantage as vt
from bench.harness import PEERS
from bench.perplexity.__main__ import loss
from vantage.checkpoints.gguf_mixes import MIXES
from vantage.model.feed_forward import FeedForward

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, WINDOW = 512, 1536, 4, 8, 4, 2048, 256
ROWS, RATE, WARM = 4, 2e-3, 20  # of a step of training
TYPES = (
    *("Q8_0", "Q6_K", "Q5_K_S", "Q5_K_M", "Q4_K_S", "Q4_K_M", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q2_K"),
    *("Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4"),
)
PEER = Path(__file__).parents[1] / "contestants" / "llama_perplexity.py"


def trained(home: Path, text: str, steps: int) -> tuple[vt.Model, Tokenizer]:
    """The model and its vocabulary, from an earlier run if there was one."""
    model_folder, vocabulary = home / f"model-{steps}", home / "vocabulary.json"
    if model_folder.is_dir() and vocabulary.exists():
        return vt.load(model_folder), Tokenizer.from_file(str(vocabulary))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    tokens = torch.tensor(tokenizer.encode(text).ids)
    ffn = FeedForward(HIDDEN, activation="silu", gated=True)  # rows in whole blocks of 256
    spec = vt.decoder(
        vocab=VOCABULARY, width=WIDTH, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, ffn=ffn, max_length=WINDOW
    )
    model = vt.build(spec, seed=0)
    _train(model, tokens, steps)
    vt.save(model, model_folder)
    tokenizer.save(str(vocabulary))
    return model, tokenizer


def _train(model: vt.Model, tokens: torch.Tensor, steps: int) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    draw, start = torch.Generator().manual_seed(0), perf_counter()
    for step in range(steps):
        share = min(1.0, (step + 1) / WARM) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        for group in optimiser.param_groups:
            group["lr"] = RATE * share
        begins = torch.randint(len(tokens) - WINDOW - 1, (ROWS, 1), generator=draw)
        rows = tokens[begins + torch.arange(WINDOW + 1)]
        logits = model(rows[:, :-1])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        nats.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0 or step + 1 == steps:
            print(f"step {step:4d}  loss {nats.item():.3f}  {perf_counter() - start:.0f} s", flush=True)


def measure(home: Path, model: vt.Model, windows_NT: torch.Tensor, types: Sequence[str]) -> None:
    plain = home / "plain.F32.gguf"
    vt.save_gguf(model, plain, "F32", overwrite=True)
    (exact,) = read_by_llama_cpp(plain, {}, [plain], windows_NT)
    print(
        f"\nfloat32, read by llama.cpp: {math.exp(exact):.4f}; read here: {math.exp(loss(model, windows_NT)[0]):.4f}\n"
    )
    print("| type | vantage | llama.cpp | ours, to theirs | packed, to float32 on the same blocks |")
    print("|---|---|---|---|---|")
    for type in types:
        ours, theirs = (home / f"{who}.{type}.gguf" for who in ("vantage", "llama.cpp"))
        vt.save_gguf(model, ours, type, overwrite=True)
        mine, peer = read_by_llama_cpp(plain, {theirs: MIXES[type].number}, [ours, theirs], windows_NT)
        packed, wide = (loss(vt.load(ours, dtype=dtype), windows_NT)[0] for dtype in ("auto", torch.float32))
        print(
            f"| {type} | {math.exp(mine):.4f} | {math.exp(peer):.4f} | {math.exp(mine - peer) - 1:+.3%} "
            f"| {math.exp(packed - wide) - 1:+.4%} |",
            flush=True,
        )


def read_by_llama_cpp(
    plain: Path, quantise: dict[Path, int], files: Sequence[Path], windows_NT: torch.Tensor
) -> list[float]:
    """The mean negative log-probability for each file, some of which it writes first, as types by their numbers."""
    request = {
        "plain": str(plain),
        "quantise": {str(path): number for path, number in quantise.items()},
        "read": [str(path) for path in files],
        "windows": windows_NT.tolist(),
    }
    answer = subprocess.run(
        [str(PEERS), str(PEER)], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    nats = json.loads(answer.stdout)
    return [nats[str(path)] for path in files]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.perplexity.quantisers", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="the text that the model learns")
    parser.add_argument("--test", type=Path, required=True, help="the text that is read")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--types", nargs="+", default=TYPES, choices=sorted(MIXES))
    args = parser.parse_args()
    home = Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage") / "bench" / "perplexity"
    home.mkdir(parents=True, exist_ok=True)
    model, tokenizer = trained(home, args.train.read_text(encoding="utf-8"), args.steps)
    tokens = tokenizer.encode(args.test.read_text(encoding="utf-8")).ids
    windows = torch.tensor(tokens[: args.windows * WINDOW]).view(-1, WINDOW)
    measure(home, model.eval(), windows, args.types)


if __name__ == "__main__":
    main()
