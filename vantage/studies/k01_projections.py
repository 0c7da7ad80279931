"""K1: how often a key is computed, with a cache and without."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from vantage.attention import GroupedQuery, NoBias
from vantage.cache import NoCache
from vantage.figures import Bars, Figure, Line, Lines
from vantage.generation import Engine
from vantage.kernels import chooser
from vantage.model import Model, decoder
from vantage.model.linear import dense
from vantage.spec.masks import Causal
from vantage.spec.model import BuildContext
from vantage.spec.parts import Context
from vantage.spec.positions import Positions
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import F64, count_projections, sharp_model
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

VOCAB, FIRST = 11, 3
LAYERS = 2


def run(values: Values, progress: Progress) -> Result:
    n = int(values["tokens"])
    model = sharp_model(decoder(vocab=VOCAB, width=16, layers=LAYERS, heads=4, kv_heads=2))
    lengths = sorted({1, 2, 3, *range(4, n, max(1, n // 8)), n})
    counts: dict[bool, dict[int, Counter[int]]] = {True: {}, False: {}}
    engine: dict[bool, int] = {}
    for i, length in enumerate(lengths):
        progress(i / len(lengths), f"generating {length} tokens")
        for cached in (True, False):
            counts[cached][length], engine[cached] = _counted(model, length, cached)
    plain, kept = counts[False][n], counts[True][n]
    needed, out = _third_query()
    progress(1.0, "done")
    numbers = [
        compared("all keys of a layer, without a cache: N(N+1)/2", sum(plain.values()), n * (n + 1) // 2),
        compared("the same, with a cache: N", sum(kept.values()), n),
        compared("the key of the first input, without a cache: N times", plain[0], n),
        compared("the most often that any key is computed, with a cache", max(kept.values()), 1),
        judged("the engine's own count, without a cache", engine[False], engine[False] == sum(plain.values())),
        judged("the engine's own count, with a cache", engine[True], engine[True] == sum(kept.values())),
        compared("attention output at x₃, first number", out[0], 8.5, within=1e-6),
        compared("attention output at x₃, second number", out[1], 0.5, within=1e-6),
    ]
    slips = [
        compared("the key of y₁, the first generated token, without a cache: N times", plain[1], n),
        compared("keys needed to generate x₄ after x₁, x₂, x₃", needed, 4),
    ]
    words = TEXT.conclusion(n=n, projections=sum(plain.values()), first_key=plain[1])
    return conclude(words, numbers, [_each(plain, kept, n), _growth(counts, lengths)], slips)


def _counted(model: Model, n: int, cached: bool) -> tuple[Counter[int], int]:
    """How often each input's key is projected while ``n`` tokens are generated; and what the engine says."""
    engine = Engine(model, cache=cached, share_prefixes=False)
    engine.submit([FIRST], max_tokens=n)
    with count_projections(model) as counts:
        engine.run()
    assert all(layer == counts[0] for layer in counts)  # every layer is asked for the same tokens
    return counts[0], max(engine.stats.projections)


@torch.no_grad()
def _third_query() -> tuple[int, list[float]]:
    """S2's example, its three inputs read in one pass: how many keys are projected, and what x₃ attends to."""
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], dtype=F64)
    module = worked_module()
    rows: list[int] = []
    hook = module.qkv.register_forward_hook(lambda layer, args, out: rows.append(args[0].shape[1]))
    out = module(x, Context(Positions.arange(1, 3), chooser("reference"), (NoCache(),)))
    hook.remove()
    return sum(rows), out[0, -1].tolist()


def worked_module() -> Any:
    """S2's maps, for rows: W^Q = I, W^K = [[1, 2], [0, 1]], W^V = [[.5, −.5], [1, .5]]; and no map after them."""
    module: Any = GroupedQuery(1).build(2, BuildContext(0, Causal(), (), NoBias(), None, dense)).to(F64).eval()
    q, k, v = torch.eye(2), torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[0.5, -0.5], [1.0, 0.5]])
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([q, k, v], 1).T)
        module.out.weight.copy_(torch.eye(2))
    return module.requires_grad_(False)


def _each(plain: Counter[int], kept: Counter[int], n: int) -> Figure:
    shown = min(n, 12)
    names = ("first", *(f"y{i}" for i in range(1, shown)))
    series = (
        ("without a cache", [plain[i] for i in range(shown)]),
        ("with a cache", [kept[i] for i in range(shown)]),
    )
    return Figure("each-key", TEXT.caption("each-key"), (Bars("Projections of each key", "times", names, series),))


def _growth(counts: dict[bool, dict[int, Counter[int]]], lengths: list[int]) -> Figure:
    lines = tuple(
        Line(name, lengths, [sum(counts[cached][length].values()) for length in lengths])
        for name, cached in (("without a cache", False), ("with a cache", True))
    )
    return Figure(
        "all-keys",
        TEXT.caption("all-keys"),
        (Lines("Projections of all keys", "tokens generated", "keys a layer", lines),),
    )


STUDY = TEXT.study(
    "K1",
    run,
    (TEXT.parameter("tokens", 16, 3, 64),),
    seconds=1.0,
)
