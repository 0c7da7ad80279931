"""MXFP4: GPT-OSS as it is published."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import vantage as vt
from tests.parity.case import DECODER, sharpen
from tests.parity.test_families import TOKENS
from vantage.checkpoints.mxfp4 import Unpacked, unpack
from vantage.errors import CheckpointError


def packed(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*shape, 16), generator=rng, dtype=torch.uint8)
    return blocks, torch.randint(118, 124, shape, generator=rng, dtype=torch.uint8)


class Held(dict):
    """Tensors by name, as a folder has them."""

    def names(self):
        return list(self)

    def shape(self, name):
        return tuple(self[name].shape)


def test_numbers_are_those_of_the_standard():
    blocks = torch.tensor([[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, *[0] * 8]]], dtype=torch.uint8)
    got = unpack(blocks, torch.tensor([[128]], dtype=torch.uint8))[0]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert got.tolist() == [2 * m for m in magnitudes] + [-2 * m for m in magnitudes] + [0.0] * 16


def test_every_byte_and_exponent_is_as_in_transformers():
    blocks = torch.arange(256, dtype=torch.uint8).view(16, 1, 16).repeat(1, 250, 1)
    scales = torch.arange(250, dtype=torch.uint8).repeat(16, 1)  # beyond, 6 · 2^k leaves bfloat16
    wanted = convert_moe_packed_tensors(blocks[None].clone(), scales[None].clone())[0]
    got = Unpacked(Held(w_blocks=blocks, w_scales=scales)).get("w")
    assert got.shape == Unpacked(Held(w_blocks=blocks, w_scales=scales)).shape("w") == (250 * 32, 16)
    normal = wanted.float().abs() >= 2.0**-126  # below, processors may flush to 0
    assert torch.equal(got[normal], wanted[normal])


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"w_scales": torch.zeros(2, 3, dtype=torch.uint8)}, r"wanted \(…, rows, groups, 16\)"),
        ({"w_blocks": torch.zeros(2, 1, 8, dtype=torch.uint8)}, r"wanted \(…, rows, groups, 16\)"),
        ({"w": torch.zeros(1)}, "both plain and packed"),
        ({"w_scales": torch.full((2, 1), 255, dtype=torch.uint8)}, "'w_scales' holds NaN"),
        ({"w_blocks": torch.zeros(2, 1, 16)}, "'w_blocks' holds torch.float32"),
    ],
)
def test_damage_is_named(tensors, why):
    blocks, scales = packed(2, 1)
    held = Held({"w_blocks": blocks, "w_scales": scales, **tensors})
    with pytest.raises(CheckpointError, match=why):
        read_all(held)


def read_all(held):
    """Names, then shapes, then data: the order in which a model is loaded."""
    there = Unpacked(held)
    return [(there.shape(name), there.get(name)) for name in there.names()]


def test_half_of_a_pair_stays_what_it_is():
    blocks, _ = packed(2, 1)
    assert Unpacked(Held(w_blocks=blocks, b=torch.ones(1))).names() == ["w_blocks", "b"]


@pytest.fixture
def published(tmp_path):
    """A tiny GPT-OSS in the layout of openai/gpt-oss-20b, and what transformers makes of the same numbers."""
    config = transformers.GptOssConfig(
        **{**DECODER, "hidden_size": 64, "intermediate_size": 32, "max_position_embeddings": 131072},
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=3,
        num_experts_per_tok=2,
        sliding_window=9,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = transformers.GptOssForCausalLM(config).eval()
        sharpen(theirs)
    theirs.save_pretrained(tmp_path)
    tensors, state = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    for i in range(3):
        for name, rows, groups in (("gate_up_proj", 64, 2), ("down_proj", 64, 1)):
            stem = f"model.layers.{i}.mlp.experts.{name}"
            blocks, scales = packed(3, rows, groups, seed=i)
            del tensors[stem]
            tensors |= {f"{stem}_blocks": blocks, f"{stem}_scales": scales}
            with torch.no_grad():
                state[stem].copy_(convert_moe_packed_tensors(blocks.clone(), scales.clone()))
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    said = json.loads((tmp_path / "config.json").read_text())
    said["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    return theirs, tmp_path, said


@torch.no_grad()
def test_a_published_gpt_oss(published, tmp_path):
    theirs, folder, _ = published
    ours, wanted = vt.load(folder), theirs(TOKENS).logits
    assert float((ours(TOKENS) - wanted).abs().max() / wanted.abs().max()) < 1e-4
    vt.save(ours, tmp_path / "plain")
    back = transformers.GptOssForCausalLM.from_pretrained(tmp_path / "plain").eval()
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), theirs.parameters(), strict=True))


def test_another_quantisation_is_refused(published):
    _, folder, said = published
    said["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match="quant_method is 'gptq'; wanted 'mxfp4'"):
        vt.load(folder)
