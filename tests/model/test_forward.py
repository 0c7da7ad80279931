"""A whole pass: what is built once, what never asks the device, and that caches change nothing."""

from dataclasses import dataclass, replace

import pytest
import torch

from tests.attention.helpers import check_gradients, sharpen
from vantage.attention import GroupedQuery, Latent
from vantage.errors import LengthExceeded
from vantage.kernels import reference, sdpa
from vantage.model import build, decoder, encoder, encoder_decoder
from vantage.model.norms import RMSNorm
from vantage.position import Alibi, Randomised, Rope, scaling
from vantage.spec import masks, parts
from vantage.spec.masks import Causal, SameSegment
from vantage.spec.positions import EMPTY, Known, Positions

SMALL = {"vocab": 11, "width": 16, "layers": 3, "heads": 4, "kv_heads": 2}


def tokens(*shape, seed=0):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


def sharp(spec, **options):
    return sharpen(build(spec, **options).double())


@pytest.fixture
def handed(monkeypatch):
    """What reaches torch's attention function."""
    seen, real = [], torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, mask, **options):
        seen.append((mask, options["is_causal"]))
        return real(q, k, v, mask, **options)

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", spy)
    return seen


# ---- masks


@pytest.mark.parametrize("position", ["rope", "sinusoidal", "none"])
@torch.no_grad()
def test_a_plain_causal_pass_builds_no_mask(position, handed, monkeypatch):
    monkeypatch.setattr(sdpa, "dense", lambda mask, pair: pytest.fail("a mask was built"))
    model = sharp(decoder(**SMALL, position=position))
    model(tokens(2, 6))
    assert handed == [(None, True)] * 3
    handed.clear()
    for kind in ("contiguous", "paged"):
        cache = model.new_cache(2, kind=kind, capacity=16)
        model(tokens(2, 6), cache=cache)
        model(tokens(2, 1), cache=cache)
        assert handed == [(None, True)] * 3 + [(None, False)] * 3
        handed.clear()


@torch.no_grad()
def test_a_window_at_a_decode_step_builds_no_mask(handed):
    model = sharp(decoder(**SMALL, window=3))
    cache = model.new_cache(2, kind="ring")
    model(tokens(2, 6), cache=cache)
    handed.clear()
    for _ in range(4):
        model(tokens(2, 1), cache=cache)
    assert handed == [(None, False)] * 12


@dataclass(frozen=True)
class Counted(masks.Mask):
    """A causal mask that counts how often it is built."""

    calls: list

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(self, q, k):
        self.calls.append(1)
        return k.order <= q.order

    def simplified(self, q, k):
        return self

    def reach(self):
        return None

    def settled(self, start):
        return True


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
@torch.no_grad()
def test_a_mask_is_built_once_per_pass_and_not_once_per_layer(kernel):
    calls = []
    model = sharp(decoder(**SMALL, mask=Counted(calls)), kernel=kernel)
    model(tokens(2, 6))
    once = len(calls)
    assert once >= 1
    if kernel != "flex":  # flex calls it while it builds and while it runs
        assert once == 1
    cache = model.new_cache(2)
    calls.clear()
    model(tokens(2, 6), cache=cache)
    model(tokens(2, 2), cache=cache)
    if kernel != "flex":
        assert len(calls) == 2


@torch.no_grad()
def test_flex_builds_its_block_mask_once_per_pass(monkeypatch):
    from vantage.kernels import flex

    made, real = [], flex.create_block_mask
    monkeypatch.setattr(flex, "create_block_mask", lambda *a, **o: made.append(1) or real(*a, **o))
    model = sharp(decoder(**SMALL), kernel="flex")
    model(tokens(2, 6))
    assert len(made) == 1


@torch.no_grad()
def test_a_bias_that_layers_share_is_built_once_per_pass(monkeypatch):
    from vantage.spec.forms import Slope

    calls, real = [], Slope.__call__
    monkeypatch.setattr(Slope, "__call__", lambda self, *a: calls.append(1) or real(self, *a))
    model = sharp(decoder(**SMALL, position=Alibi()))
    model(tokens(2, 6))
    assert len(calls) == 1
    cache = model.new_cache(2)
    model(tokens(2, 4), cache=cache)
    model(tokens(2, 1), cache=cache)
    assert len(calls) == 3


