"""Predicted operations are those that torch counts, exactly; predicted bytes are those allocated, exactly (A16, K5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import vantage as vt
from tests.generation import zoo
from tests.inspect.models import EACH, model, spec, tokens
from vantage.cache import CACHES
from vantage.errors import BadInput, Refused
from vantage.inspect import MACHINES, Cost, cost, machine, measured
from vantage.inspect.visible import visible
from vantage.model import Model
from vantage.model.patches import Patches
from vantage.model.pooling import First
from vantage.model.routers import GroupLimited
from vantage.position import path_attention
from vantage.spec.altup import AltUp
from vantage.spec.masks import Causal, Chunked, Mask, Prefix, SameSegment, Window
from vantage.spec.model import Embedding, Head, ModelSpec
from vantage.spec.operations import PassSize
from vantage.spec.positions import Place, Positions

B, T, S = 2, 11, 7
SMALL = {"vocab": 19, "width": 32, "layers": 2, "heads": 4}


def counted(run: object) -> int:
    assert callable(run)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def referenced(of: ModelSpec) -> Model:
    """With the kernel whose products torch counts."""
    made = vt.build(of).eval()
    made.kernel = "reference"
    if made.encoder is not None:
        made.encoder.kernel = "reference"
    return made


def check(of: ModelSpec) -> Cost:
    """A whole pass, a step after it, and the parameters."""
    made, x = referenced(of), tokens(T, B)
    read = None if made.encoder is None else tokens(S, B, seed=1)
    found = cost(made, context=T, batch=B, source=None if made.encoder is None else S)
    assert found.total == sum(p.numel() for p in made.parameters())
    assert found.passes[0].operations == counted(lambda: made(x, source=read))
    if len(found.passes) == 2:
        cache = made.new_cache(B, capacity=T, length=T)
        with torch.no_grad():
            made(x[:, :-1], cache=cache, source=read)
        assert found.passes[1].operations == counted(lambda: made(x[:, -1:], cache=cache))
        assert found.cache == cache.bytes
    return found


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_every_attention_and_every_encoding(which: tuple[str, str, str]) -> None:
    check(spec(*which))


def test_a_window_whose_bias_reads_further() -> None:
    """PaTH's convolution reads what one token before the window keeps: a step is shown so much more."""
    check(vt.decoder(**SMALL, kv_heads=2, position="path", window=4))


