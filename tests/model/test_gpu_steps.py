"""A model's steps as a program for a GPU: the same logits as a pass over the whole text, in every cache it takes.

Where there is no GPU the kernels are interpreted, and a step runs without a graph.
"""

import pytest
import torch

import vantage as vt
from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.cache import ModelCache
from vantage.errors import BadInput
from vantage.model.packed import quantise
from vantage.model.streamed import stream_layers
from vantage.spec.native import CannotLower
from vantage.spec.positions import Positions
from vantage.spec.sampling import RowChoice

pytestmark = pytest.mark.skipif(MISSING, reason="needs Triton: pip install triton")
GREEDY = RowChoice(0.0, 0, 1.0, 0.0, ())
MODELS = {
    "rope": {"position": "rope", "kv_heads": 2},
    "alibi": {"position": "alibi"},
    "learned": {"position": "learned", "max_length": 64},
    "window": {"position": "rope", "window": 4},
    "bias": {"position": "rope", "bias": True},
    "layer-norm": {"position": "none", "norm": "layer", "ffn": "gelu", "bias": True},
    "t5": {"position": vt.T5(buckets=8, max_distance=10), "kv_heads": 1},
    "t5, window": {"position": "t5", "window": 4},
    "kerple": {"position": "kerple"},
    "kerple, power": {"position": vt.Kerple("power"), "kv_heads": 1},
    "fire": {"position": vt.Fire(hidden=5, init_L=16.0)},
    "shaw": {"position": vt.Shaw(max_distance=5), "kv_heads": 1},
    "shaw, keys alone": {"position": vt.Shaw(max_distance=3, values=False)},
    "shaw, window, sinks": {
        "attention": vt.GroupedQuery(2, 1, scores=vt.Scores(sinks=True, softcap=3.0)),
        "position": vt.Shaw(max_distance=6),
        "window": 9,
    },
    "xpos": {"position": vt.XPos(scale_base=16)},
    "xpos in halves, window": {"position": vt.XPos(scale_base=16, pairing="halves"), "window": 4, "kv_heads": 1},
    "fox": {"position": vt.Forgetting(bias=0.0), "kv_heads": 1},
    "fox, window": {"position": vt.Forgetting(bias=0.0), "window": 4},
}
NO_CHUNKS = {
    "xl": {"position": "xl", "kv_heads": 1},
    "xl, bias, window": {"position": "xl", "bias": True, "window": 4},
    "shifted": {"position": vt.Shifted(anchor=3)},
    "cope": {"position": vt.CoPE(max_positions=4), "kv_heads": 1},
    "cope, window, softcap": {
        "attention": vt.GroupedQuery(2, scores=vt.Scores(sinks=True, softcap=2.0)),
        "position": vt.CoPE(max_positions=64),
        "window": 4,
    },
}


def built(spec=None, **options):
    heads = {} if "attention" in options else {"heads": 2}
    spec = spec or vt.decoder(vocab=61, width=32, layers=2, **heads, **options)
    model = vt.build(spec, seed=1).eval().to(DEVICE)
    draw = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():  # sinks begin with zeros, and these vectors with tiny numbers
        if name.endswith(("sinks", ".u", ".v", ".w_r", "bias.table")):
            parameter.data.copy_(torch.randn(parameter.shape, generator=draw) / 3)
    return model


def steps_of(model):
    from vantage.model.lowered.gpu_steps import GpuSteps

    return GpuSteps(model)


def last_logits(model, tokens):
    return model.head(model.hidden(torch.tensor([tokens], device=DEVICE)))[0, -1]


def rows_of(model, prompts):
    """A cache for each prompt, over one pool, holding all but its last token."""
    base = model.new_cache(1, kind="paged", capacity=256, block=4)
    caches = [base.fresh(1) for _ in prompts]
    for cache, prompt in zip(caches, prompts, strict=True):
        model.hidden(torch.tensor([prompt[:-1]], device=DEVICE), cache=cache)
    return caches


