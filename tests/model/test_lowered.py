"""Whole steps in native code: equal to the same model run module by module, and only where they can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import vantage as vt
from vantage.cache import CacheKind
from vantage.cache.kinds.quantised import QuantisedCache
from vantage.conformance.scenarios import sharpen
from vantage.errors import BadInput, Refused
from vantage.kernels.native import native
from vantage.model.lowered import run as lowered_run
from vantage.model.packed import quantise
from vantage.spec.altup import AltUp
from vantage.spec.model import POST, SANDWICH, Head, Parallel, Wiring

pytestmark = pytest.mark.skipif(native() is None, reason="no C++ compiler here")


def spec(**options) -> vt.ModelSpec:
    heads = {} if "attention" in options else {"heads": 4, "kv_heads": 2}
    return vt.decoder(**{"vocab": 50, "width": 64, "layers": 2, **heads, **options})


def layered(**changes) -> vt.ModelSpec:
    """The plain decoder with its layers changed."""
    plain = spec()
    return replace(plain, layers=tuple(replace(layer, **changes) for layer in plain.layers))


SPECS = {
    "plain": spec(),
    "layer norm": spec(norm="layer", ffn="gelu"),
    "relu": spec(ffn="relu"),
    "geglu": spec(ffn="geglu"),
    "gelu by tanh": spec(ffn=vt.FeedForward(96, "gelu_tanh", gated=False, bias=True)),
    "biases": spec(attention=vt.GroupedQuery(4, 2, bias=True, out_bias=True)),
    "post": layered(wiring=POST),
    "sandwich": layered(wiring=SANDWICH),
    "the normed is kept": layered(wiring=Wiring(normed=True)),
    "parallel": layered(wiring=Parallel(1)),
    "parallel, two norms": layered(wiring=Parallel(2)),
    "offset norm": layered(norm=vt.RMSNorm(offset=1.0)),
    "no last norm": replace(spec(), norm=None),
    "head": replace(spec(), head=Head(bias=True, scale=0.5, softcap=3.0)),
    "tied": replace(spec(), head=Head(tied=True)),
    "xpos": spec(position=vt.XPos(scale_base=16)),
}


def made(of: vt.ModelSpec) -> vt.Model:
    return sharpen(vt.build(of))


@torch.inference_mode()
def both(
    model: vt.Model,
    tokens: torch.Tensor,
    chunks: list[int],
    kind: str | CacheKind = "contiguous",
    allowed: float = 1e-4,
) -> None:
    """The same chunks, with whole steps and without."""
    found = []
    for kernel in ("native", "sdpa"):
        model.kernel = kernel
        cache = model.new_cache(len(tokens), kind=kind)
        found.append(torch.cat([model(part, cache=cache) for part in tokens.split(chunks, 1)], 1))
    model.kernel = "auto"
    torch.testing.assert_close(found[0], found[1], rtol=allowed, atol=allowed)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("name", SPECS)
def test_whole_steps_equal_modules(name: str, bits: int | None):
    model = made(SPECS[name])
    if bits is not None:
        quantise(model, bits)
    # a rounding that falls the other way moves an activation of 16 bits by one step
    both(model, torch.randint(50, (2, 12)), [4, 3, 1, 1, 1, 2], allowed=1e-4 if bits is None else 1e-2)


@pytest.mark.parametrize(
    ("kind", "window"),
    [("contiguous", None), ("contiguous", 100), ("paged", None), ("paged", 100), ("ring", 100), ("ring", 160)],
)
def test_long_contexts_are_cut_into_pieces(kind: str, window: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lowered_run, "MAX_OWN_PRODUCT_ROWS", 10**6)  # the prompt as well
    model = made(spec(window=window))
    both(model, torch.randint(50, (2, 1103)), [1100, 1, 1, 1], kind)


def test_one_thread_or_three_give_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lowered_run, "MAX_OWN_PRODUCT_ROWS", 10**6)
    model, tokens = made(spec()), torch.randint(50, (1, 700))
    quantise(model, 4)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                cache = model.new_cache(1)
                found.append(torch.cat([model(part, cache=cache) for part in tokens.split([698, 1, 1], 1)], 1))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, more) for kind in ("contiguous", "paged") for more in ({}, {"window": 70}, {"position": "alibi"})),
        *(("ring", {"window": window, "position": position}) for window in (70, 128) for position in ("rope", "alibi")),
    ],
    ids=str,
)
@pytest.mark.parametrize("kv_dtype", [None, "float16", "int8"])
def test_packed_weights_give_the_same_bits_however_tokens_arrive(kind: str, options: dict, kv_dtype: str | None):
    """One pass without a cache, chunks of any size, token by token: cached equals uncached to the last bit."""
    model, tokens = made(spec(**options)), torch.randint(50, (2, 300))
    quantise(model, 4)
    model.kv_dtype = kv_dtype
    model.kernel = "native"  # which refuses what it cannot run
    with torch.inference_mode():
        whole = model(tokens)
        for chunks in ([300], [150, 1, 1, 48, 100], [1] * 20 + [280], [299, 1], [7, 3, 290]):
            cache = model.new_cache(2, kind=kind)
            parts = [model(part, cache=cache) for part in tokens.split(chunks, 1)]
            assert torch.equal(torch.cat(parts, 1), whole), chunks
            assert {path for layer in cache.layers for path in layer.store.paths} == {"native"}


@pytest.mark.parametrize(
    ("kind", "attention", "options"),
    [
        ("contiguous", vt.GroupedQuery(4, 1, head_dim=48), {}),
        ("contiguous", vt.GroupedQuery(2, head_dim=80, value_dim=16), {"position": "alibi"}),
        ("contiguous", vt.GroupedQuery(6, 2, head_dim=64, scores=vt.Scores(softcap=3.0, sinks=True)), {"window": 50}),
        ("paged", vt.GroupedQuery(7, 1, head_dim=16, value_dim=32), {"window": 70}),
        ("paged", vt.GroupedQuery(3, 1, head_dim=128), {"position": "alibi"}),
        ("ring", vt.GroupedQuery(4, 2, head_dim=112, scores=vt.Scores(softcap=3.0)), {"window": 67}),
    ],
    ids=["48", "80, alibi", "64, softcap", "16, paged", "128, paged", "112, ring"],
)
@pytest.mark.parametrize("kv_dtype", [None, "float16", "int8"])
def test_attention_of_a_prompt_has_the_bits_of_single_tokens(kind: str, attention, options: dict, kv_dtype: str | None):
    """Many queries meet turned or widened keys, few queries meet them as they lie."""
    model, tokens = made(spec(attention=attention, layers=1, **options)), torch.randint(50, (2, 143))
    quantise(model, 4)
    model.kv_dtype = kv_dtype
    model.kernel = "native"
    with torch.inference_mode():
        cache = model.new_cache(2, kind=kind)
        alone = torch.cat([model(token, cache=cache) for token in tokens.split(1, 1)], 1)
        for chunks in ([143], [64, 79], [3, 41, 99], [130, 13]):
            cache = model.new_cache(2, kind=kind)
            parts = [model(part, cache=cache) for part in tokens.split(chunks, 1)]
            assert torch.equal(torch.cat(parts, 1), alone), chunks


@pytest.mark.parametrize("prompt", [1, 30, 71, 200])
def test_drafts_in_a_ring_are_taken_back(prompt: int):
    """Written in place up to the draft's width, however often the ring has turned: the bits of a pass without one."""
    model, tokens = made(spec(window=40)), torch.randint(50, (2, 300))
    quantise(model, 4)
    with torch.inference_mode():
        whole = model(tokens)
        cache = model.new_cache(2, kind="ring", draft=7)
        model(tokens[:, :prompt], cache=cache)
        for at in range(prompt, 280, 3):
            guesses = torch.randint(50, (2, 5))
            model(guesses, cache=cache)
            cache.crop(at)
            got = model(tokens[:, at : at + 3], cache=cache)
            assert torch.equal(got, whole[:, at : at + 3]), at
    assert set(cache.layers[0].store.paths) == {"native"}


