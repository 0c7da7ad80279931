"""A few tokens of each row in one pass of a lowered model, where a prompt's chunks are left to the modules: latents,
vectors of distances, counted keys. The same hidden states as a pass over the whole text.

Where there is no GPU the kernels are interpreted, and a pass runs without a graph.
"""

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.kernels.fused_calls import DEVICE, MISSING
from tests.model.test_gpu_steps import GREEDY, LATENTS, NO_CHUNKS, built, last_logits, steps_of
from vantage.model.lowered.steps import WholeSteps
from vantage.spec.positions import Positions

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
MODELS = {
    **NO_CHUNKS,
    **{f"MLA, {name}": LATENTS[name] for name in ("latent", "window", "softcap, sinks", "alibi", "xpos")},
}
SOME = ("xl", "shifted", "cope", "MLA, latent")
CHUNK, SAMPLED = "graph of a chunk", pytest.mark.sampled


def text_of(row, tokens=40):
    return [(7 * i + 3 * row) % 61 for i in range(tokens)]


def new_cache(model, rows, kind):
    return model.new_cache(rows, kind=kind, capacity=64, **({"block": 4} if kind == "paged" else {}))


def draft(model, steps, cache, texts, held, n):
    """The hidden states of the next n tokens of every row."""
    pos = Positions.onward(torch.tensor(held), n).to(DEVICE)
    tokens = torch.tensor([text[at : at + n] for text, at in zip(texts, held, strict=True)], device=DEVICE)
    cache.begin(pos)
    got = steps.hidden(model.embed(tokens, pos, None), pos, cache)
    cache.abandon() if got is None else cache.commit()
    return got


def check_drafts(model, kind, held, drafts):
    """Drafts of so many tokens, of which so many stay, after so many tokens of each row."""
    steps, texts = steps_of(model), [text_of(row) for row in range(len(held))]
    want = model.hidden(torch.tensor(texts, device=DEVICE))
    cache, whole = new_cache(model, len(held), kind), max(held)
    where = Positions.rows(held, width=whole).to(DEVICE)
    model.hidden(torch.tensor([text[:whole] for text in texts], device=DEVICE), positions=where, cache=cache)
    before = cache.layers[0].store.paths.get(CHUNK, 0)  # on a GPU a short prompt is a graph as well
    for n, stay in drafts:
        got = draft(model, steps, cache, texts, held, n)
        for row, at in enumerate(held):
            torch.testing.assert_close(got[row], want[row, at : at + n], rtol=1e-4, atol=1e-5)
        held = [at + stay for at in held]
        cache.crop(held)
    assert cache.tokens == tuple(held)
    assert cache.layers[0].store.paths[CHUNK] == before + len(held) * sum(n for n, _ in drafts)
    tokens = torch.tensor([[text[at]] for text, at in zip(texts, held, strict=True)], device=DEVICE)
    hidden = model.hidden(tokens, positions=Positions.onward(torch.tensor(held), 1), cache=cache)
    for row, at in enumerate(held):  # what was kept is what the modules read
        torch.testing.assert_close(hidden[row, 0], want[row, at], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SOME else SAMPLED) for name in MODELS])