@pytest.mark.parametrize("options", (MODELS | NO_CHUNKS).values(), ids=MODELS | NO_CHUNKS)
@torch.inference_mode()
def test_a_step_gives_the_logits_of_a_whole_pass(options):
    model = built(**options)
    steps = steps_of(model)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]
    cache = ModelCache.join(rows_of(model, prompts))
    pos = Positions.onward(torch.tensor([len(p) - 1 for p in prompts]), 1).to(DEVICE)
    cache.begin(pos)
    logits = steps.logits(torch.tensor([[p[-1]] for p in prompts], device=DEVICE), pos, cache)
    cache.commit()
    for row, prompt in zip(logits, prompts, strict=True):
        torch.testing.assert_close(row[0], last_logits(model, prompt), rtol=1e-4, atol=1e-5)
    assert cache.tokens == (7, 3)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["paged", "contiguous", "static"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_chunks_of_a_prompt_give_the_hidden_states_of_a_whole_pass(options, kind, monkeypatch):
    """A chunk that fills no bucket, one that is several pieces, and one after what the kernels wrote before."""
    monkeypatch.setattr("vantage.model.lowered.pass_sizes.CHUNKS", (4, 8))
    model = built(**options)
    steps = steps_of(model)
    tokens = [(7 * i + 3) % 61 for i in range(40)]
    want = model.hidden(torch.tensor([tokens], device=DEVICE))
    cache = model.new_cache(1, kind=kind, capacity=64, **({"block": 4} if kind == "paged" else {}))
    at = 0
    for n in (3, 20, 8, 9):  # 3 of 4; 8, 8 and 4; 8; 8 and, in a bucket of 4, 1
        pos = Positions.arange(1, n, at, device=DEVICE)
        cache.begin(pos)
        x = model.embed(torch.tensor([tokens[at : at + n]], device=DEVICE), pos, None)
        got = steps.hidden(x, pos, cache)
        cache.commit()
        torch.testing.assert_close(got, want[:, at : at + n], rtol=1e-4, atol=1e-5)
        at += n
    assert cache.tokens == (40,)
    assert cache.layers[0].store.paths["graph of a chunk"] == 40
    logits = model(torch.tensor([[5]], device=DEVICE), cache=cache)  # what was kept is what the modules read
    torch.testing.assert_close(logits[0, -1], last_logits(model, [*tokens, 5]), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["paged", "contiguous", "static"])
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_several_tokens_of_several_rows(options, kind, monkeypatch):
    """Drafts of rows of unequal length, in a bucket of more rows and tokens; then a pass of several pieces, and what is
    taken back of a draft."""
    monkeypatch.setattr("vantage.model.lowered.pass_sizes.CHUNKS", (4, 8, 16))
    model = built(**options)
    steps = steps_of(model)
    texts = [[(7 * i + 3 * row) % 61 for i in range(40)] for row in range(3)]
    want = model.hidden(torch.tensor(texts, device=DEVICE))
    cache = model.new_cache(3, kind=kind, capacity=64, **({"block": 4} if kind == "paged" else {}))
    held = [3, 3, 3] if kind == "contiguous" else [6, 1, 3]  # there, rows are one plain run or a matter of tables
    prompts = Positions.rows(held, width=max(held)).to(DEVICE)
    model.hidden(torch.tensor([text[: max(held)] for text in texts], device=DEVICE), positions=prompts, cache=cache)
    before = cache.layers[0].store.paths.get("graph of a chunk", 0)  # rows of one length may be a chunk already
    for n, kept in ((3, 2), (4, 4), (9, 9)):  # in buckets of 4 rows: 4 tokens; 4; 4, 4 and 2
        pos = Positions.onward(torch.tensor(held), n).to(DEVICE)
        cache.begin(pos)
        tokens = torch.tensor([text[at : at + n] for text, at in zip(texts, held, strict=True)], device=DEVICE)
        got = steps.hidden(model.embed(tokens, pos, None), pos, cache)
        cache.commit()
        for row, at in enumerate(held):
            torch.testing.assert_close(got[row], want[row, at : at + n], rtol=1e-4, atol=1e-5)
        held = [at + kept for at in held]
        cache.crop(held)
    assert cache.tokens == tuple(held)
    assert cache.layers[0].store.paths["graph of a chunk"] == before + 3 * (3 + 4 + 9)
    tokens = torch.tensor([[text[at]] for text, at in zip(texts, held, strict=True)], device=DEVICE)
    pos = Positions.onward(torch.tensor(held), 1)  # from the host's numbers: some encodings must know the highest
    hidden = model.hidden(tokens, positions=pos, cache=cache)  # what was kept is what the modules read
    for row, at in enumerate(held):
        torch.testing.assert_close(hidden[row, 0], want[row, at], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "xpos", "fox"])