def test_a_pass_that_fails_leaves_a_ring_as_it_was(monkeypatch: pytest.MonkeyPatch):
    model, tokens = made(spec(window=40)), torch.randint(50, (1, 120))
    quantise(model, 4)
    with torch.inference_mode():
        whole = model(tokens)
        cache = model.new_cache(1, kind="ring")
        model(tokens[:, :60], cache=cache)
        each = 2 * 2 * 2 * 16 * 2  # bytes of a token: layers, heads, keys and values, width, half precision
        assert cache.bytes == each * (40 + 1)  # nothing of the pass is held beyond it
        run = lowered_run.Prepared.run

        def interrupted(*args, **options):
            run(*args, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(lowered_run.Prepared, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model(torch.randint(50, (1, 60)), cache=cache)
        assert torch.equal(model(tokens[:, 60:], cache=cache), whole[:, 60:])


@pytest.mark.parametrize(("kv_dtype", "bytes_each"), [(None, 4), ("float16", 2), ("int8", 1 + 4 / 16)])
@pytest.mark.parametrize("packed", [False, True])
def test_keys_and_values_in_fewer_bits(kv_dtype: str | None, bytes_each: float, packed: bool):
    """Native steps, modules with a cache and modules without one round alike; and the cache is as small as that."""
    # the same tokens each time: how far a rounding carries depends on them
    model, tokens = made(spec()), torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0))
    if packed:
        quantise(model, 8)
        assert model.kv_dtype == "float16"  # unless said
    else:
        assert model.kv_dtype is None
    model.kv_dtype = kv_dtype
    # a rounding may fall the other way, and one of 8 bits is a large one
    allowed = 5e-2 if packed and kv_dtype == "int8" else 1e-4 if not packed and kv_dtype is None else 1e-2
    both(model, tokens, [4, 3, *[1] * 33], allowed=allowed)
    with torch.inference_mode():
        cache = model.new_cache(2, capacity=40)
        cached = torch.cat([model(part, cache=cache) for part in tokens.split([5, 35], 1)], 1)
        model.kernel = "reference"
        torch.testing.assert_close(model(tokens), cached, rtol=allowed, atol=allowed)
    assert cache.bytes == 2 * 2 * 40 * 2 * 2 * 16 * bytes_each  # layers, rows, tokens, heads, keys and values of 16


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    "options",
    [{"attention": vt.Latent(4, 16, 16, 16, 16, vt.RMSNorm())}, {"position": "alibi"}, {"window": 5}],
    ids=("latent", "alibi", "window"),
)
def test_every_cache_rounds_as_a_pass_without_one(kv_dtype: str, options: dict):
    """In float64, where no rounding falls the other way."""
    model, tokens = made(spec(**options)).double().eval(), torch.randint(50, (2, 14))
    with torch.inference_mode():
        exact = model(tokens)
        model.kv_dtype = kv_dtype
        want = model(tokens)
        assert not torch.allclose(want, exact, rtol=1e-9, atol=1e-9)
        for kind in ("contiguous", "paged", "ring" if "window" in options else "contiguous"):
            cache = model.new_cache(2, kind=kind)
            got = torch.cat([model(part, cache=cache) for part in tokens.split([5, 1, 8], 1)], 1)
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_precision_that_there_is_not_is_refused():
    with pytest.raises(BadInput, match=r'kv_dtype=\'int4\': give "float16", "int8", "auto", or None'):
        made(spec()).kv_dtype = "int4"


