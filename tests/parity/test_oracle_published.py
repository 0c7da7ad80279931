"""Configs as they were published, in older spellings than transformers writes today, and tensors that came along."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.case import VOCAB
from tests.parity.rows import bloom, gpt_neox, openai_gpt
from vantage.errors import CheckpointError

TOKENS = torch.randint(3, VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))


def rewrite(folder, config, drop=(), extra=None, strip=""):
    """The same checkpoint as an older one would be."""
    path, file = folder / "config.json", folder / "model.safetensors"
    said = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**said, **config}))
    w = {name.removeprefix(strip): t for name, t in load_file(file).items()}
    save_file({**w, **(extra or {})}, file, {"format": "pt"})


@torch.no_grad()
def compare(case, option, folder, *args, **kwargs):
    theirs = case.make(option)
    theirs.save_pretrained(folder)
    rewrite(folder, *args, **kwargs)
    wanted = theirs(TOKENS).logits
    assert torch.allclose(vt.load(folder)(TOKENS), wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))


def test_pythia(tmp_path):
    """rotary_pct and rotary_emb_base; masks and frequencies stored with the weights."""
    compare(
        gpt_neox.CASES[0],
        "old-names",
        tmp_path,
        {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_scaling": None},
        drop=("rope_parameters",),
        extra={
            "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
            "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(4),
        },
    )


def test_gpt_neox_turns_a_quarter_if_nothing_is_said(tmp_path):
    compare(gpt_neox.CASES[0], "plain", tmp_path, {}, drop=("rope_parameters",))


def test_bloom_560m(tmp_path):
    """n_embed for hidden_size, a base model's names, and what Megatron was told."""
    compare(
        bloom.CASES[0],
        "plain",
        tmp_path,
        {
            "n_embed": 48,
            "num_attention_heads": 4,
            "n_inner": None,
            "attention_softmax_in_fp32": True,
            "bias_dropout_fusion": True,
            "masked_softmax_fusion": True,
            "offset_alibi": 100,
            "pretraining_tp": 1,
            "seq_length": 2048,
            "skip_bias_add": True,
            "skip_bias_add_qkv": False,
            "unk_token_id": 0,
        },
        drop=("hidden_size", "n_head"),
        strip="transformer.",
    )


def test_openai_gpt(tmp_path):
    compare(
        openai_gpt.CASES[0],
        "plain",
        tmp_path,
        {"n_ctx": 128, "n_special": 0, "predict_special_tokens": True},
        strip="transformer.",
        extra={"h.0.attn.bias": torch.ones(1, 1, 4, 4)},
    )


@pytest.mark.parametrize(
    ("case", "key", "value"),
    [
        (bloom.CASES[0], "slow_but_exact", True),
        (bloom.CASES[0], "n_inner", 100),
        (openai_gpt.CASES[0], "n_special", 3),
        (openai_gpt.CASES[0], "afn", "gelu_new"),
        (gpt_neox.CASES[0], "attention_window", 5),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_not_followed_is_refused_by_name(tmp_path, case, key, value):
    case.make("plain").save_pretrained(tmp_path)
    rewrite(tmp_path, {key: value})
    with pytest.raises(CheckpointError, match=key):
        vt.load(tmp_path)