@torch.inference_mode()
def test_chunks_after_a_shared_prefix(name):
    """A row that goes on from another's blocks writes into copies of those that are not full."""
    model = built(**MODELS[name])
    steps = steps_of(model)
    prefix, rests = [3, 1, 4, 1, 5, 9], [[2, 6, 5], [3, 5, 8, 9, 7]]
    base = rows_of(model, [[*prefix, 0]])[0]
    caches = [base.fork() for _ in rests]
    for cache, rest in zip(caches, rests, strict=True):
        pos = Positions.arange(1, len(rest), len(prefix), device=DEVICE)
        cache.begin(pos)
        x = model.embed(torch.tensor([rest], device=DEVICE), pos, None)
        got = steps.hidden(x, pos, cache)
        cache.commit()
        want = model.hidden(torch.tensor([[*prefix, *rest]], device=DEVICE))[:, len(prefix) :]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["xpos", "fox"])
@torch.inference_mode()
def test_steps_of_forks_and_modules_go_on_from_one_prefix(name):
    """Steps write into copies of blocks that are not full, what is taken back is gone, and modules read the rest."""
    model = built(**MODELS[name])
    steps, prefix = steps_of(model), [3, 1, 4, 1, 5, 9]
    base = rows_of(model, [prefix])[0]
    caches, texts = [base.fork() for _ in range(2)], [[*prefix[:-1], 2], [*prefix[:-1], 8]]
    for tokens in steps.ahead([2, 8], caches, 3, [GREEDY] * 2).read().tokens:
        for text, token in zip(texts, tokens, strict=True):
            assert token == int(last_logits(model, text).argmax())
            text.append(token)
    caches[0].crop(6)
    rest = [[7, 7, 6], [5]]
    for cache, text, more in zip(caches, (texts[0][:6], texts[1][:8]), rest, strict=True):
        logits = model(torch.tensor([more], device=DEVICE), cache=cache)[0, -1]
        torch.testing.assert_close(logits, last_logits(model, [*text, *more]), rtol=1e-4, atol=1e-5)
    assert steps.ahead([prefix[-1]], [base], 1, [GREEDY]).read().tokens == [[int(last_logits(model, prefix).argmax())]]


@torch.inference_mode()
def test_a_pass_that_is_no_chunk_of_one_run_is_left_to_the_modules():
    model = built(**MODELS["rope"])
    steps = steps_of(model)
    for pos, batch in [
        (Positions.arange(1, 1), 1),  # a step
        (Positions.rows([2], width=3), 1),  # padding
        (Positions.of(torch.tensor([[0, 2, 4]])), 1),  # gaps
    ]:
        cache, pos = model.new_cache(batch), pos.to(DEVICE)
        tokens = torch.ones(pos.shape, dtype=torch.int64, device=DEVICE)
        cache.begin(pos)
        assert steps.hidden(model.embed(tokens, pos, None), pos, cache) is None
        cache.abandon()


@pytest.mark.sampled
@pytest.mark.parametrize(("bits", "name"), [(8, "bias"), (4, "bias"), (8, "xl, bias, window")])
@torch.inference_mode()
def test_weights_in_blocks(bits, name):
    """One row meets the blocks as they are, several an unpacked copy; the host's kernels round activations as well."""
    model = built(vt.decoder(vocab=61, width=64, layers=2, heads=2, kv_heads=1, **(MODELS | NO_CHUNKS)[name]))
    quantise(model.cpu(), bits)
    model.to(DEVICE).kv_dtype = None
    steps = steps_of(model)
    for prompts in ([[1, 2, 3, 4, 5]], [[1, 2, 3, 4, 5], [9, 8, 7]]):
        cache = ModelCache.join(rows_of(model, prompts)) if len(prompts) > 1 else rows_of(model, prompts)[0]
        pos = Positions.onward(torch.tensor([len(p) - 1 for p in prompts]), 1).to(DEVICE)
        cache.begin(pos)
        logits = steps.logits(torch.tensor([[p[-1]] for p in prompts], device=DEVICE), pos, cache)
        cache.commit()
        for row, prompt in zip(logits, prompts, strict=True):
            torch.testing.assert_close(row[0], last_logits(model, prompt), rtol=1e-3, atol=1e-3)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["rope", "window", "shaw", "xl", "cope", "xpos", "fox", "fox, window"])
