"""Quantised blocks: what the ``gguf`` package reads back from them, and how far it is from what went in."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from torch import Tensor

from vantage.checkpoints.gguf_mixes import MIXES, SMALLER_BLOCKS, TensorLocation, block_size, type_of
from vantage.checkpoints.gguf_quantise import ENCODERS, PLAIN, quantise
from vantage.errors import BadInput

# The error of normally distributed weights, as a share of their size: a little more than what llama.cpp's quantiser
# leaves (0.0861, 0.0785, 0.0427, 0.0379, 0.0054, 0.0762, 0.0766, 0.1146, 0.298, 0.151, 0.0716, 0.0362, 0.0178).
ERRORS = {
    "Q4_0": 0.086,
    "Q4_1": 0.075,
    "Q5_0": 0.0425,
    "Q5_1": 0.036,
    "Q8_0": 0.0055,
    "IQ4_NL": 0.077,
    "IQ4_XS": 0.077,
    "MXFP4": 0.113,
    "Q2_K": 0.29,
    "Q3_K": 0.151,
    "Q4_K": 0.0725,
    "Q5_K": 0.0365,
    "Q6_K": 0.0178,
}


def read_back(weight: Tensor, kind: str) -> Tensor:
    return torch.from_numpy(dequantize(quantise(weight, kind).numpy(), GGMLQuantizationType[kind]))


def weights(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def test_every_type_is_measured():
    assert set(ERRORS) == set(ENCODERS)


@pytest.mark.parametrize("kind", ERRORS)
def test_the_error_is_llama_cpps_or_less(kind):
    x = weights(64, 1024)
    error = (read_back(x, kind) - x).pow(2).mean().sqrt() / x.pow(2).mean().sqrt()
    assert 0.8 * ERRORS[kind] < error < ERRORS[kind]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_no_worse_than_the_gguf_packages_quantiser(kind):
    """Which takes the largest weight for the scale, without a search."""
    x = weights(32, 512, seed=1) ** 3
    theirs = torch.from_numpy(dequantize(quantize(x.numpy(), GGMLQuantizationType[kind]), GGMLQuantizationType[kind]))
    weighted = [(x.abs() * (y - x) ** 2).sum() for y in (read_back(x, kind), theirs)]
    assert weighted[0] <= weighted[1] * 1.001


@pytest.mark.parametrize("kind", ERRORS)
def test_rows_that_a_type_holds_exactly(kind):
    """Zeros stay zeros; a constant comes back to the precision of the scales, which in MXFP4 are powers of two."""
    size = block_size(kind)
    assert torch.equal(read_back(torch.zeros(2, size), kind), torch.zeros(2, size))
    for value in (0.37, -0.37, 3e-3):
        constant = torch.full((1, size), value)
        # a small scale of a scale is no normal float16 any more
        precision = 0.2 if kind == "MXFP4" else 5e-2 if value == 3e-3 else 2e-3
        assert torch.allclose(read_back(constant, kind), constant, rtol=precision, atol=0), value


@pytest.mark.parametrize("kind", ERRORS)
def test_one_large_weight_among_zeros(kind):
    x = torch.zeros(3, 256)
    x[0, 5], x[1, 200], x[2, 255] = 1.5, -2.5, 0.25
    y = read_back(x, kind)
    # 0 is no value of IQ4, and 5 none of MXFP4
    assert torch.allclose(y, x, rtol=0.2 if kind == "MXFP4" else 0.02, atol=0.12 if kind.startswith("IQ4") else 1e-3)


@pytest.mark.parametrize("kind", ERRORS)
def test_blocks_do_not_depend_on_each_other_nor_on_the_slices(kind, monkeypatch):
    x = weights(6, 512, seed=2)
    whole = quantise(x, kind)
    monkeypatch.setattr("vantage.checkpoints.gguf_quantise.CHUNK_WEIGHTS", 512)
    assert torch.equal(quantise(x, kind), whole)
    assert torch.equal(torch.cat([quantise(row, kind) for row in x.split(1)]), whole)
    assert torch.equal(quantise(x.view(2, 3, 512), kind).view(6, -1), whole)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_types_are_rounded_and_nothing_else(kind):
    x = weights(3, 40)
    assert torch.equal(quantise(x, kind).view(PLAIN[kind]), x.to(PLAIN[kind]))


def test_progress_reaches_the_end():
    heard: list[int] = []
    quantise(weights(8, 2**16), "Q8_0", heard.append)
    assert heard == sorted(heard)
    assert len(heard) > 1
    assert heard[-1] == 8 * 2**16


def test_what_cannot_be_quantised_is_refused():
    with pytest.raises(BadInput, match="Q9_K"):
        quantise(weights(1, 256), "Q9_K")
    with pytest.raises(BadInput, match="blocks of 256, and these have 288"):
        quantise(weights(1, 288), "Q4_K")
    for wrong in (float("nan"), float("inf")):
        x = weights(2, 256)
        x[1, 7] = wrong
        with pytest.raises(BadInput, match="NaN or infinity"):
            quantise(x, "Q4_K")
    with pytest.raises(BadInput, match="too large for F16"):
        quantise(torch.full((1, 4), 1e5), "F16")


# ---- mixes


def types(mix: str, layers: int, name: str, width: int = 512, share: int = 1) -> list[str]:
    return [
        type_of(f"blk.{i}.{name}.weight", (64, width), MIXES[mix], TensorLocation(i, layers, share), tied=False)
        for i in range(layers)
    ]


def test_more_bits_where_errors_cost_most():
    """In 16 layers: the first and last eighth, and every third between."""
    six = [0, 1, 4, 7, 10, 13, 14, 15]
    assert [i for i, kind in enumerate(types("Q4_K_M", 16, "ffn_down")) if kind == "Q6_K"] == six
    assert [i for i, kind in enumerate(types("Q5_K_M", 16, "attn_v")) if kind == "Q6_K"] == six
    assert set(types("Q4_K_M", 16, "attn_q")) == {"Q4_K"}
    assert set(types("Q2_K", 4, "attn_v", share=1)) == {"Q3_K"}
    assert set(types("Q2_K", 4, "attn_v", share=4)) == {"Q4_K"}


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_has_six_bits(tied):
    place = TensorLocation(0, 4, 1)
    embedding = type_of("token_embd.weight", (99, 512), MIXES["Q4_K_M"], place, tied=tied)
    assert embedding == ("Q6_K" if tied else "Q4_K")
    assert type_of("output.weight", (99, 512), MIXES["Q4_0"], place, tied=tied) == "Q6_K"
    assert type_of("output.weight", (99, 512), MIXES["Q8_0"], place, tied=tied) == "Q8_0"
    assert type_of("output.weight", (99, 576), MIXES["Q4_K_M"], place, tied=tied) == "Q8_0"


@pytest.mark.parametrize(("kind", "smaller"), SMALLER_BLOCKS.items())
def test_rows_that_are_no_multiple_of_256_fall_back(kind, smaller):
    mix = next(mix for mix in MIXES.values() if mix.base == kind)
    place = TensorLocation(0, 4, 1)
    for width, wanted in ((512, kind), (576, smaller), (600, "F16")):
        assert type_of("blk.0.attn_q.weight", (64, width), mix, place, tied=False) == wanted


def test_vectors_norms_and_positions_stay_as_they_are():
    for name, shape in (
        ("blk.0.attn_norm.weight", (512,)),
        ("blk.0.attn_q.bias", (512,)),
        ("position_embd.weight", (9, 512)),
    ):
        assert type_of(name, shape, MIXES["Q4_K_M"], TensorLocation(0, 4, 1), tied=False) == "F32"