@pytest.mark.parametrize("bits", [8, 16])
def test_a_quantised_cache_runs_natively(bits: int):
    both(made(spec()), torch.randint(50, (2, 12)), [4, 3, 1, 1, 1, 2], QuantisedCache(bits=bits), allowed=1e-2)


def test_a_fast_prompt_takes_another_path_and_steps_do_not():
    model, tokens = made(spec()), torch.randint(50, (1, 60))
    quantise(model, 4)
    has_fast = lowered_run.Lowered(model, native())._has_fast
    with torch.inference_mode():
        exact, caches = model(tokens), [model.new_cache() for _ in range(2)]
        steps = torch.cat([model(part, cache=caches[0]) for part in tokens.split([12] * 5, 1)], 1)
        model.fast = True
        fast = torch.cat([model(part, cache=caches[1]) for part in tokens.split([50, 1, 9], 1)], 1)
        assert torch.equal(model(tokens[:, :12]), exact[:, :12])
    assert torch.equal(steps, exact)
    assert torch.equal(fast, exact) == (not has_fast)  # where the processor has no such instructions all is as ever
    assert float((fast - exact).norm() / exact.norm()) < 0.05
    ran = [cache.layers[0].store.paths for cache in caches]
    assert ran == [{"native": 60}, {"native fast": 50, "native": 10} if has_fast else {"native": 60}]


