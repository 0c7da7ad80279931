"""Conversations with images: what a fresh pass over the same messages says, with what is held computed once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from vantage.errors import BadInput, Refused
from vantage.generation import Conversation
from vantage.generation.conversation import PastTurn
from vantage.generation.images import go_on, named, prepared

FIRST, SECOND = pixels(), pixels(8, 32, seed=3)  # 6 and 4 tokens


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_every_turn_is_that_of_a_fresh_pass(family):
    model = vision_chat_model(family)
    talk = Conversation(model, max_tokens=6)
    so_far = []
    for text, images in (("hello", [FIRST]), ("and", [SECOND, FIRST]), ("so", [])):
        answer = talk.ask(text, images=images)
        so_far += images
        prompt = list(talk.tokens[: answer.prompt])  # an answer may be half a character: its tokens go on, not its text
        assert prompt.count(image_token(model)) == {1: 6, 3: 6 + 4 + 6}[len(so_far)]
        assert answer.text == vt.generate(model, prompt, images=so_far, max_tokens=6).text
    assert answer.reused > 6 + 4 + 6
    assert answer.computed < answer.prompt


def test_a_branch_with_another_image_shares_what_came_before_it():
    talk = Conversation(vision_chat_model(), max_tokens=4)
    talk.ask("hello")
    held = len(talk.tokens)
    one, other = talk.branch(), talk.branch()
    first = one.ask("look", images=[FIRST])
    assert first.reused >= held
    second = other.ask("look", images=[pixels(seed=9)])  # as many tokens, and the same words
    assert second.reused == first.reused
    again = one.branch(1)
    assert again.ask("look", images=[FIRST]).text == first.text
    # within one row as well: the same tokens of another image are others
    changed = one.branch(1).ask("look", images=[pixels(seed=9)])
    assert changed.text == second.text


def test_messages_of_another_process_go_on_alike():
    model = vision_chat_model()
    talk = Conversation(model, max_tokens=4)
    with torch.inference_mode(), talk.answering("hello", images=[FIRST]) as loop:
        list(loop.run())
    tokens = (*loop.prompt, *(pick.token for pick in loop.picks))
    past = PastTurn("hello", loop.text, tokens, len(loop.prompt), loop.ending.ended_by, loop.intact,
                    prepared(model, [FIRST]), loop.images.starts)  # fmt: skip
    other = Conversation(model, max_tokens=4)
    other.recall([past])
    assert other.ask("and", images=[SECOND]).tokens == talk.ask("and", images=[SECOND]).tokens
    for wrong in (
        replace(past, starts=(past.starts[0] + 1,)),
        replace(past, starts=()),
        replace(past, images=()),
        replace(past, starts=(0, *past.starts)),
    ):
        with pytest.raises(BadInput, match="do not stand where"):
            Conversation(model).recall([wrong])


def test_an_answer_may_write_the_token_of_images_itself():
    model = vision_chat_model()
    token = image_token(model)
    (first,) = prepared(model, [FIRST])
    tokens, placed = go_on(model, (), None, [1, token, 2], [first])
    tokens, placed = go_on(model, [*tokens, token, 3], placed, [token, 4], [first, first])
    assert placed.starts == (1, 10)
    assert tokens == [1, *[token] * 6, 2, token, 3, *[token] * 6, 4]
    names = named([*tokens, token], placed)
    assert names[8] == names[-1] == token
    assert names[1] < 0


def test_what_is_refused():
    with pytest.raises(BadInput, match="reads no images"):
        Conversation(chat_model()).ask("hello", images=[FIRST])
    talk = Conversation(vision_chat_model(), max_tokens=2)
    talk.ask("hello", images=[FIRST])
    with pytest.raises(Refused, match="with images cannot be saved"):
        talk.save("nowhere")
