"""The logit lens: what a model would write if it ended after a layer. Tuned: through an affine map that was fitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from vantage.errors import BadInput
from vantage.figures.html import page_table
from vantage.inspect.capture import Progress
from vantage.inspect.select import Numbers, labels, numbers
from vantage.interventions.targets import read_token
from vantage.interventions.trace import LIMIT, trace
from vantage.model import Model

MIN_LOGPROB = -1e4  # a log-probability that counts as 0: no product with infinity
RIDGE = 1e-3  # of the mean square of what is mapped: how much a fitted map is held to be the identity


@final
@dataclass(frozen=True, eq=False)
class TunedLens:
    """For each place in the residual stream a map to what leaves the last block: x + x W + b (Belrose et al. 2023).

    Fitted by least squares, each token weighted by the size of what leaves the last block, since a norm follows there.
    """

    maps: Mapping[int, Tensor]  # (width + 1, width), by what stands before: the block of this number

    def __call__(self, before: int, x_TD: Tensor) -> Tensor:
        if before not in self.maps:
            raise BadInput(f"this lens was not fitted for layer {before}: it was for {', '.join(map(str, self.maps))}")
        fitted = self.maps[before].to(x_TD)
        if len(fitted) != x_TD.shape[-1] + 1:
            raise BadInput(f"this lens was fitted to a width of {len(fitted) - 1}, and the model's is {x_TD.shape[-1]}")
        return x_TD + x_TD @ fitted[:-1] + fitted[-1]

    def save(self, path: str | Path) -> None:
        from safetensors.torch import save_file

        save_file({str(n): fitted.contiguous() for n, fitted in self.maps.items()}, path)

    @staticmethod
    def load(path: str | Path) -> TunedLens:
        from safetensors.torch import load_file

        return TunedLens({int(name): fitted for name, fitted in load_file(path).items()})


@torch.inference_mode()
def fit_lens(model: Model, texts: Iterable[Any], *, ridge: float = RIDGE, limit: int = LIMIT) -> TunedLens:
    """Fit a lens on texts: some thousand tokens, many more than the model is wide."""
    squares: dict[int, Tensor] = {}
    products: dict[int, Tensor] = {}
    names = [f"layers.{n}.residual_before" for n in range(len(model.blocks))]
    last = f"layers.{len(model.blocks) - 1}.residual_after"
    count = 0
    for text in [texts] if isinstance(texts, str) else texts:
        seen = trace(model, text, read=[*names, last], limit=limit)
        goal = seen[last].flatten(0, 1).double()
        weight = goal.square().mean(-1, keepdim=True).rsqrt()
        count += len(goal)
        for n, name in enumerate(names):
            x = seen[name].flatten(0, 1).double()
            wide = torch.cat((x, torch.ones_like(x[:, :1])), -1) * weight
            squares[n] = squares.get(n, 0.0) + wide.T @ wide
            products[n] = products.get(n, 0.0) + wide.T @ ((goal - x) * weight)
    if not count:
        raise BadInput("texts: give at least one text to fit a lens on")

    def solved(n: int) -> Tensor:
        square = squares[n]
        held = ridge * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype, device=square.device)
        return torch.linalg.solve(square + held, products[n]).float()

    return TunedLens({n: solved(n) for n in squares})


@final
@dataclass(frozen=True, eq=False, repr=False)
class LogitLens:
    """The best guesses after each block, token by token. Row 0 is what stands before the first block."""

    stages: tuple[str, ...]  # "embedding", "0", "1", …: after which block
    labels: tuple[str, ...]  # of the tokens that were read
    positions: tuple[int, ...]
    tokens: Tensor  # (stages, positions, top): the best guesses
    guesses: tuple[tuple[tuple[str, ...], ...], ...]  # the same as text
    probabilities: Tensor  # (stages, positions, top)
    entropy: Tensor  # (stages, positions), in nats
    divergence: Tensor  # (stages, positions): KL from what the model says in the end
    target: Tensor | None  # (stages, positions): the log-probability of the target
    rank: Tensor | None  # (stages, positions): how many tokens are likelier than the target
    tuned: bool

    @property
    def header(self) -> list[str]:
        return ["after", *(f"{n} {label!r}" for n, label in zip(self.positions, self.labels, strict=True))]

    def rows(self) -> list[list[Any]]:
        cells = zip(self.stages, self.guesses, self.probabilities.tolist(), strict=True)
        return [
            [stage, *(f"{words[0]!r} {p[0]:.2f}" for words, p in zip(guesses, shares, strict=True))]
            for stage, guesses, shares in cells
        ]

    def to_dict(self) -> dict[str, Any]:
        def table(values: Tensor | None) -> list[list[float]] | None:
            return None if values is None else values.tolist()

        return {
            "tuned": self.tuned,
            "stages": list(self.stages),
            "positions": list(self.positions),
            "labels": list(self.labels),
            "guesses": [[list(words) for words in row] for row in self.guesses],
            "tokens": self.tokens.tolist(),
            "probabilities": self.probabilities.tolist(),
            "entropy": table(self.entropy),
            "divergence": table(self.divergence),
            "target": table(self.target),
            "rank": table(self.rank),
        }

    def __repr__(self) -> str:
        name = "tuned lens" if self.tuned else "logit lens"
        return f"{name}: {len(self.stages)} layers (with the embedding), {len(self.positions)} tokens"

    def _repr_html_(self) -> str:
        from vantage.interventions.plots import plot_lens

        return page_table(repr(self), self.header, self.rows(), plot_lens(self))


@torch.inference_mode()
def logit_lens(
    model: Model,
    text: Any,
    *,
    tuned: TunedLens | None = None,
    positions: Numbers = None,
    target: Any = None,
    top: int = 5,
    source: Any = None,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> LogitLens:
    """What the model's own last norm and head make of the residual stream before the first block and after each one.

    ``positions``: which tokens; ``target``: a token whose probability and rank are wanted everywhere; ``top``: guesses
    kept of each place.
    """
    if model.spec.head is None:
        raise BadInput("this model has no head, and a lens reads through it")
    if type(top) is not int or not 1 <= top <= model.spec.vocab:
        raise BadInput(f"top={top!r}: give how many guesses to keep, from 1 to {model.spec.vocab}")
    last = len(model.blocks) - 1
    names = ["embedding", *(f"layers.{n}.residual_after" for n in range(last + 1))]
    seen = trace(model, text, read=names, source=source, limit=limit)
    if seen.tokens is None or len(seen.tokens) != 1:
        raise BadInput("give one text, or the tokens of one")
    where = numbers(positions, seen.tokens.shape[1], "position")
    wanted = None if target is None else read_token(model, target, "target")
    final = _log_shares(model, seen[names[-1]][:, where])
    kept: dict[str, list[Tensor]] = {}
    for n, name in enumerate(names):
        x = seen[name][:, where]
        shares = final if n > last else _log_shares(model, x if tuned is None else tuned(n, x))
        for fact, value in _facts(shares, final, top, wanted).items():
            kept.setdefault(fact, []).append(value.cpu())
        if progress is not None:
            progress(n + 1, len(names))
    joined = {fact: torch.stack(values) for fact, values in kept.items()}
    words = labels(model, joined["tokens"].flatten().tolist())
    rows = [tuple(words[i : i + top]) for i in range(0, len(words), top)]
    guesses = tuple(tuple(rows[i : i + len(where)]) for i in range(0, len(rows), len(where)))
    return LogitLens(
        stages=("embedding", *map(str, range(last + 1))),
        labels=tuple(seen.labels[n] for n in where),
        positions=tuple(where),
        guesses=guesses,
        tokens=joined["tokens"],
        probabilities=joined["probabilities"],
        entropy=joined["entropy"],
        divergence=joined["divergence"],
        target=joined.get("target"),
        rank=joined.get("rank"),
        tuned=tuned is not None,
    )


def _facts(shares: Tensor, final: Tensor, top: int, wanted: int | None) -> dict[str, Tensor]:
    """What is kept of one stage, of log-probabilities (T, V) there and after the last."""
    best = shares.topk(top, -1)
    facts = {"tokens": best.indices, "probabilities": best.values.exp()}
    facts["entropy"] = torch.special.entr(shares.exp()).sum(-1)
    facts["divergence"] = torch.where(
        final > MIN_LOGPROB, final.exp() * (final - shares.clamp_min(MIN_LOGPROB)), 0
    ).sum(-1)
    if wanted is not None:
        own = shares[:, wanted]
        facts |= {"target": own, "rank": (shares > own[:, None]).sum(-1)}
    return facts


def _log_shares(model: Model, x_1TD: Tensor) -> Tensor:
    """(T, V): log-probabilities, of what the last norm and the head make of this."""
    logits = model.head(model.norm(x_1TD.to(model.dtype)))[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
