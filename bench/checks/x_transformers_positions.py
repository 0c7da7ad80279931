"""What x-transformers does with positions: ``python bench/checks/x_transformers_positions.py`` where it is installed.

Whether a decoder with ALiBi has learned absolute positions besides, and by how much decoding with its cache differs
from one pass, for three encodings. Prints JSON; ``bench/kept/checks`` holds what it printed, with machine and date.
"""

from __future__ import annotations

import json
from importlib import metadata

import torch
from x_transformers import Decoder, TransformerWrapper

ENCODINGS = {"rope": {"rotary_pos_emb": True}, "alibi": {"alibi_pos_bias": True}, "t5": {"rel_pos_bias": True}}


def wrapper(encoding: str) -> TransformerWrapper:
    torch.manual_seed(0)
    layers = Decoder(dim=64, depth=2, heads=4, **ENCODINGS[encoding])
    return TransformerWrapper(num_tokens=64, max_seq_len=64, attn_layers=layers).eval()


@torch.inference_mode()
def cached_difference(encoding: str) -> float:
    net, tokens = wrapper(encoding), torch.arange(24)[None]
    out, cache = net(tokens[:, :12], return_intermediates=True)
    outs = [out]
    for end in range(13, 25):
        out, cache = net(tokens[:, :end], cache=cache, return_intermediates=True)
        outs.append(out[:, -1:])
    return float((torch.cat(outs, 1) - net(tokens)).abs().max())


print(
    json.dumps(
        {
            "version": metadata.version("x-transformers"),
            "learned positions besides ALiBi": type(wrapper("alibi").pos_emb).__name__ == "AbsolutePositionalEmbedding",
            "cached less uncached, at most": max(cached_difference(name) for name in ENCODINGS),
        }
    )
)
