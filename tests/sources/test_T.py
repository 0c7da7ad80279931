"""T1 to T4: the documents' transformers."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.attention.helpers import context, sharpen, vectors
from vantage.attention import GroupedQuery
from vantage.model import build, decoder, encoder, encoder_decoder
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm, RMSNorm
from vantage.position import Rope, Sinusoidal, sinusoid
from vantage.spec.masks import Causal, Everything, SameSegment
from vantage.spec.model import POST, PRE
from vantage.spec.positions import Positions


def tokens(*shape, vocab=11, seed=0):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


# ---- T1


def test_T1_the_original_encoder_decoder():
    """Embeddings times √d plus sinusoids; masked self-attention, cross-attention, feed-forward; norms after the sums.

    tests/oracles holds it against torch.nn.Transformer with the same weights.
    """
    spec = encoder_decoder(vocab=11, width=16, layers=2, heads=4)
    assert spec.encoder is not None
    for stack, mask in ((spec.encoder, Everything() & SameSegment()), (spec, Causal() & SameSegment())):
        assert stack.embedding.inputs == (Sinusoidal(),)
        assert stack.embedding.scale == 4.0
        for layer in stack.layers:
            assert layer.mask == mask
            assert layer.wiring == POST
            assert layer.norm == LayerNorm()
            assert layer.ffn == FeedForward(64, "relu", gated=False, bias=True)
            assert layer.attention == GroupedQuery(4, bias=True, out_bias=True)
    assert all(layer.cross is None for layer in spec.encoder.layers)
    assert all(layer.cross == GroupedQuery(4, bias=True, out_bias=True) for layer in spec.layers)


@torch.no_grad()
def test_T1_the_decoder_reads_the_source_and_its_own_past_alone():
    model = sharpen(build(encoder_decoder(vocab=11, width=16, layers=2, heads=4)).double())
    source, target = tokens(1, 5), tokens(1, 6, seed=1)
    out = model(target, source=source)
    later = target.clone()
    later[0, 4:] = (later[0, 4:] + 1) % 11
    torch.testing.assert_close(model(later, source=source)[:, :4], out[:, :4])
    assert not torch.allclose(model(later, source=source)[:, 4:], out[:, 4:])
    for s in range(5):  # every target token sees every source token, and the source sees itself on both sides
        other = source.clone()
        other[0, s] = (other[0, s] + 1) % 11
        assert ((model(target, source=other) - out).abs().amax(-1) > 1e-6).all()


@torch.no_grad()
def test_T1_erratum_nothing_is_changed_in_place_and_logits_come_out():
    model = sharpen(build(encoder_decoder(vocab=11, width=16, layers=2, heads=4)).double())
    x = vectors(2, 5, 16)
    before, table = x.clone(), model.embed.tokens.weight.clone()
    encoded = model.embed.inputs[0](x, Positions.arange(2, 5))
    assert torch.equal(x, before)
    torch.testing.assert_close(encoded, x + sinusoid(torch.arange(5), 16))
    out = model(tokens(2, 5), source=tokens(2, 3))
    assert torch.equal(model.embed.tokens.weight, table)
    assert (out < 0).any()
    assert ((out.sum(-1) - 1).abs() > 0.1).any()  # not a softmax


# ---- T2


@torch.no_grad()
def test_T2_the_llama_block():
    """RMSNorm before each part, RoPE, grouped queries, SwiGLU, residuals. tests/oracles holds it against LLaMA's."""
    spec = decoder(vocab=11, width=16, layers=1, heads=4, kv_heads=2)
    (layer,) = spec.layers
    assert layer.wiring == PRE
    assert layer.norm == spec.norm == RMSNorm()
    assert layer.qk == (Rope(),)
    assert layer.attention == GroupedQuery(4, 2)
    assert layer.ffn == FeedForward(64, "silu", gated=True, bias=False)
    model, x, pos = sharpen(build(spec).double()), vectors(2, 5, 16), Positions.arange(2, 5)
    block, (first, second) = model.blocks[0], model.blocks[0].steps

    def rms(t, weight):
        return t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    h = x + first.sublayer(rms(x, first.before.weight), context(pos))
    gate, up = (rms(h, second.before.weight) @ second.sublayer.gate_up.weight.T).chunk(2, -1)
    wanted = h + (gate * torch.sigmoid(gate) * up) @ second.sublayer.down.weight.T
    torch.testing.assert_close(block(x, context(pos)), wanted)


# ---- T3


def pattern(B, seed):
    """Rows that count up by one from anywhere, modulo 8."""
    start = torch.randint(8, (B, 1), generator=torch.Generator().manual_seed(seed))
    return (start + torch.arange(9)) % 8


def test_T3_pretrain_then_adapt():
    """Self-supervised first: predict the next token. Then the same body serves a task it was not trained for."""
    model = build(decoder(vocab=8, width=16, layers=1, heads=2, position="rope"), seed=1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step in range(60):
        rows = pattern(32, step)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.1 < math.log(8)

    model.requires_grad_(False)  # the body stays; a task head is trained: was the first token below 4?
    head = torch.nn.Linear(16, 2)
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.1)
    for step in range(60):
        rows = pattern(32, 1000 + step)
        loss = F.cross_entropy(head(model.hidden(rows)[:, -1]), (rows[:, 0] < 4).long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    rows = pattern(256, 5000)
    right = head(model.hidden(rows)[:, -1]).argmax(-1) == (rows[:, 0] < 4)
    assert right.float().mean() > 0.95

    told = rows[:2, :3]  # or it is prompted
    for _ in range(4):
        told = torch.cat([told, model(told)[:, -1:].argmax(-1)], 1)
    assert torch.equal(told, rows[:2, :7])


# ---- T4


@pytest.mark.parametrize("position", ["none", "rope", "alibi"])
@torch.no_grad()
def test_T4_an_encoder_is_the_same_block_without_the_triangle(position):
    options = {"vocab": 11, "width": 16, "layers": 1, "heads": 4, "kv_heads": 2, "position": position}
    dec, enc = sharpen(build(decoder(**options)).double()), build(encoder(**options)).double().eval()
    weights = {name: value for name, value in dec.state_dict().items() if not name.startswith("head.")}
    enc.load_state_dict(weights)  # the same parts, one for one
    a, b = dec.hidden(tokens(2, 6)), enc.hidden(tokens(2, 6))
    torch.testing.assert_close(a[:, -1], b[:, -1])  # the last token sees everything either way
    assert ((a - b).abs().amax(-1) > 1e-4)[:, :-1].all()
    triangle = encoder(**options, mask=Causal() & SameSegment())
    masked = build(triangle).double().eval()
    masked.load_state_dict(weights)
    torch.testing.assert_close(masked.hidden(tokens(2, 6)), a)
