"""A learner is a module from a batch to logits: what the loop trains, whatever the model and the objective.

Every objective here is the same sum: the cross-entropy of the logits against the batch's targets. Next token, masked
token, sequence to sequence and classification differ in what a batch holds and in which module reads it.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vantage.errors import BadInput
from vantage.model import Model
from vantage.model.recurrent import RecurrentModel
from vantage.spec.parts import INIT_STD, EncoderOutput
from vantage.spec.positions import Positions
from vantage.training.batch import IGNORE, Batch

TRITON = find_spec("triton") is not None


class TokenLearner(nn.Module):
    """A decoder that predicts the next token, or an encoder with a head that predicts the hidden one."""

    whole_rows = False  # whether logits need all tokens of a row

    def __init__(self, model: Model):
        super().__init__()
        if model.spec.head is None:
            raise BadInput("this model has no head to predict tokens with: train it as a classifier, or give it a head")
        self.core = model

    def forward(self, batch: Batch) -> Tensor:
        return self.core(**self.inputs(batch))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model is given."""
        return {"tokens": batch.tokens, "positions": batch.positions}

    def outputs(self, hidden_BTD: Tensor, batch: Batch) -> Tensor:
        """Logits of these hidden states."""
        return self.core.head(hidden_BTD)


class PairLearner(nn.Module):
    """An encoder-decoder: reads the source, predicts the target."""

    whole_rows = False

    def __init__(self, model: Model):
        super().__init__()
        if model.encoder is None:
            raise BadInput("pairs need an encoder-decoder: this model has no encoder")
        self.core = model

    def forward(self, batch: Batch) -> Tensor:
        return self.core(**self.inputs(batch))

    def inputs(self, batch: Batch) -> dict[str, Any]:
        source: Tensor | EncoderOutput | None = batch.source
        if batch.source is not None and batch.source_mask is not None:
            source = self.core.encode(batch.source, mask=batch.source_mask)
        return {"tokens": batch.tokens, "positions": batch.positions, "source": source}

    def outputs(self, hidden_BTD: Tensor, batch: Batch) -> Tensor:
        return self.core.head(hidden_BTD)


class RecurrentLearner(nn.Module):
    """A recurrent encoder-decoder."""

    def __init__(self, model: RecurrentModel):
        super().__init__()
        self.core = model

    def forward(self, batch: Batch) -> Tensor:
        if batch.source is None:
            raise BadInput("a recurrent model reads pairs: these batches have no source")
        return self.core(batch.tokens, source=batch.source, source_mask=batch.source_mask)


class Classifier(nn.Module):
    """One class for each row, from the mean of the hidden states of its tokens or from the last of them."""

    whole_rows = True

    def __init__(self, model: Model, classes: int, pool: str = "mean", seed: int = 0):
        super().__init__()
        if pool not in ("mean", "first", "last"):
            raise BadInput(f"pool={pool!r}: use 'mean', 'first' or 'last'")
        self.core, self.pool = model, pool
        self.labels: tuple[str, ...] = ()  # what the classes are called, once that is known
        self.classes = nn.Linear(model.spec.width, classes)
        nn.init.normal_(self.classes.weight, std=INIT_STD, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.classes.bias)

    def forward(self, batch: Batch) -> Tensor:
        return self.outputs(self.core.hidden(**self.inputs(batch)), batch)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {"tokens": batch.tokens, "positions": batch.positions}

    def outputs(self, hidden_BTD: Tensor, batch: Batch) -> Tensor:
        return self.classes(self._pooled(hidden_BTD, batch.positions))

    @torch.inference_mode()
    def classify(self, text: str) -> str:
        """The label of a text, by the tokenizer that the model was trained with. Put it in eval() first."""
        if self.core.tokenizer is None or not self.labels:
            raise BadInput("this classifier has no tokenizer or no labels: load one that was trained (load_classifier)")
        tokens = torch.tensor([self.core.tokenizer.encode(text)], device=self.core.device)
        return self.labels[int(self(Batch(tokens, tokens)).argmax(-1))]

    def _pooled(self, hidden_BTD: Tensor, positions: Positions | None) -> Tensor:
        if positions is None:
            ways = {"mean": hidden_BTD.mean(1), "first": hidden_BTD[:, 0], "last": hidden_BTD[:, -1]}
            return ways[self.pool]
        filled = positions.filled
        if self.pool == "mean":
            return (hidden_BTD * filled[..., None]).sum(1) / filled.sum(1, keepdim=True)
        order = positions.order.masked_fill(~filled, -1 if self.pool == "last" else torch.iinfo(torch.long).max)
        at = order.argmax(1) if self.pool == "last" else order.argmin(1)
        return hidden_BTD[torch.arange(len(at), device=at.device), at]


Learner = TokenLearner | PairLearner | RecurrentLearner | Classifier  # ``core`` is the model that is trained


def losses(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The sum of the cross-entropies (nats) of all targets that are asked for, in float32.

    ``smoothing`` is the share of each target that is spread over all tokens (Szegedy et al. 2015).
    """
    flat, flat_targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if TRITON and flat.is_cuda and flat.dtype in (torch.bfloat16, torch.float16) and not smoothing:
        from vantage.training.cross_entropy import cross_entropy  # what it needs is not everywhere

        return cross_entropy(flat, flat_targets)
    return F.cross_entropy(flat.float(), flat_targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
