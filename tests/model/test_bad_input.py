"""Bad input is refused by an error that says what to do, and a refused call leaves the cache as it was."""

from dataclasses import replace

import pytest
import torch

from tests.attention.helpers import sharpen
from vantage.attention import GroupedQuery
from vantage.errors import BadInput, CacheError, LengthExceeded, Refused, VantageError
from vantage.model import build, decoder, encoder_decoder
from vantage.position import Learned, Rope, XPos, scaling
from vantage.spec.masks import Causal, Everything, Prefix, SameSegment
from vantage.spec.model import Scores
from vantage.spec.positions import Positions

KINDS = ("contiguous", "fixed", "paged", "quantised", "ring")
HELD = 5


def tokens(*shape, seed=0):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


def sharp(spec, **options):
    return sharpen(build(spec, **options).double())


def cached(kind, *, batch=2, spec=None, **options):
    """A model, a cache that holds five tokens a row, and those tokens."""
    spec = decoder(vocab=11, width=16, layers=3, heads=4, kv_heads=2, window=4) if spec is None else spec
    model = sharp(spec)
    how = {"kind": "contiguous", "capacity": 12} if kind == "fixed" else {"kind": kind}
    cache = model.new_cache(batch, **{**how, **options})
    with torch.no_grad():
        model(tokens(batch, HELD), cache=cache)
    return model, cache, tokens(batch, HELD)


class Refuses:
    """``with Refuses(...)``: the call raises, and afterwards the cache is what it was.

    What it holds is compared as it reports it; then two more steps must be those of a pass without a cache.
    ``in_pass``: some layers had written by then. A ring writes over what is out of sight, and so holds less of it.
    """

    def __init__(self, error, says, model, cache, told, *, in_pass=False):
        self.model, self.cache, self.told = model, cache, told
        self.exact = not (in_pass and "ring" in cache.ledgers[0].name)
        self.raises = pytest.raises(error, match=says)
        self.before = self.state()

    def state(self):
        cache = self.cache
        held = str(cache.holds()) if self.exact else None
        return cache.tokens, cache.next_positions.order.tolist(), held, cache.length, cache.recomputed

    def __enter__(self):
        return self.raises.__enter__()

    def __exit__(self, *problem):
        done = self.raises.__exit__(*problem)
        assert self.state() == self.before
        model, cache, told = self.model, self.cache, self.told
        quantised = "int8" in str([layer.store.codec for layer in cache.layers]).lower()
        with torch.no_grad():
            for seed in (7, 8):
                new = tokens(len(told), 1, seed=seed)
                told = torch.cat([told, new], 1)
                length = cache.length
                wanted = model(told, length=length)[:, -1:]
                torch.testing.assert_close(model(new, cache=cache), wanted, rtol=0, atol=0.3 if quantised else 1e-9)
        return done


ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


# ---- what is wrong before anything runs


@ALL_KINDS
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m, c: m(torch.tensor([[1], [11]]), cache=c), BadInput, "token 11 is not in the vocabulary of 11"),
        (lambda m, c: m(torch.tensor([1, 2]), cache=c), BadInput, r"give whole numbers \(batch, tokens\)"),
        (lambda m, c: m(torch.ones(2, 1), cache=c), BadInput, "give whole numbers"),
        (
            lambda m, c: m(tokens(2, 2), mask=torch.ones(2, 7), cache=c),
            BadInput,
            r"the mask has shape \(2, 7\), the tokens \(2, 2\): give one entry per token",
        ),
        (lambda m, c: m(tokens(2, 2), mask=torch.ones(1, 2), cache=c), BadInput, "the mask has shape"),
        (
            lambda m, c: m(tokens(2, 2), positions=torch.arange(3), cache=c),
            BadInput,
            r"positions have shape \(1, 3\), the tokens \(2, 2\): they must agree",
        ),
        (
            lambda m, c: m(tokens(2, 1), positions=torch.tensor([5]), mask=torch.ones(2, 1), cache=c),
            BadInput,
            "give positions or a mask, not both: positions of -1 are padding",
        ),
        (
            lambda m, c: m(tokens(3, 1), cache=c),
            CacheError,
            r"the cache holds 2 rows, the tokens 3: .* new_cache\(batch=3\)",
        ),
        (
            lambda m, c: m(tokens(2, 1), cache=c, length=99),
            CacheError,
            r"length=99, but this cache was made for None .*model.grow",
        ),
        (lambda m, c: m(tokens(2, 1), cache=c, source=tokens(2, 3)), BadInput, "no encoder: leave source out"),
        (
            lambda m, c: m(tokens(2, 1), positions=torch.tensor([2]), cache=c),
            BadInput,
            "got order 2 where this cache expects 5.* start from cache.next_positions, or crop first",
        ),
    ],
)
def test_a_call_that_cannot_be(kind, call, error, says):
    model, cache, told = cached(kind)
    with Refuses(error, says, model, cache, told), torch.no_grad():
        call(model, cache)