@torch.no_grad()
def test_rope_tables_are_made_once_per_pass(monkeypatch):
    from vantage.position import rope

    calls, real = [], rope.angles
    monkeypatch.setattr(rope, "angles", lambda *a: calls.append(1) or real(*a))
    model = sharp(decoder(**SMALL))
    model(tokens(2, 6))
    assert len(calls) == 1


def test_an_equal_bias_of_another_object_is_not_mistaken_for_it():
    """What is built once is kept by what it is made of, and stays alive as long as that."""
    pos = Positions.arange(1, 3)
    pair = pos.against(pos)
    values = []
    for slope in (1.0, 2.0, 3.0):  # the objects are dropped at once, so that ids come again
        from vantage.spec.forms import Slope

        values.append(float(parts.materialise(Slope(torch.tensor([slope])), pair, 1, torch.float32)[0, 0, 2, 0]))
    assert values == [-2.0, -4.0, -6.0]


# ---- no device is asked


@pytest.mark.parametrize("position", ["rope", "alibi", "t5", "shaw", "sinusoidal", "xl", "kerple", "fire", "cope"])
@pytest.mark.parametrize("kind", [None, "contiguous"])
@torch.no_grad()
def test_no_path_reads_the_device(position, kind):
    """On the meta device nothing can be read: whatever asked for a value would fail."""
    model = build(decoder(**SMALL, position=position)).to("meta")
    cache = None if kind is None else model.new_cache(2, kind=kind)
    out = model(torch.empty(2, 6, dtype=torch.long, device="meta"), cache=cache)
    assert out.shape == (2, 6, 11)
    if cache is not None:
        step = model(torch.empty(2, 1, dtype=torch.long, device="meta"), cache=cache)
        assert step.shape == (2, 1, 11)


def test_given_positions_are_not_read_from_a_device():
    pos = Positions.of(torch.empty(2, 4, dtype=torch.long, device="meta"))
    assert pos.known == Known()
    model = build(decoder(**SMALL)).to("meta")
    assert model(torch.empty(2, 4, dtype=torch.long, device="meta"), positions=pos).shape == (2, 4, 11)


# ---- positions


@torch.no_grad()
def test_positions_as_tensors_rows_or_objects():
    model, x = sharp(decoder(**SMALL)), tokens(2, 5)
    plain = model(x)
    for given in (torch.arange(5), torch.arange(5)[None], torch.arange(5).expand(2, 5), Positions.arange(1, 5)):
        torch.testing.assert_close(model(x, positions=given), plain)
    moved = model(x, positions=torch.arange(5) + 7)
    torch.testing.assert_close(moved, plain)  # RoPE sees distances alone
    assert not torch.allclose(model(x, positions=2 * torch.arange(5)), plain)


@torch.no_grad()
def test_padding_left_or_right_is_the_row_alone():
    model, x = sharp(decoder(**SMALL, position="learned", max_length=8)), tokens(1, 4)
    alone = model(x)
    right, left = torch.cat([x, x], 1), torch.cat([x, x], 1)
    mask = torch.arange(8)[None] < 4
    torch.testing.assert_close(model(right, mask=mask)[:, :4], alone)
    torch.testing.assert_close(model(left, mask=~mask)[:, 4:], alone)
    torch.testing.assert_close(model(left, positions=torch.tensor([[EMPTY] * 4 + [0, 1, 2, 3]]))[:, 4:], alone)
    torch.testing.assert_close(model(right, mask=mask.long())[:, :4], alone)


@torch.no_grad()
def test_packed_documents_do_not_see_each_other():
    model, x = sharp(decoder(**SMALL, position="sinusoidal")), tokens(1, 7)
    packed = model(x, positions=Positions.packed([[3, 4]]))
    torch.testing.assert_close(packed[:, :3], model(x[:, :3]))
    torch.testing.assert_close(packed[:, 3:], model(x[:, 3:]))


