"""A whole encoder-decoder against torch.nn.Transformer with the same weights (T1)."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.attention.helpers import sharpen
from vantage.model import build, encoder_decoder
from vantage.model.feed_forward import FeedForward
from vantage.model.norms import LayerNorm

WIDTH, HEADS, LAYERS, HIDDEN, VOCAB = 16, 4, 2, 24, 13


def theirs_with(wiring, activation):
    options = {
        "dim_feedforward": HIDDEN,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": wiring == "pre",
        "dtype": torch.float64,
    }
    norm = lambda: nn.LayerNorm(WIDTH, dtype=torch.float64)  # noqa: E731 (one for each end)
    # the nested-tensor path warns that it is not taken
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, **options), LAYERS, norm(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, **options), LAYERS, norm())
    return nn.Transformer(WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, **options).eval()


def ours_with(wiring, activation):
    ffn = FeedForward(HIDDEN, activation, gated=False, bias=True)
    spec = encoder_decoder(vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, wiring=wiring, ffn=ffn)
    assert spec.encoder is not None
    # torch ends both stacks with a norm, after post-norm layers too
    spec = replace(spec, norm=LayerNorm(), encoder=replace(spec.encoder, norm=LayerNorm()))
    return sharpen(build(spec).double())


@torch.no_grad()
def copy_weights(ours, theirs, wiring):
    for stack, layers in ((ours.encoder, theirs.encoder), (ours, theirs.decoder)):
        layers.norm.load_state_dict(stack.norm.state_dict())
        for block, layer in zip(stack.blocks, layers.layers, strict=True):
            steps = list(block.steps)
            norms = [step.before if wiring == "pre" else step.outer for step in steps]
            for norm, name in zip(norms, ("norm1", "norm2", "norm3"), strict=False):
                getattr(layer, name).load_state_dict(norm.state_dict())
            attention = steps[0].sublayer
            layer.self_attn.in_proj_weight.copy_(attention.qkv.weight)
            layer.self_attn.in_proj_bias.copy_(attention.qkv.bias)
            layer.self_attn.out_proj.load_state_dict(attention.out.state_dict())
            if len(steps) == 3:
                cross = steps[1].sublayer
                layer.multihead_attn.in_proj_weight.copy_(torch.cat([cross.q.weight, cross.kv.weight]))
                layer.multihead_attn.in_proj_bias.copy_(torch.cat([cross.q.bias, cross.kv.bias]))
                layer.multihead_attn.out_proj.load_state_dict(cross.out.state_dict())
            layer.linear1.load_state_dict(steps[-1].sublayer.up.state_dict())
            layer.linear2.load_state_dict(steps[-1].sublayer.down.state_dict())


@pytest.mark.parametrize("wiring", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("kernel", ["reference", "auto"])
@torch.no_grad()
def test_T1_an_encoder_decoder_is_torchs(wiring, activation, kernel):
    ours, theirs = ours_with(wiring, activation), theirs_with(wiring, activation)
    copy_weights(ours, theirs, wiring)
    ours.kernel = ours.encoder.kernel = kernel
    gen = torch.Generator().manual_seed(0)
    source = torch.randint(VOCAB, (3, 7), generator=gen)
    target = torch.randint(VOCAB, (3, 5), generator=gen)
    source_real = torch.arange(7) < torch.tensor([[7], [4], [2]])
    target_real = torch.arange(5) < torch.tensor([[3], [5], [4]])

    memory = ours.encode(source, mask=source_real)
    got = ours.hidden(target, mask=target_real, source=memory)

    embedded = ours.encoder.embed(source, memory.pos), ours.embed(target, _places(target_real))
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    wanted_memory = theirs.encoder(embedded[0], src_key_padding_mask=~source_real)
    wanted = theirs(
        *embedded,
        tgt_mask=future,
        src_key_padding_mask=~source_real,
        tgt_key_padding_mask=~target_real,
        memory_key_padding_mask=~source_real,
    )
    torch.testing.assert_close(memory.hidden[source_real], wanted_memory[source_real], rtol=0, atol=1e-10)
    torch.testing.assert_close(got[target_real], wanted[target_real], rtol=0, atol=1e-10)
    assert got[target_real].std() > 0.3  # and it says something


@pytest.mark.parametrize("wiring", ["post", "pre"])
@torch.no_grad()
def test_T1_a_cached_decoder_is_torchs_in_one_pass(wiring):
    ours, theirs = ours_with(wiring, "relu"), theirs_with(wiring, "relu")
    copy_weights(ours, theirs, wiring)
    gen = torch.Generator().manual_seed(0)
    source, target = torch.randint(VOCAB, (2, 7), generator=gen), torch.randint(VOCAB, (2, 5), generator=gen)
    memory, cache = ours.encode(source), ours.new_cache(2)
    got = [ours.hidden(target[:, :2], cache=cache, source=memory)]
    got += [ours.hidden(target[:, t : t + 1], cache=cache) for t in range(2, 5)]
    full = torch.ones(2, 5, dtype=torch.bool)
    embedded = ours.encoder.embed(source, memory.pos), ours.embed(target, _places(full))
    wanted = theirs(*embedded, tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))
    torch.testing.assert_close(torch.cat(got, 1), wanted, rtol=0, atol=1e-10)


def _places(real):
    from vantage.spec.positions import Positions

    return Positions.from_mask(real)
