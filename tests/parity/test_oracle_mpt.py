"""MPT where transformers does not follow its config: ``alibi_bias_max`` is read, and 8 is used whatever it says.

MosaicML's StoryWriter has 16. Here transformers is told by hand, and must then agree.
"""

import json

import pytest
import torch
from transformers import MptConfig, MptForCausalLM
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

import vantage as vt
from tests.parity.case import sharpen
from tests.parity.oracle import TOKENS, VOCAB
from vantage.errors import CheckpointError


def made(folder, heads, **attention):
    config = MptConfig(
        vocab_size=VOCAB, d_model=48, n_layers=2, n_heads=heads, max_seq_len=64, attn_config=attention or None
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MptForCausalLM(config).eval()
        sharpen(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("heads", [4, 6])
@torch.no_grad()
def test_alibi_bias_max(tmp_path, heads, monkeypatch):
    theirs = made(tmp_path / "mpt", heads, alibi_bias_max=16, clip_qkv=1.0)

    def told(num_heads, sequence_length, alibi_bias_max=8, device=None):
        return build_mpt_alibi_tensor(num_heads, sequence_length, 16, device)

    got = vt.load(tmp_path / "mpt")(TOKENS)
    assert not torch.allclose(got, theirs(TOKENS).logits, atol=1e-3)
    monkeypatch.setattr(theirs.transformer, "build_mpt_alibi_tensor", told)
    wanted = theirs(TOKENS).logits
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("key", "value"),
    [("logit_scale", 0.5), ("no_bias", False), ("expansion_ratio", 3), ("norm_type", "rmsnorm")],
)
def test_what_transformers_passes_over_is_refused(tmp_path, key, value):
    made(tmp_path / "mpt", 4)
    change(tmp_path / "mpt", lambda config: config.update({key: value}))
    with pytest.raises(CheckpointError, match=key):
        vt.load(tmp_path / "mpt")


@pytest.mark.parametrize(
    ("key", "value"),
    [("alibi", False), ("qk_ln", True), ("prefix_lm", True), ("attn_type", "multiquery_attention"), ("rope", True)],
)
def test_so_it_is_inside_attn_config(tmp_path, key, value):
    made(tmp_path / "mpt", 4)
    change(tmp_path / "mpt", lambda config: config["attn_config"].update({key: value}))
    with pytest.raises(CheckpointError, match=f"attn_config.*{key}"):
        vt.load(tmp_path / "mpt")


def change(folder, how):
    config = json.loads((folder / "config.json").read_text())
    how(config)
    (folder / "config.json").write_text(json.dumps(config))