@torch.inference_mode()
def test_steps_ahead_are_greedy_decoding(name):
    """Also from tokens that only the device knows, and after a crop."""
    model = built(**(MODELS | NO_CHUNKS)[name])
    steps = steps_of(model)
    prompts = [[1, 2, 3, 4, 5], [9, 8]]
    caches = rows_of(model, prompts)
    launched = steps.ahead([p[-1] for p in prompts], caches, 2, [GREEDY] * 2)
    other = rows_of(model, [[4, 4, 4], [7, 7]])
    steps.ahead([1, 2], other, 1, [GREEDY] * 2)  # others use the same graph meanwhile
    second = steps.ahead(launched, caches, 2, [GREEDY] * 2).read()
    first = launched.read()
    texts = [list(p) for p in prompts]
    for tokens, logprobs in zip([*first.tokens, *second.tokens], [*first.logprobs, *second.logprobs], strict=True):
        for text, token, logprob in zip(texts, tokens, logprobs, strict=True):
            logits = last_logits(model, text)
            assert token == int(logits.argmax())
            assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
            text.append(token)
    assert [cache.tokens for cache in caches] == [(8,), (5,)]
    caches[0].crop(6)
    again = steps.ahead([texts[0][6]], caches[:1], 1, [GREEDY]).read()
    assert again.tokens == [[texts[0][7]]]


@torch.inference_mode()
def test_the_same_bits_alone_and_after_another_cache():
    """One graph serves every cache: where keys and values stand is read from the device."""
    model = built(**MODELS["rope"])
    steps = steps_of(model)
    prompt = [3, 1, 4, 1, 5]
    results = []
    for _ in range(2):
        cache = rows_of(model, [prompt])[0]
        results.append(steps.ahead([prompt[-1]], [cache], 3, [GREEDY]).read())
    assert results[0] == results[1]
    contiguous = model.new_cache(1)
    model.hidden(torch.tensor([prompt[:-1]], device=DEVICE), cache=contiguous)
    assert steps.ahead([prompt[-1]], [contiguous], 3, [GREEDY]).read().tokens == results[0].tokens


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["rope", "t5, window", "shaw", "xpos", "fox"])
@pytest.mark.parametrize("kind", ["paged", "quantised", "static"])
@torch.inference_mode()
def test_keys_and_values_in_8_bits(kind, name, monkeypatch):
    """Chunks and steps keep the numbers that the modules keep, and see what is kept, the new token's included."""
    monkeypatch.setattr("vantage.model.lowered.pass_sizes.CHUNKS", (4, 8))
    model = built(**MODELS[name])
    model.kv_dtype = "int8"
    steps = steps_of(model)
    tokens = [(7 * i + 3) % 61 for i in range(24)]
    caches = [model.new_cache(1, kind=kind, capacity=64, **({"block": 4} if kind == "paged" else {})) for _ in "ab"]
    model.kernel = "reference"
    model.hidden(torch.tensor([tokens], device=DEVICE), cache=caches[1])
    at, cache = 0, caches[0]
    for n in (3, 20):
        pos = Positions.arange(1, n, at, device=DEVICE)
        cache.begin(pos)
        x = model.embed(torch.tensor([tokens[at : at + n]], device=DEVICE), pos, None)
        assert steps.hidden(x, pos, cache) is not None
        cache.commit()
        at += n
    [[token]] = steps.ahead([tokens[-1]], [cache], 1, [GREEDY]).read().tokens
    logits = model(torch.tensor([tokens], device=DEVICE))[0, -1]
    assert token == int(logits.argmax())
    assert cache.layers[0].store.paths == {"graph of a chunk": 23, "graph": 1}
    for mine, other in zip(cache.layers, caches[1].layers, strict=True):
        read = [one.store.read(one.ledger.look())[:2] for one in (mine, other)]
        for got, want in zip(*read, strict=True):
            assert float((got - want).abs().max()) < 0.02 * float(want.abs().max()), "a number next to it, at the most"
            assert float(((got - want).abs() > 1e-4).float().mean()) < 0.01, "and that seldom"


