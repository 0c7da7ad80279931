"""Several LoRA adapters on one model in memory: each answers as if it were alone, and none sees another's prefixes."""

from __future__ import annotations

import json
import threading

import openai
import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import PATIENCE
from tests.serve.running import Server, serving, tiny
from vantage.cli.main import main
from vantage.errors import BadInput
from vantage.families.adapters import load_adapter, save_adapter
from vantage.model.lora import Lora, add_lora, merge
from vantage.serve.options import read_settings
from vantage.serve.settings import ServedAdapter, ServedModel

TARGETS = {"north": ("attention", "ffn"), "south": ("q", "v"), "west": ("blocks.1.*",)}
PROMPTS = ("the cat sat on a mat", "hello world", "12 dogs, 3 birds")


@pytest.fixture(scope="module")
def adapters(folder):
    """Three adapters of different maps and ranks, far enough from zero to be seen, as folders."""
    places = {}
    for seed, (name, targets) in enumerate(TARGETS.items()):
        model = vt.load(tiny(folder))
        add_lora(model, Lora(4 + seed, alpha=8.0, targets=targets), seed=seed)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.copy_(torch.randn(p.shape, generator=random) * 0.3)
        places[name] = folder / f"adapter-{name}"
        if not places[name].exists():
            save_adapter(model, places[name])
    return places


@pytest.fixture(scope="module")
def server(folder, adapters):
    modules = [f"{name}={path}" for name, path in adapters.items()]
    with serving(folder, f"tiny={tiny(folder)}", "--lora-modules", *modules, "--capacity", "2048") as it:
        yield it


def alone(folder, path, *, merged: bool) -> vt.Model:
    model = vt.load(tiny(folder))
    load_adapter(model, path)
    if merged:
        merge(model)
    return model.eval()


def answer(server: Server, model: str, prompt: str, tokens: int = 12):
    options = {"max_tokens": tokens, "temperature": 0, "logprobs": 2, "echo": True}
    return server.client().completions.create(model=model, prompt=prompt, **options)


@pytest.mark.sampled
def test_each_is_a_model(server):
    cards = {card.id: card for card in server.client().models.list()}
    assert list(cards) == ["tiny", *TARGETS]
    assert cards["tiny"].parent is None
    assert {cards[name].parent for name in TARGETS} == {"tiny"}
    with pytest.raises(openai.NotFoundError):
        answer(server, "east", "a")


@pytest.mark.sampled
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("name", [*TARGETS, "tiny"])
def test_equal_to_the_model_with_that_adapter_alone(server, folder, adapters, name, merged):
    model = vt.load(tiny(folder)) if name == "tiny" else alone(folder, adapters[name], merged=merged)
    for prompt in PROMPTS:
        got = answer(server, name, prompt).choices[0]
        wanted = vt.generate(model, prompt, max_tokens=12, logprobs=2)
        assert got.text == prompt + wanted.text
        with torch.inference_mode():
            tokens = torch.tensor([[*wanted.prompt, *wanted.tokens]])
            scores = torch.log_softmax(model(tokens)[0], -1)
        for i, logprob in enumerate(got.logprobs.token_logprobs[1:]):
            assert logprob == pytest.approx(float(scores[i, tokens[0, i + 1]]), abs=1e-3)


def test_they_differ(server):
    assert len({answer(server, name, PROMPTS[0]).choices[0].text for name in ("tiny", *TARGETS)}) == 4


@pytest.mark.sampled
def test_all_at_once_as_one_by_one(server):
    """Requests of all of them run in the same steps of one engine, and each gets its own answer."""
    asked = [(name, prompt) for prompt in PROMPTS for name in ("tiny", *TARGETS)]
    wanted = {one: answer(server, *one, tokens=16).choices[0].text for one in asked}
    got: dict[int, str] = {}
    gate = threading.Barrier(len(asked))

    def ask(i: int) -> None:
        gate.wait(PATIENCE)
        got[i] = answer(server, *asked[i], tokens=16).choices[0].text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [got[i] for i in range(len(asked))] == [wanted[one] for one in asked]
    assert server.metric("vantage_model_loads_total", None) == 1


def test_prefixes_never_cross_adapters(server):
    """The same long prompt: what one adapter computed is there for that one and for no other."""
    prompt = "the dogs and birds said no to the answer of the world " * 4

    def cached(name: str) -> int:
        got = server.client().completions.create(model=name, prompt=prompt, max_tokens=1, temperature=0)
        return got.usage.prompt_tokens_details.cached_tokens

    for name in ("north", "tiny", "south", "west"):
        assert cached(name) < 4
        assert cached(name) > 32


@pytest.mark.sampled
def test_the_base_is_in_memory_once(server, folder, adapters):
    base = server.metric("vantage_model_bytes", None, model="tiny")
    with serving(folder, f"tiny={tiny(folder)}", "--preload", "--capacity", "2048") as plain:
        without = plain.metric("vantage_model_bytes", None, model="tiny")
    thin = sum(sum(f.stat().st_size for f in path.glob("*.safetensors")) for path in adapters.values())
    assert without < base <= without + thin


