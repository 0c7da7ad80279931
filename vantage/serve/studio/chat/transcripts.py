"""What was said in a conversation, as data: what a page is shown of it, and what a file holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, final

from pydantic import Field
from pydantic_core import from_json, to_json

from vantage.generation.conversation import PastTurn
from vantage.serve.bounds import IMAGES, ModelName, StrictModel, Text, Token, Whole
from vantage.serve.image_parts import read_image
from vantage.serve.model_pool import LoadedModel
from vantage.serve.studio.chat.answers import AnswerCost, ChatToken
from vantage.serve.studio.chat.images import DataUrls

FORMAT = "vantage-conversation-1"
TITLE = 80  # characters of the first message that stand in lists
MAX_WATCHED_TOKENS = 1024  # tokens of a conversation whose watched numbers are kept: the newest

ConversationId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Count = Annotated[Whole, Field(ge=0, lt=2**31)]


class BranchOrigin(StrictModel):
    """Where a conversation left another one."""

    conversation: ConversationId
    turn: Count


class SavedTurn(StrictModel):
    """A message and its answer in a file. ``tokens``: all of the conversation, up to the end of the answer.

    ``images``: the files that were sent with it; ``image_starts``: where each image so far begins in ``tokens``.
    """

    message: Text
    images: DataUrls = Field(default=[])
    text: Text
    tokens: Annotated[list[Token], Field(max_length=2**20)]
    prompt: Count
    image_starts: Annotated[list[Count], Field(max_length=IMAGES)] = Field(default=[])
    ended_by: str | None
    intact: bool = True
    origin: ConversationId
    seed: Annotated[Whole, Field(ge=0, lt=2**64)]
    reused: Count
    cost: AnswerCost
    written: Annotated[list[ChatToken], Field(max_length=2**20)]


class SavedHead(StrictModel):
    """The first line of a file: all that does not change while a conversation goes on."""

    format: Annotated[str, Field(pattern=f"^{FORMAT}$")] = FORMAT
    id: ConversationId
    model: ModelName
    fingerprint: Annotated[str, Field(max_length=256)]
    title: Annotated[str, Field(max_length=TITLE + 1)]
    system: Text | None
    origin: BranchOrigin | None
    created: Annotated[float, Field(ge=0, lt=1e12)]


class SavedConversation(SavedHead):
    """A whole conversation, as it is exported and imported."""

    turns: Annotated[list[SavedTurn], Field(min_length=1, max_length=2**16)]

    @property
    def transcript(self) -> Transcript:
        turns = tuple(StudioTurn.of(turn) for turn in self.turns)
        return Transcript(self.id, self.model, self.fingerprint, self.system, self.origin, self.created, turns)


@final
@dataclass(frozen=True)
class StudioTurn:
    """A turn. ``written``: what was watched at each token of its answer, the last ones, as JSON. ``images``: what was
    sent with the message, as data: URLs."""

    past: PastTurn
    origin: str  # the conversation in which it was said
    seed: int
    reused: int
    cost: dict[str, Any]
    written: tuple[bytes, ...]
    images: tuple[str, ...] = ()

    @staticmethod
    def of(saved: SavedTurn) -> StudioTurn:
        tokens = tuple(saved.tokens)
        past = PastTurn(
            saved.message, saved.text, tokens, saved.prompt, saved.ended_by, saved.intact,
            starts=tuple(saved.image_starts),
        )  # fmt: skip
        written, images = tuple(to_json(token) for token in saved.written), tuple(saved.images)
        return StudioTurn(past, saved.origin, saved.seed, saved.reused, saved.cost.model_dump(), written, images)

    def recalled(self, loaded: LoadedModel) -> PastTurn:
        """The turn with its images as the model reads them."""
        return replace(self.past, images=tuple(read_image(loaded, url, "images") for url in self.images))

    def data(self) -> dict[str, Any]:
        """The fields of ``SavedTurn``."""
        past = self.past
        return {
            "message": past.message,
            "images": self.images,
            "text": past.text,
            "tokens": past.tokens,
            "prompt": past.prompt,
            "image_starts": past.starts,
            "ended_by": past.ended_by,
            "intact": past.intact,
            "origin": self.origin,
            "seed": self.seed,
            "reused": self.reused,
            "cost": self.cost,
            "written": list(self.watched_tokens()),
        }

    def watched_tokens(self) -> Iterator[dict[str, Any]]:
        """What was watched, token by token: the fields of ``ChatToken``."""
        return (from_json(token) for token in self.written)


@final
@dataclass(frozen=True)
class Transcript:
    """All that was said. Replaced as a whole when a turn comes to its end."""

    id: str
    model: str
    fingerprint: str
    system: str | None
    origin: BranchOrigin | None
    created: float = field(default_factory=time.time)
    turns: tuple[StudioTurn, ...] = ()

    @property
    def title(self) -> str:
        words = " ".join(self.turns[0].past.message.split()) if self.turns else ""
        words = words or ("An image" if self.turns and self.turns[0].images else "")
        return words if len(words) <= TITLE else f"{words[:TITLE]}…"

    @property
    def images(self) -> tuple[str, ...]:
        """All that were sent, as data: URLs."""
        return tuple(url for turn in self.turns for url in turn.images)

    @property
    def head(self) -> SavedHead:
        return SavedHead(
            id=self.id,
            model=self.model,
            fingerprint=self.fingerprint,
            title=self.title,
            system=self.system,
            origin=self.origin,
            created=self.created,
        )

    def data(self) -> dict[str, Any]:
        """The fields of ``SavedConversation``."""
        return {**self.head.model_dump(), "turns": [turn.data() for turn in self.turns]}

    def shown_turns(self) -> list[dict[str, Any]]:
        """Messages and answers, as the page is told of them."""
        turns = []
        for number, turn in enumerate(self.turns):
            place = {"turn": number, "parent": None if turn.origin == self.id else turn.origin}
            turns.append({"role": "user", "text": turn.past.message, "images": turn.images, **place})
            answer = {
                "role": "assistant",
                "text": turn.past.text,
                "finish": turn.past.finish_reason,
                "prompt_tokens": turn.past.prompt,
                "reused_tokens": turn.reused,
                "seed": turn.seed,
                "cost": turn.cost,
                "written": list(turn.watched_tokens()),
            }
            turns.append({**answer, **place})
        return turns