@torch.inference_mode()
def test_what_it_cannot_take_changes_nothing():
    model = built(**MODELS["learned"])
    steps = steps_of(model)
    model.kv_dtype = "float16"
    rounded = model.new_cache(1)
    model.hidden(torch.tensor([[1, 2, 3]], device=DEVICE), cache=rounded)
    assert steps.ahead([4], [rounded], 2, [GREEDY]) is None
    assert rounded.tokens == (3,)
    model.kv_dtype = None
    full = rows_of(model, [list(range(60))])[0]
    assert steps.ahead([5], [full], 10, [GREEDY]) is None, "past the last row of the table"
    assert full.tokens == (59,)


@torch.inference_mode()
def test_steps_end_where_the_factors_of_a_rotation_leave_their_range():
    """The last position is a step like any other, with tables that end there; what lies beyond is refused in words."""
    model = built(position=vt.XPos(scale_base=0.5))
    last = vt.XPos(scale_base=0.5).last_position(torch.float32)
    text, steps = [(5 * i) % 61 for i in range(last)], steps_of(model)
    cache = rows_of(model, [text])[0]
    [[token], [other]] = steps.ahead([text[-1]], [cache], 2, [GREEDY]).read().tokens
    assert token == int(last_logits(model, text).argmax())
    assert other == int(last_logits(model, [*text, token]).argmax())
    assert steps.ahead([other], [cache], 1, [GREEDY]) is None
    assert cache.tokens == (last + 1,)
    with pytest.raises(BadInput, match=f"position {last + 1} is past {last}"):
        model(torch.tensor([[other]], device=DEVICE), cache=cache)


def test_what_has_no_form_on_a_gpu_is_named():
    from vantage.model.lowered.gpu_program import lower_for_gpu

    with pytest.raises(CannotLower, match=" has no native form"):
        lower_for_gpu(built(position=vt.DAPE(vt.Kerple())))
    assert steps_of(built(position=vt.DAPE(vt.Kerple()))).modules.why == "AdaptedBias has no native form"
    latents = vt.decoder(
        vocab=61, width=32, layers=1, attention=vt.Latent(4, **LATENT | {"rope_dim": 0}), position="shaw"
    )
    with pytest.raises(CannotLower, match="made of queries, or one of values, has no form for latents"):
        lower_for_gpu(vt.build(latents))


@pytest.mark.parametrize(
    ("position", "why"),
    [
        ("shaw", "QueryDistances has no native form on a CPU"),
        ("xl", "a vector that is added to queries has no native form on a CPU"),
        ("cope", "QueryCounts has no native form on a CPU"),
    ],
)
def test_biases_of_queries_are_for_a_gpu_alone(position, why):
    from vantage.model.lowered.choice import step_choice

    model = vt.build(vt.decoder(vocab=61, width=32, layers=1, heads=2, position=position))
    assert step_choice(model, "cpu").others["lowered"] == why
    assert step_choice(model, "cuda").name == "lowered"


PARTS = {
    "dape": {"position": vt.DAPE(vt.Kerple())},
}
LATENT = {"kv_rank": 16, "nope_dim": 8, "rope_dim": 8, "value_dim": 16, "norm": vt.RMSNorm()}
LATENTS = {
    "latent": {"attention": vt.Latent(2, **LATENT)},
    "low queries": {"attention": vt.Latent(2, **LATENT, q_rank=32)},
    "window": {"attention": vt.Latent(2, **LATENT), "window": 3},
    "softcap, sinks": {"attention": vt.Latent(2, **LATENT, scores=vt.Scores(softcap=2.0, sinks=True))},
    "three heads": {"attention": vt.Latent(3, **{**LATENT, "kv_rank": 12, "value_dim": 6})},
    "alibi": {"attention": vt.Latent(4, **{**LATENT, "rope_dim": 0}), "position": "alibi"},
    "t5": {"attention": vt.Latent(4, **{**LATENT, "rope_dim": 0}), "position": "t5"},
    "fire": {"attention": vt.Latent(2, **{**LATENT, "rope_dim": 0}), "position": "fire"},
    "xpos": {"attention": vt.Latent(2, **LATENT), "position": vt.XPos(scale_base=16)},
}


