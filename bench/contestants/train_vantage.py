"""A training step of ours: the loss, the backward pass and the optimiser that ``vantage train`` uses."""

import torch
from train_shape import BETAS, DECAY, HEADS, LAYERS, PARAMETERS, RATE, TOKENS, VOCAB, WIDTH, text, timed

import vantage as vt
from vantage.model.norms import LayerNorm
from vantage.training.batch import Batch
from vantage.training.compiled import compiled_loss, loss_of
from vantage.training.learners import TokenLearner
from vantage.training.memory import keep_freed_memory
from vantage.training.optimise import AdamW


def setup(compiled: bool) -> None:
    global loss, optimiser, batch, memory
    spec = vt.decoder(
        vocab=VOCAB,
        width=WIDTH,
        layers=LAYERS,
        attention=vt.GroupedQuery(HEADS, bias=True, out_bias=True),
        position="learned",
        max_length=TOKENS,
        ffn="gelu",
        norm=LayerNorm(),
        tied=True,
    )
    learner = TokenLearner(vt.build(spec)).train()
    if (count := sum(p.numel() for p in learner.parameters())) != PARAMETERS:
        raise ValueError(f"this model has {count:,} parameters; the others have {PARAMETERS:,}")
    optimiser = AdamW(RATE, BETAS, weight_decay=DECAY).build(learner)
    loss = compiled_loss(learner, 0.0, refuse) if compiled else loss_of(learner, 0.0)
    batch = Batch(*text())
    memory = keep_freed_memory(torch.device("cpu"))  # to the end
    memory.__enter__()


def refuse(note: str) -> None:
    raise RuntimeError(note)  # it would be measured as compiled, and is not


def train() -> torch.Tensor:
    mean = loss(batch) / batch.targets.numel()
    mean.backward()
    optimiser.step()
    optimiser.zero_grad()
    return mean.detach()


def round() -> dict[str, object]:
    return timed(train)
