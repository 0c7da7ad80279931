"""The same weights with another position: shared, equal to a model built so, and the first one untouched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.inspect.models import model, published, spec, tokens
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, CacheError, Refused
from vantage.inspect import extend
from vantage.inspect.extend import token_losses
from vantage.spec.masks import Causal, SameSegment, Window

PLAIN = ("rope", "alibi", "none", "sinusoidal", "xpos")
WITH_WEIGHTS = ("t5", "learned", "shaw", "xl", "kerple", "fire", "cope")


def ids(of: torch.nn.Module) -> set[int]:
    return {id(p) for p in of.parameters()}


@pytest.mark.parametrize("to", PLAIN)
@pytest.mark.parametrize("encoding", ["rope", "alibi", "learned", "t5", "none", "xl", "shaw"])
@torch.no_grad()
def test_every_weight_is_shared_and_the_result_is_that_of_a_model_built_so(encoding: str, to: str) -> None:
    of, x = model(encoding), tokens(20)
    before = of(x)
    swapped = vt.swap(of, to)
    assert ids(swapped) <= ids(of)
    built = vt.build(swapped.spec).double().eval()
    built.load_state_dict(swapped.state_dict())
    torch.testing.assert_close(swapped(x), built(x))
    torch.testing.assert_close(of(x), before, rtol=0, atol=0)
    if to == encoding:
        torch.testing.assert_close(swapped(x), before, rtol=0, atol=0)
    else:
        assert (swapped(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("to", WITH_WEIGHTS)
@torch.no_grad()
def test_weights_that_nobody_has_are_refused_unless_they_may_start_untrained(to: str) -> None:
    of = model()
    with pytest.raises(Refused, match=r"weights of its own .* init=True"):
        vt.swap(of, to)
    started = vt.swap(of, to, init=True)
    own = [p for p in started.parameters() if id(p) not in ids(of)]
    assert own
    assert all(p.dtype == torch.float64 and not p.is_meta for p in own)
    assert started(tokens(9)).isfinite().all()


@torch.no_grad()
def test_base_and_scaling_change_the_rope_that_is_there() -> None:
    of = model("rope-adjacent")
    new = vt.swap(of, base=500.0, scaling=vt.scaling.Linear(2.0))
    assert new.spec.layers[0].qk == (vt.Rope(500.0, vt.scaling.Linear(2.0), "adjacent"),)
    plain = vt.swap(new, base=10000.0, scaling=None)
    torch.testing.assert_close(plain(tokens(20)), of(tokens(20)), rtol=0, atol=0)
    one = vt.swap(of, base=500.0, layers=1)
    assert [layer.qk[0].base for layer in one.spec.layers] == [10000.0, 500.0]


def test_norms_and_layers_without_position_stay() -> None:
    normed = vt.swap(model("rope", "qk-norm"), "alibi")
    assert [type(part).__name__ for part in normed.spec.layers[0].qk] == ["QKNorm"]
    base = spec("rope")
    mixed = replace(base, layers=(base.layers[0], replace(base.layers[1], qk=())))  # iRoPE
    of = vt.build(mixed).eval()
    assert [len(layer.qk) for layer in vt.swap(of, vt.Rope(500.0)).spec.layers] == [1, 0]
    assert [len(layer.qk) for layer in vt.swap(of, vt.Rope(500.0), layers=1).spec.layers] == [1, 1]


@torch.no_grad()
def test_windows() -> None:
    of = model()
    near = vt.swap(of, window=5)
    assert near.spec.layers[0].mask == Causal() & SameSegment() & Window(5)
    seen = vt.capture(near, tokens(20)).weights(0)
    assert (seen.tril(-5) == 0).all()
    wide = vt.swap(near, window=None)
    torch.testing.assert_close(wide(tokens(20)), of(tokens(20)), rtol=0, atol=0)
    assert vt.swap(near, window=7).spec.layers[0].mask.reach() == 7


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@torch.no_grad()
def test_a_swapped_model_generates_with_a_cache_of_its_own(kind: str) -> None:
    of, x = vt.swap(model(), vt.Rope(300.0)), tokens(16)
    cache = of.new_cache(kind=kind)
    steps = torch.cat([of(x[:, t : t + 1], cache=cache) for t in range(16)], 1)
    torch.testing.assert_close(steps, of(x))
    with pytest.raises(CacheError, match="model"):
        model()(x, cache=cache)


@torch.no_grad()
def test_encoder_decoders_and_saving(tmp_path: Path) -> None:
    both = sharpen(vt.build(vt.encoder_decoder(vocab=19, width=32, layers=1, heads=4)), 0).eval()
    turned = vt.swap(both, "rope")
    assert turned.encoder is not None
    assert turned.encoder.spec.layers[0].qk == turned.spec.layers[0].qk == (vt.Rope(),)
    assert not turned.spec.embedding.inputs
    assert not turned.blocks[0].steps[1].sublayer.qk  # cross-attention has none
    assert turned(tokens(5), source=tokens(4)).isfinite().all()
    vt.save(vt.swap(chat_model(), base=77.0), tmp_path / "swapped")
    back = vt.load(tmp_path / "swapped")
    assert back.spec.layers[0].qk[0].base == 77.0
    torch.testing.assert_close(back(tokens(9)), vt.swap(chat_model(), base=77.0)(tokens(9)))


def test_packed_weights_are_shared_too() -> None:
    of = published("smollm2", dtype="auto")
    x = torch.tensor([of.tokenizer.encode("The keeper counted the ships")])
    with torch.inference_mode():
        torch.testing.assert_close(vt.swap(of, base=100000.0)(x), of(x), rtol=0, atol=0)
        assert (vt.swap(of, "none")(x) - of(x)).abs().max() > 1
    assert vt.swap(of, "none").tokenizer is of.tokenizer


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, BadInput, "nothing to swap"),
        ({"position": "rope", "base": 2.0}, BadInput, "inside it"),
        ({"position": "roap"}, BadInput, "Did you mean 'rope'"),
        ({"base": 5.0, "layers": 3}, BadInput, "no layer 3"),
        ({"window": 0}, BadInput, "1 or more"),
    ],
)
def test_what_is_refused(options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        vt.swap(model(), **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Refused, match="change RoPE"):
        vt.swap(model("alibi"), base=5.0)


# ---- before and after


@torch.inference_mode()
def test_losses_through_a_cache_are_those_of_a_full_pass() -> None:
    of, x = chat_model(), [*range(3, 203)] * 3
    whole = torch.nn.functional.cross_entropy(of(torch.tensor([x]))[0, :-1], torch.tensor(x[1:]), reduction="none")
    torch.testing.assert_close(token_losses(of, x), whole, rtol=1e-4, atol=1e-4)


def test_before_and_after() -> None:
    of, told = chat_model(), []
    text = "the cat sat on a mat and said: 12 dogs, 3 birds? no! " * 40
    found = extend(of, of, text, [300], change="nothing", tries=2, progress=lambda done, of: told.append((done, of)))
    before, after = found.results
    assert before.perplexity == after.perplexity  # the same model
    assert before.over_position == after.over_position
    assert before.passkeys is not None
    assert told[-1] == (6, 6)
    other = extend(of, vt.swap(of, base=50.0), text, [128], tries=0)
    assert other.results[0].perplexity != other.results[1].perplexity
    assert other.results[0].passkeys is None
    assert "data:image/png" in other._repr_html_()
    assert len(found.to_dict()["results"]) == 2
    with pytest.raises(BadInput, match="give a longer text"):
        extend(of, of, "short", [300])
    with pytest.raises(BadInput, match="64 tokens or more"):
        extend(of, of, text, [10])
    with pytest.raises(BadInput, match="no tokenizer"):
        extend(model(), model(), text, [128])


@pytest.mark.slow
def test_a_real_model_finds_passkeys_and_does_not_without_position() -> None:
    of = published("smollm2", dtype="auto")
    text = "The grass was green, and the keeper went on along the shore, where there was nothing to be seen. " * 60
    found = extend(of, vt.swap(of, "none"), text, [384], tries=3)
    before, after = found.results
    assert before.passkeys == 3
    assert after.passkeys == 0
    assert after.perplexity > 2 * before.perplexity


def test_layers_do_not_choose_what_acts_at_the_input() -> None:
    for encoding, to in (("sinusoidal", "rope"), ("rope", "sinusoidal"), ("sinusoidal", "none")):
        with pytest.raises(Refused, match=r"Sinusoidal.*all layers at once, so leave layers= out"):
            vt.swap(model(encoding), to, layers=[0])
    assert vt.swap(model("sinusoidal"), "rope", layers=[0, 1]).spec.embedding.inputs == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"scaling": "linear"},
        {"scaling": 2.0},
        {"scaling": vt.scaling.Linear},
        {"max_length": -1},
        {"max_length": 1.5},
        {"window": 1.5},
        {"window": "4"},
        {"window": 0},
        {"base": float("nan")},
        {"base": float("inf")},
        {"base": "10"},
    ],
    ids=str,
)
def test_what_is_no_such_thing_is_refused(wrong: dict[str, object]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(BadInput, match=f"^{name}="):
        vt.swap(model(), **wrong)  # pyright: ignore[reportArgumentType]


def test_a_model_that_is_none_and_factors_that_are_no_numbers() -> None:
    with pytest.raises(BadInput, match="'smollm2' is not a Vantage transformer"):
        vt.swap("smollm2", "rope")  # pyright: ignore[reportArgumentType]
    for value in (float("nan"), float("inf")):
        for make in (vt.scaling.Linear, lambda n: vt.scaling.YaRN(n, 64), lambda n: vt.Rope(base=n)):
            with pytest.raises(BadInput, match=r"use (a positive number|1 or more)"):
                make(value)
