"""How well a learner does on what it was not trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from vantage.training.batch import IGNORE, Batch
from vantage.training.learners import losses
from vantage.training.log import ScoreRecord


@torch.no_grad()
def evaluate(
    learner: nn.Module,
    logits: Callable[[Batch], Tensor],
    sets: Mapping[str, Sequence[Batch]],
    step: int,
    device: torch.device,
) -> list[ScoreRecord]:
    """Every set's loss and accuracy; ``logits`` is how the learner is called.

    A row is exact if every target is the likeliest token, given the right ones before it. That is the same as
    greedy decoding giving exactly the answer: the first wrong token is wrong in both.
    """
    training, _ = learner.training, learner.eval()
    try:
        return [_score(logits, name, batches, step, device) for name, batches in sets.items()]
    finally:
        learner.train(training)


def _score(
    call: Callable[[Batch], Tensor], name: str, batches: Sequence[Batch], step: int, device: torch.device
) -> ScoreRecord:
    loss = torch.zeros((), dtype=torch.float64, device=device)
    right = count = torch.zeros((), dtype=torch.long, device=device)
    exact, groups = [], []
    for batch in batches:
        batch = batch.to(device)
        logits = call(batch)
        targets, predicted = batch.targets, logits.argmax(-1)
        counted = targets != IGNORE
        good = (predicted == targets) | ~counted
        loss += losses(logits, targets).double()
        right, count = right + (good & counted).sum(), count + counted.sum()
        exact += good.reshape(len(good), -1).all(1).tolist()
        groups += batch.groups or [""] * len(good)
    apart: dict[str, list[bool]] = defaultdict(list)
    for group, good in zip(groups, exact, strict=True):
        apart[group].append(good)
    shares = {group: sum(good) / len(good) for group, good in sorted(apart.items()) if group}
    n = max(int(count), 1)
    return ScoreRecord(step, name, float(loss) / n, int(right) / n, sum(exact) / max(len(exact), 1), len(exact), shares)
