"""Whole decoders against transformers' with the same weights: LLaMA (T2), GPT-2, Mistral's window, Gemma-2's pieces."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from vantage.attention import GroupedQuery
from vantage.model import build, decoder
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.position import Learned, Rope

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# their norms, angles and softmax are float32 whatever the model's type
CLOSE = {"rtol": 0, "atol": 5e-5}


def sharpened(model, seed=0):
    """Weights under which attention is far from uniform."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=gen)
            p.copy_(1.2 * p.shape[-1] ** -0.5 * noise if p.dim() > 1 else p + 0.2 * noise)
    return model.eval()


@torch.no_grad()
def copy_llama(theirs, ours):
    inner = theirs.model
    ours.embed.tokens.weight.copy_(inner.embed_tokens.weight)
    ours.norm.weight.copy_(inner.norm.weight)
    ours.head.linear.weight.copy_(theirs.lm_head.weight)
    for block, layer in zip(ours.blocks, inner.layers, strict=True):
        first, second = block.steps
        attn, mlp = layer.self_attn, layer.mlp
        first.before.weight.copy_(layer.input_layernorm.weight)
        second.before.weight.copy_(layer.post_attention_layernorm.weight)
        first.sublayer.qkv.weight.copy_(torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight]))
        first.sublayer.out.weight.copy_(attn.o_proj.weight)
        second.sublayer.gate_up.weight.copy_(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        second.sublayer.down.weight.copy_(mlp.down_proj.weight)


SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}


def llama_like(kv_heads, window=None, base=10000.0):
    return decoder(
        vocab=23,
        width=32,
        layers=3,
        heads=4,
        kv_heads=kv_heads,
        position=Rope(base=base),
        window=window,
        ffn=FeedForward(48, "silu"),
        norm=RMSNorm(1e-5),
    )


def tokens(B=2, T=9, seed=1):
    return torch.randint(23, (B, T), generator=torch.Generator().manual_seed(seed))


@DTYPES
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@torch.no_grad()
def test_T2_llama(dtype, kv_heads):
    theirs = sharpened(LlamaForCausalLM(LlamaConfig(num_key_value_heads=kv_heads, **SIZES))).to(dtype)
    ours = build(llama_like(kv_heads)).to(dtype).eval()
    copy_llama(theirs, ours)
    wanted = theirs(tokens()).logits
    assert wanted.std() > 0.3
    torch.testing.assert_close(ours(tokens()), wanted, **CLOSE)
    cache = ours.new_cache(2)
    steps = [ours(part, cache=cache) for part in tokens().split([4, 2, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), wanted, **CLOSE)


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_T2_llama_on_a_padded_batch(left):
    theirs = sharpened(LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES))).double()
    ours = build(llama_like(2)).double().eval()
    copy_llama(theirs, ours)
    size = torch.tensor([[9], [5]])
    real = torch.arange(9) >= 9 - size if left else torch.arange(9) < size
    places = (real.long().cumsum(1) - 1).clamp_min(0)
    wanted = theirs(tokens(), attention_mask=real.long(), position_ids=places).logits
    torch.testing.assert_close(ours(tokens(), mask=real)[real], wanted[real], **CLOSE)


@torch.no_grad()
def test_T2_llama_generates_the_same_tokens():
    theirs = sharpened(LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, eos_token_id=None, **SIZES))).double()
    ours = build(llama_like(2)).double().eval()
    copy_llama(theirs, ours)
    wanted = theirs.generate(tokens(1, 4), max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 4:]
    cache, told, new = ours.new_cache(1, kind="paged"), [], tokens(1, 4)
    for _ in range(12):
        new = ours(new, cache=cache)[:, -1:].argmax(-1)
        told.append(int(new))
    assert told == wanted.tolist()


@torch.no_grad()
def test_a_window_is_mistrals():
    config = MistralConfig(num_key_value_heads=2, sliding_window=3, head_dim=8, **SIZES)
    theirs = sharpened(MistralForCausalLM(config)).double()
    ours = build(llama_like(2, window=3, base=config.rope_parameters["rope_theta"])).double().eval()
    copy_llama(theirs, ours)
    wanted = theirs(tokens()).logits
    torch.testing.assert_close(ours(tokens()), wanted, **CLOSE)
    cache = ours.new_cache(2, kind="ring")
    steps = [ours(part, cache=cache) for part in tokens().split([4, 2, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), wanted, **CLOSE)


@DTYPES
@torch.no_grad()
def test_gpt_2(dtype):
    config = GPT2Config(vocab_size=23, n_embd=32, n_head=4, n_layer=3, n_positions=16)
    theirs = sharpened(GPT2LMHeadModel(config)).to(dtype)
    spec = decoder(
        vocab=23,
        width=32,
        layers=3,
        attention=GroupedQuery(4, bias=True, out_bias=True),
        position=Learned(16),
        ffn=FeedForward(128, "gelu_tanh", gated=False, bias=True),
        norm=LayerNorm(),
        tied=True,
    )
    ours = build(spec).to(dtype).eval()
    inner = theirs.transformer
    ours.embed.tokens.weight.copy_(inner.wte.weight)
    ours.embed.inputs[0].table.copy_(inner.wpe.weight)
    ours.norm.load_state_dict(inner.ln_f.state_dict())
    for block, layer in zip(ours.blocks, inner.h, strict=True):
        first, second = block.steps
        first.before.load_state_dict(layer.ln_1.state_dict())
        second.before.load_state_dict(layer.ln_2.state_dict())
        for mine, conv in (
            (first.sublayer.qkv, layer.attn.c_attn),
            (first.sublayer.out, layer.attn.c_proj),
            (second.sublayer.up, layer.mlp.c_fc),
            (second.sublayer.down, layer.mlp.c_proj),
        ):
            mine.weight.copy_(conv.weight.T)
            mine.bias.copy_(conv.bias)
    wanted = theirs(tokens()).logits
    atol = 1e-10 if dtype == torch.float64 else 5e-5
    torch.testing.assert_close(ours(tokens()), wanted, rtol=0, atol=atol)
    cache = ours.new_cache(2)
    steps = [ours(part, cache=cache) for part in tokens().split([4, 2, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), wanted, rtol=0, atol=atol)


def test_the_embedding_may_be_scaled_and_the_logits_capped_as_in_gemma():
    spec = llama_like(2)
    assert spec.head is not None
    spec = replace(
        spec,
        embedding=replace(spec.embedding, scale=32**0.5),
        head=replace(spec.head, tied=True, softcap=30.0, scale=0.5),
    )
    model = build(spec).double()
    with torch.no_grad():
        got = model(tokens())
        logits = model.hidden(tokens()) @ model.embed.tokens.weight.T * 0.5
        torch.testing.assert_close(got, 30 * torch.tanh(logits / 30))
        x = model.embed(tokens(), model.place(tokens(), None, None, None, None))
        torch.testing.assert_close(x, model.embed.tokens.weight[tokens()] * 32**0.5)
