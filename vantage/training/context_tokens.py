"""Training with the tokens of a row over several processes: each computes the loss of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vantage.errors import Refused
from vantage.model import Model
from vantage.parallel import ContextParallel, ContextShare
from vantage.training.batch import IGNORE, Batch
from vantage.training.learners import Learner, losses


class ContextTokens:
    """A learner whose passes go over the processes of a group. ``logits`` and ``loss`` take the learner's place.

    The learner's own ``forward`` is replaced, so that no parameter's name changes and FSDP2's hooks stay around it.
    """

    def __init__(self, learner: Learner, parallel: ContextParallel, smoothing: float):
        if not isinstance(learner.core, Model):
            raise Refused("parallel.context is for transformers: a recurrent model reads one token after the other")
        self.learner: Any = learner
        self.parallel, self.smoothing = parallel, smoothing
        self._share: ContextShare | None = None  # of the last pass
        learner.forward = self._forward

    def logits(self, batch: Batch) -> Tensor:
        """As the learner alone gives them: of all tokens, in every process."""
        own = self.learner(batch)
        return own if self.learner.whole_rows else self._last().whole(own)

    def loss(self, batch: Batch) -> Tensor:
        """This process's part of the summed loss: that of its tokens, or its share of a loss that all have."""
        own, wire = self.learner(batch), self.parallel.wire
        if self.learner.whole_rows:
            return losses(own, batch.targets, self.smoothing) / wire.size
        return losses(own, self._last().take(batch.targets, fill=IGNORE), self.smoothing)

    def _forward(self, batch: Batch) -> Tensor:
        learner, wire = self.learner, self.parallel.wire
        given = learner.inputs(batch)
        # drawn positions are the same in all processes of a row, what is dropped of its tokens is not
        positions = learner.core.place(given["tokens"], given["positions"], None, None, None)
        if learner.training and wire.rank:
            torch.manual_seed(torch.initial_seed() + wire.rank)
        share = self.parallel.hidden(learner.core, **given | {"positions": positions})
        self._share = share._replace(hidden=share.hidden.detach()[:, :0])  # how it was cut, and no activations
        return learner.outputs(share.whole(share.hidden) if learner.whole_rows else share.hidden, batch)

    def _last(self) -> ContextShare:
        assert self._share is not None
        return self._share
