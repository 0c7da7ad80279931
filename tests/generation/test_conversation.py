"""Conversations: a turn computes its new tokens only, edits cost what they change, and files carry on elsewhere."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import vantage as vt
from tests.generation import zoo
from tests.generation.folder import CHATML, chat_model, tokenizer
from vantage.checkpoints.pull import place
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.generation import Pick, Sampling, generate
from vantage.generation.cached_sequence import CachedSequence
from vantage.generation.constrain import regex
from vantage.generation.conversation import Conversation, PastTurn
from vantage.generation.speculate import Lookup
from vantage.model import Model

WORDS = ("the cat sat", "no! 12 dogs?", "hello world", "and birds said", "answer: é ü 世界")


def written(conversation: Conversation) -> int:
    """Keys projected in the first layer, counted by the store that took them in."""
    return conversation.cache.layers[0].store.written


@torch.inference_mode()
def alone(model: Model, messages: list[Any], most: int) -> list[int]:
    """Greedy, from the whole conversation, without any cache."""
    tokens = model.tokenizer.encode(model.tokenizer.chat(messages), special=False)
    n = len(tokens)
    while len(tokens) - n < most:
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] == model.tokenizer.eos:
            break
    return tokens[n:]


TAKES_BACK = ("contiguous", "paged", "quantised", vt.SinkCache(4, 16))
GUESSED = [(kind, draft) for kind in TAKES_BACK for draft in (None, Lookup(shortest=1))]


@torch.inference_mode()
def test_a_long_message_is_read_in_chunks_and_has_logits_for_its_last_token_only(monkeypatch) -> None:
    model = chat_model()
    tokens = list(range(3, 14))
    want = model(torch.tensor([tokens]))[0, -1]
    monkeypatch.setattr("vantage.generation.cached_sequence.CHUNK", 4)
    seen: list[int] = []
    hook = model.head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[1]))
    got = CachedSequence(model, model.new_cache()).feed(tokens)
    hook.remove()
    assert seen == [1]
    torch.testing.assert_close(got[-1], want)


@pytest.mark.parametrize(("kind", "draft"), [*GUESSED, (vt.HeavyHitterCache(8, 8), None)], ids=repr)
def test_a_turn_computes_its_new_tokens_only(kind: Any, draft: Any) -> None:
    """K6, counted where keys are taken in."""
    model = chat_model()
    talk = Conversation(model, system="a system", kind=kind, draft=draft)
    held = 0
    for i, words in enumerate(WORDS):
        before = written(talk)
        turn = talk.ask(words, max_tokens=6 + i)
        new = turn.prompt - turn.reused
        assert turn.reused == held
        assert turn.computed == written(talk) - before == new + turn.proposed + len(turn.picks) - 1 - turn.accepted
        assert turn.recomputed == 0
        around = "<|im_end|>\n<|im_start|>user\n" + words + "<|im_end|>\n<|im_start|>assistant\n"
        assert i == 0 or new <= 1 + len(model.tokenizer.encode(around))  # and the last token of the answer before
        held = turn.prompt + len(turn.picks) - 1
        assert talk.cache.tokens == (held,) == (len(talk.tokens),)


def test_turns_of_another_process_are_recalled_with_their_tokens() -> None:
    model = chat_model()
    talk = Conversation(model, system="a system")
    past = []
    for words, most in zip(WORDS, (6, 40, 3, 6, 6), strict=True):
        turn = talk.ask(words, max_tokens=most)
        held = talk.tokens[: turn.prompt]
        ended_by = {"stop": "stop token", "length": "length"}[turn.finish_reason]
        past.append(PastTurn(words, turn.text, (*held, *turn.tokens), turn.prompt, ended_by))
        other = Conversation(model, system="a system")
        other.recall(past)
        assert other.messages == talk.messages
        assert [answer.text for answer in other.turns] == [answer.text for answer in talk.turns]
        branch = talk.branch()
        said, again = branch.ask("and?", max_tokens=5), other.ask("and?", max_tokens=5)
        assert again.tokens == said.tokens
        assert other.tokens == branch.tokens
        assert (again.reused, again.recomputed) == (0, 0)
    with pytest.raises(BadInput, match="none of this model's"):
        other.recall([PastTurn("a", "b", (1, 10**6), 1, "length")])


def test_an_answer_may_begin_with_given_tokens() -> None:
    model = chat_model()
    talk = Conversation(model)
    free = talk.branch().ask("hello", max_tokens=6)
    begun = [Pick(token, 0.0) for token in free.tokens[:3]]
    with talk.answering("hello", max_tokens=6, beginning=begun) as loop, torch.inference_mode():
        assert loop.text == model.tokenizer.decode(free.tokens[:3])
        assert loop.unread == free.prompt + 3 - 1
        list(loop.run())
    assert talk.turns[-1].tokens == free.tokens
    assert talk.turns[-1].text == free.text
    end = [Pick(model.tokenizer.eos, 0.0), *begun]
    with (
        pytest.raises(BadInput, match="after one that ends it"),
        talk.answering("hello", max_tokens=6, beginning=end),
    ):
        pass


def test_answers_are_those_of_the_whole_conversation() -> None:
    model = chat_model()
    talk = Conversation(model, system="a system")
    told: list[Any] = [{"role": "system", "content": "a system"}]
    for words in WORDS:
        told.append({"role": "user", "content": words})
        turn = talk.ask(words, max_tokens=8)
        # what was said need not be what its text is tokenised to: compare with the conversation's own tokens
        with torch.inference_mode():
            logits = model(torch.tensor([[*talk.tokens]]))[0, turn.prompt - 1 :]
        assert [pick.token for pick in turn.picks] == logits.argmax(-1).tolist()
        told.append({"role": "assistant", "content": turn.text})
        assert talk.messages == told
    first = Conversation(model, system="a system").ask(WORDS[0], max_tokens=8)
    assert [pick.token for pick in first.picks] == alone(model, told[:2], 8)


def test_streaming_gives_the_text_in_pieces() -> None:
    talk = Conversation(chat_model())
    pieces = list(talk.stream("the cat", max_tokens=12))
    assert len(pieces) > 3
    assert "".join(pieces) == talk.turns[-1].text == talk.messages[-1]["content"]
    assert 0 < talk.turns[-1].to_first <= talk.turns[-1].seconds


def test_a_stop_string_ends_the_answer_and_the_next_turn_is_right() -> None:
    model = chat_model()
    free = Conversation(model).ask("the cat", max_tokens=20)
    word = free.text[8:10]
    talk = Conversation(model, stop=word)
    turn = talk.ask("the cat", max_tokens=20)
    assert turn.finish_reason == "stop"
    assert turn.text == free.text[: free.text.index(word)]
    again = talk.ask("no!", max_tokens=5)
    assert 0 < again.reused < turn.prompt + len(turn.picks)  # up to the stop string
    assert [pick.token for pick in again.picks] == alone(model, talk.messages[:-1], 5)


def test_an_edit_costs_what_comes_after_it() -> None:
    model = chat_model()
    talk = Conversation(model, system="a system")
    talk.ask(WORDS[0], max_tokens=6)
    talk.ask(WORDS[1], max_tokens=6)
    talk.messages = talk.messages[:-1]
    talk.messages[-1] = {"role": "user", "content": "other words"}
    talk.messages.append({"role": "assistant", "content": "the cat"})
    turn = talk.ask(WORDS[2], max_tokens=6)
    tokens = model.tokenizer.encode(model.tokenizer.chat(talk.messages[:-1]), special=False)
    assert 0 < turn.reused < turn.prompt
    assert list(talk.tokens[: turn.prompt]) == tokens
    assert [pick.token for pick in turn.picks] == alone(model, talk.messages[:-1], 6)


def test_a_template_that_rewrites_history_stays_right() -> None:
    """As those that drop old thoughts: here, only the last answer is written out."""
    template = CHATML.replace(
        "{{ m.content }}", "{{ m.content if loop.last or m.role != 'assistant' else m.content[:2] }}"
    )
    model = chat_model(template=template)
    talk = Conversation(model)
    for words in WORDS[:3]:
        turn = talk.ask(words, max_tokens=7)
        assert [pick.token for pick in turn.picks] == alone(model, talk.messages[:-1], 7)
    assert 0 < turn.reused < turn.prompt - 8


def test_stopping_keeps_what_was_said() -> None:
    model = chat_model()
    whole = Conversation(model).ask("the cat", max_tokens=20).text
    talk = Conversation(model)
    said = ""
    for piece in talk.stream("the cat", max_tokens=20):
        said += piece
        if len(said) > 4:
            talk.stop()
    assert talk.turns[-1].finish_reason == "stopped"
    assert said == talk.messages[-1]["content"]
    assert whole.startswith(said)
    assert len(said) < len(whole)
    again = talk.ask("no!", max_tokens=4)
    assert again.reused > 0
    assert again.finish_reason == "length"


def test_leaving_the_loop_and_an_interrupt_keep_what_was_said() -> None:
    model = chat_model()
    talk = Conversation(model, draft=Lookup(shortest=1))
    pieces = talk.stream("the cat", max_tokens=20)
    first = next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert talk.messages[-1]["content"].startswith(first)
    with pytest.raises(KeyboardInterrupt):
        interrupted(talk)
    assert talk.turns[-1].finish_reason == "stopped"
    assert len(talk.messages) == 4
    whole = model.tokenizer.decode([pick.token for pick in talk.turns[-1].picks])
    assert whole.startswith(talk.messages[-1]["content"])
    assert talk.cache.tokens == (len(talk.tokens),)
    told = talk.ask("hello", max_tokens=5)
    with torch.inference_mode():
        logits = model(torch.tensor([[*talk.tokens]]))[0, told.prompt - 1 :]
    assert [pick.token for pick in told.picks] == logits.argmax(-1).tolist()


def interrupted(talk: Conversation) -> None:
    for i, _ in enumerate(talk.stream("no!", max_tokens=20)):
        if i == 2:
            raise_in(talk)


def raise_in(talk: Conversation, where: str = "block") -> None:
    """An interrupt in the middle of a pass, or after it, before anybody has noted that its tokens are held."""
    module = talk.model.blocks[1] if where == "block" else talk.model.head

    def hit(*_: Any) -> None:
        handle.remove()
        raise KeyboardInterrupt

    handle = module.register_forward_pre_hook(hit)


@pytest.mark.parametrize("where", ["block", "head"])
def test_what_is_stopped_before_its_first_token_did_not_happen(where: str) -> None:
    talk = Conversation(chat_model())
    talk.ask("the cat", max_tokens=4)
    before = list(talk.messages)
    raise_in(talk, where)
    with pytest.raises(KeyboardInterrupt):
        talk.ask("no!", max_tokens=4)
    assert talk.messages == before
    assert len(talk.turns) == 1
    turn = talk.ask("no!", max_tokens=4)
    assert turn.reused == talk.turns[0].prompt + 3
    with torch.inference_mode():
        logits = talk.model(torch.tensor([[*talk.tokens]]))[0, turn.prompt - 1 :]
    assert [pick.token for pick in turn.picks] == logits.argmax(-1).tolist()


def test_another_thread_may_stop_it() -> None:
    talk = Conversation(chat_model(), stop=None)
    talk.stops = talk.stops.of(None)  # it would go on for long
    seen = threading.Event()
    thread = threading.Thread(target=lambda: (seen.wait(), talk.stop()))
    thread.start()
    for _ in talk.stream("the cat", max_tokens=3000):
        seen.set()
    thread.join()
    assert talk.turns[-1].finish_reason == "stopped"


def test_branches_are_independent() -> None:
    talk = Conversation(chat_model(), kind="paged", sampling=Sampling(temperature=1.0, seed=1))
    talk.ask("the cat", max_tokens=8)
    other = talk.branch()
    one, two = talk.ask("no!", max_tokens=8), other.ask("hello", max_tokens=8)
    assert one.reused == two.reused > 0
    assert talk.messages[:2] == other.messages[:2]
    assert talk.messages[2:] != other.messages[2:]
    third = talk.branch().ask("no!", max_tokens=8, sampling=Sampling(temperature=1.0, seed=2))
    assert third.seed == 2


def test_a_branch_at_an_earlier_turn_goes_on_from_there() -> None:
    talk = Conversation(chat_model(), system="a system")
    for words in ("the cat", "no!", "hello"):
        talk.ask(words, max_tokens=6)
    for turn in range(4):
        fresh = Conversation(chat_model(), system="a system")
        for words in ("the cat", "no!", "hello")[:turn]:
            fresh.ask(words, max_tokens=6)
        branch = talk.branch(turn)
        assert branch.messages == fresh.messages
        one, two = branch.ask("12 dogs?", max_tokens=6), fresh.ask("12 dogs?", max_tokens=6)
        assert (one.text, one.prompt) == (two.text, two.prompt)
        assert branch.tokens == fresh.tokens
        assert one.reused >= two.reused
    assert len(talk.turns) == 3
    with pytest.raises(BadInput, match="branched at 0"):
        talk.branch(4)


def test_tokens_stay_where_the_template_ends_an_answer_in_another_way() -> None:
    """A stop token that the template does not write is left out; what was said before it is not tokenised anew."""
    model = chat_model()
    talk = Conversation(model)
    free = talk.branch().ask("the cat", max_tokens=8)
    talk.stops = talk.stops.also([free.tokens[5]])
    first = talk.ask("the cat", max_tokens=8)
    assert first.finish_reason == "stop"
    second = talk.ask("no!", max_tokens=2)
    assert list(talk.tokens[: first.prompt + len(first.tokens) - 1]) == [
        *talk.tokens[: first.prompt],
        *first.tokens[:-1],
    ]
    assert second.reused == first.prompt + len(first.tokens) - 1


def test_reset_keeps_the_system_message_and_its_keys() -> None:
    talk = Conversation(chat_model(), system="a long system message about cats and dogs")
    talk.ask("the cat", max_tokens=4)
    talk.reset()
    assert [m["role"] for m in talk.messages] == ["system"]
    turn = talk.ask("the cat", max_tokens=4)
    assert turn.reused == turn.prompt - 1  # the same words again
    assert (
        turn.prompt
        == Conversation(chat_model(), system="a long system message about cats and dogs")
        .ask("the cat", max_tokens=1)
        .prompt
    )


def test_turns_draw_other_numbers_and_a_seed_repeats_them_all() -> None:
    sampling = Sampling(temperature=1.5, seed=3)
    texts = []
    for _ in range(2):
        talk = Conversation(chat_model(), sampling=sampling)
        texts.append([talk.ask(words, max_tokens=8).text for words in ("the cat", "the cat")])
    assert texts[0] == texts[1]


def test_a_constraint_holds_for_a_turn() -> None:
    talk = Conversation(chat_model())
    turn = talk.ask("the cat", constraint=regex("(yes|no)!", tokenizer()))
    assert turn.text in ("yes!", "no!")
    assert turn.finish_reason == "stop"


def test_a_window_keeps_what_it_shows_and_an_edit_begins_anew() -> None:
    model = zoo.sharpen(vt.build(vt.decoder(vocab=len(tokenizer()), width=24, layers=2, heads=4, window=12)))
    model.tokenizer = tokenizer()
    talk = Conversation(model, kind="ring", draft=Lookup(tokens=4, shortest=1))
    held = 0
    for words in WORDS[:3]:
        turn = talk.ask(words, max_tokens=8)
        assert turn.reused == held
        held = turn.prompt + len(turn.picks) - 1
        with torch.inference_mode():
            logits = model(torch.tensor([[*talk.tokens]]))[0, turn.prompt - 1 :]
        assert [pick.token for pick in turn.picks] == logits.argmax(-1).tolist()
    assert talk.cache.holds().layers[0].rows[0].evicted > 0
    talk.messages[0] = {"role": "user", "content": "the dog"}
    turn = talk.ask(WORDS[3], max_tokens=8)
    assert turn.reused == 0
    assert turn.recomputed > 0
    assert [pick.token for pick in turn.picks] == alone(model, talk.messages[:-1], 8)


def test_the_longest_text_is_respected() -> None:
    talk = Conversation(chat_model(), max_tokens=10**6)
    talk.stops = talk.stops.of(None)
    with pytest.raises(BadInput, match=r"made for 4096: reset it"):
        talk.ask("the cat " * 3000)
    with pytest.raises(BadInput, match="max_tokens=0"):
        talk.ask("the cat", max_tokens=0)


def test_what_cannot_converse_is_refused() -> None:
    with pytest.raises(BadInput, match="tokenizer"):
        Conversation(zoo.model("plain"))
    with pytest.raises(BadInput, match="no chat template"):
        Conversation(chat_model(template=None)).ask("hello")


# ---- files

CHILD = """
import sys
from tests.generation.folder import chat_model
from vantage.generation.conversation import Conversation, PastTurn
for kind in ("contiguous", "paged", "quantised"):
    talk = Conversation.load(f"{sys.argv[1]}/{kind}", chat_model())
    turn = talk.ask("answer", max_tokens=9)
    print([turn.reused, turn.computed, [(p.token, p.logprob.hex()) for p in turn.picks], talk.messages])
