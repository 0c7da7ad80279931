"""transformers models on our kernels, and our parts in somebody else's module."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import vantage as vt
from vantage import interop
from vantage.attention import NoBias
from vantage.cache import NoCache
from vantage.errors import Refused
from vantage.kernels import chooser, kernel_named
from vantage.spec.masks import Causal
from vantage.spec.model import BuildContext
from vantage.spec.parts import Context, Shape

TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "eos_token_id": None,
}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**TINY, sliding_window=4)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**TINY, attn_logit_softcapping=3.0, sliding_window=4)
    ),
    "gpt_oss": lambda: transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**TINY, num_local_experts=2, num_experts_per_tok=1, sliding_window=4)
    ),
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40
        )
    ),
}
TOKENS = torch.randint(1, 61, (2, 9), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])


@pytest.fixture(autouse=True, scope="module")
def registered():
    interop.register()


def made(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5 if p.dim() > 1 else p + 0.1 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("mask", [None, PADDED], ids=["plain", "padded"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_transformers_model_runs_on_our_kernels(name, mask):
    model = made(name)
    model.set_attn_implementation("eager")
    wanted = model(TOKENS, attention_mask=mask).logits
    model.set_attn_implementation("vantage")
    got = model(TOKENS, attention_mask=mask).logits
    seen = torch.ones_like(TOKENS, dtype=torch.bool) if mask is None else mask.bool()
    torch.testing.assert_close(got[seen], wanted[seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
def test_it_generates_the_same_text(name):
    model = made(name)
    model.set_attn_implementation("eager")
    wanted = model.generate(TOKENS, max_new_tokens=12, do_sample=False)
    model.set_attn_implementation("vantage")
    assert torch.equal(model.generate(TOKENS, max_new_tokens=12, do_sample=False), wanted)


def test_it_is_our_kernel_that_runs(monkeypatch):
    calls = []
    sdpa = type(kernel_named("sdpa"))
    right = sdpa.__call__
    monkeypatch.setattr(sdpa, "__call__", lambda *args: calls.append(1) or right(*args))
    model = made("llama")
    model.set_attn_implementation("vantage")
    model(TOKENS)
    assert len(calls) == 2  # once a layer


def test_what_is_not_understood_is_refused():
    attention = transformers.AttentionInterface()["vantage"]
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(Refused, match="asks for new_trick"):
        attention(nn.Module(), q, q, q, None, new_trick=1)


class Somebodys(nn.Module):
    """A model that is not ours, with our attention and our RoPE in it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(61, 32)
        rope = vt.Rope().build(Shape(32, 4, 2, 8, 8, rotary_dim=8))
        linear = lambda n_in, n_out, bias: nn.Linear(n_in, n_out, bias=bias)  # noqa: E731
        self.attention = vt.GroupedQuery(4, 2).build(32, BuildContext(0, Causal(), (rope,), NoBias(), None, linear))
        self.head = nn.Linear(32, 61)

    def forward(self, tokens):
        ctx = Context(vt.Positions.arange(*tokens.shape), chooser("auto"), [NoCache()])
        x = self.embed(tokens)
        return self.head(x + self.attention(x, ctx))


def test_our_parts_are_plain_modules_in_anyones_model():
    model = Somebodys()
    loss = model(TOKENS).logsumexp(-1).sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    changed = TOKENS.clone()
    changed[:, -1] = 1
    assert torch.equal(model(changed)[:, :-1], model(TOKENS)[:, :-1])  # causal