@torch.inference_mode()
def test_drafts_of_rows_of_unequal_length(name):
    """In a bucket of more rows and tokens, after what was taken back of a draft, over blocks that others stand between;
    with a window, after blocks that were given back."""
    check_drafts(built(**MODELS[name]), "paged", [7, 1, 4], ((3, 1), (4, 4), (7, 5)))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["contiguous", "static"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_drafts_of_rows_that_own_their_places(name, kind):
    held = [3, 3, 3] if kind == "contiguous" else [5, 1, 4]  # there, rows are one plain run or a matter of tables
    check_drafts(built(**MODELS[name]), kind, held, ((3, 2), (4, 4)))


@pytest.mark.parametrize("name", SOME)
@torch.inference_mode()
def test_drafts_of_one_row(name):
    """From the first token on, all sizes of graphs, and one after an odd number of tokens."""
    model = built(**MODELS[name])
    steps, text = steps_of(model), text_of(5)
    want = model.hidden(torch.tensor([text], device=DEVICE))
    cache, other = new_cache(model, 1, "paged"), None
    at, elsewhere, paths = 0, 0, cache.layers[0].store.paths
    for n in (2, 3, 16, 8):
        got = draft(model, steps, cache, [text], [at], n)
        torch.testing.assert_close(got, want[:, at : at + n], rtol=1e-4, atol=1e-5)
        at += n
        other = cache.fork() if other is None else other  # its blocks come in between, and copies of what is shared
        before = paths[CHUNK]
        model.hidden(torch.tensor([[3, 1, 4]], device=DEVICE), cache=other)
        elsewhere += paths[CHUNK] - before  # on a GPU this is a graph as well, and forks count together
    [[token]] = steps.ahead([text[at]], [cache], 1, [GREEDY]).read().tokens  # from the keys that the drafts left
    assert token == int(last_logits(model, text[: at + 1]).argmax())
    assert paths[CHUNK] == at + elsewhere


@pytest.mark.parametrize("name", ["xl", "cope", "cope, window, softcap"])
@torch.inference_mode()
def test_drafts_over_keys_in_8_bits(name):
    """What is kept is what the modules keep, and what a token sees of those before it in its own pass."""
    model = built(**MODELS[name])
    model.kv_dtype, model.kernel = "int8", "reference"
    steps, text = steps_of(model), text_of(2, 19)
    caches = [new_cache(model, 1, "paged") for _ in "ab"]
    want = model.hidden(torch.tensor([text], device=DEVICE), cache=caches[1])
    at = 0
    for n in (5, 11, 3):
        got = draft(model, steps, caches[0], [text], [at], n)
        assert float((got - want[:, at : at + n]).norm() / want.norm()) < 0.02
        at += n
    for mine, other in zip(*(cache.layers for cache in caches), strict=True):
        read = [one.store.read(one.ledger.look())[:2] for one in (mine, other)]
        for got, kept in zip(*read, strict=True):
            assert float(((got - kept).abs() > 1e-4).float().mean()) < 0.02, "a number next to it, and that seldom"


@torch.inference_mode()
def test_layers_of_chunks_beside_one_that_takes_drafts_alone():
    """What sums up gates sums up all tokens of a draft first."""
    spec = vt.decoder(vocab=61, width=32, layers=2, heads=2, position=vt.Forgetting(bias=0.0))
    other = vt.decoder(vocab=61, width=32, layers=1, heads=2, position=vt.CoPE(max_positions=8))
    check_drafts(built(replace(spec, layers=(*spec.layers, *other.layers))), "paged", [5, 2], ((3, 2), (4, 4)))


@pytest.mark.parametrize("name", SOME)
@torch.inference_mode()
def test_what_is_no_draft_is_left_to_the_modules(name, monkeypatch):
    """Too many tokens of a row or of all rows, and tables that would be too large."""
    model = built(**MODELS[name])
    steps = steps_of(model)
    for rows, n in ((1, 17), (9, 16), (65, 2)):
        cache = new_cache(model, rows, "paged")
        assert draft(model, steps, cache, [text_of(0)] * rows, [0] * rows, n) is None
        assert cache.tokens == (0,) * rows
    monkeypatch.setattr("vantage.model.lowered.gpu_steps.MOST_TABLE_NUMBERS", 2 * 4096 * 2 - 1)
    got = draft(model, steps, new_cache(model, 1, "paged"), [text_of(0)], [0], 2)
    assert (got is None) is steps.program.grows


def test_why_a_long_pass_is_no_graph_is_said():
    from vantage.model.lowered.choice import LONG_PASSES, step_choice

    why = {name: step_choice(built(**MODELS[name]), "cuda").others.get(LONG_PASSES, "") for name in SOME}
    assert "expanded form" in why["MLA, latent"]
    assert "as large as their scores" in why["xl"]
    assert why["shifted"] == why["xl"]
    assert "counts" in why["cope"]
    assert LONG_PASSES not in step_choice(built(position="rope"), "cuda").others


@torch.inference_mode()
def test_drafts_go_on_with_tables_for_more_positions(monkeypatch):
    from vantage.model.lowered.chunk_graph import ChunkBuffers  # imports Triton

    monkeypatch.setattr("vantage.model.lowered.gpu_steps.LEAST_ANGLES", 8)
    model = built(**MODELS["xl"])
    steps, text = steps_of(model), text_of(1)
    want = model.hidden(torch.tensor([text], device=DEVICE))
    cache, at, pools = new_cache(model, 1, "paged"), 0, []
    new_pool = ChunkBuffers.new_pool
    monkeypatch.setattr(ChunkBuffers, "new_pool", lambda buffers: pools.append(at) or new_pool(buffers))
    for n, angles in ((5, 8), (2, 8), (4, 16)):
        got = draft(model, steps, cache, [text], [at], n)
        torch.testing.assert_close(got, want[:, at : at + n], rtol=1e-4, atol=1e-5)
        at += n
        assert {shape.angles for shape in steps._chunk_graphs} == {angles}
    assert pools == [0, 7], "a pool whose graphs have gone takes no others"


@pytest.mark.parametrize("guesses", ["lookup", pytest.param("model", marks=SAMPLED)])
@pytest.mark.parametrize("name", SOME)
def test_speculation_gives_the_tokens_of_plain_decoding(name, guesses, monkeypatch):
    """On a GPU as it is; elsewhere passes of several tokens are asked of the program for one."""
    model = built(**MODELS[name])
    prompt, options = [5, 9, 2, 5, 9, 2, 5, 9], {"max_tokens": 10, "ends": False, "temperature": 0.0}
    want = vt.generate(model, prompt, **options).tokens
    if DEVICE == "cpu":
        steps = steps_of(model)
        monkeypatch.setattr(
            WholeSteps, "hidden", lambda self, of, x, pos, cache: steps.hidden(x, pos, cache) if of is model else None
        )
    small = vt.build(vt.decoder(vocab=61, width=16, layers=1, heads=2, position="rope"), seed=4).eval().to(DEVICE)
    ahead = vt.Lookup(tokens=4, longest=2, shortest=1) if guesses == "lookup" else vt.DraftModel(small, 3)
    got = vt.generate(model, prompt, draft=ahead, stats=True, **options)
    assert got.tokens == want
    assert got.stats.paths[CHUNK] > len(prompt), "drafts were graphs as well"
