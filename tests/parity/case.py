"""A tiny random model of a family, made by transformers, with the options that its config allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode

VOCAB = 67


@dataclass(frozen=True)
class Case:
    """A transformers class and config; ``options`` are switched on one at a time."""

    family: str
    model: str  # the transformers class
    config: str  # its config class
    base: dict[str, Any]
    options: dict[str, dict[str, Any]]
    kind: str = "decoder"  # which test runs it: "decoder", "encoder", "image" or "encoder-decoder"
    computed: tuple[str, ...] = ()  # buffers that are saved though they follow from the config

    def ids(self) -> list[str]:
        return [f"{self.family}-{name}" for name in ("plain", *self.options)]

    def make(self, option: str) -> Any:
        """The model, with weights sharp enough that a mistake shows."""
        changes = {} if option == "plain" else self.options[option]
        config = getattr(transformers, self.config)(**{**self.base, **changes})
        config._experts_implementation = "eager"  # their grouped product knows no float64
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(transformers, self.model)(config).eval()
            sharpen(model, self.computed)
        return model


class Float64(TorchFunctionMode):
    """What is rounded to float32 inside a model of float64 (a delta rule's products, which add up) is not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        wide = {torch.float32: torch.float64}
        func = torch.Tensor.double if func is torch.Tensor.float else func
        args = tuple(wide.get(a, a) if isinstance(a, torch.dtype) else a for a in args)
        kwargs = {key: wide.get(v, v) if isinstance(v, torch.dtype) else v for key, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


def sharpen(model: Any, computed: tuple[str, ...] = ()) -> None:
    """Far from the near-zero weights of a fresh model; biases and norms are moved as well."""
    with torch.no_grad():
        for p in model.parameters():
            if not p.requires_grad:  # a table of sines
                continue
            p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5 if p.dim() > 1 else p + 0.1 * torch.randn_like(p))
        saved = model.state_dict()  # buffers that are saved count as weights (DeepSeek-V3's router bias)
        for name, b in model.named_buffers():
            if name in saved and b.is_floating_point() and name.rpartition(".")[2] not in computed:
                b.add_(0.1 * torch.randn_like(b))


DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
THETA = {"rope_theta": 10000.0}
# past the original length while 64 tokens are generated
SHORT = {**THETA, "original_max_position_embeddings": 32}


def rope_options(pairs: int) -> dict[str, dict[str, Any]]:
    """Every frequency rule as an option of a config, for heads of so many pairs."""
    steps = [0.1 * i for i in range(pairs)]
    rules = {
        "theta": {"rope_type": "default", "rope_theta": 500.0},
        "linear": {"rope_type": "linear", "factor": 4.0, **THETA},
        "dynamic": {"rope_type": "dynamic", "factor": 4.0, **THETA},
        "yarn": {"rope_type": "yarn", "factor": 4.0, **SHORT},
        "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SHORT},
        "longrope": {
            "rope_type": "longrope",
            "short_factor": [1.0 + step for step in steps],
            "long_factor": [2.0 + 2 * step for step in steps],
            "factor": 4.0,
            **SHORT,
        },
    }
    options: dict[str, dict[str, Any]] = {name: {"rope_parameters": rule} for name, rule in rules.items()}
    options["dynamic"]["max_position_embeddings"] = 32
    return options
