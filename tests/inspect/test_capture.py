"""What is captured is what was used: from any kernel, any cache, any part of the rows."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vantage as vt
from tests.generation import zoo
from tests.generation.folder import chat_model
from tests.inspect.models import EACH, model, source, tokens
from vantage.conformance.factors import masks
from vantage.errors import BadInput, Refused
from vantage.inspect import capturing
from vantage.inspect.reductions import STATS
from vantage.inspect.sites import KernelCall, observing, sites_of
from vantage.inspect.tiles import largest, tiles
from vantage.kernels.native import native
from vantage.model.recurrent import RecurrentSpec, build_recurrent
from vantage.spec.kept import PoolsKeys

N = 20


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_weights_times_values_are_the_output_the_model_used(which: tuple[str, str, str]) -> None:
    of = model(*which)
    seen = vt.capture(of, tokens(N), source=source(of), verify=True)
    assert seen.error is not None
    assert seen.error < 1e-12
    direct: list[torch.Tensor] = []
    with torch.no_grad():
        of.hidden(tokens(N), source=source(of), watch=lambda site, i, view, need, done: direct.append(done.weights))
    ours = [seen.weights(layer, kind=kind) for kind, layer in seen.sites if kind != "encoder"]
    for one, theirs in zip(ours, direct, strict=True):
        if isinstance(of.spec.layers[0].attention, PoolsKeys):  # an entry stands at its last token, and is added there
            torch.testing.assert_close(one.sum(-1), theirs[0].sum(-1))
        else:
            torch.testing.assert_close(one, theirs[0])


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "flex"])
@pytest.mark.parametrize("encoding", ["rope", "alibi", "t5"])
def test_every_kernel(kernel: str, encoding: str) -> None:
    of = vt.swap(model(encoding), max_length=64)  # a model of its own
    of.kernel = kernel
    seen = vt.capture(of, tokens(N), verify=True)
    assert seen.kernels == {kernel}
    assert seen.error is not None
    assert seen.error < 1e-12
    torch.testing.assert_close(seen.weights(1), vt.capture(model(encoding), tokens(N)).weights(1))


def test_a_wrong_output_is_noticed() -> None:
    """The comparison itself can fail."""
    of = model()
    watched: list[float] = []

    def see(seen: KernelCall) -> None:
        from vantage.inspect.tiles import output

        tile = next(tiles(seen, range(4), range(N)))
        watched.append(float((output(seen, range(4), tile) - seen.out.roll(1, 1)).abs().max()))

    with torch.no_grad(), observing(sites_of(of), see):
        of.hidden(tokens(N))
    assert min(watched) > 1e-3


@pytest.mark.parametrize(
    "which", [("rope", "grouped", "causal"), ("shaw", "multi-query", "window"), ("xl", "sinks", "causal")]
)
def test_chosen_rows_and_heads_are_those_of_the_whole(which: tuple[str, str, str]) -> None:
    of = model(*which)
    whole = vt.capture(of, tokens(N))
    some = vt.capture(of, tokens(N), layers=-1, heads=[2, 0], queries=[17, 3, -1])
    assert some.sites == [("self", 1)]
    assert some.heads(1) == (2, 0)
    rows = some.queries(1)[0].tolist()
    assert sorted(rows) == [3, 17, 19]
    torch.testing.assert_close(some.weights(1), whole.weights(1)[[2, 0]][:, rows])
    torch.testing.assert_close(some.weights(1, 2), whole.weights(1, 2)[rows])


def test_the_size_of_a_tile_changes_nothing() -> None:
    of = model("alibi", "sinks", "window")
    found: list[list[torch.Tensor]] = []

    def see(seen: KernelCall) -> None:
        per_size = [[*tiles(seen, range(4), range(N), cells)] for cells in (1, 100, 10**6)]
        assert [len(p) for p in per_size] == [N, N, 1]
        for parts in per_size:
            wide = [torch.nn.functional.pad(t.weights, (t.low, N - t.low - t.weights.shape[-1])) for t in parts]
            found.append([torch.cat(wide, 2)])

    with torch.no_grad(), observing(sites_of(of)[:1], see):
        of.hidden(tokens(N))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


# ---- what is kept


def test_the_largest_of_each_row() -> None:
    of = model("rope", "grouped", "window")
    whole, top = vt.capture(of, tokens(40)), vt.capture(of, tokens(40), keep="top3")
    best = whole.weights(1).topk(3, -1)
    got = top.weights(1)
    torch.testing.assert_close(got, torch.zeros_like(got).scatter(-1, best.indices, best.values))
    assert top.bytes < whole.bytes
    kept = top.parts["self", 1][0].data["keys"][0, 0]
    assert kept[0].tolist() == [0, -1, -1]  # the first query sees itself and nothing else
    assert top.top(1, 0, 0) == [(0, pytest.approx(1.0))]


@pytest.mark.parametrize("which", [*(("rope", "grouped", name) for name in masks()), ("alibi", "sinks", "causal")])
def test_the_largest_are_the_same_with_native_code_and_without(
    which: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, calls = copy.deepcopy(model(*which)).float(), []
    library = native()
    if library is not None:
        ranks = library.top
        monkeypatch.setattr(library, "top", lambda *args: calls.append(args) or ranks(*args))
    quick = vt.capture(of, tokens(40), keep="top5")
    assert bool(calls) == (library is not None and which[1] != "sinks")  # a sink takes weight: not the plain case
    monkeypatch.setattr("vantage.inspect.tiles.native", lambda: None)
    plain = vt.capture(of, tokens(40), keep="top5")
    for layer in (0, 1):
        torch.testing.assert_close(quick.weights(layer), plain.weights(layer), rtol=1e-4, atol=1e-6)


@given(st.integers(1, 40), st.integers(1, 700), st.integers(0, 10**6))
def test_largest_is_topk(k: int, size: int, seed: int) -> None:
    x = torch.rand(2, 3, size, generator=torch.Generator().manual_seed(seed))
    values, index = largest(x, k)
    torch.testing.assert_close(values, x.topk(min(k, size), -1).values, rtol=0, atol=0)
    torch.testing.assert_close(x.gather(-1, index), values, rtol=0, atol=0)


def test_statistics_are_those_of_the_weights() -> None:
    of = model("rope", "sinks")
    w, stats = vt.capture(of, tokens(N)).weights(0), vt.capture(of, tokens(N), keep="stats").stats(0)
    assert set(stats) == set(STATS)
    i, j = torch.arange(N)[:, None], torch.arange(N)[None]
    torch.testing.assert_close(stats["entropy"], -(w * w.clamp_min(1e-300).log()).sum(-1))
    torch.testing.assert_close(stats["previous"], (w * (j == i - 1)).sum(-1))
    torch.testing.assert_close(stats["first"], w[..., 0])
    torch.testing.assert_close(stats["itself"], w.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(stats["nowhere"], 1 - w.sum(-1))
    assert (stats["nowhere"] > 0.001).any()  # a sink took it
    torch.testing.assert_close(stats["distance"], (w * (i - j).abs()).sum(-1) / w.sum(-1))
    assert stats["at"].tolist() == w.argmax(-1).tolist()


# ---- while it runs on


@pytest.mark.parametrize(("kind", "cache"), zoo.CASES)
@torch.no_grad()
def test_a_cache_shows_what_a_full_pass_shows(kind: str, cache: str) -> None:
    of, x = zoo.model(kind), zoo.tokens(24)
    read = None if of.encoder is None else zoo.tokens(6, seed=3)
    whole = vt.capture(of, x, source=read, kinds="self") if kind != "ntk" else None
    with capturing(of, keep="weights", kinds="self", verify=True) as seen:
        held = zoo.cache(of, cache, length=32 if kind == "ntk" else None)
        of(x[:, :10], cache=held, source=read)
        for t in range(10, 24):
            of(x[:, t : t + 1], cache=held)
    assert seen.error is not None
    assert seen.error < 1e-12
    assert seen.queries(1)[0].tolist() == list(range(24))
    if cache in zoo.SMALL:  # what it has forgotten a full pass still shows
        return
    if whole is None:  # frequencies are those of the declared length
        with capturing(of, keep="weights") as whole:
            of.hidden(x, length=32)
    close = {"rtol": 0.05, "atol": 0.02} if cache == "quantised" else {}
    torch.testing.assert_close(seen.weights(1), whole.weights(1), **close)  # the first layer may have none


def test_going_on_greedily() -> None:
    of = chat_model()
    seen = vt.capture(of, "the cat sat", steps=5, keep="top4", verify=True)
    n = len(of.tokenizer.encode("the cat sat"))
    assert seen.queries(0)[0].tolist() == list(range(n + 5))
    said = vt.generate(of, "the cat sat", max_tokens=5, stop=[])
    assert "".join(seen.tokens()).startswith("the cat sat")
    read = [tokens for tokens, _ in seen.read["self"] if tokens is not None]
    assert torch.cat(read, 1).tolist()[0] == [*said.prompt, *said.tokens]
    assert seen.error is not None
    assert seen.error < 1e-4


def test_whatever_runs_the_model_is_seen() -> None:
    of = chat_model()
    with capturing(of, keep="stats") as seen:
        vt.generate(of, ["the cat", "a mat and a dog"], max_tokens=4)
    assert seen.sites == [("self", 0), ("self", 1)]
    assert len(seen.parts["self", 0]) >= 4


@torch.no_grad()
def test_padding_and_documents() -> None:
    of, x = model(), tokens(12, 2)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :5] = False  # padded on the left
    with capturing(of, keep="weights", verify=True) as seen:
        of.hidden(x, mask=mask)
    assert seen.error is not None
    assert seen.error < 1e-12
    alone = vt.capture(of, x[1:, 5:])
    torch.testing.assert_close(seen.weights(1, row=1)[:, 5:, :7], alone.weights(1))
    assert (seen.weights(1, row=1)[:, :5] == 0).all()
    with capturing(of, keep="weights", verify=True) as packed:
        of.hidden(x[:1], positions=vt.Positions.packed([[4, 8]]))
    torch.testing.assert_close(packed.weights(1)[:, 4:, 4:], vt.capture(of, x[:1, 4:]).weights(1))
    assert (packed.weights(1)[:, 4:, :4] == 0).all()


def test_an_encoder_decoder() -> None:
    of = model("rope", "cross")
    seen = vt.capture(of, tokens(9), source=tokens(7, seed=5), verify=True)
    assert seen.sites == [("encoder", 0), ("self", 0), ("cross", 0), ("self", 1), ("cross", 1)]
    assert seen.weights(1, kind="cross").shape == (4, 9, 7)
    assert seen.weights(0, kind="encoder").shape == (4, 7, 7)
    assert seen.weights(0).shape == (4, 9, 9)  # its own, where nothing is said
    assert len(seen.tokens("encoder")) == 7


# ---- nothing stays behind


@torch.no_grad()
def test_observing_ends_with_the_block_and_with_an_error() -> None:
    of = model()
    before = of(tokens(5))
    with pytest.raises(BadInput, match="vocabulary"), capturing(of):
        of(tokens(5) + 1000)
    assert not any(m._forward_pre_hooks for m in of.modules())
    with capturing(of) as seen:
        torch.testing.assert_close(of(tokens(5)), before, rtol=0, atol=0)  # and changes nothing
    assert seen.sites


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layers": 7}, "no layer 7: there are 2"),
        ({"heads": [0, 4]}, "no head 4 in self 0 attention: there are 4"),
        ({"queries": 20}, "no query 20"),
        ({"keep": "most"}, "top32"),
        ({"keep": "top0"}, "top32"),
        ({"kinds": "cross"}, "no 'cross' attention: it has self"),
        ({"steps": -1}, "0 or more"),
        ({"source": [1, 2]}, "no encoder"),
        ({"layers": []}, "at least one"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        vt.capture(model(), tokens(N), **options)  # pyright: ignore[reportArgumentType]


def test_texts_that_cannot_be_read() -> None:
    with pytest.raises(BadInput, match="no tokenizer"):
        vt.capture(model(), "hello")
    with pytest.raises(BadInput, match="65 tokens, and this model's context is 64"):
        vt.capture(model(), tokens(65))
    with pytest.raises(BadInput, match="64 positions"):
        vt.capture(model("learned"), tokens(65), beyond=True)
    with pytest.raises(BadInput, match="context is 64"):
        vt.capture(model(), tokens(60), steps=5)
    with pytest.raises(BadInput, match="empty"):
        vt.capture(chat_model(), "")
    with pytest.raises(BadInput, match="neither a text nor tokens"):
        vt.capture(model(), [1.5])
    with pytest.raises(BadInput, match="source="):
        vt.capture(model("rope", "cross"), tokens(3))
    assert vt.capture(model(), tokens(70), beyond=True).queries(0).shape == (1, 70)


def test_too_much_is_refused_before_it_is_kept() -> None:
    with pytest.raises(Refused, match=r"in 2 layers would take .* limit= allows 0: choose fewer"):
        vt.capture(model(), tokens(N), limit=100)
    with pytest.raises(BadInput, match=r"model\.eval"), capturing(vt.build(model().spec).train()):
        pass
    with pytest.raises(BadInput, match="Linear is not a Vantage transformer"):
        vt.capture(torch.nn.Linear(2, 2), [1])  # pyright: ignore[reportArgumentType]


def test_questions_that_cannot_be_answered() -> None:
    seen = vt.capture(model(), tokens(N), layers=1, heads=2, keep="stats")
    with pytest.raises(BadInput, match="left no weights"):
        seen.weights(1)
    with pytest.raises(BadInput, match="layer 0 was not captured: there are self 1"):
        seen.stats(0)
    with pytest.raises(BadInput, match="head 0 was not captured: there are 2"):
        seen.stats(1, 0)
    with pytest.raises(BadInput, match="capture again"):
        vt.capture(model(), tokens(N)).stats(0)
    with pytest.raises(BadInput, match="no row 1"):
        vt.capture(model(), tokens(N)).weights(0, row=1)
    with pytest.raises(BadInput, match="query 3 was not captured"):
        vt.capture(model(), tokens(N), queries=4).top(0, 0, 3)


def test_it_shows_itself() -> None:
    seen = vt.capture(model(), tokens(6), verify=True)
    assert "2 layers, 8 heads, 6 queries" in repr(seen)
    shown = seen._repr_html_()
    assert shown.count("<tr>") == 3
    assert "data:image/png;base64," in shown
    said = seen.to_dict(2)
    assert said["attention"][1]["layer"] == 1
    assert len(said["attention"][0]["weights"][3][5]) == 2


def test_a_model_without_attention_to_show_is_refused() -> None:
    with pytest.raises(BadInput, match="has no attention weights to show"):
        vt.capture(build_recurrent(RecurrentSpec(20, 8)), [1, 2])  # pyright: ignore[reportArgumentType]
