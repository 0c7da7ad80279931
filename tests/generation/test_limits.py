"""Past the context: everything that generates says so, by one rule (``vantage.generation.limits``)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.generation.folder import CHATML, chat_folder, chat_model, tokenizer
from vantage.checkpoints.config import Config
from vantage.cli.main import main
from vantage.errors import BadInput, ContextWarning
from vantage.families import family_of
from vantage.generation.conversation import ContextFull
from vantage.generation.prompts import end_tokens
from vantage.model import Model

CONTEXT = 16
SIZES = {"vocab": 40, "width": 24, "layers": 2, "heads": 4, "max_length": CONTEXT}


def model(position: Any = "rope", **changes: Any) -> Model:
    return vt.build(vt.decoder(**{**SIZES, **changes}, position=position), seed=0).double().eval()


def prompt(n: int) -> list[int]:
    return list(range(1, n + 1))


def test_inside_the_context_nothing_is_said() -> None:
    """Warnings are errors here. The last token is not read, so it may come one later."""
    for position in ("rope", "learned"):
        got = vt.generate(model(position), prompt(10), max_tokens=7, stats=True)
        assert (len(got.tokens), got.beyond_context, got.stats.beyond_context) == (7, 0, 0)
        assert "past it" not in str(got.stats)
    vt.generate(model(vt.Rope(scaling=vt.scaling.DynamicNTK(2.0, CONTEXT))), prompt(10), max_tokens=30)  # made for it
    vt.generate(model("alibi", max_length=None), prompt(10), max_tokens=30)  # made for no length in particular


def test_rotary_positions_go_on_with_one_warning_and_a_count() -> None:
    with pytest.warns(ContextWarning, match="made for 16 tokens, and prompt and answer go further") as caught:
        got = vt.generate(model(), [prompt(10), prompt(12)], max_tokens=12, stats=True)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert [(len(one.tokens), one.finish_reason) for one in got] == [(12, "length")] * 2
    assert [one.beyond_context for one in got] == [5, 7]  # those that follow more than 16 tokens
    assert got[0].stats.beyond_context == 12
    assert "12 tokens generated past it" in str(got[0].stats)
    assert json.loads(json.dumps(got[0].to_json()))["beyond_context"] == 5


def test_a_prompt_that_is_too_long_is_named() -> None:
    with pytest.warns(ContextWarning, match="the prompt has 20 tokens"):
        assert vt.generate(model(), prompt(20), max_tokens=2).beyond_context == 2


def test_every_call_says_it_again() -> None:
    one = model()
    for _ in range(2):
        with pytest.warns(ContextWarning):
            vt.generate(one, prompt(15), max_tokens=4)


def test_a_stream_says_it_when_it_happens() -> None:
    stream = vt.generate(model(), prompt(10), max_tokens=12, stream=True)
    for _ in range(7):  # inside; a warning would be an error
        next(stream)
    with pytest.warns(ContextWarning):
        next(stream)
    assert len(list(stream)) == 4
    assert stream.stats.beyond_context == 5


def test_who_makes_it_an_error_gets_one() -> None:
    with pytest.raises(ContextWarning):
        vt.generate(model(), prompt(10), max_tokens=12)


@pytest.mark.parametrize("draft", [vt.Lookup(), vt.DraftModel(model())], ids=["look-up", "model"])
def test_the_same_with_a_draft(draft: Any) -> None:
    with pytest.warns(ContextWarning, match="made for 16") as caught:
        got = vt.generate(model(), [prompt(10), prompt(12)], max_tokens=12, draft=draft, stats=True)
    assert len(caught) == 1
    assert [one.beyond_context for one in got] == [5, 7]
    assert got[0].stats.beyond_context == 12


def test_the_same_with_beams() -> None:
    with pytest.warns(ContextWarning, match="made for 16") as caught:
        got = vt.beam_search(model(), [prompt(10), prompt(12)], max_tokens=12, beams=2)
    assert len(caught) == 1
    assert [one.beyond_context for one in got] == [5, 7]


@pytest.mark.parametrize("draft", [None, vt.Lookup(), vt.DraftModel(model())], ids=["plain", "look-up", "model"])
def test_learned_positions_end_the_answer(draft: Any) -> None:
    wanted = vt.generate(model("learned"), prompt(10), max_tokens=7)
    with pytest.warns(ContextWarning, match="ended after 7 of 12 tokens: this model has 16 positions"):
        got = vt.generate(model("learned"), prompt(10), max_tokens=12, draft=draft)
    assert (got.tokens, got.finish_reason, got.beyond_context) == (wanted.tokens, "length", 0)
    with pytest.raises(BadInput, match="a prompt of 17 tokens: this model has 16 positions"):
        vt.generate(model("learned"), prompt(17), draft=draft)


def test_learned_positions_end_a_beam() -> None:
    with pytest.warns(ContextWarning, match="ended after 7 of 12 tokens"):
        got = vt.beam_search(model("learned"), prompt(10), max_tokens=12, beams=2)
    assert (len(got.tokens), got.finish_reason) == (7, "length")
    with pytest.raises(BadInput, match="a prompt of 17 tokens"):
        vt.beam_search(model("learned"), prompt(17), max_tokens=2)


def test_an_answer_that_ends_by_itself_at_the_last_position_is_not_cut() -> None:
    end = vt.generate(model("learned"), prompt(10), max_tokens=7).tokens[-1]
    got = vt.generate(model("learned"), prompt(10), max_tokens=12, stop=[end])
    assert got.finish_reason == "stop"


def test_a_draft_whose_positions_end_sooner_guesses_as_far_as_they_go() -> None:
    large, small = model(max_length=64), model("learned")
    wanted = vt.generate(large, prompt(10), max_tokens=20)
    got = vt.generate(large, prompt(10), max_tokens=20, draft=vt.DraftModel(small))
    assert got.tokens == wanted.tokens
    assert got.guesses.proposed > 0


def test_an_engine_counts_for_each_request_and_says_it_once() -> None:
    engine = vt.Engine(model())
    requests = [engine.submit(prompt(n), max_tokens=12) for n in (3, 10, 12)]
    with pytest.warns(ContextWarning) as caught:
        engine.run()
    assert len(caught) == 1
    assert [request.outputs[0].beyond_context for request in requests] == [0, 5, 7]
    engine.submit(prompt(12), max_tokens=12)
    engine.run()
    assert engine.stats.beyond_context == 19


def test_a_warning_that_is_an_error_loses_no_event() -> None:
    engine = vt.Engine(model())
    request = engine.submit(prompt(15), max_tokens=4)
    events = [*engine.step(), *engine.step()]  # the prompt and a token, then another that is inside still
    with pytest.raises(ContextWarning):
        engine.step()
    events += engine.run()
    assert [event.pick.token for event in events if event.pick] == request.outputs[0].tokens
    assert request.outputs[0].finish == "length"


def test_the_source_of_an_encoder_decoder_counts_too() -> None:
    both = vt.build(vt.encoder_decoder(**SIZES), seed=0).double().eval()
    with pytest.warns(ContextWarning, match="the source has 20 tokens"):
        vt.generate(both, prompt(20), max_tokens=2, start=1)


def short_chat(context: int) -> Model:
    """A copy that was made for so many tokens."""
    config = {**(chat_model().config or {}), "max_position_embeddings": context}
    made = vt.build(family_of(config).spec(Config(config)), seed=0)
    made.config, made.tokenizer = config, tokenizer(CHATML)
    return made.eval()


def test_a_conversation_stays_inside() -> None:
    short = short_chat(60)
    endless = vt.Sampling(logit_bias=dict.fromkeys(end_tokens(short), -1e4))
    talk = vt.Conversation(short, sampling=endless)
    first = talk.ask("hello", max_tokens=500)
    assert first.prompt + len(first.tokens) == 60
    assert (first.finish_reason, first.beyond_context) == ("length", 0)
    with pytest.raises(ContextFull, match="made for 60"):
        talk.ask("hello")


def test_the_command_line_says_it_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = chat_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    text = "the cat sat on a mat and said no"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)
        answer = vt.generate(vt.load(folder), text, max_tokens=20)
    assert answer.beyond_context > 0
    for options in ([], ["--json"], ["--lookup"], ["--beams", "1"]):
        assert main(["generate", str(folder), text, "--max-tokens", "20", "--dtype", "float32", *options]) == 0
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1
        assert shown.err.startswith("vantage: this model was made for 16 tokens")
        assert "16 tokens" not in shown.out
    assert main(["generate", str(folder), "a", "--max-tokens", "2", "--dtype", "float32"]) == 0
    assert capsys.readouterr().err == ""


def test_chat_says_that_the_context_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = chat_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    monkeypatch.setattr("builtins.input", iter_input(["hello"]))
    assert main(["chat", str(folder), "--dtype", "float32"]) == 0
    assert vt.Conversation(vt.load(folder)).ask("hello").finish_reason == "length"
    assert "the model's context of 24 tokens is full" in capsys.readouterr().out


def iter_input(lines: list[str]) -> Any:
    left = iter(lines)

    def read(_: str = "") -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


def test_tokens_may_be_numpys() -> None:
    one = model()
    wanted = vt.generate(one, prompt(5), max_tokens=3).tokens
    row = torch.tensor(prompt(5)).numpy()
    assert vt.generate(one, row, max_tokens=3).tokens == wanted
    assert vt.generate(one, list(row), max_tokens=3).tokens == wanted
