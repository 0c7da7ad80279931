"""Alternating updates: what a layer does with streams, with caches, padding and documents, and from the inside."""

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.attention.helpers import F64, check_gradients, vectors
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.inspect.kernels import kernel_choices
from vantage.interventions import attribute
from vantage.model.altup import AltUpBlock, StreamsEnd, as_large_as
from vantage.spec.altup import AltUp
from vantage.spec.model import Parallel
from vantage.spec.positions import Positions

TOKENS = torch.randint(19, (2, 20), generator=torch.Generator().manual_seed(0))


def spec(**changes) -> vt.ModelSpec:
    """Three layers, the last of which reads the keys of the second; ids from 17 on have no embedding of their own."""
    plain = vt.decoder(vocab=19, width=16, layers=3, heads=4, kv_heads=2, wiring="sandwich", window=6)
    layers = (*plain.layers[:2], replace(plain.layers[2], source=1))
    return replace(plain, layers=layers, altup=AltUp(17, 6, **{"streams": 3, "rank": 5, **changes}))


def model(**changes) -> vt.Model:
    return sharpen(vt.build(spec(**changes)).double()).eval()


def test_sizes_between_layers():
    assert spec().residual_width == 3 * 16 + 3 * 6
    assert replace(spec(), altup=None).residual_width == 16
    made, seen = model(), []
    for block in made.blocks:
        block.register_forward_hook(lambda m, args, out: seen.append(out.shape[-1]))
    made(TOKENS)
    assert seen == [66, 66, 66]


def test_as_large_as_another():
    x, y = vectors(2, 3, 8), vectors(2, 3, 8, seed=1)
    torch.testing.assert_close(as_large_as(x, y).square().mean(-1), y.square().mean(-1))
    assert torch.equal(as_large_as(torch.zeros(4), torch.ones(4)), torch.zeros(4))


@torch.no_grad()
def test_a_block_that_predicts_nothing_and_corrects_by_one():
    """With no weight to predict, streams come in as they are; each is then moved by what the active one was."""
    block = model().blocks[1]
    assert isinstance(block, AltUpBlock)
    torch.nn.init.zeros_(block.predict.weight)
    torch.nn.init.zeros_(block.correct.weight)
    torch.nn.init.zeros_(block.token_norm.weight)
    streams, activated = vectors(2, 5, 3, 16), vectors(2, 5, 16, seed=1)
    assert torch.equal(block.predicted(streams), streams)
    moved = activated - streams[..., 0, :]
    torch.testing.assert_close(block.corrected(streams, activated), streams + moved[..., None, :])


@torch.no_grad()
def test_a_layer_reads_its_own_part_of_the_token():
    made = model()
    x = made.embed(TOKENS, Positions.arange(2, 20))
    mine = x[..., 48 + 6 : 48 + 12].clone()
    whole = made.blocks[1].of_token(x[..., :16], mine)
    seen = {}
    block = made.blocks[1]
    block.token_gate.register_forward_hook(lambda m, args, out: seen.update(gate=out))
    block.token_out.register_forward_pre_hook(lambda m, args: seen.update(given=args[0]))
    made.hidden_from(x, 0)
    torch.testing.assert_close(seen["given"], torch.nn.functional.gelu(seen["gate"], approximate="tanh") * mine)
    assert whole.shape == (2, 20, 16)


@torch.no_grad()
def test_ids_beyond_the_table_read_its_first_row():
    made = model()
    begin = made.embed.streams
    x = vectors(1, 4, 16)
    got = begin(x, torch.tensor([[0, 16, 17, 18]]))[..., 48:]
    same = begin(x, torch.tensor([[0, 16, 0, 0]]))[..., 48:]
    assert torch.equal(got, same)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "paged", "ring"])
def test_cached_is_uncached(kind):
    made = model()
    whole, cache = made(TOKENS), made.new_cache(2, kind=kind)
    pieces = [made(piece, cache=cache) for piece in TOKENS.split((7, 1, 1, 5, 6), 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_padding_and_documents():
    made = model()
    alone = made(TOKENS[:1, :12])
    mask = torch.arange(20) < torch.tensor([[12]])
    torch.testing.assert_close(made(TOKENS[:1], mask=mask)[:, :12], alone, rtol=1e-9, atol=1e-9)
    packed = made(TOKENS[:1, :20], positions=Positions.packed([[8, 12]]))
    torch.testing.assert_close(packed[:, 8:], made(TOKENS[:1, 8:20]), rtol=1e-9, atol=1e-9)


@pytest.mark.sampled
def test_gradients():
    block = model(streams=2).blocks[0]
    check_gradients(block, lambda m, x: m.corrected(m.predicted(x), x[..., 0, :].tanh()), vectors(1, 2, 2, 16))
    end = StreamsEnd(AltUp(3, streams=2), vt.RMSNorm().build(4), 4).to(F64)
    check_gradients(end, lambda m, x: m(x), vectors(1, 2, 10))


def test_weights_are_clipped_while_training_alone():
    block = model(clip=0.01).blocks[0]
    streams = vectors(1, 2, 3, 16)
    free = block.predicted(streams)
    assert not torch.allclose(block.train().predicted(streams), free)
    assert torch.equal(model(clip=None).blocks[0].train().predicted(streams), free)


@torch.no_grad()
def test_from_the_inside():
    made = model()
    seen = vt.trace(made, TOKENS[:1], read=["embedding", "layers.*.attention", "layers.*.residual_after", "hidden"])
    assert seen["embedding"].shape[-1] == seen["layers.2.residual_after"].shape[-1] == 66
    assert seen["layers.1.attention"].shape[-1] == seen["hidden"].shape[-1] == 16
    torch.testing.assert_close(made.norm(seen["layers.2.residual_after"]), seen["hidden"])
    assert len(kernel_choices(made, context=8, device="cpu")) == 3
    assert "streams: AltUp(token_vocab=17" in made.summary()
    with pytest.raises(Refused, match="several residual streams"):
        attribute(made, TOKENS[:1])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AltUp(0), "token_vocab=0: AltUp needs at least 1"),
        (lambda: AltUp(5, streams=2, active=2), "active=2: there are 2 streams, from 0 to 1"),
        (lambda: replace(spec(), norm=None), "ends with a norm"),
        (
            lambda: vt.build(replace(spec(), layers=tuple(replace(x, wiring=Parallel()) for x in spec().layers))),
            "use SANDWICH",
        ),
    ],
)
def test_refused(make, says):
    with pytest.raises(BadInput, match=says):
        make()
