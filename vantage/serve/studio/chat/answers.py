"""What the Chat page is told: the events of an answer as it is written, and a conversation as a whole."""

from __future__ import annotations

from typing import Literal

from vantage.serve.studio.answers import StudioAnswer


class TokenChoice(StudioAnswer):
    """A token that could come: the model's own probability, and the one after temperature and filters."""

    id: int
    text: str
    p_raw: float
    p_sampled: float


class TokenWeight(StudioAnswer):
    """How much of the attention a token gets. ``key``: its number, from 0; an image's first token has all of it."""

    key: int
    weight: float


class LayerCacheState(StudioAnswer):
    """Tokens of the text, those that a layer's cache holds, and those that were there before this turn."""

    length: int
    held: int
    reused: int


class CacheState(StudioAnswer):
    layers: list[LayerCacheState]
    bytes: int


class ProjectionCost(StudioAnswer):
    """Keys projected, and as many as passes without a cache would project."""

    projections_cached: int
    projections_uncached: int


class AnswerCost(StudioAnswer):
    """Of a whole answer, with its time: all of it, and up to the first token."""

    projections_cached: int
    projections_uncached: int
    ms_total: float
    ms_first: float


class ImagePlace(StudioAnswer):
    """Which tokens are an image's: so many from ``start`` on."""

    start: int
    tokens: int


class ChatStart(StudioAnswer):
    """The event ``start``. ``message`` and its ``images``, as data: URLs: what is answered, for a reader who comes
    later. ``image_places``: of all images in ``tokens``."""

    conversation: str
    turn: int
    message: str
    images: list[str]
    seed: int
    prompt_tokens: int
    reused_tokens: int
    tokens: list[str]
    image_places: list[ImagePlace]
    cache: CacheState
    cost: ProjectionCost


class PromptProgress(StudioAnswer):
    """The event ``prompt``: how much of it has been read."""

    done: int
    total: int


class ChatToken(StudioAnswer):
    """The event ``token``. ``index``: its place in the conversation. ``slowed``: why it was computed module by module
    to be watched; null where it was not."""

    index: int
    id: int
    text: str
    token: str
    logprob: float
    top: list[TokenChoice]
    attention: list[TokenWeight]
    slowed: str | None = None  # conversations in files may be older than this
    cache: CacheState
    cost: ProjectionCost
    ms: float


class TokenUsage(StudioAnswer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    reused_tokens: int


class ChatDone(StudioAnswer):
    """The event ``done``. ``turns``: how many the conversation has now. What was stopped before its first token is
    none."""

    finish: str
    turns: int
    usage: TokenUsage
    cost: AnswerCost
    text: str


class UserTurn(StudioAnswer):
    """``parent``: the conversation it was said in, where that is another one. ``images``: data: URLs."""

    role: Literal["user"]
    text: str
    images: list[str]
    turn: int
    parent: str | None


class AssistantTurn(StudioAnswer):
    """An answer. ``written``: what was watched at its last tokens."""

    role: Literal["assistant"]
    text: str
    turn: int
    parent: str | None
    finish: str
    prompt_tokens: int
    reused_tokens: int
    seed: int
    cost: AnswerCost
    written: list[ChatToken]


class ConversationOrigin(StudioAnswer):
    """Where a conversation left another one."""

    conversation: str
    turn: int


class ConversationAnswer(StudioAnswer):
    """A conversation so far. ``writing``: an answer is on its way, and can be followed.

    ``problem``: why nothing more can be said in it.
    """

    conversation: str
    model: str
    system: str | None
    origin: ConversationOrigin | None
    turns: list[UserTurn | AssistantTurn]
    tokens: list[str]
    image_places: list[ImagePlace]
    cache: CacheState
    writing: bool
    problem: str | None


class ConversationEntry(StudioAnswer):
    """A conversation in the list. ``updated``: seconds since 1970; ``kept``: in a file, over restarts."""

    conversation: str
    model: str
    title: str
    turns: int
    updated: float
    origin: ConversationOrigin | None
    kept: bool
    writing: bool


class ConversationList(StudioAnswer):
    """All conversations, the newest first. ``keeping``: new turns are written to files in ``folder``."""

    keeping: bool
    folder: str
    problem: str | None
    conversations: list[ConversationEntry]


class ImportedConversation(StudioAnswer):
    """``conversation``: its id here; ``new``: it was not here yet."""

    conversation: str
    new: bool


class DistributionAnswer(StudioAnswer):
    """``top``: null where the token was written too long ago, and its numbers are not kept."""

    top: list[TokenChoice] | None


EVENTS: dict[str, type[StudioAnswer]] = {
    "start": ChatStart,
    "prompt": PromptProgress,
    "token": ChatToken,
    "done": ChatDone,
}
