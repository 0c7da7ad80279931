"""A model's steps as a program for a GPU: the same logits as a pass over the whole text, in every cache it takes.

Where there is no GPU the kernels are interpreted, and a step runs without a graph.
"""

import pytest
import torch

import vantage as vt
from tests.kernels.fused_calls import DEVICE, MISSING
from vantage.cache import ModelCache
from vantage.model.packed import quantise
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
}


def built(**options):
    return vt.build(vt.decoder(vocab=61, width=32, layers=2, heads=2, **options), seed=1).eval().to(DEVICE)


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


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
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


@pytest.mark.parametrize("bits", [8, 4])
@torch.inference_mode()
def test_weights_in_blocks(bits):
    """One row meets the blocks as they are, several an unpacked copy; the host's kernels round activations as well."""
    model = vt.build(vt.decoder(vocab=61, width=64, layers=2, heads=2, kv_heads=1, **MODELS["bias"]), seed=1).eval()
    quantise(model, bits)
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


@pytest.mark.parametrize("options", [MODELS["rope"], MODELS["window"]], ids=["rope", "window"])
@torch.inference_mode()
def test_steps_ahead_are_greedy_decoding(options):
    """Also from tokens that only the device knows, and after a crop."""
    model = built(**options)
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


@torch.inference_mode()
def test_what_it_cannot_take_changes_nothing():
    model = built(**MODELS["learned"])
    steps = steps_of(model)
    quantised = model.new_cache(1, kind="quantised")
    model.hidden(torch.tensor([[1, 2, 3]], device=DEVICE), cache=quantised)
    assert steps.ahead([4], [quantised], 2, [GREEDY]) is None
    assert quantised.tokens == (3,)
    full = rows_of(model, [list(range(60))])[0]
    assert steps.ahead([5], [full], 10, [GREEDY]) is None, "past the last row of the table"
    assert full.tokens == (59,)


def test_what_has_no_form_on_a_gpu_is_named():
    with pytest.raises(CannotLower, match=" has no native form"):
        steps_of(built(position="cope"))


def test_norms_and_activations_become_part_of_products():
    from vantage.model.lowered.gpu_program import LinearStep, lower_for_gpu

    program = lower_for_gpu(built(**MODELS["rope"]))
    joined = program.joined()
    kinds = [type(step).__name__ for step in joined]
    assert kinds == ["LinearStep", "AttendStep", "LinearStep", "LinearStep", "LinearStep"] * 2 + ["LinearStep"]
    assert sum(isinstance(step, LinearStep) and step.norm is not None for step in joined) == 5
    parallel = lower_for_gpu(built(position="rope", wiring="parallel"))
    assert any(type(step).__name__ == "NormStep" for step in parallel.joined()), "both halves read it"
