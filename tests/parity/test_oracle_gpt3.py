"""GPT-3: GPT-2's equations, with a band in every second layer computed here, pair by pair."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

import vantage as vt
from tests.parity.case import sharpen
from tests.parity.oracle import TOKENS, VOCAB, check
from vantage.errors import CheckpointError

BAND, WIDTH, HEADS, LAYERS = 6, 32, 4, 4


def made(folder, kind: Any = GPT2LMHeadModel):
    """A GPT-2 by transformers, which becomes a GPT-3 by what its config says."""
    config = GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind(config).eval()
        sharpen(model)
    model.save_pretrained(folder)
    return model


def retype(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def sees(layer, query, key):
    """Brown et al. 2020: alternating dense and locally banded. The reference mask."""
    return key <= query and (layer % 2 == 0 or query - key < BAND)


def logits(w, tokens):
    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]

    def conv(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    B, T = tokens.shape
    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for i in range(LAYERS):
        allowed = torch.tensor([[sees(i, q, k) for k in range(T)] for q in range(T)])
        qkv = conv(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").chunk(3, -1)
        q, k, v = (y.reshape(B, T, HEADS, -1).transpose(1, 2) for y in qkv)
        scores = q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5
        mixed = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
        x = x + conv(mixed.transpose(1, 2).reshape(B, T, WIDTH), f"h.{i}.attn.c_proj")
        x = x + conv(gelu(conv(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def test_banded_layers_follow_the_reference_mask(tmp_path):
    made(tmp_path / "gpt3")
    retype(tmp_path / "gpt3", model_type="gpt3", attention_band=BAND)
    w = load_file(tmp_path / "gpt3" / "model.safetensors")
    w = {name.removeprefix("transformer."): t.double() for name, t in w.items()}
    check(tmp_path / "gpt3", lambda tokens: logits(w, tokens))


@torch.no_grad()
def test_with_a_band_past_the_end_it_is_gpt_2(tmp_path):
    theirs = made(tmp_path / "gpt3")
    retype(tmp_path / "gpt3", model_type="gpt3", attention_band=64)
    ours = vt.load(tmp_path / "gpt3")
    assert torch.allclose(ours(TOKENS), theirs(TOKENS).logits, atol=1e-4)
    retype(tmp_path / "gpt3", attention_band=BAND)
    assert not torch.allclose(vt.load(tmp_path / "gpt3")(TOKENS), ours(TOKENS), atol=1e-2)


def test_the_band_must_be_said(tmp_path):
    made(tmp_path / "gpt3")
    retype(tmp_path / "gpt3", model_type="gpt3")
    with pytest.raises(CheckpointError, match="'attention_band' is missing"):
        vt.load(tmp_path / "gpt3")


# ---- GPT-2 as it was published: a base model, with masks among its weights


@torch.no_grad()
def test_gpt2_without_the_prefix(tmp_path):
    base = made(tmp_path / "base", GPT2Model)
    file = tmp_path / "base" / "model.safetensors"
    w = load_file(file)
    assert not any(name.startswith("transformer.") for name in w)
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 8, 8) for i in range(LAYERS)}
    save_file({**w, **masks}, file, {"format": "pt"})
    wanted = base(TOKENS).last_hidden_state @ base.wte.weight.T
    assert torch.allclose(vt.load(tmp_path / "base")(TOKENS), wanted, atol=1e-4)


def test_a_tensor_too_much_is_named(tmp_path):
    made(tmp_path / "base", GPT2Model)
    file = tmp_path / "base" / "model.safetensors"
    save_file({**load_file(file), "h.0.attn.extra": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"h\.0\.attn\.extra"):
        vt.load(tmp_path / "base")