def test_attention_is_looked_at_with_the_adapter(server, folder, adapters):
    with server.http(None) as http:
        ids = {}
        for name in ("tiny", "north"):
            ask = {"model": name, "prompt": "the cat sat", "max_tokens": 2, "temperature": 0}
            ids[name] = http.post("/v1/completions", json=ask).json()["id"]
        seen = {
            name: http.post("/v1/attention", json={"id": id, "keep": "weights", "layers": [1]}).json()
            for name, id in ids.items()
        }
    wanted = vt.capture(alone(folder, adapters["north"], merged=True), "the cat sat").weights(1)
    weights, n = torch.tensor(seen["north"]["attention"][0]["weights"]), wanted.shape[-1]
    torch.testing.assert_close(weights[:, :n, :n], wanted, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(torch.tensor(seen["tiny"]["attention"][0]["weights"])[:, :n, :n], wanted, atol=1e-3)


@pytest.mark.sampled
def test_one_that_cannot_be_read_costs_the_others_nothing(folder, adapters):
    broken = folder / "adapter-broken"
    broken.mkdir(exist_ok=True)
    (broken / "adapter_config.json").write_text("{}")
    modules = [f"broken={broken}", f"north={adapters['north']}"]
    with serving(folder, f"tiny={tiny(folder)}", "--lora-modules", *modules, "--capacity", "256") as server:
        with pytest.raises(openai.InternalServerError, match="adapter broken") as caught:
            answer(server, "broken", "a")
        assert caught.value.code == "model_load_failed"
        assert str(folder) not in str(caught.value)
        assert answer(server, "north", "a", 2).choices[0].text
        assert answer(server, "tiny", "a", 2).choices[0].text
        assert [line["model"] for line in server.log() if line["event"] == "fault"] == ["broken"]


# ---- how they are named

ONE, TWO = (ServedModel("a", "x"),), ("a=x", "b=y")


def test_names_and_bases(tmp_path):
    got = read_settings(("a=x",), {"lora_modules": ("m=/p", "n=/q")}, environ={})
    assert got.adapters == (ServedAdapter("m", "/p", "a"), ServedAdapter("n", "/q", "a"))
    assert got.model_names == ["a", "m", "n"]
    named = json.dumps({"name": "m", "path": "/p", "base_model_name": "b"})
    assert read_settings(TWO, {"lora_modules": (named,)}, environ={}).adapters == (ServedAdapter("m", "/p", "b"),)
    file = tmp_path / "serve.toml"
    file.write_text('models = ["a=x"]\nlora_modules = ["m=/p"]\n')
    assert read_settings(config=file, environ={}).adapters[0].name == "m"
    assert read_settings(("a=x",), environ={"VANTAGE_LORA_MODULES": "m=/p, n=/q"}).model_names == ["a", "m", "n"]


@pytest.mark.parametrize(
    ("models", "module", "words"),
    [
        (("a=x",), "m", "give NAME=PATH"),
        (("a=x",), "=p", "give NAME=PATH"),
        (("a=x",), "{", "not JSON"),
        (("a=x",), '{"name": "m"}', "give NAME=PATH"),
        (("a=x",), '{"name": "m", "path": "p", "rank": 1}', "rank"),
        (("a=x",), '{"name": "m", "path": "p", "base_model_name": "c"}', "no model is called 'c'"),
        (("a=x",), "a=p", "two models are called 'a'"),
        (TWO, "m=p", "say for which it is"),
    ],
)
def test_what_is_refused(models, module, words):
    with pytest.raises(BadInput, match=words):
        read_settings(models, {"lora_modules": (module,)}, environ={})


def test_a_folder_that_is_not_there(folder, capsys):
    assert main(["serve", f"tiny={tiny(folder)}", "--lora-modules", "a=/nowhere/at/all"]) == 2
    assert "the adapter /nowhere/at/all does not exist" in capsys.readouterr().err


def test_a_model_is_not_changed_by_its_adapters(folder, adapters):
    from vantage.families.adapters import with_adapter

    model = vt.load(tiny(folder))
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        before = model(tokens)
        one, two = (with_adapter(model, adapters[name]) for name in ("north", "south"))
        cache = model.new_cache(1)
        first = one(tokens[:, :2], cache=cache)
        assert torch.equal(model(tokens), before)
        torch.testing.assert_close(one(tokens)[:, :2], first)
        assert not torch.allclose(one(tokens), before)
        assert not torch.allclose(one(tokens), two(tokens))
    shared = {id(p) for p in model.parameters()}
    assert shared <= {id(p) for p in one.parameters()} & {id(p) for p in two.parameters()}
    assert chat_model().spec == one.spec


def test_a_step_is_one_pass_for_each_adapter(folder, adapters):
    from vantage.families.adapters import with_adapter

    model = vt.load(tiny(folder))
    named = {name: with_adapter(model, adapters[name]) for name in ("north", "south")}
    engine = vt.Engine(model, adapters=named)
    for i, name in enumerate([None, "north", "south"] * 2):
        engine.submit([5 + i, 6, 7], max_tokens=8, adapter=name)
    while engine.stats.generated < 6:  # every prompt is computed
        engine.step()
    before = engine.stats
    engine.step()
    assert engine.stats.generated - before.generated == 6
    assert engine.stats.calls - before.calls == 3
    with pytest.raises(BadInput, match="no adapter is called 'east'"):
        engine.submit([5], max_tokens=1, adapter="east")
