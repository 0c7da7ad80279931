"""Keys and values in few bits: the published levels and errors, the worked numbers, bytes, and caches in a model."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.cache.forgetting_rules import KINDS, TOKENS, close, model, run
from vantage.cache.codecs import PlainCodec, SingleCodec, token_bytes
from vantage.cache.kinds.low_bit import LowBitCache
from vantage.cache.low_bits import (
    BITS,
    LowBitCodec,
    decode_direction,
    decode_range,
    encode_direction,
    encode_range,
    hadamard,
    levels_of,
    pack,
    packed_bytes,
    padded,
    unpack,
)
from vantage.cache.saved import Fingerprint, read_cache, save_cache
from vantage.errors import BadInput, CheckpointError

LEVELS = {2: [0.4528, 1.5104], 3: [0.2451, 0.7560, 1.3439, 2.1519]}
ERRORS = {2: 0.1175, 3: 0.03455, 4: 0.0095}


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", BITS)
def test_the_levels_are_those_of_lloyd_and_max(bits):
    levels, x = levels_of(bits), randn(400_000).double()
    assert len(levels) == 2**bits
    torch.testing.assert_close(levels, -levels.flip(0))
    if bits in LEVELS:
        assert levels[2 ** (bits - 1) :].tolist() == pytest.approx(LEVELS[bits], abs=5e-5)
    nearest = (x[:, None] - levels).abs().amin(1).square().mean()
    assert nearest.item() == pytest.approx(ERRORS[bits], rel=0.02)


def test_the_worked_number_of_the_hadamard_matrix():
    """(14, 1, 1, 1) becomes (8.5, 6.5, 6.5, 6.5): in 4 bits by absmax an error of 0.551 in the place of 3.0."""
    x = torch.tensor([14.0, 1, 1, 1], dtype=torch.float64)
    assert hadamard(x).tolist() == [8.5, 6.5, 6.5, 6.5]
    torch.testing.assert_close(hadamard(hadamard(x)), x)

    def error(x: torch.Tensor) -> float:
        step = x.abs().amax() / 7
        return (x - (x / step).round() * step).square().sum().item()

    assert error(x) == pytest.approx(3.0)
    assert error(hadamard(x)) == pytest.approx(0.551, abs=5e-4)


@pytest.mark.parametrize("width", [64, 48, 1])
@pytest.mark.parametrize("bits", BITS)
def test_keys_come_back_within_the_error_of_the_levels(width, bits):
    """Whatever their numbers are like: one channel is far larger than the others here. Lengths come back in full."""
    x = randn(2, 3, 40, width)
    x[..., 0] *= 20
    back = decode_direction(*encode_direction(x, bits, torch.float32), width, bits, torch.float32)
    if width == 64:
        torch.testing.assert_close(back.norm(dim=-1), x.norm(dim=-1))
        error = ((x - back).square().sum() / x.square().sum()).item()
        assert error < 1.25 * ERRORS[bits]
    zero = torch.zeros(1, 1, 2, width)
    assert torch.equal(decode_direction(*encode_direction(zero, bits, torch.float32), width, bits, torch.float32), zero)


@pytest.mark.parametrize("bits", BITS)
def test_every_number_goes_to_the_nearest_level(bits):
    x = randn(1, 1, 50, 16).double()
    turned = hadamard(x / x.norm(dim=-1, keepdim=True)) * 4  # the root of 16: numbers much like those of N(0, 1)
    nearest = (turned[..., None] - levels_of(bits)).abs().argmin(-1)
    packed, length = encode_direction(x, bits, torch.float64)
    assert torch.equal(unpack(packed, 16, bits), nearest)
    torch.testing.assert_close(length, x.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("bits", BITS)
def test_values_are_off_by_half_a_step_at_most(bits):
    x = randn(2, 3, 5, 17)
    packed, scales = encode_range(x, bits, torch.float32)
    back = decode_range(packed, scales, 17, bits, torch.float32)
    step = (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / (2**bits - 1)
    assert ((x - back).abs() <= step / 2 + 1e-6).all()
    flat = torch.full((1, 1, 1, 5), 3.0)
    assert torch.equal(decode_range(*encode_range(flat, bits, torch.float32), 5, bits, torch.float32), flat)


@pytest.mark.parametrize("bits", BITS)
def test_codes_as_bytes(bits):
    codes = torch.arange(2**bits).repeat(3)[: 2**bits + 3]
    packed = pack(codes, bits)
    assert packed.shape == (packed_bytes(len(codes), bits),)
    assert torch.equal(unpack(packed, len(codes), bits), codes)
    assert [padded(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]


def test_what_a_token_takes():
    """A head of 128 in 4 and 4 bits: 134 bytes, 3.8 times fewer than in 16 bits."""
    plain = PlainCodec(1, 128, 128, torch.bfloat16)
    assert token_bytes(LowBitCodec(plain)) == 134
    assert token_bytes(plain) / token_bytes(LowBitCodec(plain)) == pytest.approx(3.8, abs=0.03)
    assert token_bytes(LowBitCodec(SingleCodec(1, 96, 64, torch.bfloat16), 2, 2)) == 128 * 2 // 8 + 2
    lengths = {t: LowBitCodec(PlainCodec(1, 8, 8, t)).scale_dtype for t in (torch.bfloat16, torch.float32)}
    assert lengths == {
        torch.bfloat16: torch.float16,
        torch.float32: torch.float32,
    }


# ---- in a model


@pytest.mark.parametrize(("bits", "least", "most"), [(4, 0.0, 0.5), (3, 0.01, 1.0), (2, 0.02, 2.0)])
def test_a_row_is_rounded_once_however_it_is_cut(bits, least, most):
    m, kind = model(), LowBitCache(key_bits=bits, value_bits=bits)
    steps = run(m, m.new_cache(1, kind=kind), TOKENS, (1,) * 17)
    close(run(m, m.new_cache(1, kind=kind), TOKENS, (9, 1, 7)), steps)
    with torch.no_grad():
        assert least < (steps - m(TOKENS)).abs().mean().item() < most


@pytest.mark.parametrize("of", [None, *KINDS])
def test_forked_saved_and_around_other_kinds(of, tmp_path):
    kind = LowBitCache(key_bits=4, value_bits=3) if of is None else LowBitCache(KINDS[of], 4, 3)
    m, path, whose = model(), tmp_path / "cache.safetensors", Fingerprint("m", "0")
    cache = m.new_cache(1, kind=kind)
    run(m, cache, TOKENS[:, :9], (9,))
    save_cache(cache, path, fingerprint=whose)
    again = read_cache(path, like=m.new_cache(1, kind=kind), fingerprint=whose).cache
    fork = cache.fork()
    wanted = run(m, cache, TOKENS[:, 9:], (8,))
    assert torch.equal(run(m, again, TOKENS[:, 9:], (8,)), wanted)
    assert torch.equal(run(m, fork, TOKENS[:, 9:], (8,)), wanted)


def test_latent_keys_and_values_are_one_stream():
    attention = vt.Latent(4, kv_rank=12, nope_dim=8, rope_dim=8, value_dim=6, norm=vt.RMSNorm())
    m = vt.build(vt.decoder(vocab=19, width=32, layers=2, attention=attention, position="rope"), seed=0).double().eval()
    cache = m.new_cache(1, kind="low-bit")
    close(run(m, cache, TOKENS, (17,)), run(m, m.new_cache(1, kind="low-bit"), TOKENS, (5, 12)))
    assert isinstance(cache.layers[0].store.codec, LowBitCodec)


def test_what_cannot_be():
    for bits in ((8, 4), (1, 4), (4, 5)):
        with pytest.raises(BadInput, match=f"{bits[0]} bits for keys and {bits[1]} for values: give 2, 3 or 4"):
            LowBitCache(key_bits=bits[0], value_bits=bits[1])
    whole = LowBitCodec(PlainCodec(1, 8, 8), 3, 2).dump()
    assert LowBitCodec.from_dump(whole) == LowBitCodec(PlainCodec(1, 8, 8), 3, 2)
    for wrong in ({"of": "low bits"}, {"key_bits": 7}, {"value_bits": True}, {"sizes": [1]}):
        with pytest.raises(CheckpointError):
            LowBitCodec.from_dump({**whole, **wrong})