@ALL_KINDS
def test_a_cache_of_another_model(kind):
    model, cache, told = cached(kind)
    other = sharp(model.spec)
    with Refuses(CacheError, r"belongs to another model: make one with model.new_cache", model, cache, told):
        other(tokens(2, 1), cache=cache)


@ALL_KINDS
def test_gradients_with_a_cache(kind):
    model, cache, told = cached(kind)
    with Refuses(BadInput, r"keeps no gradients: use torch.no_grad\(\)", model, cache, told, in_pass=True):
        model(tokens(2, 1), cache=cache)


@pytest.mark.parametrize("kind", ["fixed", "paged"])
def test_a_cache_that_is_full(kind):
    model, cache, told = cached(kind, capacity=12, **({"block": 4} if kind == "paged" else {}))
    with Refuses(CacheError, r"this cache is full|out of blocks", model, cache, told) as caught, torch.no_grad():
        model(tokens(2, 8), cache=cache)
    assert "capacity" in str(caught.value)


# ---- what is wrong in the middle of a pass


@pytest.mark.parametrize("kind", ["contiguous", "fixed", "paged", "quantised"])
def test_a_position_past_a_learned_table(kind):
    spec = decoder(vocab=11, width=16, layers=3, heads=4, position=Learned(8))
    model, cache, told = cached(kind, spec=spec)
    says = r"position 8 is past the end of a learned table of 8 rows \(0 to 7\): shorten the input, build with a longer"
    with Refuses(BadInput, says, model, cache, told), torch.no_grad():
        model(tokens(2, 4), cache=cache)
    with pytest.raises(BadInput, match=says):
        model(tokens(2, 9))


@ALL_KINDS
def test_a_kernel_that_refuses_in_the_third_layer(kind):
    """Two layers have written by then."""
    spec = decoder(vocab=11, width=16, layers=3, heads=4, kv_heads=2, window=4)
    last = replace(spec.layers[2], attention=GroupedQuery(4, 2, scores=Scores(softcap=3.0)))
    model, cache, told = cached(kind, spec=replace(spec, layers=(*spec.layers[:2], last)))
    for width in (1, 3):
        with Refuses(Refused, "but sdpa has no softcap; use kernel='auto'", model, cache, told, in_pass=True):
            model.kernel = "sdpa"
            try:
                with torch.no_grad():
                    model(tokens(2, width, seed=3), cache=cache)
            finally:
                model.kernel = "auto"
        told = torch.cat([told, tokens(2, 1, seed=7), tokens(2, 1, seed=8)], 1)


@ALL_KINDS
@pytest.mark.parametrize("width", [1, 6])
def test_anything_that_goes_wrong_in_the_middle(kind, width):
    model, cache, told = cached(kind)

    def stop(*args):
        raise KeyboardInterrupt("stopped")

    with Refuses(KeyboardInterrupt, "stopped", model, cache, told, in_pass=True):
        handle = model.blocks[1].steps[1].register_forward_hook(stop)
        try:
            with torch.no_grad():
                model(tokens(2, width, seed=3), cache=cache)
        finally:
            handle.remove()


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_position_past_the_declared_length(kind):
    spec = decoder(vocab=11, width=16, layers=3, heads=4, position=Rope(scaling=scaling.DynamicNTK(2.0, 4)))
    model, cache, told = cached(kind, spec=spec, length=8)
    says = "position 8 lies past the declared length of 8.* declare a longer length"
    with Refuses(LengthExceeded, says, model, cache, told), torch.no_grad():
        model(tokens(2, 4), cache=cache)


def test_a_position_that_xpos_cannot_hold():
    spec = decoder(vocab=11, width=16, layers=2, heads=4, position=XPos(scale_base=0.05))
    model, cache, told = cached("contiguous", spec=spec)
    far = model.spec.layers[0].qk[0].last_position(torch.float64) + 1
    with Refuses(BadInput, "use a wider dtype, a larger scale_base", model, cache, told), torch.no_grad():
        model(tokens(2, 1), positions=torch.tensor([far]), cache=cache)


# ---- masks that look ahead


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_tokens_that_earlier_ones_should_have_seen(kind):
    spec = decoder(vocab=11, width=16, layers=2, heads=4, mask=(Causal() | Prefix(8)) & SameSegment())
    model = sharp(spec)
    cache = model.new_cache(2, kind=kind)
    with torch.no_grad():
        model(tokens(2, HELD), cache=cache)
        before = cache.tokens, str(cache.holds())
        with pytest.raises(
            Refused, match=r"earlier ones should have seen them.* Give all tokens that see each other in one pass"
        ):
            model(tokens(2, 1), cache=cache)
        assert (cache.tokens, str(cache.holds())) == before
        whole = model.new_cache(2, kind=kind)
        x = tokens(2, 10)
        got = [model(x[:, :8], cache=whole), model(x[:, 8:], cache=whole)]
        torch.testing.assert_close(torch.cat(got, 1), model(x))