def test_rows_of_a_paged_batch_give_the_bits_they_give_alone():
    model = made(spec())
    quantise(model, 8)
    rows = [torch.randint(50, (1, n)) for n in (3, 20, 9)]
    with torch.inference_mode():
        pool = model.new_cache(1, kind="paged", block=4)
        caches = [pool.fresh(1) for _ in rows]
        for row, cache in zip(rows, caches, strict=True):
            model(row, cache=cache)
        alone = [cache.fork() for cache in caches]
        together = type(pool).join(caches)
        next_tokens = torch.randint(50, (3, 1))
        batch = model(next_tokens, cache=together)
        solo = torch.cat([model(next_tokens[i : i + 1], cache=cache) for i, cache in enumerate(alone)])
    assert torch.equal(batch, solo)


REFUSED = {
    "T5 biases": (spec(position="t5"), "has no native form"),
    "chunks": (spec(mask=vt.Causal() & vt.Chunked(4)), "the mask .* has no native form"),
    "narrow heads": (spec(width=32), "are no multiples of 16"),
    "temperature": (spec(attention=vt.GroupedQuery(4, scores=vt.Scores(normalise=vt.Softmax(0.5)))), "plain softmax"),
    "clipped": (spec(attention=vt.GroupedQuery(4, clip=3.0)), "clipped"),
    "normed values": (spec(attention=vt.GroupedQuery(4, value_norm=vt.RMSNorm())), "a norm of values"),
    "sparse gates": (layered(ffn=vt.FeedForward(32, sparsity=0.5)), "sparse gates"),
    "streams": (replace(spec(wiring="sandwich"), altup=AltUp(50, 16)), "AltUpBlock has no native form"),
    "latent": (spec(attention=vt.Latent(4, 16, 16, 16, 16, vt.RMSNorm())), "Latent"),
    "experts": (layered(ffn=vt.Experts(vt.FeedForward(32), 4, vt.TopK(2))), "has no native form"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_native_form_is_refused_by_name_and_runs_anyway(name: str):
    model = made(REFUSED[name][0])
    tokens = torch.randint(50, (1, 6))
    with torch.inference_mode():
        cache = model.new_cache()
        torch.testing.assert_close(model(tokens, cache=cache), model(tokens), rtol=1e-4, atol=1e-4)
        model.kernel = "native"
        cache = model.new_cache()
        with pytest.raises(Refused, match=REFUSED[name][1]):
            model(tokens, cache=cache)
        assert cache.tokens == (0,)


def test_a_compiled_block_is_torchs_business():
    """What torch.compile wraps around a block answers like it, and is not lowered past."""
    model = vt.build(spec()).eval()
    model.kernel = "native"
    model.blocks[0] = torch.compile(model.blocks[0])
    with torch.inference_mode(), pytest.raises(Refused, match="OptimizedModule has no native form"):
        model(torch.tensor([[1, 2]]), cache=model.new_cache(capacity=4))


def test_calls_that_are_not_for_it():
    model = vt.build(spec(), kernel="native").eval()
    tokens = torch.randint(50, (2, 4))
    with torch.inference_mode():
        with pytest.raises(Refused, match="padding"):
            model(tokens, cache=model.new_cache(2), mask=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]))
        with pytest.raises(Refused, match="padding"):
            model(tokens, cache=model.new_cache(2, kind="heavy-hitters"))
    model.double()
    with torch.inference_mode(), pytest.raises(Refused, match="float32"):
        model(tokens, cache=model.new_cache(2))