def of_parts(name):
    options = {"vocab": 61, "width": 32, "layers": 2, "heads": 2, **PARTS[name]}
    spec = vt.decoder(**{key: value for key, value in options.items() if value is not None})
    return vt.build(spec, seed=1).eval().to(DEVICE)


def check_steps(model, steps):
    """Rows of unequal length, in a bucket of more rows, twice, so that the second step reads what the first wrote."""
    texts = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7], [4, 4]]
    cache = ModelCache.join(rows_of(model, texts))
    for token in (11, 12):
        pos = Positions.onward(torch.tensor([len(text) - 1 for text in texts]), 1).to(DEVICE)
        cache.begin(pos)
        logits = steps.logits(torch.tensor([[text[-1]] for text in texts], device=DEVICE), pos, cache)
        assert logits is not None, steps.why_not
        cache.commit()
        for row, text in zip(logits, texts, strict=True):
            torch.testing.assert_close(row[0], last_logits(model, text), rtol=1e-4, atol=1e-5)
            text.append(token)
    assert cache.tokens == (8, 4, 3)
    return cache.layers[0].store.paths


@pytest.mark.parametrize("name", PARTS)
@torch.inference_mode()
def test_modules_over_places_on_the_device_give_the_logits_of_a_whole_pass(name):
    model = of_parts(name)
    steps = steps_of(model)
    assert steps.modules is not None
    assert check_steps(model, steps)["graph of modules"] == 6


@pytest.mark.parametrize("attention", [{"heads": 2}, {"attention": vt.Latent(2, **LATENT | {"rope_dim": 0})}], ids=str)
@pytest.mark.parametrize("most", [0, 32])
@torch.inference_mode()
def test_a_function_of_many_pieces_is_looked_up_and_one_of_few_a_product(most, attention, monkeypatch):
    from vantage.kernels.gpu import score_bias
    from vantage.kernels.gpu.tiles import PIECES

    monkeypatch.setattr(score_bias, "MOST_BREAKS", most)
    spec = vt.decoder(vocab=61, width=32, layers=2, position=vt.Fire(hidden=5, init_L=16.0), **attention)
    model = vt.build(spec, seed=1).eval().to(DEVICE)
    steps = steps_of(model)
    assert steps.modules is None
    assert check_steps(model, steps)["graph"] == 6
    [graph] = steps._graphs.values()
    assert {bias.form for bias in graph._layers.biases} == {(score_bias.PIECES_AS_PRODUCT if most else PIECES).value}


@pytest.mark.sampled
@pytest.mark.parametrize("name", LATENTS)
@torch.inference_mode()
def test_latents_give_the_logits_of_a_whole_pass(name):
    """Several rows in blocks, and one row that owns its places, with several shares of what is held."""
    model = vt.build(vt.decoder(vocab=61, width=32, layers=2, **LATENTS[name]), seed=1).eval().to(DEVICE)
    if any("sinks" in name for name, _ in model.named_parameters()):
        for one in (p for name, p in model.named_parameters() if "sinks" in name):
            torch.nn.init.normal_(one)
    steps = steps_of(model)
    assert steps.modules is None
    assert check_steps(model, steps)["graph"] == 6
    text, cache = [(5 * i) % 61 for i in range(50)], model.new_cache(1)
    model.hidden(torch.tensor([text[:-1]], device=DEVICE), cache=cache)
    for [token] in steps.ahead([text[-1]], [cache], 3, [GREEDY]).read().tokens:
        assert token == int(last_logits(model, text).argmax())
        text.append(token)