"""


@pytest.mark.sampled
def test_another_process_carries_on_bit_for_bit(tmp_path: Path) -> None:
    wanted = []
    for kind in ("contiguous", "paged", "quantised"):
        talk = Conversation(chat_model(), system="a system", kind=kind)
        talk.ask("the cat", max_tokens=8)
        talk.ask("no!", max_tokens=8)
        talk.save(tmp_path / kind)
        turn = talk.ask("answer", max_tokens=9)
        assert turn.reused > 20
        wanted.append([turn.reused, turn.computed, [(p.token, p.logprob.hex()) for p in turn.picks], talk.messages])
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [repr(one) for one in wanted]


def test_a_conversation_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    talk = Conversation(chat_model())
    talk.save(tmp_path / "empty")
    talk.ask("the cat", max_tokens=4)
    talk.save(tmp_path / "c")
    with pytest.raises(CacheError, match="saved with llama, 2 layers of width 32, float32"):
        Conversation.load(tmp_path / "c", chat_model(seed=1))
    with pytest.raises(CacheError, match="this model is llama, 3 layers"):
        Conversation.load(tmp_path / "c", chat_model(layers=3))
    again = Conversation.load(tmp_path / "empty", chat_model())
    assert again.messages == []
    assert again.ask("the cat", max_tokens=4).text == talk.turns[0].text


def test_a_forged_conversation_is_refused(tmp_path: Path) -> None:
    from vantage.cache.saved import save_cache
    from vantage.generation.saved_conversation import FORMAT, fingerprint_of

    talk = Conversation(chat_model())
    talk.ask("the cat", max_tokens=4)
    good = {
        "conversation": FORMAT,
        "messages": [{"role": "user", "content": "x"}],
        "tokens": list(talk.tokens),
        "said": [],
        "text": "",
    }
    for change in (
        {"conversation": "other"},
        {"messages": "x"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"tokens": [1, 2]},
        {"tokens": [*talk.tokens[:-1], 10**6]},
        {"said": [True]},
        {"text": 7},
    ):
        save_cache(talk.cache, tmp_path / "c", fingerprint=fingerprint_of(talk.model), extra={**good, **change})
        with pytest.raises(CheckpointError):
            Conversation.load(tmp_path / "c", talk.model)
    save_cache(talk.cache, tmp_path / "c", fingerprint=fingerprint_of(talk.model), extra=good)
    assert Conversation.load(tmp_path / "c", talk.model).tokens == talk.tokens


@pytest.mark.parametrize("message", [None, 5, ["hello"]], ids=str)
def test_what_is_no_text_is_refused(message: Any) -> None:
    talk = Conversation(chat_model())
    with pytest.raises(BadInput, match="give a text"):
        talk.ask(message)
    assert talk.messages == []
    with pytest.raises(BadInput, match="system=5: give a text"):
        Conversation(chat_model(), system=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="give vt"):
        Conversation(chat_model(), draft=vt.Lookup)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_smollm2_converses() -> None:
    if not place("smollm2").is_dir():
        pytest.skip("smollm2 was not pulled")
    model = vt.load("smollm2")
    talk = Conversation(model, system="You answer in one short sentence.")
    first = talk.ask("What is the capital of France?", max_tokens=24)
    assert "Paris" in first.text
    assert first.finish_reason == "stop"
    second = talk.ask("And of Italy?", max_tokens=24)
    assert "Rome" in second.text
    assert second.reused == first.prompt + len(first.picks) - 1
    assert second.prompt - second.reused < 20
    # equal to the same messages without a conversation
    plain = generate(model, list(talk.messages[:-1]), max_tokens=24)
    assert plain.text == second.text