@torch.no_grad()
def test_each_row_goes_on_where_it_stopped():
    model, x = sharp(decoder(**SMALL)), tokens(2, 8)
    cache = model.new_cache(2)
    mask = torch.tensor([[True, True, True, True], [True, True, False, False]])
    model(x[:, :4], mask=mask, cache=cache)
    assert cache.tokens == (4, 2)
    step = model(x[:, 4:6], cache=cache)
    torch.testing.assert_close(step[0], model(x[:1, :6])[0, 4:])
    told = torch.cat([x[1:, :2], x[1:, 4:6]], 1)
    torch.testing.assert_close(step[1], model(told)[0, 2:])
    more = model(x[:, 6:8], mask=torch.tensor([[False, True], [True, True]]), cache=cache)
    torch.testing.assert_close(more[0, 1], model(torch.cat([x[:1, :6], x[:1, 7:]], 1))[0, -1])
    torch.testing.assert_close(more[1], model(torch.cat([told, x[1:, 6:8]], 1))[0, -2:])


def test_randomised_positions_are_drawn_in_training_alone():
    generator = torch.Generator().manual_seed(0)
    model = sharp(decoder(**SMALL, position=Randomised(Rope(), 50, generator=generator)))
    plain = sharp(decoder(**SMALL))
    x = tokens(2, 6)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
        model.train()
        assert not torch.allclose(model(x), model(x))
        places = torch.arange(6)
        assert torch.equal(model(x, positions=places), plain(x, positions=places))  # given ones are kept
        cache = model.new_cache(2)
        torch.testing.assert_close(model(x, cache=cache), plain(x))  # and a cache counts on


# ---- looking on


@pytest.mark.parametrize("attention", [GroupedQuery(4, 2), Latent(4, 6, 4, 2, 4, norm=RMSNorm())])
@torch.no_grad()
def test_whoever_watches_sees_every_attention_and_changes_nothing(attention):
    model, x, seen = sharp(decoder(vocab=11, width=16, layers=3, attention=attention)), tokens(2, 5), []
    watched = model.hidden(x, watch=lambda site, index, view, need, done: seen.append((site, index, need, done)))
    torch.testing.assert_close(watched, model.hidden(x))
    assert [(site, index) for site, index, _, _ in seen] == [("self", 0), ("self", 1), ("self", 2)]
    for _, _, need, done in seen:
        assert need.weights
        torch.testing.assert_close(done.weights.sum(-1), torch.ones(2, 4, 5, dtype=torch.float64))
        assert (done.weights.triu(1) == 0).all()


@torch.no_grad()
def test_cross_attention_is_seen_too():
    model, seen = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4)), []
    memory = model.encode(tokens(1, 4))
    model.hidden(tokens(1, 3), source=memory, watch=lambda site, index, *rest: seen.append((site, index)))
    assert seen == [("self", 0), ("cross", 0), ("self", 1), ("cross", 1)]


# ---- encoder-decoder


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@torch.no_grad()
def test_the_source_is_read_once(kind):
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4, kv_heads=2))
    source, x = tokens(2, 5), tokens(2, 6, seed=1)
    wanted = model(x, source=source)
    runs = []
    model.encoder.register_forward_hook(lambda *a: runs.append(1))
    cache = model.new_cache(2, kind=kind)
    got = [model(x[:, :3], source=model.encode(source), cache=cache)]
    assert cache.has_memory
    got += [model(x[:, t : t + 1], cache=cache) for t in range(3, 6)]
    torch.testing.assert_close(torch.cat(got, 1), wanted)
    assert cache.tokens == (6, 6)


@torch.no_grad()
def test_a_padded_source_is_the_source_alone():
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4))
    source, x = tokens(2, 5), tokens(2, 4, seed=1)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    both = model(x, source=model.encode(source, mask=mask))
    torch.testing.assert_close(both[1:], model(x[1:], source=source[1:, :3]))
    torch.testing.assert_close(both[:1], model(x[:1], source=source[:1]))


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
@torch.no_grad()
def test_only_some_layers_look_at_the_source(which):
    spec = encoder_decoder(vocab=11, width=16, layers=3, heads=4)
    layers = tuple(layer if i in which else replace(layer, cross=None) for i, layer in enumerate(spec.layers))
    model = sharp(replace(spec, layers=layers))
    source, x = tokens(2, 5), tokens(2, 4, seed=1)
    wanted = model(x, source=source)
    cache = model.new_cache(2)
    got = [model(x[:, :2], source=source, cache=cache), model(x[:, 2:], cache=cache)]
    torch.testing.assert_close(torch.cat(got, 1), wanted)


