"""Prompts and their answers: what a model is tuned on to follow instructions. Only answers are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from vantage.checkpoints.tokenizer import Tokenizer
from vantage.errors import BadInput
from vantage.files import Files, expand
from vantage.training.batch import IGNORE, Batch
from vantage.training.text.encoded_examples import EncodedExamples
from vantage.training.text.files import records
from vantage.training.text.labelled import split
from vantage.training.text.rows import EpochOrder, padded
from vantage.training.text.vocabulary import pad_token


@dataclass(frozen=True)
class PromptExample:
    """Tokens, and which of them the model is asked for."""

    tokens: tuple[int, ...]
    scored: tuple[bool, ...]


@final
class PromptData(EncodedExamples[PromptExample]):
    """Conversations from JSONL: {"prompt": …, "answer": …} or {"messages": [{"role": …, "content": …}, …]}.

    Messages are written out by the tokenizer's chat template; so are prompts and answers if it has one (``chat``
    says otherwise). Each answer is encoded apart from what precedes it, as it will be when the model is asked.
    ``valid``: a file, or the share of the conversations, by chance, that is kept for evaluation. One of more than
    ``length`` tokens is refused, or with ``cut`` loses its end.
    """

    def __init__(
        self,
        train: Files,
        tokenizer: Tokenizer,
        valid: Files | float = 0.1,
        *,
        length: int,
        cut: bool = False,
        chat: bool | None = None,
        seed: int = 0,
        eval_batch: int = 16,
    ):
        self.tokenizer, self.length, self._eval_batch = tokenizer, length, eval_batch
        chat = tokenizer.template is not None if chat is None else chat
        self._cut, self._pad = cut, pad_token(tokenizer)
        validation = valid if isinstance(valid, (int, float)) else self._read(valid, chat)
        self._train, self._valid = split(self._read(train, chat), validation, seed)
        self._order = EpochOrder(seed, len(self._train))

    def _batch(self, examples: Sequence[PromptExample]) -> Batch:
        """Padding stands on the right, where no token that is asked for looks: positions need not name it."""
        tokens = padded([example.tokens[:-1] for example in examples], self._pad)
        targets = [[t if a else IGNORE for t, a in zip(k.tokens, k.scored, strict=True)][1:] for k in examples]
        return Batch(tokens, padded(targets, IGNORE))

    def _read(self, files: Files, chat: bool) -> list[PromptExample]:
        return [
            self._fit(_example(self.tokenizer, value, f"{path}, line {number}", chat), f"{path}, line {number}")
            for path in expand(files)
            for number, value in records(path)
        ]

    def _fit(self, example: PromptExample, where: str) -> PromptExample:
        room = self.length + 1  # the last token is only ever asked for
        if len(example.tokens) > room and not self._cut:
            raise BadInput(
                f"{where}: {len(example.tokens)} tokens, more than length={self.length}: raise it, or cut=True"
            )
        if not any(example.scored[1:room]):
            raise BadInput(f"{where}: no token of an answer lies within length={self.length}: raise it")
        return PromptExample(example.tokens[:room], example.scored[:room])


def _example(tokenizer: Tokenizer, value: Mapping[str, Any], where: str, chat: bool) -> PromptExample:
    prompt, answer, messages = value.get("prompt"), value.get("answer"), value.get("messages")
    paired = isinstance(prompt, str) and isinstance(answer, str)
    if paired == isinstance(messages, list):
        raise BadInput(f'{where}: expected "prompt" and "answer", or "messages", got the keys {sorted(value)}')
    if paired and not chat:
        return plain_example(tokenizer, str(prompt), str(answer))
    if paired:
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    try:
        return chat_example(tokenizer, messages or [])
    except BadInput as e:
        raise BadInput(f"{where}: {e}") from e


def plain_example(tokenizer: Tokenizer, prompt: str, answer: str) -> PromptExample:
    """Prompt, answer, and the end token if there is one."""
    before, after = tokenizer.encode(prompt), tokenizer.encode(answer, special=False)
    after += [] if tokenizer.eos is None else [tokenizer.eos]
    return PromptExample((*before, *after), (False,) * len(before) + (True,) * len(after))


def chat_example(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> PromptExample:
    """A conversation as the chat template writes it, every message of the assistant being asked for."""
    if not all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages):
        raise BadInput("every message must be an object with a role and a content")
    whole = tokenizer.chat(messages, add_generation_prompt=False)
    tokens, scored, written = list[int](), list[bool](), 0
    for i in (i for i, message in enumerate(messages) if message["role"] == "assistant"):
        before = tokenizer.chat(messages[:i], add_generation_prompt=True)
        after = tokenizer.chat(messages[: i + 1], add_generation_prompt=False)
        if not (whole.startswith(before) and whole.startswith(after) and len(after) > len(before) >= written):
            raise BadInput(f"the chat template writes message {i + 1} in a way that cannot be told from the rest")
        for text, is_answer in ((before[written:], False), (after[len(before) :], True)):
            new = tokenizer.encode(text, special=False)
            tokens += new
            scored += _until_end(new, tokenizer.eos) if is_answer else [False] * len(new)
        written = len(after)
    if not any(scored):
        raise BadInput("no message is the assistant's: there is nothing to learn")
    return PromptExample(tuple(tokens), tuple(scored))


def _until_end(tokens: Sequence[int], end: int | None) -> list[bool]:
    """An answer is over at its end token; what the template writes after it nobody has to say."""
    count = tokens.index(end) + 1 if end in tokens else len(tokens)
    return [i < count for i in range(len(tokens))]
