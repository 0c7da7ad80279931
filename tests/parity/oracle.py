"""What the oracle tests share: a checkpoint written by hand, and equal with and without a cache.

A family that was never published, or that transformers does not have, is compared with its equations, written
once more in the test: plain float64 functions of the checkpoint's tensors, without a line of the library.
"""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

import vantage as vt

VOCAB = 61
TOKENS = torch.randint(0, VOCAB, (2, 40), generator=torch.Generator().manual_seed(5))


def random_tensors(shapes):
    """Weights sharp enough that a mistake shows; vectors lie around 1 (norms)."""
    gen = torch.Generator().manual_seed(11)

    def one(shape):
        noise = torch.randn(shape, generator=gen)
        return noise * shape[-1] ** -0.5 if len(shape) > 1 else 1 + 0.1 * noise

    return {name: one(shape) for name, shape in shapes.items()}


def write(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.no_grad()
def check(folder, oracle, tokens=TOKENS):
    """``oracle`` takes tensors in float64 and tokens to logits: with our model's it must agree in every way."""
    plain = vt.load(folder)
    ours = vt.load(folder, dtype=torch.float64)
    wanted = oracle(tokens)
    size = wanted.abs().max()
    assert float((ours(tokens) - wanted).abs().max() / size) < 1e-10
    assert float((plain(tokens) - wanted).abs().max() / size) < 1e-4
    cache = ours.new_cache(len(tokens))  # an uneven first piece, then one by one
    pieces = [ours(tokens[:, :7], cache=cache), *(ours(t, cache=cache) for t in tokens[:, 7:].split(1, 1))]
    assert float((torch.cat(pieces, 1) - wanted).abs().max() / size) < 1e-10
    vt.save(plain, folder.with_name("again"))
    again = vt.load(folder.with_name("again"))
    for (name, a), (_, b) in zip(plain.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a, b), name
