"""Case conversion with and without attention (A1): trains ten models and writes docs/reports/rnn-attention/.

    python docs/reports/rnn_attention.py        about 9 minutes on two cores

Runs that are finished are not done again.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

import vantage as vt
from vantage.training import read_log
from vantage.training.probes import decoder_count, encoder_position
from vantage.training.sequences import Sequences
from vantage.training.tasks import task

HERE = Path(__file__).parent / "rnn-attention"
RECIPES = {"with attention": "case-rnn-attention", "without": "case-rnn"}
TRAINED = 30  # the longest length that the recipes train on
SEEDS = range(10, 15)  # not those that the settings were found with
STUDENT = 2.306  # of t with 8 degrees of freedom, two-sided 95 %


def train(recipe: str, seed: int, runs: str) -> dict[str, object]:
    torch.set_num_threads(1)
    out = Path(runs) / f"{recipe}-{seed}"
    trained = vt.train(recipe, [f"seed={seed}", "loop.threads=1"], out=out, resume=out.exists())
    _, scores = read_log(out)
    last = {s.set: s for s in scores}
    data = Sequences(task("case"), "pair", (1, TRAINED), (TRAINED,), 300, seed=10_000 + seed)
    batches = data.held_out()[f"length {TRAINED}"]
    count = decoder_count(trained.model, batches)
    return {
        "recipe": recipe,
        "seed": seed,
        "parameters": sum(p.numel() for p in trained.model.parameters()),
        "exact": {name: s.exact for name, s in last.items()},
        "tokens": {name: s.tokens for name, s in last.items()},
        "probes": {
            "position": encoder_position(trained.model, batches).r2,
            "step": count.step.r2,
            "remaining": count.remaining.r2,
        },
    }


def main() -> None:
    runs = sys.argv[1] if len(sys.argv) > 1 else "runs/rnn-attention"
    HERE.mkdir(exist_ok=True)
    jobs = [(recipe, seed, runs) for seed in SEEDS for recipe in RECIPES.values()]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = list(pool.map(train, *zip(*jobs, strict=True)))
    (HERE / "runs.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "README.md").write_text(page(found))
    picture(found).savefig(HERE / "accuracy.png", dpi=130)


def by(found: list[dict], recipe: str, what: str, name: str) -> list[float]:
    return [run[what][name] for run in found if run["recipe"] == recipe]


def page(found: list[dict]) -> str:
    names = list(found[0]["exact"])
    lines = [
        "# Attention in an RNN encoder-decoder (A1)",
        "",
        "Case conversion, character by character: `<U>` or `<L>` and mixed-case words in, the same in upper or lower",
        f"case out. A GRU encoder-decoder, trained on lengths 1 to {TRAINED}, with attention (general) and without, at",
        "as many parameters; five seeds. Share of exact answers, mean over the seeds (and of right characters).",
        "Made by `python docs/reports/rnn_attention.py`.",
        "",
        "| length | with attention | without | difference, 95 % interval |",
        "|---|---|---|---|",
    ]
    for name in names:
        a, b = (by(found, RECIPES[k], "exact", name) for k in RECIPES)
        ca, cb = (by(found, RECIPES[k], "tokens", name) for k in RECIPES)
        gap, half = statistics.mean(a) - statistics.mean(b), interval(a, b)
        row = f"| {name.removeprefix('length ')} | {statistics.mean(a):.1%} ({statistics.mean(ca):.1%}) "
        row += f"| {statistics.mean(b):.1%} ({statistics.mean(cb):.1%}) "
        lines.append(row + f"| {100 * gap:.1f} points, {100 * (gap - half):.1f} to {100 * (gap + half):.1f} |")
    sizes = {run["recipe"]: run["parameters"] for run in found}
    lines += [
        "",
        f"Parameters: {sizes[RECIPES['with attention']]:,} with, {sizes[RECIPES['without']]:,} without.",
        f"Length {TRAINED} is the longest that was trained; beyond it attention falls as well. The model without it is",
        "not converged: the claim is about the same budget, not about what it could ever learn.",
        "",
        "![Exact answers over length](accuracy.png)",
        "",
        "## What the states know (S0's two claims)",
        "",
        "Linear probes (ridge regression, cross-validated over sequences of a data seed of their own), R², mean over",
        "the seeds:",
        "",
        "| | token's position, in the encoder | steps done, in the decoder | steps left, in the decoder |",
        "|---|---|---|---|",
    ]
    for name, recipe in RECIPES.items():
        cells = [f"{statistics.mean(by(found, recipe, 'probes', p)):.3f}" for p in ("position", "step", "remaining")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Both claims hold: the encoder knows where a token stands, and the decoder counts."]
    return "\n".join(lines) + "\n"


def interval(a: list[float], b: list[float]) -> float:
    """Half the width of the 95 % interval of the difference of means."""
    return STUDENT * math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))


def picture(found: list[dict]):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    names = list(found[0]["exact"])
    lengths = [int(name.removeprefix("length ")) for name in names]
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for label, colour in zip(RECIPES, ("#0072b2", "#d55e00"), strict=True):
        rows = [by(found, RECIPES[label], "exact", name) for name in names]
        for seed in zip(*rows, strict=True):
            axes.plot(lengths, seed, color=colour, alpha=0.25, linewidth=1)
        axes.plot(lengths, [statistics.mean(row) for row in rows], color=colour, marker="o", label=label)
    axes.axvline(TRAINED, color="grey", linestyle=":", linewidth=1)
    axes.text(TRAINED + 0.2, 0.5, "longest trained", color="grey", fontsize=8)
    axes.set(xlabel="characters", ylabel="exact answers", ylim=(-0.03, 1.03), title="Case conversion by a GRU")
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
