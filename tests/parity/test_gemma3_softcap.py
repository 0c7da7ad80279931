"""Gemma 3 with ``attn_logit_softcapping``: no published size sets it, and transformers' model never passes it on.

Its attention function knows it, though; given it, the logits are ours.
"""

from functools import partial

import torch
from transformers.models.gemma3 import modeling_gemma3

import vantage as vt
from tests.parity.case import Case
from tests.parity.rows.gemma3 import BASE
from tests.parity.test_families import TOKENS


@torch.no_grad()
def test_scores_are_capped(tmp_path, monkeypatch):
    eager = modeling_gemma3.eager_attention_forward
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", partial(eager, softcap=0.5))
    case = Case("gemma3_text", "Gemma3ForCausalLM", "Gemma3TextConfig", BASE, {"cap": {"attn_logit_softcapping": 0.5}})
    theirs = case.make("cap")
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path)
    wanted, got = theirs(TOKENS).logits, vt.load(tmp_path)(TOKENS)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-4
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", eager)
    assert float((got - theirs(TOKENS).logits).abs().max() / wanted.abs().max()) > 1e-2  # it matters
