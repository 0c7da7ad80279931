"""``python -m bench.accelerator_offload``: a model of which a GPU holds a part, against what its link allows.

LLaMA shapes with random weights in bfloat16. A token reads every layer that is off the device once, so it takes no less
than their bytes over the measured bandwidth of the link.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch

import vantage as vt
from bench.accelerator_generation import SHAPES, model_of
from vantage.families.memory_need import cache_need, workspace_need
from vantage.model import Model
from vantage.model.experts import Experts, TopK
from vantage.model.memory_plan import MemoryNeed, plan_memory, spread
from vantage.model.placement import layout_of
from vantage.model.streamed import StreamedLayers, stream_layers
from vantage.spec.memory_size import memory_size


def link_bandwidth(nbytes: int = 2**29, times: int = 8) -> float:
    """Bytes a second from pinned memory."""
    host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return nbytes / _seconds(lambda: there.copy_(host, non_blocking=True), times)


def _seconds(run: Callable[[], object], times: int) -> float:
    """The median of one call, many in flight."""
    run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def decode(model: Model, rows: int, context: int, steps: int) -> float:
    """Seconds of a step."""
    cache = model.new_cache(rows, kind="static", capacity=context + 4 * steps + 8)
    tokens = torch.randint(0, 1000, (rows, context), device="cuda")
    with torch.no_grad():
        model.hidden(tokens, cache=cache)
        last = tokens[:, -1:]
        return _seconds(lambda: model(last, cache=cache), steps)


def within(shape: str, limit: str, context: int, link: float) -> None:
    """A prompt and an answer by ``vt.generate`` in a memory of this size, and the most that was taken."""
    model = model_of(shape)
    layers = tuple(layout_of(block, frozenset()).nbytes for block in model.blocks)
    others = sum(p.nbytes for p in model.parameters()) - sum(layers)
    need = MemoryNeed(
        layers, others, cache_need(model.spec, model.dtype), workspace_need(model, model.dtype, on_gpu=True)
    )
    plan = plan_memory(need, memory_size(limit), context)
    stream_layers(model, "cuda", plan.off)
    forget()
    prompt = [(7 * i + 3) % 1000 for i in range(context - 40)]
    for tokens in (2, 34):
        begun = time.perf_counter()
        vt.generate(model, [prompt], max_tokens=tokens, ends=False)
        print(
            f"{shape} in {limit}: {tokens} tokens after {len(prompt)} in {time.perf_counter() - begun:.2f} s",
            flush=True,
        )
    peak, planned = torch.cuda.max_memory_allocated(), sum(plan.parts.values())
    print(
        f"{shape} in {limit}: weights {need.weights / 2**30:.2f} GiB, {len(plan.off)} of {len(layers)} layers off, "
        f"planned {planned / 2**30:.2f} GiB, peak {peak / 2**30:.2f} GiB, "
        f"link bound {plan.off_bytes / link * 1e3:.1f} ms",
        flush=True,
    )


def experts(layers: int, steps: int, link: float) -> None:
    """Mixtral's layers, all of them off the device: of eight experts two are brought for each token."""
    mixture = Experts(vt.FeedForward(14_336, "silu", gated=True), 8, TopK(2))
    spec = vt.decoder(
        vocab=32_000, width=4096, layers=layers, heads=32, kv_heads=8, ffn=mixture, position=vt.Rope(base=1e6)
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = vt.build(spec, seed=0).eval()
    torch.set_default_dtype(torch.float32)
    stream_layers(model, "cuda", range(layers))
    placement = model.placement
    assert isinstance(placement, StreamedLayers)
    forget()
    cache = model.new_cache(1, kind="static", capacity=64 + 2 * steps)
    tokens = torch.randint(0, 1000, (1, 32), device="cuda")
    with torch.no_grad():
        model.hidden(tokens, cache=cache)
        model(tokens[:, :1], cache=cache)
        before = placement.copied
        seconds = _seconds(lambda: model(tokens[:, :1], cache=cache), steps)
    brought = (placement.copied - before) / (steps + 1)
    print(
        f"Mixtral's layers, {layers} off ({placement.nbytes / 1e9:.2f} GB): {brought / 1e9:.2f} GB a token, "
        f"{seconds * 1e3:.2f} ms, link bound {brought / link * 1e3:.2f} ms, {brought / link / seconds:.3f} of it, "
        f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
        flush=True,
    )


def forget() -> None:
    """What nobody has any longer is no part of what is measured."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8B")
    parser.add_argument("--off", type=int, nargs="+", default=[8, 16, 32], help="layers that are not on the device")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--max-memory", nargs="+", default=[], help="as vt.load takes it: plan for it, and keep to it")
    parser.add_argument("--experts", type=int, metavar="N", help="so many of Mixtral's layers as well")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    link = link_bandwidth()
    print(f"{torch.cuda.get_device_name()}, link {link / 1e9:.1f} GB/s", flush=True)
    for off in args.off:
        model = model_of(args.shape)
        if off:
            stream_layers(model, "cuda", spread(off, len(model.blocks)))
        forget()
        nbytes = model.placement.nbytes
        for rows in args.rows:
            seconds = decode(model, rows, args.context, args.steps)
            bound = nbytes / link
            print(
                f"{args.shape} off {off} ({nbytes / 1e9:.2f} GB) rows {rows}: {seconds * 1e3:.2f} ms a step, "
                f"{rows / seconds:.1f} tokens/s, link bound {bound * 1e3:.2f} ms, {bound / seconds:.3f} of it, "
                f"peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB",
                flush=True,
            )
        del model
        forget()
    for limit in args.max_memory:
        within(args.shape, limit, args.context, link)
        forget()
    if args.experts:
        experts(args.experts, args.steps, link)


if __name__ == "__main__":
    main()
