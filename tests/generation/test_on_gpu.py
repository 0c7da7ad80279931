"""Generation on a GPU: the tokens of the CPU, whatever comes and goes meanwhile. Needs a GPU."""

import random

import pytest
import torch

import vantage as vt
from tests.generation.close_draws import differ_by_rounding_alone
from vantage.generation.engine import Engine
from vantage.generation.stops import Stop
from vantage.spec.sampling import Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODELS = {
    "rope": {"position": "rope", "kv_heads": 2},
    "alibi": {"position": "alibi"},
    "learned": {"position": "learned", "max_length": 400},
    "window": {"position": "rope", "window": 24},
    "latent": {"attention": vt.Latent(4, kv_rank=32, nope_dim=16, rope_dim=16, value_dim=32, norm=vt.RMSNorm())},
    "t5": {"position": "t5", "kv_heads": 1},
    "t5, window": {"position": "t5", "window": 24},
    "kerple": {"position": "kerple"},
    "kerple, power": {"position": vt.Kerple("power")},
    "fire": {"position": "fire"},
    "xpos": {"position": "xpos", "kv_heads": 2},
    "softcap": {"attention": vt.GroupedQuery(4, scores=vt.Scores(softcap=5.0)), "position": "t5"},
    "fox": {"position": "fox", "kv_heads": 2},
    "fox, window": {"position": "fox", "window": 24},
    "shaw": {"position": "shaw", "kv_heads": 2},
    "shaw, window": {"position": vt.Shaw(max_distance=40), "window": 24},
    "xl": {"position": "xl", "kv_heads": 2},
    "shifted": {"position": "shifted"},
    "cope": {"position": "cope", "kv_heads": 1},
    # without a lowered form: graphs of their modules
    "dape": {"position": vt.DAPE(vt.Kerple())},
}
MODULES = ("dape",)
CHOICES = {
    "greedy": {},
    "temperature": {"temperature": 1.0, "seed": 3},
    "top-p": {"temperature": 0.8, "top_p": 0.9, "seed": 5},
    "top-k and min-p": {"temperature": 0.9, "top_k": 20, "min_p": 0.02, "seed": 8},
    "penalty": {"temperature": 0.7, "repetition_penalty": 1.2, "seed": 2},
}
PROMPTS = [[1, 2, 3, 4, 5], [7] * 30, [9, 8, 7, 6, 5, 4, 3, 2, 1], list(range(60))]


@pytest.fixture(autouse=True)
def full_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def pair(name):
    heads = {} if "attention" in MODELS[name] else {"heads": 4}
    spec = vt.decoder(vocab=211, width=128, layers=3, **heads, **MODELS[name])
    models = [vt.build(spec, seed=1).eval() for _ in "ab"]
    for model in models:
        draw = torch.Generator().manual_seed(2)
        for parameter_name, parameter in model.named_parameters():  # CoPE's vectors begin with zeros
            if "scorer.bias" in parameter_name and not parameter.any():
                parameter.data.copy_(torch.randn(parameter.shape, generator=draw) / 3)
    return models[0], models[1].cuda()


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_same_tokens_as_on_a_cpu(name, choice):
    cpu, gpu = pair(name)
    want = vt.generate(cpu, PROMPTS, max_tokens=50, **choice)
    got = vt.generate(gpu, PROMPTS, max_tokens=50, stats=True, **choice)
    for prompt, mine, other in zip(PROMPTS, got, want, strict=True):
        differ_by_rounding_alone(cpu, prompt, mine.tokens, other.tokens, Sampling(**choice))
    assert got[0].stats.paths["graph of modules" if name in MODULES else "graph"] > 100


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_256_greedy_tokens_are_those_of_the_cpu(name):
    """Up to the first step whose two best logits lie closer than what rounding may do to them: float32 rounds by
    2^-24, and a product of as many inputs as the model is wide by no more than so many times that, in two sublayers of
    every layer, on both devices."""
    cpu, gpu = pair(name)
    spec = cpu.spec
    bound = 2 * 2 * len(spec.layers) * spec.width * 2.0**-24  # of the largest logit
    for prompt in PROMPTS[:2]:
        want = vt.generate(cpu, prompt, max_tokens=256, ends=False).tokens
        got = vt.generate(gpu, prompt, max_tokens=256, ends=False).tokens
        at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
        if at is not None:
            logits = cpu(torch.tensor([[*prompt, *want[:at]]]))[0, -1]
            best, second = logits.topk(2).values.tolist()
            assert best - second < bound * float(logits.abs().max()), (at, best, second)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_in_bfloat16_are_as_near_as_those_of_the_modules(name, rows):
    """Both against the same weights in float64. A graph rounds elsewhere than the modules do, not more: half as much
    again is allowed."""
    cpu, gpu = pair(name)
    wide, gpu = cpu.to(torch.bfloat16).double(), gpu.to(torch.bfloat16)
    modules = pair(name)[1].to(torch.bfloat16)
    modules.kernel = "reference"
    tokens = torch.tensor([[(7 * i + 3 * j) % 211 for i in range(70)] for j in range(rows)])
    want = wide(tokens)[:, 40:]
    errors = {}
    for model in (gpu, modules):
        cache = model.new_cache(rows, kind="paged", capacity=rows * 96)
        model.hidden(tokens[:, :40].cuda(), cache=cache)
        logits = [model(token.cuda(), cache=cache) for token in tokens[:, 40:].split(1, 1)]
        errors[model] = float((torch.cat(logits, 1).cpu().double() - want).norm() / want.norm())
        way = "modules" if model is modules else "graph of modules" if name in MODULES else "graph"
        assert cache.layers[0].store.paths[way] >= 30 * rows
    assert errors[gpu] < 1.5 * errors[modules] < 0.05, errors.values()


