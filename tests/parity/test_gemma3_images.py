"""Gemma 3 with an image tower: its text model is that of transformers, and is saved as a text model."""

import pytest
import torch
import transformers

import vantage as vt
from tests.parity.case import sharpen
from tests.parity.rows.gemma3 import BASE
from tests.parity.test_families import TOKENS
from vantage.checkpoints.config import Config
from vantage.errors import CheckpointError
from vantage.families import gemma3, gemma3_images

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def theirs(request):
    config = transformers.Gemma3Config(
        text_config={**BASE, "tie_word_embeddings": request.param},
        vision_config=TOWER,
        mm_tokens_per_image=4,
        tie_word_embeddings=request.param,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Gemma3ForConditionalGeneration(config).eval()
        sharpen(model)
    return model


@torch.no_grad()
def test_the_text_model_alone(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    ours = vt.load(tmp_path / "theirs")
    wanted = theirs(TOKENS).logits
    assert float((ours(TOKENS) - wanted).abs().max() / wanted.abs().max()) < 1e-4
    vt.save(ours, tmp_path / "ours")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert isinstance(back, transformers.Gemma3ForCausalLM)
    assert torch.equal(back(TOKENS).logits, wanted)
    assert torch.equal(vt.load(tmp_path / "ours")(TOKENS), ours(TOKENS))
    theirs = theirs.double()
    wanted, got = theirs(TOKENS).logits, vt.load(tmp_path / "theirs", dtype=torch.float64)(TOKENS)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-6


def test_a_published_config_says_little():
    """google/gemma-3-4b-it: what it leaves out is what transformers' class has."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    full = transformers.Gemma3TextConfig(**text).to_dict()
    c = Config({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    spec = gemma3_images.spec(c)
    c.settle()
    assert spec == gemma3.spec(Config(full))
    assert (spec.vocab, spec.layers[0].attention.shape(2560).heads) == (262_208, 8)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "'text_config' is missing"),
        ({"text_config": {"final_logit_softcapping": 2.0}}, "final_logit_softcapping is 2.0; wanted None"),
        ({"text_config": {"tie_word_embeddings": False}}, "tie_word_embeddings is False; wanted True"),
    ],
)
def test_refused(values, why):
    with pytest.raises(CheckpointError, match=why):
        gemma3_images.spec(Config(values))
