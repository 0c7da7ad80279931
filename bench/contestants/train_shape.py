"""The one shape that all of them train: GPT-2's, small; and the tokens."""

from collections.abc import Callable
from time import perf_counter

import torch

LAYERS, WIDTH, HEADS, VOCAB = 4, 256, 4, 256
ROWS, TOKENS = 16, 256
PARAMETERS = 3_290_624  # with the head tied, and biases everywhere but there
RATE, BETAS, DECAY = 1e-4, (0.9, 0.95), 0.1
STEPS = 4  # of a round, of which the first is not counted: after the others' turns its caches are cold


def text() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the tokens after them."""
    drawn = torch.randint(VOCAB, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """What the peers step with: torch's fastest, with weight decay on matrices only."""
    if (count := sum(p.numel() for p in model.parameters())) != PARAMETERS:
        raise ValueError(f"this model has {count:,} parameters; the others have {PARAMETERS:,}")
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, RATE, BETAS, fused=True)


def timed(step: Callable[[], torch.Tensor]) -> dict[str, object]:
    """A round: the seconds of its steps, and the last loss."""
    seconds, loss = [], 0.0
    for _ in range(STEPS):
        start = perf_counter()
        loss = step().item()
        seconds.append(perf_counter() - start)
    return {"seconds": seconds[1:], "loss": loss}
