"""LoRA around linear maps: nothing changes at first, only adapters are trained, and merging keeps the function."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import vantage as vt
from vantage.errors import BadInput, Refused
from vantage.model.lora import Lora, LoraLinear, adapted, add_lora, merge
from vantage.model.packed import PackedLinear, quantise

TOKENS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))

PACKED = 2e-3  # native products with packed weights round activations to 16 bits


def model(**said) -> vt.Model:
    return vt.build(vt.decoder(**{"vocab": 50, "width": 64, "layers": 2, "heads": 4, "kv_heads": 2, **said})).eval()


def shake(m: nn.Module, seed: int = 0) -> None:
    """B away from 0, as after training."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in adapted(m).values():
            for part in module.named_parts().values():
                part.b.copy_(torch.randn(part.b.shape, generator=random) * 0.1)


@torch.no_grad()
def logits(m: vt.Model) -> torch.Tensor:
    return m(TOKENS)


def close(a: torch.Tensor, b: torch.Tensor, most: float = 1e-5) -> bool:
    return float((a - b).abs().max() / b.abs().max()) < most


@pytest.mark.parametrize("targets", [("attention", "ffn"), ("q", "v"), ("out", "down"), ("blocks.1.*",), ("k",)])
def test_fresh_adapters_change_no_bit_and_merging_keeps_the_function(targets):
    m = model()
    before, state = logits(m), {n: p.clone() for n, p in m.named_parameters()}
    add_lora(m, Lora(4, targets=targets), seed=3)
    assert torch.equal(logits(m), before)
    shake(m)
    with_adapters = logits(m)
    assert not close(with_adapters, before, 1e-3)
    merge(m)
    assert not adapted(m)
    assert {n: p.shape for n, p in m.named_parameters()} == {n: p.shape for n, p in state.items()}
    assert close(logits(m), with_adapters)
    assert all(p.requires_grad for p in m.parameters())


def test_a_merged_weight_is_w_plus_the_scaled_product():
    m = model().double()
    w = m.get_parameter("blocks.0.steps.0.sublayer.qkv.weight").detach().clone()
    assert add_lora(m, Lora(4, alpha=12.0, targets=("blocks.0.steps.0.sublayer.qkv.k",))) == [
        "blocks.0.steps.0.sublayer.qkv.k"
    ]
    shake(m)
    (part,) = adapted(m)["blocks.0.steps.0.sublayer.qkv"].named_parts().values()
    w[64:96] += 3.0 * part.b.detach() @ part.a.detach()  # behind 64 rows of q; alpha / rank = 3
    merge(m)
    torch.testing.assert_close(m.get_parameter("blocks.0.steps.0.sublayer.qkv.weight").detach(), w, rtol=0, atol=1e-15)


def test_only_adapters_are_trained_and_gradients_are_those_of_the_product():
    m = model()
    add_lora(m, Lora(4))
    shake(m)
    m(TOKENS).square().sum().backward()
    trained = {name for name, p in m.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.endswith((".a", ".b")) for name in trained)
    for name, p in m.named_parameters():
        assert (p.grad is not None) == (name in trained), name
        if name in trained:
            assert float(p.grad.abs().max()) > 0, name


def test_the_seed_alone_decides_and_torchs_generator_is_left_alone():
    def drawn(seed):
        m = model()
        add_lora(m, Lora(4), seed=seed)
        return torch.cat([p.detach().flatten() for p in m.parameters() if p.requires_grad])

    before = torch.get_rng_state()
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_only_while_training():
    m = model()
    add_lora(m, Lora(4, dropout=0.5))
    shake(m)
    assert torch.equal(logits(m), logits(m))
    m.train()
    assert not torch.equal(logits(m), logits(m))


@pytest.mark.parametrize("bits", [8, 4])
def test_on_packed_weights(bits):
    m = model()
    quantise(m, bits)
    before = logits(m)
    add_lora(m, Lora(4))
    assert isinstance(adapted(m)["blocks.0.steps.0.sublayer.qkv"].base, PackedLinear)
    assert close(logits(m), before, PACKED)
    shake(m)
    with_adapters = logits(m)
    m(TOKENS).sum().backward()
    got = {name: p.grad.clone() for name, p in m.named_parameters() if p.requires_grad}
    # the same model with its weights unpacked gives the same gradients
    for module in adapted(m).values():
        dense = nn.Linear(module.inputs, module.outputs, bias=False)
        dense.weight = nn.Parameter(module.base.weight.unpack(torch.float32), requires_grad=False)
        module.base = dense
    m.zero_grad()
    m(TOKENS).sum().backward()
    for name, grad in got.items():
        assert close(grad, m.get_parameter(name).grad, PACKED), name
    merge(m)
    assert close(logits(m), with_adapters, PACKED)


