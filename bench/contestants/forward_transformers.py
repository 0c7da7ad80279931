"""The same forward pass in transformers, with its sdpa attention."""

import sys
from pathlib import Path
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from shapes import HEADS, HIDDEN, LAYERS, VOCAB, WIDTH


def llama(positions: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=positions,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def setup(tokens: int = 1024) -> None:
    global model, batch
    model = llama(tokens)
    batch = torch.randint(VOCAB, (1, tokens), generator=torch.Generator().manual_seed(0))


def round() -> dict[str, list[float]]:
    with torch.inference_mode():
        start = perf_counter()
        model(batch, use_cache=False)
        return {"seconds": [perf_counter() - start]}
