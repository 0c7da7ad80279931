"""Linear probes: how much of a number can be read off hidden states by a linear map (A1).

Ridge regression in closed form. Every score is of held-out sequences: states of one sequence are much alike, so a
split by states would test on what it trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from vantage.errors import BadInput
from vantage.model.recurrent import RecurrentModel
from vantage.training.batch import IGNORE, Batch

Array = NDArray[np.float64]
PENALTIES = tuple(10.0**e for e in range(-6, 5))  # of features with variance 1, times the number of states
FOLDS = 5
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """What a linear map from states says of a number, on sequences that it was not fitted to."""

    r2: float  # the share of the variance that it explains; below 0: worse than the mean
    interval: tuple[float, float]  # 95 %, by resampling sequences
    shuffled: float  # r2 of the same probe with the targets shuffled among all states: what chance gives
    weights: Array  # (D,), fitted to all: target ≈ states @ weights + bias
    bias: float
    penalty: float
    sequences: int

    def __call__(self, states_ND: ArrayLike) -> Array:
        return np.asarray(states_ND, np.float64) @ self.weights + self.bias

    def __str__(self) -> str:
        low, high = self.interval
        return f"R² {self.r2:.3f} ({low:.3f} to {high:.3f}; shuffled {self.shuffled:.3f}; {self.sequences} sequences)"


@dataclass(frozen=True, eq=False)
class CountProbes:
    """What the decoder's states say of where it is: tokens since the start, and tokens to the end."""

    step: LinearProbe
    remaining: LinearProbe


def probe(states_ND: ArrayLike, targets_N: ArrayLike, groups_N: ArrayLike, *, seed: int = 0) -> LinearProbe:
    """Fit targets from states. ``groups`` says which sequence a state is of; whole sequences are held out."""
    x, y, groups = _checked(states_ND, targets_N, groups_N)
    rng = np.random.default_rng(seed)
    fold = rng.permutation(_spread(int(groups.max()) + 1))[groups]
    predicted = _held_out(x, y, fold)
    by_chance = rng.permutation(y)
    fit = _fit(x, y, fold)
    return LinearProbe(
        r2=_r2(y, predicted),
        interval=_interval(y, predicted, groups, rng),
        shuffled=_r2(by_chance, _held_out(x, by_chance, fold)),
        weights=fit.weights,
        bias=fit.bias,
        penalty=fit.penalty,
        sequences=int(groups.max()) + 1,
    )


def encoder_position(model: RecurrentModel, batches: Iterable[Batch], *, seed: int = 0) -> LinearProbe:
    """S0's first claim: a token's position can be read off the encoder's state there.

    A probe of an untrained model is the control: a recurrence remembers something of its step before any training.
    """
    seen = _StateCollector()
    for batch, encoder, _ in _states(model, batches):
        source = _source(batch)
        filled = torch.ones_like(source, dtype=torch.bool) if batch.source_mask is None else batch.source_mask
        seen.add(encoder, filled, torch.arange(source.shape[1], device=source.device).expand_as(source))
    return probe(*seen.all(), seed=seed)


def decoder_count(model: RecurrentModel, batches: Iterable[Batch], *, seed: int = 0) -> CountProbes:
    """S0's second claim: the decoder counts. Read off its states under teacher forcing, where a token is asked for."""
    so_far, remaining = _StateCollector(), _StateCollector()
    for batch, _, decoder in _states(model, batches):
        targeted = batch.targets != IGNORE
        step = targeted.long().cumsum(1) - 1
        so_far.add(decoder, targeted, step)
        remaining.add(decoder, targeted, targeted.sum(1, keepdim=True) - 1 - step)
    return CountProbes(probe(*so_far.all(), seed=seed), probe(*remaining.all(), seed=seed))


# ---- states of a model


class _StateCollector:
    """States, numbers and the sequences they are of, batch after batch."""

    def __init__(self) -> None:
        self.states: list[Array] = []
        self.targets: list[Array] = []
        self.groups: list[NDArray[np.int64]] = []
        self.rows = 0

    def add(self, states_BTD: torch.Tensor, chosen_BT: torch.Tensor, targets_BT: torch.Tensor) -> None:
        rows = torch.arange(len(chosen_BT), device=chosen_BT.device)[:, None].expand_as(chosen_BT) + self.rows
        self.states.append(states_BTD[chosen_BT].double().cpu().numpy())
        self.targets.append(targets_BT[chosen_BT].double().cpu().numpy())
        self.groups.append(rows[chosen_BT].cpu().numpy())
        self.rows += len(chosen_BT)

    def all(self) -> tuple[Array, Array, NDArray[np.int64]]:
        if not self.states:
            raise BadInput("no batches to probe: give some, of held-out examples")
        return np.concatenate(self.states), np.concatenate(self.targets), np.concatenate(self.groups)