def test_fewer_latents_at_a_time_where_a_processor_has_less_memory():
    from vantage.kernels.gpu.latent import HOPPER_SHARED, keys_for

    sizes = [keys_for(32, 512 + 64, torch.bfloat16, kib * 1024) for kib in (HOPPER_SHARED // 1024, 163, 99)]
    assert sizes == [(64, 2), (32, 2), (16, 2)]
    assert keys_for(32, 576, torch.float32, HOPPER_SHARED) == (16, 1)


@torch.inference_mode()
def test_modules_run_ahead_while_their_pool_grows():
    """A pool whose buffers become others; and rows that end, whose places a bucket of rows must not write."""
    model = of_parts("dape")
    steps = steps_of(model)
    prompts = [[1, 2, 3, 4, 5], [9, 8], [7, 7, 7]]
    base = model.new_cache(1, kind="paged", block=4)
    caches = [base.fresh(1) for _ in prompts]
    for cache, prompt in zip(caches, prompts, strict=True):
        model.hidden(torch.tensor([prompt[:-1]], device=DEVICE), cache=cache)
    texts = [list(p) for p in prompts]

    def check(chosen, rows):
        for tokens in chosen.tokens:
            for text, token in zip(rows, tokens, strict=True):
                assert token == int(last_logits(model, text).argmax())
                text.append(token)

    check(steps.ahead([p[-1] for p in prompts], caches, 3, [GREEDY] * 3).read(), texts)
    grown = base.layers[0].store.version
    check(steps.ahead([text[-1] for text in texts[:2]], caches[:2], 40, [GREEDY] * 2).read(), texts[:2])
    assert base.layers[0].store.version > grown
    check(steps.ahead([texts[2][-1]], caches[2:], 2, [GREEDY]).read(), texts[2:])


@torch.inference_mode()
def test_a_static_cache_under_graphs_of_modules():
    model = of_parts("dape")
    steps = steps_of(model)
    tokens = torch.randint(61, (2, 9), device=DEVICE)
    cache = model.new_cache(2, kind="static", capacity=40)
    model(tokens[:, :8], cache=cache)
    pos = Positions.arange(2, 1, 8, device=DEVICE)
    cache.begin(pos)
    logits = steps.logits(tokens[:, 8:], pos, cache)
    cache.commit()
    torch.testing.assert_close(logits[:, 0], model(tokens)[:, -1], rtol=1e-4, atol=1e-5)
    one = model.new_cache(1, kind="static", capacity=40)
    model(tokens[:1, :8], cache=one)
    text = tokens[0].tolist()
    for [token] in steps.ahead([text[8]], [one], 4, [GREEDY]).read().tokens:
        assert token == int(last_logits(model, text).argmax())
        text.append(token)
    assert one.tokens == (12,)
    assert steps.ahead([1, 2], [one, model.new_cache(1, kind="static", capacity=40)], 1, [GREEDY] * 2) is None


def test_what_makes_no_graph_is_named():
    one = vt.FeedForward(32, "silu", gated=True)
    experts = vt.decoder(vocab=61, width=32, layers=1, heads=2, ffn=vt.Experts(one, 4, vt.TopK(2)))
    steps = steps_of(vt.build(experts).eval().to(DEVICE))
    assert steps.why_not == "which tokens go to an expert is read by the host"
    assert not steps.takes(steps._model.new_cache(1, kind="paged"))


@torch.inference_mode()
def test_graphs_go_with_the_pool_they_read():
    model = of_parts("dape")
    steps = steps_of(model)
    for _ in range(3):
        caches = rows_of(model, [[1, 2, 3]])
        steps.ahead([3], caches, 1, [GREEDY]).read()
        assert len(steps._graphs) == 1
        del caches
    assert len(steps._graphs) == 0


def test_norms_and_activations_become_part_of_products():
    from vantage.model.lowered.gpu_program import LinearStep, lower_for_gpu

    program = lower_for_gpu(built(**MODELS["rope"]))
    joined = program.joined()
    kinds = [type(step).__name__ for step in joined]
    assert kinds == ["LinearStep", "AttendStep", "LinearStep", "LinearStep", "LinearStep"] * 2 + ["LinearStep"]
    assert sum(isinstance(step, LinearStep) and step.norm is not None for step in joined) == 5
    parallel = lower_for_gpu(built(position="rope", wiring="parallel"))
    assert any(type(step).__name__ == "NormStep" for step in parallel.joined()), "both halves read it"


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [1, 2])
@torch.inference_mode()
def test_layers_that_are_kept_off_the_device_come_in_between(rows, monkeypatch):
    """Steps and chunks alike: to the bit those of the model that fits."""
    monkeypatch.setattr("vantage.model.lowered.pass_sizes.CHUNKS", (8,))
    spec = vt.decoder(vocab=61, width=32, layers=4, heads=2, position="rope")
    results = []
    for away in ((), (0, 1, 3)):
        model = vt.build(spec, seed=1).eval().to(DEVICE)
        if away:
            stream_layers(model, DEVICE, away)
        steps = steps_of(model)
        caches = rows_of(model, [[1, 2, 3, 4], [9, 8]][:rows])
        pos = Positions.arange(1, 8, device=DEVICE)
        chunk = model.new_cache(1, kind="paged", capacity=64, block=4)
        chunk.begin(pos)
        hidden = steps.hidden(model.embed(torch.arange(8, device=DEVICE)[None], pos, None), pos, chunk)
        chunk.commit()
        drawn = steps.ahead([4, 8][:rows], caches, 2, [GREEDY] * rows).read()
        drawn_on = steps.ahead(drawn.tokens[-1], caches, 1, [GREEDY] * rows).read()
        results.append((hidden, drawn.tokens, drawn_on.tokens, drawn.logprobs))
        assert steps.modules is None
    (hidden, *tokens), (off_hidden, *off_tokens) = results
    assert torch.equal(off_hidden, hidden)
    assert off_tokens == tokens


@torch.inference_mode()
def test_a_learned_bias_of_a_layer_that_is_kept_off_the_device_is_left_to_the_modules():
    """What the layer runs with holds another layer's numbers when it is lowered. One table for all layers stays."""
    off = "a learned score bias of a layer"
    for position, why in (("kerple", off), ("t5", None), ("shaw", off), ("xl", off), ("cope", off)):
        model = vt.build(vt.decoder(vocab=61, width=32, layers=3, heads=2, position=position), seed=1).eval().to(DEVICE)
        prompt = [1, 2, 3, 4, 5, 6]
        want = int(last_logits(model, prompt).argmax())
        stream_layers(model, DEVICE, (0, 1))
        steps = steps_of(model)
        assert (steps.modules is None) == (why is None)
        assert steps.modules is None or steps.modules.why.startswith(why)
        assert steps.ahead([prompt[-1]], rows_of(model, [prompt]), 1, [GREEDY]).read().tokens == [[want]]


@pytest.mark.parametrize("name", ["t5", "kerple", "fire", "shaw", "xl", "cope"])
def test_a_learned_bias_that_changes_is_seen(name):
    """The kernels read what was made of its parameters."""
    model = built(**(MODELS | NO_CHUNKS)[name])
    biases = [p for n, p in model.named_parameters() if "scorer" in n or n.endswith(".u")]
    assert biases
    for parameter in biases:
        steps = steps_of(model)
        assert not steps.stale()
        with torch.no_grad():
            parameter.add_(1.0)
        assert steps.stale()


@torch.inference_mode()
def test_vectors_of_distances_grow_with_the_text(monkeypatch):
    """One set of tables for all graphs: the longest that was asked for."""
    monkeypatch.setattr("vantage.model.lowered.gpu_steps.LEAST_ANGLES", 8)
    model = built(**NO_CHUNKS["xl"])
    steps, text = steps_of(model), [1, 2, 3, 4, 5]
    cache = rows_of(model, [text])[0]
    for [token] in steps.ahead([text[-1]], [cache], 2, [GREEDY]).read().tokens:
        text.append(token)
    assert [shape.angles for shape in steps._graphs] == [8]
    for [token] in steps.ahead([text[-1]], [cache], 6, [GREEDY]).read().tokens:
        assert token == int(last_logits(model, text).argmax())
        text.append(token)
    assert [shape.angles for shape in steps._graphs] == [16]
    short = [9, 8, 7]
    [[token]] = steps.ahead([short[-1]], rows_of(model, [short]), 1, [GREEDY]).read().tokens
    assert token == int(last_logits(model, short).argmax())
    assert [shape.angles for shape in steps._graphs] == [16]