def test_merging_packed_weights_gives_dense_ones():
    m = model()
    quantise(m, 8)
    add_lora(m, Lora(4, targets=("q",)))
    shake(m)
    with_adapters = logits(m)
    merge(m)
    assert type(m.get_submodule("blocks.0.steps.0.sublayer.qkv")) is nn.Linear
    assert isinstance(m.get_submodule("blocks.0.steps.0.sublayer.out"), PackedLinear)
    assert close(logits(m), with_adapters, PACKED)


@torch.inference_mode()
@pytest.mark.parametrize("packed", [False, True])
def test_the_native_path_never_leaves_adapters_out(packed):
    m = model()
    if packed:
        quantise(m, 8)
    m.kernel = "auto"

    def steps():
        cache = m.new_cache(2, capacity=16)
        return torch.cat([m(TOKENS[:, i : i + 1], cache=cache) for i in range(6)], 1)

    plain = steps()  # lowered now, where this machine has the kernels
    add_lora(m, Lora(4))
    shake(m)
    m.kernel = "reference"
    wanted = steps()
    m.kernel = "auto"
    most = PACKED if packed else 1e-5
    assert close(steps(), wanted, most)
    assert not close(plain, wanted, 10 * most)
    m.kernel = "native"
    with pytest.raises(Refused, match="LoraLinear has no native form"):
        steps()
    merge(m)
    assert close(steps(), wanted, most)  # native again


def test_encoder_decoder_and_experts():
    spec = vt.encoder_decoder(vocab=50, width=32, layers=1, heads=2, position="sinusoidal")
    m = vt.build(spec).eval()
    names = add_lora(m, Lora(2))
    assert {"encoder.blocks.0.steps.0.sublayer.qkv.q", "blocks.0.steps.1.sublayer.kv.k"} <= set(names)
    experts = vt.Experts(vt.FeedForward(16), 3, vt.TopK(2))
    moe = vt.build(vt.decoder(vocab=50, width=32, layers=1, heads=2, ffn=experts)).eval()
    before = logits(moe)
    names = add_lora(moe, Lora(2, targets=("ffn",)))
    assert len(names) == 9  # gate, up and down of three; not the router
    assert torch.equal(logits(moe), before)
    shake(moe)
    after = logits(moe)
    merge(moe)
    assert close(logits(moe), after)


def test_what_is_refused():
    for bad in (
        {"rank": 0},
        {"alpha": 0.0},
        {"alpha": float("nan")},
        {"dropout": 1.0},
        {"targets": ()},
        {"targets": "q"},
    ):
        with pytest.raises(BadInput):
            Lora(**bad)
    m = model()
    with pytest.raises(BadInput, match="no adapters"):
        merge(m)
    with pytest.raises(BadInput, match="'quay' is none of this model's linear maps"):
        add_lora(m, Lora(targets=("q", "quay")))
    assert not adapted(m)
    assert all(p.requires_grad for p in m.parameters())
    add_lora(m, Lora())
    with pytest.raises(BadInput, match="already"):
        add_lora(m, Lora())
    with pytest.raises(BadInput, match="save_adapter"):
        vt.save(m, "unused")


def test_a_tied_head_is_refused_by_name():
    spec = vt.decoder(vocab=50, width=32, layers=1, heads=2)
    m = vt.build(replace(spec, head=replace(spec.head, tied=True)))
    with pytest.raises(Refused, match=r"head\.linear.*tied"):
        add_lora(m, Lora(targets=("head",)))
    assert not any(isinstance(module, LoraLinear) for module in m.modules())
    untied = vt.build(replace(spec, head=replace(spec.head, tied=False)))
    assert add_lora(untied, Lora(targets=("head",))) == ["head.linear"]
