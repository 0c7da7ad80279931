"""What the studies of the letter A share: attention's parts on their own, and how a verdict is reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vantage.attention import NoBias
from vantage.cache import NoCache
from vantage.figures import Figure
from vantage.kernels import KERNELS, chooser
from vantage.model.linear import dense
from vantage.spec.masks import Causal, Everything, Mask
from vantage.spec.model import AttentionConfig, BuildContext
from vantage.spec.parts import Argmax, Attended, Context, Dense, EncoderOutput, Need, Softmax, View
from vantage.spec.positions import Positions
from vantage.studies.common import concluded
from vantage.studies.study import Number, Progress, Result
from vantage.training.log import Scored, Stepped

F64 = torch.float64
WEIGHTS = 1_000_000  # seeds from here on are those of maps: no input is drawn with one
Watch = Callable[[str, int, View, Need, Attended], None]


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64, the same for the same seed."""
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# ---- the kernel on its own


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    scale: float = 1.0,
    normalise: Softmax | Argmax = Softmax(),
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and weights of one head: q (T, d), k (S, d), v (S, e), or many of them at once, (B, T, d) and so on."""
    single = q.dim() == 2
    q, k, v = (t[None] if t.dim() == 2 else t for t in (q, k, v))
    rows = max(len(q), len(k))
    view = View(k.expand(rows, -1, -1)[:, None], v.expand(rows, -1, -1)[:, None], Positions.arange(rows, k.shape[1]))
    pos = Positions.arange(rows, q.shape[1])
    given = None if bias is None else Dense(bias[None, None])
    need = Need(Everything() if mask is None else mask, scale, bias=given, normalise=normalise, weights=True)
    done = KERNELS["reference"](q.expand(rows, -1, -1)[:, None], view, pos.against(view.pos), need)
    assert done.weights is not None  # asked for
    return (done.out[0, 0], done.weights[0, 0]) if single else (done.out[:, 0], done.weights[:, 0])


def weights_of(scores: Tensor, *, normalise: Softmax | Argmax = Softmax()) -> Tensor:
    """The weights that attention makes of scores (T, S): the queries are their rows, the keys the unit vectors."""
    hidden = scores == -torch.inf
    eye = torch.eye(scores.shape[1], dtype=F64)
    bias = torch.zeros_like(scores).masked_fill(hidden, -torch.inf) if bool(hidden.any()) else None
    return attend(scores.masked_fill(hidden, 0.0), eye, eye, bias=bias, normalise=normalise)[1]


# ---- the modules


def module(config: AttentionConfig, width: int, mask: Mask | None = None, *, cross: bool = False) -> Any:
    """An attention module as a block would build it, in float64, with weights large enough to look somewhere."""
    mask = (Everything() if cross else Causal()) if mask is None else mask
    context = BuildContext(0, mask, (), NoBias(), None, dense)
    made = (config.build_cross if cross else config.build)(width, context).to(F64).eval()
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(draw(*p.shape, seed=WEIGHTS + i) * 1.5 * p.shape[-1] ** -0.5)
    return made


def set_maps(made: Any, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Give a self-attention its maps, written for rows: x W. What comes out is left as it is."""
    with torch.no_grad():
        made.qkv.weight.copy_(torch.cat([q, k, v], 1).T)
        made.out.weight.copy_(torch.eye(*made.out.weight.shape))


@torch.no_grad()
def run_module(made: Any, x: Tensor, *, source: Tensor | None = None, watch: Watch | None = None) -> Tensor:
    """One pass over x (B, T, D); cross-attention looks at ``source`` (B, S, D)."""
    memory = None if source is None else EncoderOutput(source, Positions.arange(len(source), source.shape[1]))
    nothing = (NoCache(),)
    pos = Positions.arange(len(x), x.shape[1])
    return made(x, Context(pos, chooser("reference"), nothing, nothing, memory, watch))


def seen_by(made: Any, x: Tensor, *, source: Tensor | None = None) -> tuple[str, Tensor]:
    """Which kind of attention ran, "self" or "cross", and its weights (B, H, T, S)."""
    seen: list[tuple[str, Tensor]] = []

    def watch(site: str, index: int, view: View, need: Need, done: Attended) -> None:
        assert done.weights is not None  # somebody watches
        seen.append((site, done.weights))

    run_module(made, x, source=source, watch=watch)
    return seen[0]


def cells(matrix: Tensor, places: int | None = None) -> list[list[float | None]]:
    """A matrix for a heat map, rounded where its numbers are written; −∞ is an empty cell."""
    rows = matrix.tolist()
    return [[None if x == -torch.inf else x if places is None else round(x, places) for x in row] for row in rows]


# ---- the verdict


def conclude(
    words: str,
    figures: Sequence[Figure],
    *,
    right: Sequence[Number],
    slips: Sequence[Number] = (),
    also: Sequence[Number] = (),
) -> Result:
    """``right`` is where the document should hold, ``slips`` where it should not, ``also`` what it says nothing of."""
    return concluded(words, (*right, *also), figures, slips)


def held(what: str, ours: bool, document: bool | None = True) -> Number:
    """A statement that is true or not, beside what the document says of it."""
    said = None if document is None else _yes(document)
    return Number(what, _yes(ours), said, None if document is None else ours == document)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# ---- training


class Stepping:
    """A training run's report, as the progress of a study: from ``low`` to ``high`` of it."""

    def __init__(self, progress: Progress, low: float, high: float, what: str):
        self.progress, self.low, self.high, self.what = progress, low, high, what
        self.steps = 1

    def begun(self, step: int, steps: int, about: str) -> None:
        self.steps = steps

    def stepped(self, record: Stepped) -> None:
        share = self.low + (self.high - self.low) * record.step / self.steps
        self.progress(share, f"{self.what}: step {record.step} of {self.steps}, loss {record.loss:.3f}")

    def scored(self, records: list[Scored]) -> None: ...
    def saved(self, where: Path) -> None: ...
    def note(self, text: str) -> None: ...