# ---- encoder-decoders


@torch.no_grad()
def test_a_source_that_is_missing_given_twice_or_not_wanted():
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4))
    source, x = tokens(2, 4), tokens(2, 6, seed=1)
    with pytest.raises(BadInput, match="this model reads a source: pass source=, or a cache that already holds one"):
        model(x)
    cache = model.new_cache(2)
    with pytest.raises(BadInput, match="reads a source"):
        model(x, cache=cache)
    assert cache.tokens == (0, 0)
    assert not cache.has_memory
    model(x[:, :3], source=source, cache=cache)
    before = cache.tokens, str(cache.holds())
    with pytest.raises(CacheError, match="already holds a source: leave source out, or start with a new cache"):
        model(x[:, 3:], source=source, cache=cache)
    assert (cache.tokens, str(cache.holds())) == before
    torch.testing.assert_close(model(x[:, 3:], cache=cache), model(x, source=source)[:, 3:])
    with pytest.raises(BadInput, match="this model has no encoder: leave source out"):
        sharp(decoder(vocab=11, width=16, layers=1, heads=4)).encode(source)


@torch.no_grad()
def test_a_source_for_another_number_of_rows():
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4))
    for rows in (1, 3):
        with pytest.raises(BadInput, match=rf"the source has {rows} rows, the tokens 2: give one for each"):
            model(tokens(2, 3), source=tokens(rows, 4))
        cache = model.new_cache(2)
        with pytest.raises(BadInput, match=rf"the source has {rows} rows"):
            model(tokens(2, 3), source=tokens(rows, 4), cache=cache)
        assert not cache.has_memory


@torch.no_grad()
def test_a_source_that_is_no_batch_of_tokens():
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4))
    with pytest.raises(BadInput, match=r"give whole numbers \(batch, tokens\)"):
        model.encode(torch.tensor([1, 2, 3]))
    with pytest.raises(BadInput, match="token 11 is not in the vocabulary"):
        model(tokens(1, 3), source=torch.tensor([[11]]))
    with pytest.raises(BadInput, match="the mask has shape"):
        model.encode(tokens(2, 3), mask=torch.ones(2, 4))


@torch.no_grad()
def test_a_failed_first_pass_leaves_no_source_behind():
    model = sharp(encoder_decoder(vocab=11, width=16, layers=2, heads=4))
    cache = model.new_cache(2)

    def stop(*args):
        raise RuntimeError("stopped")

    handle = model.blocks[1].steps[1].register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stopped"):
        model(tokens(2, 3), source=tokens(2, 4), cache=cache)
    handle.remove()
    assert not cache.has_memory
    assert cache.tokens == (0, 0)
    x = tokens(2, 5, seed=1)
    got = [model(x[:, :3], source=tokens(2, 4), cache=cache), model(x[:, 3:], cache=cache)]
    torch.testing.assert_close(torch.cat(got, 1), model(x, source=tokens(2, 4)))


# ---- caches


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "pagd"}, "Did you mean 'paged'"),
        ({"kind": "zzz"}, "There are: contiguous, ring, paged, static, quantised"),
        ({"capacity": 0}, "capacity=0: give at least 1, or None"),
        ({"length": 0}, "length=0: give at least 1, or None"),
        ({"draft": -1}, "draft=-1: give 0 or more"),
        ({"batch": 0}, "0 rows"),
        ({"kind": "ring"}, "no layer of this model has one: use kind='contiguous' or 'paged'"),
    ],
)
def test_caches_that_cannot_be(options, says):
    model = build(decoder(vocab=11, width=16, layers=1, heads=4))
    with pytest.raises(VantageError, match=says):
        model.new_cache(**options)


def test_every_error_can_be_caught_as_one():
    for error in (BadInput, Refused, CacheError, LengthExceeded):
        assert issubclass(error, VantageError)
    assert issubclass(BadInput, ValueError)
    assert issubclass(LengthExceeded, CacheError)


@torch.no_grad()
def test_an_encoder_has_nothing_to_step_through():
    model = sharp(decoder(vocab=11, width=16, layers=1, heads=4, mask=Everything() & SameSegment()))
    cache = model.new_cache(1)
    whole = model(tokens(1, 4), cache=cache)
    torch.testing.assert_close(whole, model(tokens(1, 4)))
    with pytest.raises(Refused, match="or use no cache"):
        model(tokens(1, 1), cache=cache)
    with pytest.raises(BadInput, match="order"):
        model(tokens(1, 1), cache=cache, positions=Positions.arange(1, 1))
