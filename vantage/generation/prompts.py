"""From what a user may give (a text, tokens, a conversation) to tokens, and where an answer to them ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from torch import Tensor

from vantage.checkpoints.transformers_model import is_transformers_model
from vantage.errors import BadInput
from vantage.generation.images import prepared, taken_out, written_out
from vantage.model import Model
from vantage.spec.images import PreparedImage

T = TypeVar("T")
MAX_SHOWN = 80  # letters of a wrong prompt that a message shows

# Tokens with which chat models end a turn. Checkpoints rarely say which of them is theirs.
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)


@final
@dataclass(frozen=True)
class PromptBatch:
    """One prompt or several, as tokens."""

    rows: tuple[tuple[int, ...], ...]
    single: bool  # it was given as one, so the answer is one
    images: tuple[tuple[PreparedImage, ...], ...]  # of each row

    @staticmethod
    def of(model: Model, prompts: Any, *, chat: bool, images: Any = None) -> PromptBatch:
        """``prompts``: a text, tokens or a conversation (messages with role and content), or a list of these.

        ``images``: those of one prompt, or a list of them for each.
        """
        prompts = _plain(prompts)
        if isinstance(prompts, str) or (_listed(prompts) and prompts and isinstance(prompts[0], (Integral, Mapping))):
            row, own = _one(model, prompts, chat, _images(images))
            return PromptBatch((row,), True, (own,))
        if not _listed(prompts) or not prompts:
            raise BadInput(f"prompts={_short(prompts)}: give a text, tokens, messages, or a list of these")
        if images is not None and (not _listed(images) or len(images) != len(prompts)):
            raise BadInput(f"images={_short(images)} for {len(prompts)} prompts: give a list of images for each")
        given = [None] * len(prompts) if images is None else images
        each = [_one(model, _plain(one), chat, _images(own)) for one, own in zip(prompts, given, strict=True)]
        return PromptBatch(tuple(row for row, _ in each), False, tuple(own for _, own in each))

    def one_or_all(self, answers: list[T]) -> T | list[T]:
        """One answer for one prompt, a list for a list."""
        return answers[0] if self.single else answers


def check_model(model: object) -> None:
    """A name or a model of transformers is not a model yet."""
    if isinstance(model, (str, Path)):
        raise BadInput(f"{str(model)!r} is a name, not a model: load it first, model = vt.load({str(model)!r})")
    if is_transformers_model(model):
        raise BadInput(f"{type(model).__name__} is a model of transformers: use vt.load(model, tokenizer=tokenizer)")
    if not isinstance(model, Model):
        raise BadInput(f"{_short(model)} is no model: give one that vt.load or vt.build returned")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."


def _images(given: Any) -> list[Any]:
    """One image, several, or none."""
    return [] if given is None else list(given) if _listed(given) else [given]


def user_message(text: str, images: Sequence[Any] = (), role: str = "user") -> Mapping[str, Any]:
    """What a user says: images stand before the text."""
    parts = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": text}]
    return {"role": role, "content": parts if images else text}


def _one(model: Model, prompt: Any, chat: bool, given: list[Any]) -> tuple[tuple[int, ...], tuple[PreparedImage, ...]]:
    """The tokens of a prompt, and its images as they are read."""
    if isinstance(prompt, str):
        if chat:
            prompt, given = taken_out([user_message(prompt, given)])
    elif _listed(prompt) and prompt and all(isinstance(message, Mapping) for message in prompt):
        prompt, inside = taken_out(prompt)
        if inside and given:
            raise BadInput("images in the messages and images= as well: give them in one place")
        given = inside or given
    images = prepared(model, given)
    return written_out(model, _tokens(model, prompt, chat), images), images


def _tokens(model: Model, prompt: Any, chat: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(_tokenizer(model).encode(prompt))
    if _listed(prompt) and prompt and all(isinstance(message, Mapping) for message in prompt):
        for message in prompt:
            if "role" not in message or not message.keys() & {"content", "tool_calls"}:
                raise BadInput(f"a message {_short(message)}: give it a role and a content")
        tokenizer = _tokenizer(model)
        return tuple(tokenizer.encode(tokenizer.chat(prompt), special=False))
    if _listed(prompt) and all(isinstance(token, Integral) and not isinstance(token, bool) for token in prompt):
        if chat:
            raise BadInput("chat=True with tokens: a chat template writes texts, so give a text or messages")
        return tuple(map(int, prompt))
    raise BadInput(
        f"a prompt {_short(prompt)}: give a text, a list of tokens, or a list of messages with role and content"
    )


def _tokenizer(model: Model) -> Any:
    if model.tokenizer is None:
        raise BadInput("this model has no tokenizer: give tokens instead of text")
    return model.tokenizer


def end_tokens(model: Model) -> frozenset[int]:
    """The tokens that end an answer: what the checkpoint says, and the turn ends that its vocabulary has."""
    configured = (model.config or {}).get("eos_token_id")
    ends = set(configured) if isinstance(configured, list) else {configured}
    if model.tokenizer is not None:
        ends |= {model.tokenizer.eos, *map(model.tokenizer.token_id, TURN_ENDS)}
    return frozenset(end for end in ends if isinstance(end, int) and 0 <= end < model.spec.vocab)


def start_token(model: Model) -> int:
    """The token with which an encoder-decoder begins its answer: as its config says, otherwise its tokenizer's BOS."""
    start = (model.config or {}).get("decoder_start_token_id")
    if not isinstance(start, int):
        start = None if model.tokenizer is None else model.tokenizer.bos
    if start is None:
        raise BadInput("this model's config has no decoder_start_token_id: say start=, the token an answer begins with")
    return start