# ---- a model that changes under it


def step(model: vt.Model) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([[7]]), cache=model.new_cache())


def test_weights_changed_in_place_are_seen():
    model = made(spec())
    before = step(model)
    with torch.no_grad():
        model.blocks[0].steps[0].sublayer.out.weight.mul_(2)
    assert not torch.allclose(before, step(model))


EXCHANGES = {
    "all weights": lambda model: model.load_state_dict(sharpen(vt.build(spec()), seed=5).state_dict(), assign=True),
    "a sublayer": lambda model: setattr(model.blocks[0].steps[1], "sublayer", made(spec()).blocks[1].steps[1].sublayer),
    "a linear map": lambda model: setattr(model.blocks[1].steps[0].sublayer, "out", nn.Linear(64, 64, bias=False)),
    "a parameter": lambda model: setattr(model.norm, "weight", nn.Parameter(torch.randn(64))),
    "the last norm": lambda model: setattr(model, "norm", vt.RMSNorm(eps=0.5).build(64)),
    "memory": lambda model: model.to(torch.float64).to(torch.float32),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_weights_and_modules_exchanged_are_seen(name: str):
    model = made(spec())
    model.kernel = "native"
    step(model)
    EXCHANGES[name](model)
    with torch.inference_mode():
        want = model(torch.tensor([[7]]))  # without a cache: module by module
    torch.testing.assert_close(step(model), want, rtol=1e-4, atol=1e-4)


def test_blocks_that_come_and_go_are_seen():
    for change in (lambda blocks: blocks.append(made(spec()).blocks[1]), lambda blocks: blocks.pop(0)):
        model = made(spec())
        step(model)
        lowered = model.whole_steps._lowered
        assert lowered is not None
        assert not lowered.stale()
        change(model.blocks)
        assert lowered.stale()


def test_nothing_is_lowered_again_while_other_models_are_built():
    model = made(spec())
    step(model)
    lowered = model.whole_steps._lowered
    made(spec())
    step(model)
    assert model.whole_steps._lowered is lowered is not None


def test_importing_it_leaves_torch_alone():
    from torch.nn.modules import module

    assert not module._global_module_registration_hooks
    assert not module._global_parameter_registration_hooks
    assert not module._global_buffer_registration_hooks


def test_hooks_are_called():
    model, seen = made(spec()), []
    step(model)
    handle = model.blocks[1].steps[0].sublayer.register_forward_hook(lambda *_: seen.append(1))
    step(model)
    assert seen == [1]
    handle.remove()
    step(model)
    assert seen == [1]
    assert model.whole_steps._lowered is not None


def test_a_step_that_fails_leaves_the_cache(monkeypatch: pytest.MonkeyPatch):
    from vantage.kernels.native import Native

    model = made(spec())
    with torch.inference_mode():
        cache = model.new_cache()
        model(torch.tensor([[1, 2]]), cache=cache)
        with monkeypatch.context() as patch:
            patch.setattr(Native, "run", lambda *_: (_ for _ in ()).throw(MemoryError))
            with pytest.raises(MemoryError):
                model(torch.tensor([[3]]), cache=cache)
        assert cache.tokens == (2,)
        torch.testing.assert_close(
            model(torch.tensor([[3]]), cache=cache)[0, -1],
            model(torch.tensor([[1, 2, 3]]))[0, -1],
            rtol=1e-4,
            atol=1e-4,
        )


def test_a_whole_step_leaves_no_trace_in_training():
    """A prompt's hidden states made natively, and then a pass with gradients: its logits must have them."""
    model = made(spec())
    with torch.inference_mode():
        model.hidden(torch.tensor([[1, 2]]), cache=model.new_cache())
    model.train()
    model(torch.tensor([[1, 2]])).sum().backward()
    assert model.head.linear.weight.grad is not None
    assert model.blocks[0].steps[0].sublayer.out.weight.grad is not None