@pytest.mark.parametrize("name", ["rope", "alibi", "t5", "fire", "xpos", "fox", "shaw", "xl", "cope", "dape"])
def test_a_text_grows_past_the_first_table_of_blocks(name):
    """A row with more than 64 blocks takes another graph, in the middle of steps that are under way."""
    cpu, gpu = pair(name)
    prompts = [[(7 * i + 3 * j) % 211 for i in range(n)] for j, n in enumerate((1000, 990, 40))]
    want = vt.generate(cpu, prompts, max_tokens=80, ends=False)
    got = vt.generate(gpu, prompts, max_tokens=80, ends=False, stats=True)
    assert [a.tokens for a in got] == [a.tokens for a in want]
    assert got[0].stats.paths["graph of modules" if name in MODULES else "graph"] > 200


@pytest.mark.parametrize("name", ["rope", "window", "latent", "t5", "xpos", "fox", "shaw", "xl", "cope"])
def test_batch_invariant_gives_the_same_bits(name):
    _, gpu = pair(name)
    prompts = [*PROMPTS, [(3 * i) % 211 for i in range(700)]]
    together = vt.generate(gpu, prompts, max_tokens=40, batch_invariant=True, logprobs=0)
    alone = [vt.generate(gpu, prompt, max_tokens=40, batch_invariant=True, logprobs=0) for prompt in prompts]
    assert [answer.logprobs for answer in together] == [answer.logprobs for answer in alone]


@pytest.mark.parametrize("name", ["rope", "window", "t5", "xpos", "fox"])
def test_batch_invariant_rows_in_chunks_that_are_put_back(name):
    """Too few blocks for all, prompts of several chunks, prefixes in common, and who comes while others decode."""
    _, gpu = pair(name)
    base = [(5 * i + 1) % 211 for i in range(150)]
    prompts = [base, base[:97] + [7] * 20, base[:64] + [3] * 9, [9] * 33, base[:130]]
    alone = []
    for prompt in prompts:
        engine = Engine(gpu, chunk=32, batch_invariant=True, share_prefixes=False)
        request = engine.submit(prompt, max_tokens=60)
        engine.run()
        alone.append(request.outputs[0].tokens)
    engine = Engine(gpu, rows=5, capacity=256, chunk=32, batch_invariant=True)
    requests = []
    for rank, prompt in enumerate(prompts):  # who comes later goes first
        requests.append(engine.submit(prompt, max_tokens=60, priority=rank))
        for _ in range(7):
            engine.step()
    engine.run()
    assert [request.outputs[0].tokens for request in requests] == alone
    assert engine.stats.preemptions > 0
    assert engine.stats.reused > 0


@pytest.mark.parametrize(
    "name", ["rope", "alibi", "window", "t5", "kerple", "fire", "xpos", "fox", "shaw", "shaw, window"]
)
def test_prompts_run_as_graphs_of_chunks(name):
    """In pieces that fill no bucket, behind a shared prefix, and while others decode."""
    cpu, gpu = pair(name)
    engine = Engine(gpu, rows=6, chunk=48)
    base = [(5 * i + 1) % 211 for i in range(700)]
    prompts = [base, base[:600] + [7] * 90, [3] * 17, base[:100]]
    requests = []
    for prompt in prompts:
        requests.append(engine.submit(prompt, max_tokens=20))
        for _ in range(20):  # the first is complete, and decodes
            engine.step()
    engine.run()
    for request, prompt in zip(requests, prompts, strict=True):
        want = vt.generate(cpu, prompt, max_tokens=20, ends=False).tokens
        assert tuple(request.outputs[0].tokens) == want
    assert engine.stats.paths["graph of a chunk"] > 700
    assert engine.stats.reused > 500


