"""A brief training of a rescaled model: thin adapters, long rows, nothing else changed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vantage.compare.extension.measure import declared_length
from vantage.compare.extension_settings import ExtensionSettings
from vantage.families.adapter_files import CONFIG
from vantage.families.adapters import load_adapter, save_adapter
from vantage.model import Model
from vantage.model.lora import Lora, adapted, add_lora
from vantage.training.batch import random
from vantage.training.compiled import recompute

SLICE_TOKENS = 1024  # tokens whose logits are there at once
KEPT_TOKENS = 1024  # tokens of a row up to which activations are kept, not computed again
WARMUP = 0.1
OnStep = Callable[[int, float], None]  # a step is done, with this loss


def adapt(model: Model, tokens: Tensor, settings: ExtensionSettings, row: int, folder: Path, on_step: OnStep) -> int:
    """Train adapters on rows of ``tokens`` and keep them in the folder, or take them from there. Their parameters."""
    if (folder / CONFIG).exists():
        load_adapter(model, folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # a half that a kill left
        add_lora(model, Lora(settings.lora_rank, 2.0 * settings.lora_rank, targets=("attention",)), seed=settings.seed)
        _train(model, tokens, settings, row, on_step)
        save_adapter(model, folder, base=settings.model)
    model.eval()
    return sum(p.numel() for module in adapted(model).values() for part in module.parts for p in part.parameters())


def _train(model: Model, tokens: Tensor, settings: ExtensionSettings, row: int, on_step: OnStep) -> None:
    device = model.device
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=settings.lora_rate, betas=(0.9, 0.95), weight_decay=0.0)
    if row > KEPT_TOKENS:
        recompute(list(model.blocks))
    model.train()
    try:
        for step in range(settings.lora_steps):
            for group in optimiser.param_groups:
                group["lr"] = settings.lora_rate * _share(step, settings.lora_steps)
            starts = random(settings.seed, step).integers(len(tokens) - row, size=settings.lora_batch).tolist()
            total = 0.0
            for start in starts:
                loss = _loss(model, tokens[None, start : start + row + 1].to(device)) / len(starts)
                loss.backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            on_step(step + 1, total)
    finally:
        if row > KEPT_TOKENS:
            for block in model.blocks:
                del block.forward  # recompute put its own there, on the block itself


def _share(step: int, steps: int) -> float:
    warm = max(1, round(steps * WARMUP))
    if step < warm:
        return (step + 1) / warm
    return (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def _loss(model: Model, row_1T: Tensor) -> Tensor:
    """The mean loss of a row, its logits a slice at a time: of 65,536 tokens at once they would be gigabytes."""
    hidden = model.hidden(row_1T[:, :-1], length=declared_length(model, row_1T.shape[1] - 1))
    targets, total = row_1T[0, 1:], hidden.new_zeros((), dtype=torch.float32)
    for at in range(0, len(targets), SLICE_TOKENS):
        part = checkpoint(
            _summed, model, hidden[0, at : at + SLICE_TOKENS], targets[at : at + SLICE_TOKENS], use_reentrant=False
        )
        assert isinstance(part, Tensor)
        total = total + part
    return total / len(targets)


def _summed(model: Model, hidden_TD: Tensor, targets_T: Tensor) -> Tensor:
    return F.cross_entropy(model.head(hidden_TD[None])[0].float(), targets_T, reduction="sum")