def _states(model: RecurrentModel, batches: Iterable[Batch]) -> Iterable[tuple[Batch, torch.Tensor, torch.Tensor]]:
    device, training = model.device, model.training
    model.eval()  # dropout would be noise on the states
    try:
        for cpu_batch in batches:
            batch = cpu_batch.to(device)
            if batch.targets.dim() != 2:
                raise BadInput(f"targets have shape {tuple(batch.targets.shape)}: a probe needs one for each token")
            with torch.no_grad():
                states = model.states(batch.tokens, source=_source(batch), source_mask=batch.source_mask)
            yield batch, states.encoder_BSD, states.decoder_BTD
    finally:
        model.train(training)


def _source(batch: Batch) -> torch.Tensor:
    if batch.source is None:
        raise BadInput("a batch without a source: an encoder-decoder reads one; collate the data for a recurrent model")
    return batch.source


# ---- ridge regression


@dataclass(frozen=True, eq=False)
class _RidgeFit:
    weights: Array
    bias: float
    penalty: float


def _ridge(x: Array, y: Array, penalties: Sequence[float]) -> list[_RidgeFit]:
    """The fits for several penalties: one decomposition does for all. Features are put to variance 1 first."""
    middle, spread = x.mean(0), x.std(0)
    spread = np.where(spread > 1e-12 * max(1.0, float(np.abs(x).max())), spread, np.inf)  # one that never changes: 0
    z = (x - middle) / spread
    values, vectors = np.linalg.eigh(z.T @ z)
    along = vectors.T @ (z.T @ (y - y.mean()))
    lines = []
    for penalty in penalties:
        weights = vectors @ (along / (np.maximum(values, 0.0) + penalty * len(x))) / spread
        lines.append(_RidgeFit(weights, float(y.mean() - middle @ weights), penalty))
    return lines


def _fit(x: Array, y: Array, fold: NDArray[np.int64]) -> _RidgeFit:
    """The fit with the penalty that predicts best across the folds that are there."""
    errors = np.zeros(len(PENALTIES))
    for k in np.unique(fold):
        out = fold == k
        for i, line in enumerate(_ridge(x[~out], y[~out], PENALTIES)):
            errors[i] += float(((x[out] @ line.weights + line.bias - y[out]) ** 2).sum())
    return _ridge(x, y, [PENALTIES[int(errors.argmin())]])[0]


def _held_out(x: Array, y: Array, fold: NDArray[np.int64]) -> Array:
    """For every state the prediction of a fit, penalty included, that has seen nothing of its fold."""
    predicted = np.empty_like(y)
    for k in np.unique(fold):
        out = fold == k
        line = _fit(x[~out], y[~out], fold[~out])
        predicted[out] = x[out] @ line.weights + line.bias
    return predicted


def _r2(y: Array, predicted: Array) -> float:
    return float(1.0 - ((y - predicted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _interval(y: Array, predicted: Array, groups: NDArray[np.int64], rng: np.random.Generator) -> tuple[float, float]:
    """95 % of R² over sequences drawn again with replacement."""
    n = int(groups.max()) + 1
    wrong, count = np.bincount(groups, (y - predicted) ** 2, n), np.bincount(groups, minlength=n)
    total, squares = np.bincount(groups, y, n), np.bincount(groups, y**2, n)
    drawn = rng.multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)
    variance = drawn @ squares - (drawn @ total) ** 2 / (drawn @ count)
    r2 = 1.0 - (drawn @ wrong)[variance > 0] / variance[variance > 0]
    low, high = np.quantile(r2, [0.025, 0.975])
    return float(low), float(high)


def _spread(sequences: int) -> NDArray[np.int64]:
    return np.arange(sequences) % FOLDS


def _checked(states_ND: ArrayLike, targets_N: ArrayLike, groups_N: ArrayLike) -> tuple[Array, Array, NDArray[np.int64]]:
    x, y = np.asarray(states_ND, np.float64), np.asarray(targets_N, np.float64)
    labels = np.asarray(groups_N)
    if x.ndim != 2 or y.shape != (len(x),) or labels.shape != (len(x),):
        raise BadInput(
            f"states {x.shape}, targets {y.shape}, groups {labels.shape}: give (N, D), (N,) and (N,), one row a state"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise BadInput("states or targets are not finite: a model that has diverged has nothing to probe")
    groups = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    least = 2 * FOLDS
    if len(x) == 0 or int(groups.max()) + 1 < least:
        sequences = 0 if len(x) == 0 else int(groups.max()) + 1
        raise BadInput(f"states of {sequences} sequences: give at least {least}, so that some can be held out")
    if float(y.std()) == 0.0:
        raise BadInput(f"every target is {y[0]}: there is nothing to explain; use sequences of more than one token")
    return x, y, groups
