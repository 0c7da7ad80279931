"""Prompts and answers: exactly the answers are asked for."""

import json
from pathlib import Path

import pytest
import torch

import vantage as vt
from vantage.checkpoints.pull import PullError
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import BadInput
from vantage.training.batch import IGNORE
from vantage.training.text import END, Bytes, Existing, PromptData

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chatty(template: str = TEMPLATE) -> Tokenizer:
    plain = Bytes((END,)).build()
    return Tokenizer(lambda: plain.backend, About(None, END, template))


def write(folder: Path, *rows: object) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(data: PromptData, row: int = 0) -> tuple[str, str]:
    """The whole text of a held-out row and the part of it that is asked for."""
    (batch,) = data.held_out()["valid"]
    targets = batch.targets[row]
    whole = [int(batch.tokens[row, 0]), *batch.tokens[row, 1:].tolist()]
    wanted = targets != IGNORE
    last = int(wanted.nonzero().max())
    whole = [*batch.tokens[row, : last + 1].tolist(), int(targets[last])]
    assert all(whole[i + 1] == int(targets[i]) for i in wanted.nonzero()[:, 0].tolist())
    decode = data.tokenizer.decode
    return decode(whole, special=True), decode(targets[wanted].tolist(), special=True)


def test_plain_prompts(tmp_path):
    path = write(tmp_path, {"prompt": "2+2=", "answer": "4"}, {"prompt": "the capital: ", "answer": "Paris"})
    data = PromptData(path, Bytes((END,)).build(), path, length=40)
    assert asked(data, 0) == ("2+2=4</s>", "4</s>")
    assert asked(data, 1) == ("the capital: Paris</s>", "Paris</s>")
    (batch,) = data.held_out()["valid"]
    assert batch.tokens.shape == batch.targets.shape
    assert batch.positions is None


def test_a_template_writes_prompts_out(tmp_path):
    path = write(tmp_path, {"prompt": "hi", "answer": "yo"})
    assert asked(PromptData(path, chatty(), path, length=40)) == ("<user>hi</s>\n<assistant>yo</s>", "yo</s>")
    assert asked(PromptData(path, chatty(), path, length=40, chat=False)) == ("hiyo</s>", "yo</s>")


def test_every_answer_of_a_conversation_is_asked_for(tmp_path):
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    path = write(tmp_path, {"messages": messages})
    whole, wanted = asked(PromptData(path, chatty(), path, length=99))
    assert whole == "<system>S</s>\n<user>a</s>\n<assistant>b</s>\n<user>c</s>\n<assistant>d</s>"
    assert wanted == "b</s>d</s>"


def test_the_real_template_of_smollm2(tmp_path):
    try:
        tokenizer = Existing(str(vt.pull("smollm2"))).build()
    except PullError as e:
        pytest.skip(f"smollm2 cannot be pulled here: {e}")
    path = write(tmp_path, {"prompt": "Who are you?", "answer": "A model."})
    whole, wanted = asked(PromptData(path, tokenizer, path, length=99))
    assert wanted == "A model.<|im_end|>"
    prompt = tokenizer.chat([{"role": "user", "content": "Who are you?"}])
    assert whole == prompt + wanted
    assert whole.endswith("<|im_start|>assistant\nA model.<|im_end|>")


def test_a_batch_depends_on_its_numbers_alone(tmp_path):
    path = write(tmp_path, *({"prompt": f"{i}", "answer": f"{i * i}"} for i in range(20)))
    one, two = (PromptData(path, Bytes((END,)).build(), length=20, seed=1) for _ in range(2))
    one.batch(range(50))
    assert torch.equal(one.batch([3, 40]).tokens, two.batch([3, 40]).tokens)
    assert one.epoch == 18
    assert one.vocab == 257


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a"}, r"expected \"prompt\" and \"answer\", or \"messages\", got the keys \['prompt'\]"),
        ({"prompt": "a", "answer": "b", "messages": []}, "expected"),
        ({"messages": [{"role": "user", "content": "a"}]}, "line 1: no message is the assistant's"),
        ({"messages": ["a"]}, "a role and a content"),
        ({"prompt": "a" * 50, "answer": "b"}, "more than length=40"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, row, said):
    path = write(tmp_path, row)
    with pytest.raises(BadInput, match=said):
        PromptData(path, chatty(), path, length=40)


def test_an_answer_that_is_cut_away_is_refused(tmp_path):
    path = write(tmp_path, {"prompt": "a" * 50, "answer": "b"})
    with pytest.raises(BadInput, match="no token of an answer lies within length=20"):
        PromptData(path, chatty(), path, length=20, cut=True)


def test_messages_need_a_template(tmp_path):
    path = write(tmp_path, {"messages": [{"role": "assistant", "content": "a"}]})
    with pytest.raises(BadInput, match="line 1: this model has no chat template"):
        PromptData(path, Bytes((END,)).build(), path, length=20)


def test_a_template_that_rewrites_the_past_is_refused(tmp_path):
    path = write(tmp_path, {"prompt": "hi", "answer": "yo"})
    with pytest.raises(BadInput, match="cannot be told from the rest"):
        PromptData(path, chatty("{{ messages | length }}" + TEMPLATE), path, length=40)
