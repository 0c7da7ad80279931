"""What a newcomer prints: every result is its text, and shows itself in a line."""

from __future__ import annotations

import pytest

import vantage as vt
from tests.generation.folder import chat_model, tokenizer
from tests.generation.scenario import own
from vantage.kernels.native import native
from vantage.model.packed import quantise

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def model():
    return chat_model()


def test_an_answer_of_a_conversation_prints_as_its_text(model):
    talk = vt.Conversation(model)
    answer = talk.ask("hello", max_tokens=5)
    assert str(answer) == answer.text
    assert f"{answer}" == answer.text
    assert repr(answer) == f"<Answer: text={answer.text!r}, 5 tokens, finish_reason='length'>"
    assert repr(talk) == f"<Conversation: 1 turn, {len(talk.tokens)} tokens held>"


def test_a_generation_shows_itself_in_a_line(model):
    answer = vt.generate(model, TEXT, max_tokens=4, ends=False, logprobs=3, stats=True)
    assert str(answer) == answer.text
    assert repr(answer) == f"<Generation: text={answer.text!r}, 4 tokens, finish_reason='length'>"
    assert repr(vt.generate(model, [TEXT], max_tokens=4, ends=False)) == f"[{answer!r}]"


def test_without_a_tokenizer_tokens_are_shown():
    answer = vt.generate(own("plain"), [1, 2, 3], max_tokens=2)
    a, b = answer.tokens
    assert str(answer) == f"{a} {b}"
    assert repr(answer) == f"<Generation: tokens=[{a}, {b}], finish_reason='length'>"


def test_beams_print_as_the_best_text(model):
    found = vt.beam_search(model, TEXT, max_tokens=4, beams=vt.Beams(3, n_best=2), ends=False)
    assert str(found) == found.text == str(found.best[0])
    assert repr(found).startswith(f"<BeamResult: <BeamText: text={found.text!r}, 4 tokens, score=")


def test_a_notebook_shows_the_text_escaped(model):
    answer = vt.generate(model, TEXT, regex="<b> &\n<i>", max_tokens=60)
    assert answer.text == "<b> &\n<i>"
    assert answer._repr_html_() == '<pre style="white-space: pre-wrap">&lt;b&gt; &amp;\n&lt;i&gt;</pre>'
    assert "&lt;" not in vt.Conversation(model).ask("hello", max_tokens=1)._repr_html_()


def test_a_stream_says_what_it_is(model):
    stream = vt.generate(model, [TEXT, "a"], max_tokens=4, ends=False, stream=True)
    assert repr(stream) == "<Stream: 2 prompts, 0 tokens so far; its pieces come in a loop>"
    assert "".join(map(str, stream))
    assert "8 tokens so far" in repr(stream)


def test_a_tokenizer_says_what_it_is():
    assert repr(tokenizer()) == f"<Tokenizer: {len(tokenizer())} tokens, with a chat template>"
    assert "no chat template" in repr(tokenizer(None))


def test_an_engine_says_where_it_stands(model):
    engine = vt.Engine(model)
    assert repr(engine) == "<Engine: 0 waiting, 0 tokens generated, idle>"
    engine.submit([5, 6], max_tokens=3)
    assert repr(engine) == "<Engine: 1 waiting, 0 tokens generated>"
    engine.run()
    assert repr(engine) == "<Engine: 0 waiting, 3 tokens generated, idle>"


@pytest.mark.skipif(native() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("draft", [None, vt.Lookup()])
def test_stats_say_which_path_computed_how_many_tokens(draft):
    model = vt.build(vt.decoder(vocab=64, width=64, layers=2, heads=4, kv_heads=2)).eval()
    quantise(model, 4)
    prompt = list(range(20))
    stats = vt.generate(model, prompt, max_tokens=4, draft=draft, stats=True).stats
    assert stats.paths == {"native": max(stats.projections)}
    assert f"path         {max(stats.projections)} tokens native" in str(stats)
    model.fast = True
    fast = vt.generate(model, prompt, max_tokens=4, draft=draft, stats=True).stats.paths
    assert sum(fast.values()) == max(stats.projections)
    assert fast.keys() <= {"native", "native fast"}
    model.kernel = "reference"
    assert vt.generate(model, prompt, max_tokens=4, draft=draft, stats=True).stats.paths.keys() == {"modules"}
