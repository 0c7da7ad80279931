"""Gemma 3n in the spellings that are about: keys stored where none are read, and a text model inside a larger one."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.rows.gemma3n import BASE, CASES
from tests.parity.test_families import TOKENS
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import gemma3n_multimodal


@pytest.fixture
def theirs(tmp_path):
    model = CASES[0].make("plain")
    model.save_pretrained(tmp_path)
    return model


@torch.no_grad()
def test_keys_of_layers_that_read_anothers(theirs, tmp_path):
    """Published checkpoints hold them; transformers leaves them out as well."""
    wanted, tensors = vt.load(tmp_path)(TOKENS), load_file(tmp_path / "model.safetensors")
    for i in (3, 4, 5):
        for part, shape in (("k_proj", (32, 48)), ("v_proj", (32, 48)), ("k_norm", (16,))):
            assert f"model.layers.{i}.self_attn.{part}.weight" not in tensors
            tensors[f"model.layers.{i}.self_attn.{part}.weight"] = torch.randn(shape)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(vt.load(tmp_path)(TOKENS), wanted)
    tensors["model.layers.2.self_attn.v_norm.weight"] = torch.ones(16)  # of a layer with keys of its own
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"'model.layers.2.self_attn.v_norm.weight', which this model has no use for"
    ):
        vt.load(tmp_path)


@torch.no_grad()
def test_the_text_model_inside_the_whole(theirs, tmp_path):
    """The towers need a package of their own to be built, so the whole is written by its names alone."""
    tensors = load_file(tmp_path / "model.safetensors")
    whole = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    whole |= {"model.vision_tower.conv.weight": torch.ones(3), "model.embed_audio.embedding.weight": torch.ones(3)}
    save_file(whole, tmp_path / "model.safetensors", {"format": "pt"})
    config = transformers.Gemma3nConfig(text_config=theirs.config.to_dict())
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | {"vision_config": {}, "audio_config": {}}))
    ours = vt.load(tmp_path)
    wanted = theirs(TOKENS).logits
    assert float((ours(TOKENS) - wanted).abs().max() / wanted.abs().max()) < 1e-4
    vt.save(ours, tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert isinstance(back, transformers.Gemma3nForCausalLM)
    assert torch.equal(back(TOKENS).logits, wanted)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "'text_config' is missing"),
        ({"text_config": {**BASE, "tie_word_embeddings": False}}, "tie_word_embeddings is False; wanted True"),
    ],
)
def test_refused(values, why):
    with pytest.raises(CheckpointError, match=why):
        gemma3n_multimodal.spec(Config(values))
