"""Context extension: the same weights under other scalings, read, trained a little, killed and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.training.text.real import real
from vantage.compare.extension import ExtensionSettings, extension_metadata, run_extension
from vantage.compare.extension.measure import HiddenNumbers, even_depths, hide_numbers, recall, token_losses
from vantage.compare.extension.rules import rescaled, search_divisors
from vantage.compare.extension.run import DIVISORS, prepare_texts, wanted
from vantage.compare.names import SCALING_RULES as RULES
from vantage.compare.report import write_report
from vantage.compare.results import FILE, read_results
from vantage.errors import BadInput, Refused
from vantage.inspect import swap
from vantage.model.lora import adapted
from vantage.position import DualChunk, SelfExtend
from vantage.position.scaling import DynamicNTK, Linear, Llama3, LongRope, YaRN
from vantage.training.text import Bytes

CONTEXT = 320


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text(" ".join(f"word{i * i % 97}" for i in range(2000)))
    return str(path)


@pytest.fixture(scope="module")
def model():
    made = vt.build(vt.decoder(vocab=256, width=32, layers=2, heads=2, max_length=CONTEXT), seed=0)
    with torch.no_grad():  # fresh weights hardly look at where things are: make them look
        for block in made.blocks:
            for p in block.parameters():
                p.mul_(3)
    made.tokenizer = Bytes().build()
    return made.eval()


def small(book, **changes):
    settings = {"times": (1.0, 2.0), "pieces": 2, "tries": 1, "needles": 2, "lora_steps": 2, "lora_length": 48}
    return ExtensionSettings("tiny", (book,), **(settings | changes))


class Told:
    def __init__(self, stop_after=10**6):
        self.notes, self.results, self.stop_after = [], [], stop_after

    def began(self, total, done):
        self.total, self.done = total, done

    def finished(self, results):
        self.results += results
        self.stop_after -= 1
        if not self.stop_after:
            raise KeyboardInterrupt

    def note(self, text):
        self.notes.append(text)


# ---- the model


@pytest.mark.parametrize("rule", RULES)
def test_a_scaling_is_the_one_that_swap_puts_there(model, rule):
    """Against the other way to come to such a model, which shares no code with this one."""
    pairs, factor = 8, 4.0
    divisors = torch.linspace(1, 4, pairs).tolist()
    rules = {
        "linear": Linear(factor),
        "dynamic-ntk": DynamicNTK(1.0, CONTEXT),
        "yarn": YaRN(factor, CONTEXT),
        "longrope": LongRope((1.0,) * pairs, tuple(divisors), CONTEXT, factor),
        "llama3": Llama3(factor, 1.0, 4.0, CONTEXT),
    }
    new = rescaled(model, rule, factor, CONTEXT, divisors)
    moved = {"self-extend": SelfExtend(7, 154), "dual-chunk": DualChunk(240, 20)}
    if rule == "none":
        other = model
    elif rule in moved:
        other = swap(model, moved[rule])
    elif rule == "ntk":
        other = swap(model, base=10000 * factor ** (16 / 14))
    else:
        other = swap(model, scaling=rules[rule])
    tokens = torch.randint(256, (1, 2 * CONTEXT), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        ours, theirs, plain = (m(tokens, length=2 * CONTEXT) for m in (new, other, model))
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, plain) == (rule == "none")
    assert new.embed.tokens.weight is model.embed.tokens.weight


def test_a_model_without_rope_is_refused(book):
    other = vt.build(vt.decoder(vocab=256, width=32, layers=1, heads=2, position="alibi", max_length=CONTEXT), seed=0)
    other.tokenizer = Bytes().build()
    with pytest.raises(Refused, match="RoPE"):
        prepare_texts(small(book), other)


def test_the_search_takes_the_best_it_tried():
    wanted_ = torch.linspace(1, 4, 8).tolist()
    best, tried = search_divisors(
        16, 1e4, 4.0, CONTEXT, lambda d: sum((a - b) ** 2 for a, b in zip(d, wanted_, strict=True)), seed=0
    )
    assert [name for name, _ in tried[:3]] == ["interpolation", "NTK", "YaRN"]
    assert len(tried) == 8
    assert sum((a - b) ** 2 for a, b in zip(best, wanted_, strict=True)) == pytest.approx(
        min(t[1] for t in tried), rel=1e-4
    )
    assert best == sorted(best)


# ---- what is measured


@pytest.mark.parametrize("rule", ["none", "dynamic-ntk"])
def test_losses_in_chunks_are_those_of_one_pass(model, rule):
    new = rescaled(model, rule, 4.0, CONTEXT)
    tokens = torch.randint(256, (1300,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        logits = new(torch.tensor([tokens[:-1]]), length=1300)[0].double()
    whole = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
    torch.testing.assert_close(token_losses(new, tokens).double(), whole, rtol=0, atol=2e-4)


def test_numbers_are_hidden_where_they_are_said_to_be():
    tokenizer = Bytes().build()
    filler = tokenizer.encode("lorem ipsum " * 200)
    hidden = hide_numbers(tokenizer, filler, 900, [0.25, 0.75], seed=5)
    text = tokenizer.decode(hidden.prompt)
    assert len(hidden.questions) == 2
    for (question, key), depth in zip(hidden.questions, [0.25, 0.75], strict=True):
        name = tokenizer.decode(question).split("The pass key of ")[1].removesuffix(" is")
        told = f"The pass key of {name} is {key}. Remember it. {key} is the pass key of {name}."
        assert text.count(told) == 1
        before = text[: text.index(told)].count("lorem")
        assert before / text.count("lorem") == pytest.approx(depth, abs=0.05)
    longest = max(len(question) for question, _ in hidden.questions)
    assert len(hidden.prompt) + longest + 7 == 900
    assert hide_numbers(tokenizer, filler, 900, [0.25, 0.75], seed=5) == hidden
    with pytest.raises(BadInput, match="tokens or more"):
        hide_numbers(tokenizer, filler, 200, even_depths(4), seed=5)


def test_a_number_is_found_if_the_model_says_it(model):
    """What a model says is worked out by hand, and then asked for."""
    prompt, question = model.tokenizer.encode("abc " * 30), model.tokenizer.encode(" is")
    tokens = [*prompt, *question]
    with torch.inference_mode():
        for _ in range(7):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    said = model.tokenizer.decode(tokens[-7:]).strip()
    other = "x" + said
    got = recall(model, HiddenNumbers(prompt, [(question, said[:2]), (question, other), (question, said[:2])]), 200)
    assert got == [True, False, True]


# ---- whole extensions


@pytest.fixture(scope="module")
def whole(book, model, tmp_path_factory):
    folder, told, how = tmp_path_factory.mktemp("extension"), Told(), small(book)
    results = run_extension(how, prepare_texts(how, model), folder, told)
    return folder, results, told, how


def facts(how, model):
    return extension_metadata(how, CONTEXT, model.spec.max_length, {}, "vantage compare --extend tiny")


@pytest.mark.sampled
def test_every_reading_is_there(whole, model):
    folder, results, told, how = whole
    assert [r.key for r in results] == wanted(how)
    assert told.total == 9 * 2 * 2
    assert {r.key.task for r in results} == {"perplexity", "perplexity, over position", "passkey", "multi-needle"}
    for r in results:
        ends = [160, 320, 640] if r.key.task.endswith("position") else [320, 640]
        assert [s.length for s in r.scores] == ends
    trained = {r.key.position for r in results if r.steps == 2}
    assert trained == {f"{rule} + LoRA" for rule in RULES}
    assert not adapted(model)  # the loaded one is as it was
    assert json.loads((folder / DIVISORS).read_text())["long"]


@pytest.mark.sampled
def test_training_changes_what_it_says_it_changes(whole):
    _, results, _, _ = whole
    at = {(r.key.position, r.key.seed): r.scores[-1].loss for r in results if r.key.task == "perplexity"}
    for rule in RULES:
        assert at[rule, 0] != at[f"{rule} + LoRA", 0]
    assert at["none", 0] != at["linear", 0]
    assert at["none", 0] != at["none", 1]


@pytest.mark.sampled
def test_the_report_says_what_it_is(whole, model, tmp_path):
    _, results, _, how = whole
    page = write_report(tmp_path, facts(how, model), results).read_text()
    for said in (
        "which scaling reads on beyond a context of 320",
        "108 readings: 3 tasks, 18 entries, 2 pieces of text",
        "context 320",
        "multi-needle: accuracy",
        "after 2 steps of rank 8",
        "Beyond the context",
        "Llama-2-7B on Proof-pile at 8192",
    ):
        assert said in page
    assert "Claims, measured" not in page
    cut = extension_metadata(replace(how, context=100), 100, 8192, {}, "")
    assert any("it fails nowhere: what is shown is what each scaling costs" in note for note in cut["notes"])


@pytest.mark.sampled
def test_stopped_and_resumed_it_is_the_same(whole, book, model, tmp_path):
    _, results, _, how = whole
    prepared = prepare_texts(how, model)
    with pytest.raises(KeyboardInterrupt):
        run_extension(how, prepared, tmp_path, Told(stop_after=7))
    kept = read_results(tmp_path / FILE)
    assert len(kept) == 7 * 4
    with pytest.raises(BadInput, match="--resume"):
        run_extension(how, prepared, tmp_path, Told())
    with pytest.raises(BadInput, match="other settings"):
        run_extension(replace(how, lora_steps=3), prepared, tmp_path, Told(), resume=True)
    told = Told()
    again = run_extension(how, prepared, tmp_path, told, resume=True)
    assert told.done == 7
    assert len(told.results) == len(results) - len(kept)
    for a, b in zip(again, results, strict=True):
        assert a.key == b.key
        assert [s.loss for s in a.scores] == pytest.approx([s.loss for s in b.scores], nan_ok=True, abs=1e-6)
    assert (Path(tmp_path) / "adapters" / "yarn" / "adapter_config.json").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scalings": ("yarm",)}, "'yarn'"),
        ({"times": ()}, "at least one"),
        ({"times": (0.0,)}, "multiples"),
        ({"times": (2.0, 2.0)}, "twice"),
        ({"context": 8}, "at least 64"),
        ({"pieces": 0}, "pieces=0"),
        ({"tries": -1}, "tries=-1"),
        ({"needles": 1}, "needles=1"),
        ({"lora_steps": -1}, "lora_steps"),
        ({"lora_rate": 2.0}, "2e-4"),
        ({"factor": 0.5}, "1 or more"),
        ({"text": ("nowhere.txt",)}, "no file"),
    ],
)
def test_bad_settings_are_refused(book, changes, said):
    with pytest.raises(BadInput, match=said):
        ExtensionSettings(**({"model": "tiny", "text": (book,)} | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"pieces": 40}, "longer text"), ({"context": 100}, "no room"), ({"times": (0.1,)}, "too few")],
)
def test_what_does_not_fit_the_model_is_refused(book, model, changes, said):
    with pytest.raises(BadInput, match=said):
        prepare_texts(small(book, **changes), model)


@pytest.mark.slow
def test_smollm2_finds_passkeys(tmp_path):
    """The real model within its context: it reads and finds unscaled, and a linear scaling by 4 costs perplexity."""
    how = ExtensionSettings(
        "smollm2",
        (str(real("wikitext2-test.txt")),),
        context=384,
        times=(1.0,),
        factor=4.0,
        scalings=("none", "linear"),
        pieces=1,
        tries=1,
        needles=2,
    )
    model = vt.load("smollm2", dtype=torch.float32).eval()
    results = run_extension(how, prepare_texts(how, model), tmp_path, Told())
    of = {(r.key.task, r.key.position): r.scores[-1] for r in results}
    assert of["passkey", "none"].exact == 1.0
    assert of["multi-needle", "none"].exact == 1.0
    assert of["perplexity", "none"].loss < 4
    assert of["perplexity", "none"].loss < of["perplexity", "linear"].loss
