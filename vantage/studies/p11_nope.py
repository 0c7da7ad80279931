"""P11: a causal head without any encoding that tells the position."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vantage.attention import GroupedQuery
from vantage.cache import LayerPlan, make_cache
from vantage.figures import Figure, Line, Lines
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.positions import Positions
from vantage.studies.shared.attention import build_attention, run_attention
from vantage.studies.shared.findings import compared, conclude, judged
from vantage.studies.shared.models import F64, ROUNDING, max_difference
from vantage.studies.study import Progress, Result, Values
from vantage.studies.text import StudyText

TEXT = StudyText.beside(__file__)

KEY = (1.5, -0.5)  # the constant that every key is; any will do
QUERY = ((0.3, -1.2), (0.7, 0.4))  # any query map: no key is better than another


def run(values: Values, progress: Progress) -> Result:
    count = int(values["positions"])
    x = first_or_not(count)
    head = counting_head(Causal())
    out = run_attention(head, x)[0, :, 0]
    wanted = 1 / torch.arange(1, count + 1, dtype=F64)
    steps = _stepwise(head, x)
    flat = run_attention(counting_head(Everything()), x)[0, :, 0]
    decoded = (1 / out).round().long()
    numbers = [
        *(compared(f"output at position {t}", float(out[t - 1]), 1 / t, within=ROUNDING) for t in (1, 2, 3)),
        compared(f"furthest from 1/t, up to t = {count:,}", max_difference(out, wanted), 0.0, within=ROUNDING),
        compared("the same through a cache, one token at a time", max_difference(steps, wanted), 0.0, within=ROUNDING),
        judged(
            "positions read back from the output, right",
            int((decoded == torch.arange(1, count + 1)).sum()),
            bool((decoded == torch.arange(1, count + 1)).all()),
        ),
        judged(
            "without the causal mask: largest difference between positions",
            float(flat.max() - flat.min()),
            float(flat.max() - flat.min()) < ROUNDING,
        ),
    ]
    words = TEXT.conclusion()
    progress(1.0, "done")
    return conclude(words, numbers, [_figure(out, wanted, flat)])


def first_or_not(count: int) -> Tensor:
    """(1, T, 2): each token says whether it is the first, and 1."""
    x = torch.ones(1, count, 2, dtype=F64)
    x[:, 1:, 0] = 0.0
    return x


@torch.no_grad()
def counting_head(mask: Mask) -> nn.Module:
    """K reads the 1 alone, V reads whether a token is the first."""
    module = build_attention(GroupedQuery(1, head_dim=2, value_dim=1), 2, mask)
    q = torch.tensor(QUERY, dtype=F64)
    k = torch.tensor([(0.0, 0.0), KEY], dtype=F64)
    v = torch.tensor([(1.0,), (0.0,)], dtype=F64)
    module.get_parameter("qkv.weight").copy_(torch.cat([q, k, v], 1).T)
    module.get_parameter("out.weight").copy_(torch.tensor([(1.0,), (0.0,)], dtype=F64))
    return module


def _stepwise(head: nn.Module, x: Tensor) -> Tensor:
    cache = make_cache([LayerPlan(1, 2, 1, Causal())], dtype=F64)
    steps = []
    for t in range(x.shape[1]):
        pos = Positions.arange(1, 1, t)
        with cache.step(pos):
            steps.append(run_attention(head, x[:, t : t + 1], pos, cache.layers[0]))
    return torch.cat(steps, 1)[0, :, 0]


def _figure(out: Tensor, wanted: Tensor, flat: Tensor) -> Figure:
    shown = min(len(out), 60)
    t = list(range(1, shown + 1))
    lines = (
        Line("causal head", t, out[:shown].tolist(), look="dots"),
        Line("1/t", t, wanted[:shown].tolist()),
        Line("no causal mask", t, flat[:shown].tolist(), look="dashed"),
    )
    return Figure(
        "counting",
        TEXT.caption("counting"),
        (Lines("a head that counts", "position t", "output", lines, log_x=True, log_y=True),),
    )


STUDY = TEXT.study(
    "P11",
    run,
    (TEXT.parameter("positions", 200, 3, 2000),),
    seconds=0.3,
)