def test_path_in_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 keys are blocks of 4, 4 and 3; early queries see nothing of the later ones, and are left out there."""
    monkeypatch.setattr(path_attention, "BLOCK", 4)
    check(spec("path"))


GATED = vt.decoder(**SMALL, kv_heads=2)
GATED = replace(GATED, layers=tuple(replace(layer, output=(vt.OutputGate(),)) for layer in GATED.layers))


@pytest.mark.parametrize("of", [*map(zoo.spec, ("fox", "shared-keys", "states")), GATED])
def test_what_is_kept_beside_keys_or_in_their_place(of: ModelSpec) -> None:
    check(of)


@pytest.mark.parametrize(
    "attention",
    [
        vt.GatedDelta(4, vt.RMSNorm(), key_heads=2, key_dim=5, value_dim=3),
        vt.KimiDelta(4, vt.RMSNorm(), head_dim=5, rank=3),
        vt.Mamba2(4, vt.RMSNorm(), head_dim=3, state_dim=5, groups=2),
        vt.GatedConvolution(3),
        vt.Lightning(4, vt.RMSNorm(), head_dim=5),
    ],
    ids=lambda attention: type(attention).__name__,
)
def test_mixers_with_a_state(attention: object) -> None:
    check(vt.decoder(vocab=19, width=32, layers=1, attention=attention, position="none"))


@pytest.mark.parametrize(
    "of",
    [
        vt.encoder(**SMALL),
        vt.encoder_decoder(**SMALL),
        vt.decoder(**SMALL, window=4),
        vt.decoder(**SMALL, wiring="parallel", tied=True),
        vt.decoder(**SMALL, ffn=vt.Experts(vt.FeedForward(16), 4, vt.TopK(2), shared=vt.FeedForward(8))),
        vt.decoder(**SMALL, ffn=vt.Experts(vt.FeedForward(16), 4, vt.TopK(1, bias=True))),
        vt.decoder(**SMALL, ffn=vt.Experts(vt.FeedForward(16), 4, GroupLimited(2, groups=2))),
        replace(vt.decoder(**SMALL), embedding=Embedding(width=16)),
        replace(vt.decoder(**SMALL, wiring="sandwich"), altup=AltUp(19, 6, streams=3, rank=5)),
    ],
    ids=[
        "encoder",
        "encoder-decoder",
        "window",
        "parallel",
        "experts",
        "one expert",
        "groups",
        "narrow table",
        "altup",
    ],
)
def test_every_shape_of_model(of: ModelSpec) -> None:
    check(of)


def test_a_model_of_images() -> None:
    patches = Patches((8, 8), (4, 4))
    of = replace(
        vt.encoder(**SMALL, position="none"), embedding=Embedding(source=patches), head=Head(transform=First())
    )
    made = referenced(of)
    found = cost(made, context=patches.places, batch=B)
    assert found.passes[0].operations == counted(lambda: made(torch.randn(B, 3, 8, 8)))


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("attention", ["multi-head", "multi-query", "grouped", "latent", "wide-values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_those_allocated(kind: str, attention: str, dtype: torch.dtype) -> None:
    for mask in ("window", "causal"):
        if kind == "ring" and mask == "causal":
            continue  # a ring needs a window
        made = vt.build(spec("rope", attention, mask)).to(dtype)
        cache = made.new_cache(3, kind=kind, capacity=None if kind == "ring" else 21)
        assert cost(made, context=21, batch=3, kind=kind).cache == cache.bytes


def test_a_source_is_kept_once_it_is_read() -> None:
    made = referenced(spec("rope", "cross"))
    cache = made.new_cache(B, capacity=T)
    with torch.no_grad():
        made(tokens(3, B), cache=cache, source=tokens(80, B))
    assert cost(made, context=T, batch=B, source=80).cache == cache.bytes


def test_what_other_kinds_of_attention_would_keep() -> None:
    found = cost(vt.decoder(vocab=19, width=64, layers=2, heads=8), context=100, batch=2, window=10)
    assert found.instead["MHA"] == found.cache
    assert found.instead["MHA"] == 8 * found.instead["MQA"] == 4 * found.instead["GQA (2)"]  # A7
    assert found.instead["MHA"] == 10 * found.instead["MHA, window 10"]
    assert found.instead["MLA"] == 2 * 100 * 2 * (4 * 8 + 4) * 2  # rows, tokens, layers, latent and key, bfloat16


def test_the_cost_grows_as_the_documents_say() -> None:
    """A16: projections by M·d², scores by M²·d; K4: a step with a cache by n."""
    one, two = (cost(spec("rope", "multi-head"), context=n) for n in (16, 32))
    at = [p.name for p in one.passes[0].parts]
    for name, factor in (("projections", 2), ("output", 2), ("feed-forward", 2), ("scores", 4), ("weighted sum", 4)):
        i = at.index(name)
        assert two.passes[0].parts[i].operations == factor * one.passes[0].parts[i].operations
    i = at.index("scores")
    assert two.passes[1].parts[i].operations == 2 * one.passes[1].parts[i].operations
    assert one.passes[0].visible == pytest.approx(17 / 32)  # a triangle
    assert one.passes[1].visible == 1


def test_machines_and_the_roofline() -> None:
    h200 = machine("h200")
    found = cost(spec(), context=64, dtype="bfloat16", machine=h200)
    prefill, decode = found.passes
    for part in (*prefill.parts, *decode.parts):
        slow = max(part.needed / h200.flops["bfloat16"], part.bytes / h200.bandwidth)
        assert part.seconds == pytest.approx(slow)
    assert decode.intensity < prefill.intensity < h200.ridge("bfloat16") * 1000
    assert found.passes[1].seconds is not None
    here = measured(size=256, rounds=2)
    assert here.speed("float32") > 1e8
    assert here.bandwidth > 1e7
    assert set(MACHINES) == {"h200", "h100", "a100"}
    with pytest.raises(BadInput, match="no machine is called 'cray'"):
        machine("cray")
    with pytest.raises(Refused, match="no number for float64"):
        here.speed("float64")


@pytest.mark.parametrize(("mask", "share"), [("causal", 17 / 32), ("bidirectional", 1.0)])
def test_time_is_not_taken_for_pairs_that_are_hidden(mask: str, share: float) -> None:
    """A kernel may leave them out: a time that counts them is no bound."""
    for part in cost(spec("xl", "multi-head", mask), context=16, machine=machine("h200")).passes[0].parts:
        paired = part.name in ("scores", "position", "weighted sum")
        assert part.needed == pytest.approx(part.operations * (share if paired else 1), abs=2)  # of two layers
    inside = cost(spec("rope", "cross"), context=16, source=16).passes[0]  # an encoder sees all, and so does cross
    scores = next(part for part in inside.parts if part.name == "scores")
    assert scores.operations - scores.needed == pytest.approx(
        cost(spec("rope", "multi-head"), context=16).passes[0].parts[2].operations * 15 / 32, abs=2
    )


def test_huge_specs_cost_nothing_to_ask_about() -> None:
    huge = vt.decoder(vocab=128_000, width=8192, layers=80, heads=64, kv_heads=8, ffn=vt.FeedForward(28672))
    found = cost(huge, context=131_072, batch=1)
    assert 69e9 < found.total < 72e9  # LLaMA-3-70B
    assert found.passes[0].visible == pytest.approx(0.5, abs=0.005)
    assert found.cache_a_token == 80 * 2 * 8 * 128 * 2


def test_bad_input_and_showing() -> None:
    for options in (
        {"context": 0},
        {"context": 4, "batch": -1},
        {"context": 4, "source": 0},
        {"context": 4, "dtype": "int8"},
        {"context": 4.5},
    ):
        with pytest.raises(BadInput):
            cost(spec(), **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="no kind of cache is called"):
        cost(spec(), context=4, kind="heap")
    found = cost(model(), context=8)
    assert found.dtype == "float64"
    assert "data:image/png" in found._repr_html_()
    assert "<td>scores</td>" in found.passes[0]._repr_html_()
    assert "bytes a second" in MACHINES["h200"]._repr_html_()
    assert found.rows()[-1][1] == found.passes[0].operations
    assert found.to_dict()["passes"][1]["parts"][2]["name"] == "scores"


def test_parts_that_are_not_ours_are_said_not_to_be_counted() -> None:
    class Odd(vt.Alibi):
        __module__ = "elsewhere"

    base = spec("alibi")
    odd = replace(base, layers=tuple(replace(layer, bias=Odd()) for layer in base.layers))
    assert cost(odd, context=8).uncounted == ("Odd",)


@pytest.mark.parametrize("context", [10**7, 10**8, 10**9, 2**40])
def test_what_is_visible_at_long_contexts(context: int) -> None:
    whole, step = cost(vt.decoder(**SMALL), context=context).passes
    assert whole.visible == pytest.approx(0.5, rel=1e-5)
    assert step.visible == 1
    near = cost(vt.decoder(**SMALL, window=512), context=context).passes[0]
    assert near.visible * context == pytest.approx(512, rel=1e-2)
    chunked = cost(vt.decoder(**SMALL, mask=Causal() & Chunked(8192)), context=context).passes[0]
    assert chunked.visible * context == pytest.approx(4096.5, rel=1e-2)


class Odd(Mask):
    """A mask of somebody else: every other key."""

    def __call__(self, q: Place, k: Place) -> Tensor:
        return (k.order <= q.order) & (k.order % 2 == 0)

    def simplified(self, q: Positions, k: Positions) -> Mask:
        return self

    def reach(self) -> int | None:
        return None

    def settled(self, start: int) -> bool:
        return True


masks = st.recursive(
    st.one_of(
        st.sampled_from([Causal(), SameSegment(), Odd()]),
        st.builds(Window, st.integers(1, 9)),
        st.builds(Chunked, st.integers(1, 9)),
        st.builds(Prefix, st.integers(1, 9)),
    ),
    lambda inner: st.one_of(st.builds(lambda a, b: a & b, inner, inner), st.builds(lambda a, b: a | b, inner, inner)),
    max_leaves=4,
)


@given(masks, st.integers(1, 20), st.integers(0, 19), st.integers(0, 19))
def test_visible_pairs_are_those_of_the_mask(mask: Mask, tokens: int, hidden: int, old: int) -> None:
    keys = max(1, tokens - hidden)
    queries = max(1, keys - old)
    q, k = torch.arange(tokens - queries, tokens)[:, None], torch.arange(tokens - keys, tokens)[None]
    assert visible(mask, PassSize(1, queries, tokens), keys) == int(mask(Place(q, q, None), Place(k, k, None)).sum())


def test_a_prefix_model_decodes() -> None:
    found = cost(vt.decoder(**SMALL, mask=Causal() | Prefix(4)), context=8, dtype="float32")
    assert [one.name for one in found.passes] == ["prefill", "decode"]
    assert found.cache == vt.build(vt.decoder(**SMALL, mask=Causal() | Prefix(4))).new_cache(capacity=8).bytes
    assert cost(vt.encoder(**SMALL), context=8).cache == 0


@pytest.mark.parametrize(
    ("of", "options", "says"),
    [
        ("smollm2", {}, "'smollm2' is neither a model nor a spec"),
        (vt.decoder(**SMALL), {"machine": "h200"}, "give a Machine"),
        (vt.decoder(**SMALL), {"source": 5}, "no encoder that reads one"),
        (vt.decoder(**SMALL), {"context": 2**41}, "at most 1,099,511,627,776"),
    ],
)
def test_what_has_no_cost(of: object, options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        cost(of, **({"context": 8} | options))  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="dtype='zz'"):
        measured("zz")
