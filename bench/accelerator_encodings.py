"""``python -m bench.accelerator_encodings``: tokens a second with every position encoding, as a share of the bound.

A LLaMA shape of 1B with random weights in bfloat16, one row with 512 and with 8,192 tokens held. A step must read the
weights, an encoding's own included, and what is kept of each token, at the bandwidth that a plain copy reaches in the
same run; where an encoding has a vector for every distance (Transformer-XL), these, and not the weights that they were
made of. Asked for is RoPE's share at 512 held in the same run, less 10 points (floor) or 5 (goal). ``--rows``: also so
many rows at once, with 512 held, and four tokens of each in one pass with up to 2,048 held, beside the same module by
module. ``--drafts``: instead of all that, 4 and 8 tokens of one row in one pass, as when a draft is verified.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import vantage as vt
from bench.accelerator_generation import HEADS, KV_HEADS, RESULTS, SHAPES, VOCAB, bandwidth, tensors_of
from bench.accelerator_serving import Row
from vantage.cache import ModelCache
from vantage.model import Model
from vantage.model.lowered.choice import step_choice
from vantage.model.lowered.gpu_program import lower_for_gpu
from vantage.model.lowered.gpu_steps import CHUNK_GRAPH, GpuSteps
from vantage.model.lowered.pass_sizes import most_tokens
from vantage.spec.forms import QueryDistances
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.sampling import RowChoice

GREEDY = RowChoice(0.0, 0, 1.0, 0.0, ())
STEPS, ROUNDS = 32, 5
HELD = (512, 8192)
DRAFT, DRAFT_HELD = 4, 2048  # tokens of each of several rows in one pass, and what the longest row holds
DRAFTS = (4, 8)  # tokens of one row
CHUNK = 2048  # tokens of a prompt at a time
MAX_LENGTH = 16_384  # of a learned table
GROUPED = {"heads": HEADS, "kv_heads": KV_HEADS}
LATENT = vt.Latent(HEADS, kv_rank=512, nope_dim=64, rope_dim=64, value_dim=64, norm=vt.RMSNorm())
ENCODINGS: dict[str, dict[str, Any]] = {
    "RoPE": {**GROUPED, "position": "rope"},
    "T5": {**GROUPED, "position": "t5"},
    "KERPLE": {**GROUPED, "position": "kerple"},
    "FIRE": {**GROUPED, "position": "fire"},
    "ALiBi": {**GROUPED, "position": "alibi"},
    "RoPE, keys in 8 bits": {**GROUPED, "position": "rope"},
    "KERPLE, power": {**GROUPED, "position": vt.Kerple("power")},
    "none": {**GROUPED, "position": "none"},
    "learned": {**GROUPED, "position": "learned", "max_length": MAX_LENGTH},
    "RoPE, window of 1,024": {**GROUPED, "position": "rope", "window": 1024},
    "MLA": {"attention": LATENT},
    "FoX": {**GROUPED, "position": "fox"},
    "Shaw": {**GROUPED, "position": "shaw"},
    "xPos": {**GROUPED, "position": "xpos"},
    "CoPE": {**GROUPED, "position": "cope"},
    "Transformer-XL": {**GROUPED, "position": "xl"},
}


def model_with(name: str) -> Model:
    """The shape of 1B with another part."""
    width, hidden, layers = SHAPES["1B"]
    ffn = vt.FeedForward(hidden, "silu", gated=True)
    spec = vt.decoder(vocab=VOCAB, width=width, layers=layers, ffn=ffn, **ENCODINGS[name])
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = vt.build(spec, seed=0)
    torch.set_default_dtype(torch.float32)
    model = model.to("cuda", torch.bfloat16).eval()
    model.kv_dtype = "int8" if name.endswith("in 8 bits") else None
    return model


def bytes_of_a_step(model: Model, rows: int, held: int) -> int:
    """Weights, and what every layer keeps of the tokens that a row sees."""
    spec = model.spec
    embedded = sum(t.nbytes for t in tensors_of(model.embed))
    tied = spec.head is not None and spec.head.tied
    weights = sum(t.nbytes for t in tensors_of(model)) - (0 if tied else embedded)
    kept = 0
    for layer, (_, mask) in zip(model.new_cache(1, kind="paged", capacity=16).layers, spec.caches, strict=True):
        seen = held if (reach := mask.reach()) is None else min(held, reach)
        kept += seen * layer.store.token_bytes
    return weights + rows * kept + bytes_of_distances(model, held)


def bytes_of_distances(model: Model, held: int) -> int:
    """Vectors of the distances that a row sees, which rows share, less the weights that only they are made of."""
    try:
        steps = lower_for_gpu(model).attentions
    except CannotLower:
        return 0
    read = 0
    for form, scores in ((step.scores.bias, step.scores) for step in steps):
        if isinstance(form, QueryDistances) and form.last is None:
            seen = min(held, scores.window or held)
            read += form.keys(1).numel() * model.dtype.itemsize * seen - sum(t.nbytes for t in scores.learned)
    return read


def prompted(model: Model, rows: int, held: int, steps: int) -> list[Any]:
    """Caches over one pool, each with so many tokens and room for as many steps."""
    base = model.new_cache(1, kind="paged", capacity=rows * (held + steps + 32))
    caches = [base.fresh(1) for _ in range(rows)]
    prompt = torch.randint(VOCAB, (1, held), device="cuda")
    for cache in caches:
        for part in prompt.split(CHUNK, 1):
            model.hidden(part, cache=cache)
    return caches


def graph_rate(model: Model, rows: int, held: int) -> tuple[float, float]:
    """Tokens a second as graphs, chosen on the device; and seconds of the first call."""
    caches = prompted(model, rows, held, STEPS * (ROUNDS + 1))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    pending = model.steps_ahead([1] * rows, caches, STEPS, [GREEDY] * rows)
    assert pending is not None, "these models run as graphs"
    pending.read()
    first, rates = time.perf_counter() - begun, []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        pending = model.steps_ahead(pending, caches, STEPS, [GREEDY] * rows)
        assert pending is not None
        pending.read()
        rates.append(rows * STEPS / (time.perf_counter() - begun))
    return statistics.median(rates), first


def module_rate(model: Model, rows: int, held: int) -> float:
    """Tokens a second module by module."""
    cache = model.new_cache(rows, kind="paged", capacity=held + STEPS + 8)
    token = torch.randint(VOCAB, (rows, held), device="cuda")
    hidden, begun = model.hidden(token, cache=cache), 0.0
    for step in range(STEPS // 2 + 4):
        if step == 4:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        token = model.head(hidden[:, -1:]).argmax(-1)
        hidden = model.hidden(token, cache=cache)
    torch.cuda.synchronize()
    return rows * (STEPS // 2) / (time.perf_counter() - begun)


def draft_times(model: Model, rows: int, count: int, longest: int) -> tuple[float, float]:
    """Milliseconds of a pass over a draft of so many tokens of every row, which is taken back: as a graph, and module
    by module. ``longest``: tokens that the longest row holds."""
    cache = ModelCache.join(prompted(model, rows, longest, count))
    held = [longest - 37 * i for i in range(rows)]
    cache.crop(held)
    tokens, paths = torch.randint(VOCAB, (rows, count), device="cuda"), cache.layers[0].store.paths

    def milliseconds(passes: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(passes):
            model(tokens, positions=Positions.onward(torch.tensor(held), count), cache=cache)
            cache.crop(held)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 1000 / passes

    before = paths.get(CHUNK_GRAPH, 0)
    milliseconds(3)
    assert paths.get(CHUNK_GRAPH, 0) > before, "this pass is no graph"
    graph = statistics.median(milliseconds(STEPS // 2) for _ in range(ROUNDS))
    with patch.object(GpuSteps, "hidden", return_value=None):
        milliseconds(3)
        return graph, statistics.median(milliseconds(STEPS // 2) for _ in range(ROUNDS))


def measured(name: str, speed: float, rope_share: float | None, batch: int) -> Iterator[Row]:
    model = model_with(name)
    way = step_choice(model, "cuda").name
    for held in HELD:
        rate, first = graph_rate(model, 1, held)
        bound = speed / bytes_of_a_step(model, 1, held + STEPS * ROUNDS // 2)
        note = f"{rate:,.0f} tokens/s of {bound:,.0f}; {way}; first call {first:.1f} s"
        asked = rope_share = rate / bound if rope_share is None else rope_share
        yield Row(f"1B, {name}, {held:,} held", rate / bound, "share", asked - 0.1, asked - 0.05, note=note)
    if batch:
        before, (rate, _) = module_rate(model, batch, HELD[0]), graph_rate(model, batch, HELD[0])
        note = f"module by module {before:,.0f}"
        yield Row(f"1B, {name}, {batch} rows, {HELD[0]} held", rate, "tokens/s", note=note)
    if batch and way == "lowered" and batch * DRAFT <= most_tokens(chunks=lower_for_gpu(model).takes_chunks):
        graph, modules = draft_times(model, batch, DRAFT, DRAFT_HELD)
        note = f"module by module {modules:.1f}; up to {DRAFT_HELD:,} held"
        yield Row(f"1B, {name}, {DRAFT} tokens of {batch} rows", graph, "ms", note=note)


def measured_drafts(name: str) -> Iterator[Row]:
    model = model_with(name)
    for held in HELD:
        for count in DRAFTS:
            graph, modules = draft_times(model, 1, count, held)
            note = f"module by module {modules:.2f}, {modules / graph:.1f} times as long"
            yield Row(f"1B, {name}, {count} tokens of a row, {held:,} held", graph, "ms", note=note)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.accelerator_encodings", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=list(ENCODINGS), default=list(ENCODINGS), metavar="NAME", help="RoPE comes first"
    )
    parser.add_argument("--rows", type=int, default=0, help="also so many rows at once; default: %(default)s")
    parser.add_argument("--drafts", action="store_true", help="passes over drafts of one row, and nothing else")
    out = RESULTS / "accelerator_encodings.json"
    parser.add_argument("--out", type=Path, default=out, help="the JSON; default: %(default)s")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("this bench needs a CUDA GPU", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    versions = {"torch": torch.__version__, "python": platform.python_version(), "gpu": torch.cuda.get_device_name()}
    rows: list[Row] = []
    failed: dict[str, str] = {}
    with torch.inference_mode():
        speed, rope_share = 0.0 if args.drafts else bandwidth(), None
        for name in dict.fromkeys(("RoPE", *args.only)):
            try:
                passes = measured_drafts(name) if args.drafts else measured(name, speed, rope_share, args.rows)
                for row in passes:
                    rope_share = row.value if rope_share is None else rope_share
                    rows.append(row)
                    print(row, flush=True)
            except Exception as error:  # the others go on
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                print(f"1B, {name} failed: {failed[name]}", flush=True)
            told = {"versions": versions, "rows": [asdict(one) for one in rows], "failed": failed}
            args.out.write_text(json.dumps(told, indent=1))
            torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
