"""``vt.generate``: what may be given, what comes back, and that it is what the engine says."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model, tokenizer
from tests.generation.scenario import Ask, alone, own
from tests.parity.rows.llama import CASES as LLAMA
from vantage.checkpoints.pull import place
from vantage.errors import BadInput
from vantage.generation import Generation, RequestFailed

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def model():
    return chat_model()


def test_generate_is_a_plain_function_whatever_was_imported_first():
    assert inspect.isfunction(vt.generate)
    assert "max_tokens" in inspect.signature(vt.generate).parameters
    script = "import vantage.generation.stops, vantage as vt; assert vt.generate.__name__; print(vt.Engine.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "Engine\n"


def test_a_text_goes_on(model):
    got = vt.generate(model, TEXT, max_tokens=9, ends=False)
    assert isinstance(got, Generation)
    assert got.prompt == tuple(tokenizer().encode(TEXT))
    assert got.tokens == tuple(alone(model, Ask(got.prompt, 9)).outputs[0].tokens)
    assert got.text == str(got) == tokenizer().decode(got.tokens)
    assert got.finish_reason == "length"
    assert got.logprobs is None
    assert got.stats is None


def test_one_for_one_and_a_list_for_a_list(model):
    tokens = tokenizer().encode(TEXT)
    one = vt.generate(model, TEXT, max_tokens=5)
    assert vt.generate(model, tokens, max_tokens=5).tokens == one.tokens
    assert vt.generate(model, torch.tensor(tokens), max_tokens=5).tokens == one.tokens
    for several in ([TEXT, "a"], [tokens, [5]], (TEXT, [5]), [torch.tensor(tokens), "a"]):
        got = vt.generate(model, several, max_tokens=5)
        assert got[0].tokens == one.tokens
        assert len(got) == 2
    samples = vt.generate(model, TEXT, max_tokens=5, n=3, temperature=1.0, seed=1)
    assert [type(g) for g in samples] == [Generation] * 3
    grid = vt.generate(model, [TEXT, "a"], max_tokens=5, n=3, temperature=1.0, seed=1)
    assert [g.tokens for g in grid[0]] == [g.tokens for g in samples]


def test_a_conversation_is_written_out_by_the_template(model):
    messages = [{"role": "user", "content": "hello"}]
    written = tokenizer().encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", special=False)
    for got in (
        vt.generate(model, messages, max_tokens=4),
        vt.generate(model, "hello", max_tokens=4, chat=True),
        vt.generate(model, [messages, messages], max_tokens=4)[1],
        vt.generate(model, ["hello"], max_tokens=4, chat=True)[0],
    ):
        assert got.prompt == tuple(written)


def test_pieces_make_the_text_and_the_tokens(model):
    whole = vt.generate(model, [TEXT, "a"], max_tokens=12, ends=False)
    pieces = list(vt.generate(model, [TEXT, "a"], max_tokens=12, ends=False, stream=True))
    for i, answer in enumerate(whole):
        mine = [piece for piece in pieces if piece.prompt == i]
        assert "".join(map(str, mine)) == answer.text
        assert tuple(piece.pick.token for piece in mine) == answer.tokens
        assert [piece.finish_reason for piece in mine] == [None] * 11 + ["length"]


def test_who_stops_reading_stops_the_requests(model):
    stream = vt.generate(model, TEXT, max_tokens=100, ends=False, stream=True)
    next(stream)
    stream.close()
    assert stream.stats.generated == 1
    assert stream.stats.blocks_used == 0
    assert list(stream) == []


def test_stop_strings_and_tokens_end_the_text(model):
    plain = vt.generate(model, TEXT, max_tokens=30, ends=False)
    stop = plain.text[4:7]
    got = vt.generate(model, TEXT, max_tokens=30, ends=False, stop=stop)
    assert got.finish_reason == "stop"
    assert got.text == plain.text[: plain.text.find(stop)]
    assert plain.tokens[: len(got.tokens)] == got.tokens
    streamed = vt.generate(model, TEXT, max_tokens=30, ends=False, stop=[stop], stream=True)
    assert "".join(map(str, streamed)) == got.text
    end = plain.tokens[3]
    got = vt.generate(model, TEXT, max_tokens=30, ends=False, stop=[end])
    assert got.tokens == plain.tokens[: plain.tokens.index(end) + 1]
    assert got.text == tokenizer().decode(got.tokens[:-1])


def test_an_answer_ends_with_the_models_own_end(model):
    bias = {tokenizer().eos: 100.0}
    got = vt.generate(model, TEXT, max_tokens=30, logit_bias=bias)
    assert (got.tokens, got.text, got.finish_reason) == ((tokenizer().eos,), "", "stop")
    assert len(vt.generate(model, TEXT, max_tokens=30, logit_bias=bias, ends=False).tokens) == 30
    other = tokenizer().backend.token_to_id("<|endoftext|>")  # not the config's, but its vocabulary has it
    assert vt.generate(model, TEXT, logit_bias={other: 100.0}).finish_reason == "stop"


def test_logprobs_seed_and_stats_are_told(model):
    got = vt.generate(model, TEXT, max_tokens=6, temperature=1.0, logprobs=2, stats=True, ends=False)
    assert [pick.token for pick in got.logprobs] == list(got.tokens)
    assert all(len(pick.top) == 2 and pick.logprob <= pick.top[0][1] for pick in got.logprobs)
    again = vt.generate(model, TEXT, max_tokens=6, temperature=1.0, seed=got.seed, ends=False)
    assert again.tokens == got.tokens
    assert got.stats.generated == 6
    assert got.stats.prefilled == len(got.prompt)
    assert set(got.stats.projections) == {len(got.prompt) + 5}
    for word in ("prefilled", "projections", "bytes", "ms"):
        assert word in str(got.stats)
    told = json.loads(json.dumps(got.to_json()))
    assert told["tokens"] == list(got.tokens)
    assert told["stats"]["generated"] == 6
    assert told["prefix"] == {"tokens": 0, "reason": "not sought"}
    two = vt.generate(model, [TEXT, TEXT + " and"], max_tokens=2, stats=True)
    assert {answer.prefix.reason for answer in two} <= {"first seen", "complete", "differs at token 0"}


@pytest.mark.parametrize("options", [{"batch_invariant": True}, {"cache": False}], ids=str)
def test_other_ways_to_compute_give_the_same_text(model, options):
    prompts = [TEXT, "a", "the cat said: no!"]
    for a, b in zip(
        vt.generate(model, prompts, max_tokens=10), vt.generate(model, prompts, max_tokens=10, **options), strict=True
    ):
        assert a.tokens == b.tokens


@pytest.mark.parametrize("draft", [vt.Lookup(), vt.DraftModel(chat_model())], ids=["look-up", "model"])
def test_guessing_ahead_gives_the_same_text(model, draft):
    plain = vt.generate(model, [TEXT, TEXT + TEXT], max_tokens=12)
    ahead = vt.generate(model, [TEXT, TEXT + TEXT], max_tokens=12, draft=draft, logprobs=0)
    assert [one.tokens for one in ahead] == [one.tokens for one in plain]
    assert [one.text for one in ahead] == [one.text for one in plain]
    assert all(one.guesses.calls < 13 and len(one.logprobs) == len(one.tokens) for one in ahead)
    assert json.loads(json.dumps(ahead[1].to_json()))["guesses"]["proposed"] >= 1


@pytest.mark.parametrize("draft", [vt.Lookup(), vt.DraftModel(chat_model())], ids=["look-up", "model"])
def test_guessing_ahead_tells_what_it_took(model, draft):
    """Counted where it is done: every key is projected for the prompt, the answer or a guess that was wrong."""
    prompts = [TEXT, TEXT + TEXT]
    first, second = vt.generate(model, prompts, max_tokens=12, draft=draft, stats=True, ends=False)
    stats = first.stats
    assert stats is second.stats  # of the call
    assert stats.prefilled == len(first.prompt) + len(second.prompt)
    assert (stats.generated, stats.reused, stats.recomputed) == (24, 0, 0)
    assert stats.proposed == first.guesses.proposed + second.guesses.proposed > 0
    assert stats.accepted == first.guesses.accepted + second.guesses.accepted
    assert stats.calls == 24 - stats.accepted
    read = stats.prefilled + 24 - 2  # the last token of each answer is not read
    assert set(stats.projections) == {read + stats.proposed - stats.accepted}
    assert stats.bytes_held > 0
    assert {"draft", "prefill", "decode", "pick"} <= stats.milliseconds.keys()
    assert f"{stats.proposed} tokens proposed, {stats.accepted} accepted" in str(stats)
    assert json.loads(json.dumps(first.to_json()))["stats"]["accepted"] == stats.accepted
    assert vt.generate(model, TEXT, max_tokens=2, draft=draft).stats is None


def test_a_growing_length_is_counted_with_a_draft():
    """Where frequencies depend on the length, what is computed again is projected again."""
    model = own("ntk")
    plain = vt.generate(model, [1, 2, 3], max_tokens=40)
    got = vt.generate(model, [1, 2, 3], max_tokens=40, draft=vt.Lookup(shortest=1), stats=True)
    assert got.tokens == plain.tokens
    assert got.stats.recomputed > 0
    wrong = got.stats.proposed - got.stats.accepted
    assert set(got.stats.projections) == {3 + 39 + wrong + got.stats.recomputed}


@pytest.mark.parametrize("options", [{"n": 2}, {"stream": True}, {"batch_invariant": True}, {"cache": False}], ids=str)
def test_guessing_ahead_goes_one_by_one(model, options):
    with pytest.raises(BadInput, match="guessing ahead"):
        vt.generate(model, TEXT, draft=vt.Lookup(), **options)


def test_without_a_cache_more_is_projected(model):
    prompt = tokenizer().encode(TEXT)
    got = vt.generate(model, prompt, max_tokens=5, cache=False, stats=True, ends=False)
    assert set(got.stats.projections) == {sum(len(prompt) + i for i in range(5))}


def test_an_encoder_decoder_reads_the_prompt_and_begins_by_itself():
    model = own("encoder-decoder")
    with pytest.raises(BadInput, match="decoder_start_token_id"):
        vt.generate(model, [5, 6, 7])
    got = vt.generate(model, [[5, 6, 7], [8, 9]], max_tokens=6, start=1)
    for answer, source in zip(got, ((5, 6, 7), (8, 9)), strict=True):
        assert answer.prompt == source
        assert answer.text is None
        assert str(answer) == " ".join(map(str, answer.tokens))
        assert answer.tokens == tuple(alone(model, Ask((1,), 6, source=source)).outputs[0].tokens)
    model.config = {"decoder_start_token_id": 1}
    assert vt.generate(model, [8, 9], max_tokens=6).tokens == got[1].tokens


@pytest.mark.parametrize(
    ("prompts", "options", "says"),
    [
        ([], {}, "give a text, tokens, messages"),
        (None, {}, "give a text"),
        ("", {}, "empty prompt"),
        ([1.5], {}, "a prompt 1.5"),
        ([[True]], {}, "a prompt"),
        ([{"role": "user"}, "x"], {}, "a prompt"),
        ([5], {"chat": True}, "chat=True with tokens"),
        ("a", {"max_tokens": 0}, "max_tokens=0"),
        ("a", {"temperature": -1.0}, "temperature=-1"),
        ("a", {"stop": ""}, "stop string"),
        ("a", {"n": 0}, "n=0"),
        (5, {}, "prompts=5: give a text"),
        ([None], {}, "a prompt None: give a text"),
        (["a", 5], {}, "a prompt 5: give a text"),
        ({"role": "user", "content": "a"}, {}, "give a text, tokens, messages"),
        ([{"role": "user"}], {}, "a message .* give it a role and a content"),
        ([{"rol": "user", "content": "a"}], {}, "a message .* give it a role and a content"),
        ("a", {"draft": vt.Lookup}, r"give vt.Lookup\(\) or"),
        ("a", {"draft": 4}, r"draft=4: give vt.Lookup\(\) or"),
        ("a", {"draft": chat_model()}, r"give vt.DraftModel\(model\)"),
        ("a", {"max_tokens": None}, "max_tokens=None: give a whole number"),
        ("a", {"max_tokens": "5"}, "max_tokens='5': give a whole number"),
        ("a", {"n": 1.5}, "n=1.5"),
        ("a", {"temperature": None}, "temperature=None: give a number"),
        ("a", {"temperature": "hot"}, "temperature='hot'"),
        ("a", {"stop": 1.5}, "stop=1.5: give strings and tokens"),
    ],
    ids=str,
)
def test_bad_input_is_refused(model, prompts, options, says):
    with pytest.raises(BadInput, match=says):
        vt.generate(model, prompts, **options)


@pytest.mark.parametrize("call", [vt.generate, vt.beam_search, lambda model, _: vt.Conversation(model)])
def test_what_is_no_model_is_told_how_to_become_one(call):
    with pytest.raises(BadInput, match=r"load it first, model = vt.load\('smollm2'\)"):
        call("smollm2", TEXT)
    with pytest.raises(BadInput, match="LlamaForCausalLM is a model of transformers: use"):
        call(LLAMA[0].make("plain"), TEXT)
    with pytest.raises(BadInput, match="None is no model"):
        call(None, TEXT)


def test_a_long_wrong_prompt_is_shown_in_short(model):
    with pytest.raises(BadInput) as caught:
        vt.generate(model, [[1.5] * 1000])
    assert len(str(caught.value)) < 200


def test_answers_fit_a_schema_or_a_pattern(model):
    schema = {"type": "object", "properties": {"a": {"enum": ["the", "cat"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    for got in vt.generate(model, [TEXT, "a", "12"], schema=schema, max_tokens=60, temperature=1.0, seed=1):
        assert json.loads(got.text)["a"] in ("the", "cat")
        assert got.finish_reason == "stop"
    samples = vt.generate(model, TEXT, regex="(cat|dog)s{2,4}", n=3, max_tokens=30, temperature=1.5, seed=2)
    assert all(re.fullmatch("(cat|dog)s{2,4}", got.text) for got in samples)
    with pytest.raises(BadInput, match="schema and regex"):
        vt.generate(model, TEXT, schema=schema, regex="a")
    with pytest.raises(BadInput, match="no tokenizer"):
        vt.generate(own("plain"), [1], regex="a")


def test_text_needs_a_tokenizer():
    with pytest.raises(BadInput, match="give tokens instead"):
        vt.generate(own("plain"), "hello")


def test_what_fails_is_raised(model):
    class Bad:
        def allow(self, logits_V):
            raise RuntimeError("no")

    with pytest.raises(RequestFailed, match="no") as caught:
        vt.generate(model, TEXT, constraint=Bad())
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.slow
@pytest.mark.skipif(not place("smollm2").is_dir(), reason="smollm2 is not on this machine: vantage pull smollm2")
def test_smollm2_answers():
    model = vt.load("smollm2")
    got = vt.generate(model, "What is the capital of France?", chat=True, max_tokens=24)
    assert "Paris" in got.text
    assert got.finish_reason == "stop"
    many = vt.generate(model, ["The capital of France is", "The capital of Italy is"], max_tokens=3)
    assert [name in answer.text for name, answer in zip(("Paris", "Rome"), many, strict=True)] == [True, True]