@pytest.mark.parametrize("guesses", ["lookup", "model"])
@pytest.mark.parametrize("name", ["rope", "fox", "latent", "xl", "shifted", "cope"])
def test_drafts_run_as_graphs(name, guesses):
    """With the tokens of plain decoding, up to what rounding may do."""
    cpu, gpu = pair(name)
    small = pair("rope")[1]  # guesses seldom right
    draft = vt.Lookup(tokens=6, longest=3, shortest=1) if guesses == "lookup" else vt.DraftModel(small, 3)
    most = 16 if name in ("latent", "xl", "shifted", "cope") else 2048  # tokens of a row that are a graph
    drafted = -sum(len(prompt) for prompt in PROMPTS if len(prompt) <= most)
    for prompt in PROMPTS:
        want = vt.generate(cpu, prompt, max_tokens=40, ends=False).tokens
        got = vt.generate(gpu, prompt, max_tokens=40, ends=False, draft=draft, stats=True)
        differ_by_rounding_alone(cpu, prompt, got.tokens, want, Sampling())
        drafted += got.stats.paths.get("graph of a chunk", 0)
    assert drafted > 0


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["latent", "xl", "shifted", "cope"])
@torch.inference_mode()
def test_drafts_in_bfloat16_are_as_near_as_those_of_the_modules(name, rows):
    """Both against the same weights in float64, as steps are."""
    cpu, gpu = pair(name)
    wide, gpu = cpu.to(torch.bfloat16).double(), gpu.to(torch.bfloat16)
    modules = pair(name)[1].to(torch.bfloat16)
    modules.kernel = "reference"
    tokens = torch.tensor([[(7 * i + 3 * j) % 211 for i in range(601)] for j in range(rows)])
    want = wide(tokens)[:, 573:]
    errors = {}
    for model in (gpu, modules):
        cache = model.new_cache(rows, kind="paged", capacity=rows * 640)
        model.hidden(tokens[:, :573].cuda(), cache=cache)
        logits = [model(part.cuda(), cache=cache) for part in tokens[:, 573:].split((3, 4, 5, 16), 1)]
        errors[model] = float((torch.cat(logits, 1).cpu().double() - want).norm() / want.norm())
        assert cache.layers[0].store.paths["modules" if model is modules else "graph of a chunk"] >= 28 * rows
    assert errors[gpu] < 1.5 * errors[modules] < 0.05, errors.values()


@pytest.mark.parametrize("name", ["rope", "t5", "xpos", "fox"])
@pytest.mark.parametrize("seed", range(3))
def test_arrivals_cancellations_and_preemptions(seed, name):
    """Few blocks, so that rows are put back; stops in the middle of what was computed ahead; prefixes shared."""
    cpu, gpu = pair(name)
    draw = random.Random(seed)
    engine = Engine(gpu, rows=6, capacity=400, chunk=32)
    running, cancelled = [], set()
    for _ in range(40):
        if len(running) < 14 and draw.random() < 0.5:
            base = [3] * 20 if draw.random() < 0.5 else []
            prompt = base + [draw.randrange(211) for _ in range(draw.randint(1, 40))]
            stop = Stop(tokens=frozenset({draw.randrange(211)}))
            running.append((engine.submit(prompt, max_tokens=draw.randint(1, 60), stop=stop), prompt, stop))
        if running and draw.random() < 0.1:
            request = draw.choice(running)[0]
            if request.state != "finished":
                cancelled.add(request.id)
                engine.cancel(request)
        engine.step()
    engine.run()
    for request, prompt, stop in running:
        tokens = request.outputs[0].tokens
        want = vt.generate(cpu, prompt, max_tokens=request.max_tokens, stop=list(stop.tokens), ends=False).tokens
        assert list(tokens) == list(want)[: len(tokens)]
        assert request.id in cancelled or len(tokens) == len(want)
    engine.forget()
    assert engine.stats.blocks_used == 0


def test_a_model_that_gives_no_numbers_fails_its_request_alone():
    _, gpu = pair("rope")
    with torch.no_grad():
        gpu.blocks[0].steps[1].sublayer.down.weight[0, 0] = float("nan")
    with pytest.raises(Exception, match="damaged"):
        vt.generate(gpu, [1, 2, 3], max_tokens=8)


def test_sampled_engine_rows_equal_runs_alone():
    _, gpu = pair("rope")
    engine = Engine(gpu, rows=8)
    choices = [Sampling(0.9, top_k=30, seed=i) for i in range(len(PROMPTS))]
    pairs = zip(PROMPTS, choices, strict=True)
    requests = [engine.submit(prompt, max_tokens=30, sampling=sampling) for prompt, sampling in pairs]
    engine.run()
    for i, (request, prompt) in enumerate(zip(requests, PROMPTS, strict=True)):
        alone = vt.generate(gpu, prompt, max_tokens=30, temperature=0.9, top_k=30, seed=i, ends=False)
        assert tuple(request.outputs[0].tokens) == alone.tokens
