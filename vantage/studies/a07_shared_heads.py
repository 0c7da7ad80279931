"""A7: multi-query and grouped-query attention: what sharing keys and values saves."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from vantage.attention import GroupedQuery
from vantage.figures import Bars, Figure
from vantage.model import build, decoder
from vantage.studies.shared.attention import run_attention, sharp_attention
from vantage.studies.shared.findings import compared, conclude
from vantage.studies.shared.models import random_normal
from vantage.studies.study import Number, Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

LAYERS = 2
BATCH = 2


def run(values: Values, progress: Progress) -> Result:
    heads, d, M = int(str(values["heads"])), int(values["head_dim"]), int(values["tokens"])
    shared = [g for g in (16, 8, 4, 2, 1) if g <= heads]
    counts = {g: _multiplications(heads, g, d, M) for g in shared}
    progress(0.5, "caches")
    sizes = {g: _cache_bytes(heads, g, d, M) for g in shared}
    saved = 2 * M * d**2 * (heads - 1)
    right = [compared("multiply-accumulates that one key/value head saves", counts[heads] - counts[1], saved)]
    right += [
        compared(f"cache with {heads} key/value heads over the cache with {g}", sizes[heads] / sizes[g], heads / g)
        for g in shared[1:]
    ]
    right.append(
        compared("heads that share, against heads with equal maps", _difference(heads, d, M), 0.0, within=1e-12)
    )
    also = [Number(f"multiply-accumulates, {_name(g, heads)}", counts[g]) for g in shared]
    also += [Number(f"bytes of the cache, {_name(g, heads)}", sizes[g]) for g in shared]
    words = TEXT.conclusion(heads=heads, saved=saved, tokens=M)
    labels = tuple(_name(g, heads) for g in shared)
    macs = Bars(
        f"One attention, {M} tokens", "multiply-accumulates", labels, (("counted", [float(counts[g]) for g in shared]),)
    )
    kept = Bars(f"Cache of {LAYERS} layers", "KiB", labels, (("allocated", [sizes[g] / 1024 for g in shared]),))
    return conclude(words, [*right, *also], [Figure("sharing", TEXT.caption("sharing"), (macs, kept))])


def _name(kv_heads: int, heads: int) -> str:
    kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    return f"{kind} ({kv_heads})"


def _multiplications(heads: int, kv_heads: int, d: int, M: int) -> int:
    """Counted by torch as the module runs; every head's maps are d×d, as the document has them."""
    attention = sharp_attention(GroupedQuery(heads, kv_heads, head_dim=d), d)
    with FlopCounterMode(display=False) as counter:
        run_attention(attention, random_normal(1, M, d))
    return counter.get_total_flops() // 2  # a multiply and an add are two operations


@torch.no_grad()
def _cache_bytes(heads: int, kv_heads: int, d: int, M: int) -> int:
    """Of a cache that a model has filled."""
    spec = decoder(vocab=5, width=heads * d, layers=LAYERS, heads=heads, kv_heads=kv_heads, position="none")
    model = build(spec)
    cache = model.new_cache(BATCH, capacity=M)
    model(torch.zeros(BATCH, M, dtype=torch.long), cache=cache)
    return cache.bytes


def _difference(heads: int, d: int, M: int) -> float:
    """Between a module with one key/value head and one with many that are given the same maps."""
    one, many = (
        sharp_attention(GroupedQuery(heads, 1, head_dim=d), d),
        sharp_attention(GroupedQuery(heads, head_dim=d), d),
    )
    q, k, v = one.qkv.weight.detach().split((heads * d, d, d))
    with torch.no_grad():
        many.qkv.weight.copy_(torch.cat([q, k.repeat(heads, 1), v.repeat(heads, 1)]))
        many.out.weight.copy_(one.out.weight)
    x = random_normal(1, M, d)
    return float((run_attention(one, x) - run_attention(many, x)).abs().max())


STUDY = TEXT.study(
    "A7",
    run,
    (
        TEXT.parameter("heads", "8", choices=("2", "4", "8", "16")),
        TEXT.parameter("head_dim", 8, 2, 32),
        TEXT.parameter("tokens", 48, 2, 256),
    ),
    seconds=0.5,
)
