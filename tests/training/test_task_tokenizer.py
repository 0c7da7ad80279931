"""A task's symbols as a tokenizer: a text is to the model what the collator made of the example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.training.tasks.test_page import called, rows
from vantage.checkpoints.tokenizer import from_folder
from vantage.errors import BadInput, Refused
from vantage.training.sequences import Reads, Sequences
from vantage.training.sources import OpenOptions, TaskExamples
from vantage.training.task_tokenizer import task_tokenizer, why_no_text
from vantage.training.tasks import Example, Task, task, text_of

VARIANTS = [(cell, int(length)) for cell, length, _ in rows("Examples", 3)]  # every task of the registry has a row


def examples_of(made: Task, reads: Reads, length: int) -> tuple[Sequences, list[Example]]:
    sequences = Sequences(made, reads, (length, length), (length,), seed=3)
    return sequences, [sequences.example(index) for index in range(20)]


@pytest.mark.parametrize(("cell", "length"), VARIANTS)
def test_every_task_reads_and_answers_as_it_was_trained(cell: str, length: int) -> None:
    name, parameters = called(cell)
    made = task(name, **parameters)
    sequences, examples = examples_of(made, "line", length)
    tokenizer = task_tokenizer(made.symbols, "line")
    assert len(tokenizer) == sequences.vocab
    for example in examples:
        batch = sequences.collate([example])
        prompt = tokenizer.encode(text_of(made, example.prompt))
        assert prompt == batch.tokens[0, : len(example.prompt) + 2].tolist()
        answer = [int(target) for target in batch.targets[0] if target >= 0]
        assert answer[-1] == tokenizer.eos
        assert tokenizer.decode(answer) == text_of(made, example.answer)


def test_what_stands_around_a_prompt_is_what_each_model_reads() -> None:
    parity = task("parity")
    for reads in ("ask", "label"):
        sequences, examples = examples_of(parity, reads, 5)
        batch, tokenizer = sequences.collate(examples), task_tokenizer(parity.symbols, reads)
        assert [tokenizer.encode(text_of(parity, e.prompt)) for e in examples] == batch.tokens.tolist()
    sequences, examples = examples_of(parity, "pair", 5)
    batch, tokenizer = sequences.collate(examples), task_tokenizer(parity.symbols, "pair")
    assert batch.source is not None
    assert [tokenizer.encode(text_of(parity, e.prompt)) for e in examples] == batch.source.tolist()
    assert batch.tokens[:, 0].tolist() == [tokenizer.bos] * 20  # what an answer begins with


def test_spaces_may_stand_where_none_are_needed() -> None:
    copy = task_tokenizer(task("copy", times=2).symbols, "line")
    assert copy.encode(" d a c <next> d") == copy.encode("dac<next>d")
    lookup = task_tokenizer(task("lookup").symbols, "line")
    assert lookup.encode("k7  v2 k7 ") == lookup.encode("k7 v2 k7")
    case = task_tokenizer(task("case").symbols, "line")  # where a space is a symbol, it is one
    assert case.encode("<U>a b") != case.encode("<U>ab")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("copy", "abcX9", "no 'X', '9': leave them out. It has 'a', 'b'"),
        ("lookup", "k7 k999", "no 'k999': leave them out. It has 'k0'"),
        ("ordering", "12 1234", "no '1234'"),
        ("copy", "abc=", "no '='"),
    ],
)
def test_what_is_no_symbol_is_refused_by_name(name: str, text: str, says: str) -> None:
    with pytest.raises(BadInput, match="the vocabulary has " + says.replace("'", ".")):
        task_tokenizer(task(name).symbols, "line").encode(text)


def test_symbols_of_several_words() -> None:
    symbols = ("New York", "New York City", "York", "to")
    tokenizer = task_tokenizer(symbols, "pair")
    ids = tokenizer.encode("York to New York City to New York")
    assert [symbols[i - 4] for i in ids] == ["York", "to", "New York City", "to", "New York"]
    assert tokenizer.decode(ids) == "York to New York City to New York"


@pytest.mark.parametrize(
    ("symbols", "why"),
    [
        ((1, 2, 3), "1 is no text"),
        (("a", ""), "'' is no text"),
        (("a", "b", "a"), "'a' is there twice"),
        (("a", "<sep>"), "'<sep>' has another meaning"),
        (("up", " down"), "' down' begins or ends with a blank"),
    ],
)
def test_symbols_that_make_no_text(symbols: tuple[Any, ...], why: str) -> None:
    assert why in (why_no_text(symbols) or "")
    with pytest.raises(Refused, match="make no tokenizer"):
        task_tokenizer(symbols, "line")


@dataclass(frozen=True)
class Same:
    """A task whose symbols cannot be written."""

    symbols = ("a", "a")
    shortest = 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        bits = tuple(rng.integers(2, size=length).tolist())
        return Example(bits, bits[-1:])


def test_a_task_without_readable_symbols_is_trained_all_the_same_and_it_is_said() -> None:
    opened = TaskExamples(Same(), (1, 4)).open(OpenOptions("line", 0, 4))
    assert opened.tokenizer is None
    assert opened.note == "the model gets no tokenizer, it takes token ids: of the task's symbols, 'a' is there twice"
    assert opened.data.vocab == 6


def test_transformers_reads_it(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    for name, text in (("scan", "jump twice after walk left"), ("case", "<U>I am"), ("copy", "dac")):
        ours = task_tokenizer(task(name).symbols, "line")
        folder = tmp_path / name
        folder.mkdir()
        ours.save(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids[1:-1]) == text
        assert theirs.eos_token_id == ours.eos == ids[0] + 1
        again = from_folder(folder)
        assert again is not None
        assert again.encode(text) == ids
        chat = [{"role": "user", "content": "dac"}, {"role": "assistant", "content": "?"}]
        chat.append({"role": "user", "content": text})
        assert theirs.apply_chat_template(chat, tokenize=False) == again.chat(chat) == f"<s>{text}<sep>"
        assert again.encode(again.chat(chat), special=False) == ids
