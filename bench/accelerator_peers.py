"""Others' models of the same shapes at batch 1, compiled, for ``python -m bench.accelerator_generation``."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

HEADS, KV_HEADS, VOCAB = 32, 8, 128_256
HELD, STEPS, ROUNDS = 512, 32, 7


class PeerMissing(Exception):
    """A peer that is not where it was looked for."""


class PeerRate(NamedTuple):
    """Tokens a second: the median, the lowest and the highest."""

    what: str
    tokens_per_second: float
    lowest: float
    highest: float


def timed(what: str, run: Callable[[int], object]) -> PeerRate:
    """``run`` takes so many steps."""
    rates = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run(STEPS)
        torch.cuda.synchronize()
        rates.append(STEPS / (time.perf_counter() - begun))
    return PeerRate(what, statistics.median(rates), min(rates), max(rates))


def gpt_fast(shape: tuple[int, int, int], folder: Path) -> PeerRate:
    """Its model code with a static cache."""
    file = folder / "model.py"
    where = importlib.util.spec_from_file_location("gpt_fast_model", file) if file.exists() else None
    if where is None or where.loader is None:
        raise PeerMissing(f"gpt-fast is not in {folder}: a folder with its model.py is wanted")
    code: Any = importlib.util.module_from_spec(where)
    sys.modules[where.name] = code  # torch's compiler imports it by its name
    where.loader.exec_module(code)
    width, hidden, layers = shape
    args = code.ModelArgs(
        block_size=2048, vocab_size=VOCAB, n_layer=layers, n_head=HEADS, dim=width, intermediate_size=hidden,
        n_local_heads=KV_HEADS,
    )  # fmt: skip
    with torch.device("cuda"):
        model = code.Transformer(args).to(torch.bfloat16).eval()
        model.setup_caches(1, 2 * HELD)
    call = step_of(model)
    token, position = torch.tensor([[1]], device="cuda"), torch.tensor([HELD], device="cuda")

    def run(steps: int) -> None:
        nonlocal token, position
        for _ in range(steps):
            token = call(token, position).clone()
            position = position + 1

    run(5)
    return timed("gpt-fast, batch 1", run)


def step_of(model: Any) -> Any:
    """A step as its published loop takes it: the row of a causal block mask in which the token stands."""
    from torch.nn.attention.flex_attention import create_block_mask

    length = model.max_seq_length
    whole = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, length, length, device="cuda")

    def step(token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        mask: Any = whole[:, :, position // whole.BLOCK_SIZE[0]]
        mask.mask_mod, mask.seq_lengths = whole.mask_mod, (1, length)
        return model(mask, token, position)[:, -1:].argmax(-1)

    return torch.compile(step, mode="reduce-overhead", fullgraph=True)


def transformers_static(shape: tuple[int, int, int], folder: str) -> PeerRate:
    """Its own ``generate`` with a static cache, which compiles the steps."""
    if folder:
        sys.path.insert(0, folder)
    try:
        code: Any = importlib.import_module("transformers")
    except ImportError as why:
        raise PeerMissing(f"transformers is not {f'in {folder}' if folder else 'installed'}: {why}") from why
    width, hidden, layers = shape
    config = code.LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=8192,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = code.LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    prompt = torch.full((1, HELD), 5, device="cuda")

    def seconds(tokens: int) -> float:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens,
            do_sample=False, cache_implementation="static", pad_token_id=0, eos_token_id=VOCAB - 1,
        )  # fmt: skip
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    long = 5 * STEPS
    seconds(long)
    rates = [(long - STEPS) / (seconds(long) - seconds(STEPS)) for _ in range(3)]
    what = f"transformers {code.__version__}, static cache, batch 1"
    return PeerRate(what, statistics.median(rates), min(rates), max(rates))