# ---- lengths that matter


@pytest.mark.parametrize(
    "rule",
    [
        scaling.DynamicNTK(2.0, 6),
        scaling.LongRope((1.0, 1.1), (3.0, 4.0), 6, factor=4.0),
    ],
)
@torch.no_grad()
def test_a_declared_length_holds_for_the_life_of_a_cache(rule):
    model, x = sharp(decoder(**SMALL, position=Rope(scaling=rule))), tokens(2, 14)
    whole = model(x[:, :12], length=12)
    cache = model.new_cache(2, length=12)
    assert cache.length == 12
    got = [model(part, cache=cache) for part in x[:, :12].split([5, 3, 1, 1, 1, 1], dim=1)]
    torch.testing.assert_close(torch.cat(got, 1), whole)
    assert not torch.allclose(model(x[:, :6], length=6), whole[:, :6])  # the length does matter
    with pytest.raises(LengthExceeded, match="past the declared length of 12"):
        model(x[:, 12:13], cache=cache)
    assert cache.tokens == (12, 12)

    grown = model.grow(cache, x[:, :12], length=24)
    assert grown.recomputed == 24  # tokens: two rows of 12
    assert grown.length == 24
    assert cache.length == 12
    longer = model(x, length=24)
    torch.testing.assert_close(model(x[:, 12:], cache=grown), longer[:, 12:])
    again = model.grow(grown, x, length=48, mask=torch.arange(14).expand(2, 14) < torch.tensor([[14], [3]]))
    assert again.recomputed == 24 + 17


def test_a_cache_declares_the_length_up_to_which_nothing_changes():
    model = build(decoder(**SMALL, position=Rope(scaling=scaling.DynamicNTK(2.0, 6))))
    assert model.new_cache().length == 6
    assert model.new_cache(length=9).length == 9
    assert build(decoder(**SMALL)).new_cache().length is None


# ---- caches belong to the model's types


def test_a_cache_has_the_models_dtype_and_batch():
    model = build(decoder(**SMALL)).double()
    cache = model.new_cache(3, capacity=4)
    assert cache.batch == 3
    assert {t.dtype for layer in cache.layers for t in layer.store.tensors} == {torch.float64}


# ---- gradients


@pytest.mark.parametrize(
    "spec",
    [
        decoder(vocab=3, width=4, layers=1, heads=1, ffn="relu", tied=True),
        decoder(vocab=3, width=4, layers=1, heads=1, position="learned", max_length=3, ffn="relu", norm="layer"),
    ],
)
def test_gradcheck_of_a_whole_model(spec):
    model = sharp(spec, kernel="reference")
    check_gradients(model, lambda m: m(torch.tensor([[0, 2, 1]])))


def test_gradients_with_padding_are_finite_and_padding_gives_none():
    model = build(decoder(vocab=11, width=16, layers=2, heads=4, position="sinusoidal")).double()
    for kernel in ("reference", "sdpa"):
        model.kernel = kernel
        model.zero_grad()
        x = torch.tensor([[9, 9, 1, 2], [3, 4, 5, 6]])
        mask = torch.tensor([[False, False, True, True], [True] * 4])
        model(x, mask=mask)[mask].square().sum().backward()
        grads = [p.grad for p in model.parameters()]
        assert all(g is not None and g.isfinite().all() for g in grads)
        assert (model.embed.tokens.weight.grad[9] == 0).all()


def test_encoders_see_both_sides_and_train():
    model = build(encoder(**SMALL)).double()
    model(tokens(2, 4)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_reference_and_auto_agree():
    model, x = sharp(decoder(**SMALL)), tokens(2, 6)
    with torch.no_grad():
        auto = model(x)
        model.kernel = "reference"
        assert reference.Reference.name == model.kernel
        torch.testing.assert_close(model(x), auto)
    assert model.spec.layers[0].mask == Causal() & SameSegment()
