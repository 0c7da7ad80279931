"""K1, K2, K4 and K5 of the source documents, counted in the running engine and not worked out from a formula."""

from __future__ import annotations

import pytest
import torch

import vantage as vt
from tests.generation.scenario import own
from vantage.generation import Engine

N = 13
BLOCK = 4


def run(model, steps=N, *, first=(3,), cache=True, requests=1, **options):
    """Greedy from one token, ``steps`` tokens. Prefixes are not kept, so that what is held is the requests'."""
    engine = Engine(model, block=BLOCK, share_prefixes=False, cache=cache, **options)
    for i in range(requests):
        engine.submit([*first[:-1], first[-1] + i], max_tokens=steps)
    return engine


def counted(model):
    """How many tokens the map to keys is called with, in each layer: the count of the engine must be that of the
    weights."""
    rows = [0] * len(model.blocks)

    def hook(index):
        def count(module, args, out):
            rows[index] += args[0].shape[0] * args[0].shape[1]

        return count

    for index, block in enumerate(model.blocks):
        block.steps[0].sublayer.qkv.register_forward_hook(hook(index))
    return rows


@pytest.mark.parametrize("n", [1, 2, N, 40])
def test_K1_without_a_cache_N_N_plus_1_over_2_projections(n):
    model = own("plain")
    rows = counted(model)
    engine = run(model, n, cache=False)
    engine.run()
    assert engine.stats.projections == (n * (n + 1) // 2,) * 2 == tuple(rows)
    assert engine.stats.recomputed == n * (n - 1) // 2
    assert engine.stats.blocks_used == 0


@pytest.mark.parametrize("n", [1, 2, N, 40])
def test_K1_with_a_cache_N_projections(n):
    model = own("plain")
    rows = counted(model)
    engine = run(model, n)
    engine.run()
    assert engine.stats.projections == (n,) * 2 == tuple(rows)
    assert engine.stats.recomputed == 0


def test_K1_a_cache_changes_no_token():
    model = own("plain")
    told = []
    for cache in (True, False):
        engine = Engine(model, block=BLOCK, cache=cache)
        request = engine.submit([3, 4, 5], max_tokens=30)
        engine.run()
        told.append(request.outputs[0])
    assert told[0].tokens == told[1].tokens
    assert [p.logprob for p in told[0].picks] == pytest.approx([p.logprob for p in told[1].picks], abs=1e-9)


@pytest.mark.parametrize("requests", [1, 5])
def test_K2_a_step_projects_one_new_token_a_row_and_appends_it(requests):
    """Cached keys stay; the new token is projected, appended, attended with, and the next one chosen."""
    engine = run(own("plain"), N, first=(3, 4, 5), requests=requests)
    engine.step()
    before = engine.stats
    assert before.projections == (3 * requests,) * 2
    for step in range(1, N):
        events = engine.step()
        now = engine.stats
        assert now.projections == (requests * (3 + step),) * 2
        assert now.calls == before.calls + step  # one pass for all rows
        assert len(events) == requests
    assert engine.idle


def test_K4_total_attention_work_falls_from_cubes_to_squares():
    """Scores worked out, counted in the passes themselves: queries times keys."""
    model, work = own("plain"), {True: [], False: []}
    for cache in (True, False):
        for n in (8, 16, 32):
            scores = 0

            def watch(module, args):
                nonlocal scores
                x, ctx = args
                scores += x.shape[1] * (ctx.pos.known.first + x.shape[1])

            hook = model.blocks[0].steps[0].sublayer.register_forward_pre_hook(watch)
            run(model, n, cache=cache).run()
            hook.remove()
            work[cache].append(scores)
    assert work[True] == [n * (n + 1) // 2 for n in (8, 16, 32)]
    assert work[False] == [n * (n + 1) * (2 * n + 1) // 6 for n in (8, 16, 32)]


# ---- memory


def held(model, tokens, requests=1):
    """Bytes held when every request has so many tokens in the cache, counted by the engine."""
    engine = run(model, tokens + 1, requests=requests)
    for _ in range(tokens):
        engine.step()
    return engine.stats.bytes_held


@pytest.mark.parametrize("kind", ["plain", "latent"])
def test_K5_memory_grows_linearly_with_length_and_batch(kind):
    model = own(kind)
    one = held(model, BLOCK)
    assert one > 0
    assert [held(model, k * BLOCK) for k in (2, 3, 7)] == [2 * one, 3 * one, 7 * one]
    assert held(model, 3 * BLOCK - 1) == 3 * one  # whole blocks
    assert [held(model, 2 * BLOCK, requests=r) for r in (2, 5)] == [4 * one, 10 * one]


def test_K5_a_window_bounds_it():
    """One layer with a window of 9 and one that sees all: only the second goes on growing."""
    model = own("mixed")
    one = held(model, BLOCK)  # both layers
    assert held(model, 20 * BLOCK) - held(model, 10 * BLOCK) == 10 * one // 2


def test_K5_bytes_held_are_bytes_allocated():
    """The engine's number against the tensors: a pool of fixed size that is full."""
    model = own("plain", dtype=torch.float32)
    engine = Engine(model, capacity=8 * BLOCK, block=BLOCK, share_prefixes=False)
    engine.submit([1] * (8 * BLOCK), max_tokens=1)
    allocated = sum(layer.bytes for layer in engine._memory._empty.layers)
    bin_ = allocated // 9  # one block is for what is thrown away
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(engine.stats.bytes_held))
    engine.run()
    assert seen == [allocated - bin_]
    head = model.spec.layers[0].attention
    assert seen[0] == 2 * 2 * head.kv_heads * (24 // 4) * 4 * 8 * BLOCK  # layers, k and v, heads, width, bytes, tokens


@pytest.mark.parametrize(("kv_heads", "share"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_K5_grouped_and_multi_query_attention_shrink_it_by_their_ratio(kv_heads, share):
    def made(g):
        return vt.build(vt.decoder(vocab=40, width=32, layers=2, heads=8, kv_heads=g)).eval()

    assert held(made(8), 12) == share * held(made(kv_heads), 12)


def test_K5_latent_attention_keeps_one_stream():
    """MLA keeps the latent and one rotary key a token, whatever the number of heads."""
    latent, plain = own("latent"), own("plain")
    attention = latent.spec.layers[0].attention
    per_token = held(latent, BLOCK) // BLOCK
    assert per_token == 2 * 8 * (attention.kv_rank + attention.rope_dim)
    assert per_token < held(plain, BLOCK) // BLOCK  # which keeps keys and values of two heads of four


def test_K5_shared_prompts_are_held_once():
    model = own("plain")
    engine = Engine(model, block=BLOCK, share_prefixes=False)
    engine.submit(list(range(3 * BLOCK)), max_tokens=4, n=5)
    engine.step()
    one = held(model, BLOCK)
    assert engine.stats.bytes_held == 3 * one
    engine.step()
    assert engine.stats.bytes_held == 3 * one + 5 * one  # a block each for what they say
