"""Chat and watch: an answer as it is written, with what the model saw, held and computed for each token."""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.generation import Sampling
from vantage.inspect.select import labels
from vantage.model import Model
from vantage.serve.bounds import ModelName, Number, StrictModel, Text, Token, Whole
from vantage.serve.errors import ApiError, bad
from vantage.serve.logprobs import MIN_LOGPROB
from vantage.serve.model_pool import LoadedModel
from vantage.serve.studio.chat.answer import BegunToken, Event, WatchedAnswer, likely
from vantage.serve.studio.chat.answers import ConversationAnswer, DistributionAnswer
from vantage.serve.studio.chat.conversations import NO_CACHE, Conversations, StudioConversation, digest
from vantage.serve.studio.chat.images import DataUrls, SentMessage, image_places
from vantage.serve.studio.chat.running import RunningAnswers, moved
from vantage.serve.studio.chat.transcripts import ConversationId, Count, Transcript
from vantage.serve.studio.state import Studio, call, sse, studio_of

router = APIRouter(prefix="/studio/api")
LISTED = 20  # tokens of a distribution that was asked for
ANSWER = 512  # tokens, unless told

Layer = Annotated[Whole, Field(ge=0, lt=4096)] | Literal["mean"]


class SamplingFields(StrictModel):
    """How tokens are chosen."""

    temperature: Annotated[Number, Field(ge=0, le=10)] | None = None
    top_k: Annotated[Whole, Field(ge=1, le=2**20)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1, le=2**20)] | None = None

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature or 0.0, self.top_k, self.top_p, self.min_p, seed=self.seed)


class ForcedToken(StrictModel):
    """A token that is written in the place of another. ``index``: its number in the conversation."""

    index: Count
    id: Token


class BranchPoint(StrictModel):
    """Where a branch begins. ``token``: the turn's answer as it was, up to this token, which is another one now."""

    conversation: ConversationId
    turn: Count
    token: ForcedToken | None = None


class WatchedLayer(StrictModel):
    layer: Layer = "mean"


class Watch(StrictModel):
    attention: WatchedLayer | Layer | None = None

    @property
    def layer(self) -> Layer | None:
        return self.attention.layer if isinstance(self.attention, WatchedLayer) else self.attention


class ChatMessage(StrictModel):
    """``turn``: how many turns the page shows; where the conversation has others by now, the message is refused.

    ``images``: files as data: URLs, for a model that reads them.
    """

    model: ModelName
    message: Text
    images: DataUrls = Field(default=[])
    conversation: ConversationId | None = None
    turn: Count | None = None
    branch_of: BranchPoint | None = None
    system: Text | None = None
    sampling: SamplingFields = SamplingFields()
    watch: Watch | None = None


class DistributionRequest(StrictModel):
    conversation: ConversationId
    index: Count
    sampling: SamplingFields = SamplingFields()


@router.post("/chat")
async def chat(request: Request, body: ChatMessage) -> Response:
    """Say something. The answer is a stream of events, which goes on for a while when its reader leaves."""
    studio = studio_of(request)
    if body.conversation is not None and body.branch_of is not None:
        raise bad("conversation and branch_of: continue one, or branch from one", "branch_of")
    loaded = await studio.loaded(body.model)
    if loaded.model.kind != "decoder":
        raise bad(
            f"{body.model} is an {loaded.model.kind} and cannot converse: choose a decoder", "model", "wrong_model"
        )
    model = await studio.model(body.model, "chat")
    conversations, stopping = studio.part(Conversations), threading.Event()
    id = body.conversation or secrets.token_hex(8)
    layer = None if body.watch is None else body.watch.layer
    most = body.sampling.max_tokens or ANSWER

    def answered() -> Iterator[Event]:  # all of it in the thread: the turn before this one may still be on its way
        talk, beginning = _conversation(conversations, loaded, model, body, id)
        message = SentMessage.read(loaded, body.message, body.images, talk.transcript.images)
        answer = WatchedAnswer(conversations, talk, message, body.sampling.sampling, most, layer, stopping, beginning)
        with contextlib.closing(answer.run()) as events:
            yield from events

    running = studio.part(RunningAnswers).start(id, answered, stopping, f"chat {body.model}")
    return await sse(request, running.follow())


@router.get("/chat/{conversation}")
async def shown(request: Request, conversation: ConversationId) -> ConversationAnswer:
    studio = studio_of(request)
    conversations = studio.part(Conversations)
    transcript = await call(request, lambda: conversations.transcript(conversation), thread="conversations")
    model, problem = await _model_of(studio, transcript)

    def read() -> ConversationAnswer:
        live = conversations.live(conversation)
        past = transcript.turns[-1].past if transcript.turns else None
        last, starts = ((), ()) if past is None else (past.tokens, past.starts)
        trouble = problem
        if model is not None and transcript.fingerprint != digest(model):
            trouble = f"{transcript.model} is another model now than the one this conversation was written with."
        fields = {
            "conversation": conversation,
            "model": transcript.model,
            "system": transcript.system,
            "origin": None if transcript.origin is None else transcript.origin.model_dump(),
            "turns": transcript.shown_turns(),
            "tokens": labels(model, last) if model is not None and trouble is None else [],
            "image_places": image_places(last, starts),
            "cache": NO_CACHE if live is None else live.cache,
            "writing": conversation in studio.part(RunningAnswers),
            "problem": trouble,
        }
        return ConversationAnswer.model_validate(fields)

    return await call(request, read, thread="conversations")


async def _model_of(studio: Studio, transcript: Transcript) -> tuple[Model | None, str | None]:
    """The model of a conversation, or why it cannot be had."""
    try:
        await studio.loaded(transcript.model)
        return await studio.model(transcript.model, "chat"), None
    except ApiError as e:
        if e.code == "model_not_found":
            start = f"vantage studio {transcript.model}"
            return None, f"This conversation was with {transcript.model}, which is not here: start `{start}` to go on."
        return None, e.message


@router.get("/chat/{conversation}/events")
async def follow(request: Request, conversation: ConversationId) -> Response:
    """The answer that is being written, from its first event on. Where none is, no event comes."""
    running = studio_of(request).part(RunningAnswers).get(conversation)
    return Response(media_type="text/event-stream") if running is None else await sse(request, running.follow())


@router.post("/chat/{conversation}/stop")
async def stop(request: Request, conversation: ConversationId) -> Response:
    """End the answer that is being written after its present token. Its stream then comes to its end."""
    running = studio_of(request).part(RunningAnswers).get(conversation)
    if running is not None:
        running.stop()
    return Response(status_code=204)


@router.post("/distribution")
async def distribution(request: Request, body: DistributionRequest) -> DistributionAnswer:
    """What could have come at a token that was written, under other settings."""
    studio = studio_of(request)
    conversations = studio.part(Conversations)
    logits = conversations.logits(body.conversation, body.index)
    live = conversations.live(body.conversation)
    if logits is None or live is None:
        return DistributionAnswer(top=None)

    def read() -> DistributionAnswer:
        top = likely(live.conversation.model, body.sampling.sampling, logits, LISTED)
        return DistributionAnswer.model_validate({"top": top})

    return await call(request, read, thread="tokens")


def _conversation(
    conversations: Conversations, loaded: LoadedModel, model: Model, body: ChatMessage, id: str
) -> tuple[StudioConversation, tuple[BegunToken, ...]]:
    """The conversation that goes on here (an old one, a branch of one, or a new one), and how its answer begins."""
    at = body.conversation or (body.branch_of and body.branch_of.conversation)
    if at is None:
        return StudioConversation.new(id, body.model, model, loaded.safe_tokenizer, body.system), ()
    talk = conversations.resume(at, model, loaded)
    if talk.transcript.model != body.model:
        name = talk.transcript.model
        raise bad(f"this conversation was started with {name}: continue with that, or start a new one", "model")
    if body.system is not None and body.system != talk.transcript.system:
        raise bad("a conversation keeps its system message: start a new one for another", "system")
    if body.branch_of is None:
        if body.turn is not None and body.turn != len(talk.turns):
            raise moved(f"this conversation has {len(talk.turns)} messages by now, and this page shows {body.turn}")
        return talk, ()
    turn, forced = body.branch_of.turn, body.branch_of.token
    branch = talk.branch(id, turn)
    before = len(talk.turns[turn - 1].past.tokens) if turn else 0
    beginning: tuple[BegunToken, ...] = ()
    if forced is not None:
        beginning = _beginning(talk, turn, forced, body, model.spec.vocab)
        before = forced.index + 1
    conversations.inherit_logits(branch.id, talk.id, before)
    return branch, beginning


def _beginning(
    talk: StudioConversation, turn: int, forced: ForcedToken, body: ChatMessage, vocab: int
) -> tuple[BegunToken, ...]:
    """A turn's answer up to a token, and another one in the place of that."""
    old = talk.turns[turn] if turn < len(talk.turns) else None
    if old is None or (old.past.message, old.images) != (body.message, tuple(body.images)):
        raise bad("a token can be forced in the answer to the message that was sent, and to no other", "token")
    past = old.past
    if not past.prompt <= forced.index < len(past.tokens):
        raise bad(f"token {forced.index} is not in this answer: {past.prompt} to {len(past.tokens) - 1} are", "index")
    if forced.id >= vocab:
        raise bad(f"there is no token {forced.id}: the vocabulary has {vocab:,}", "id")
    watched = {one["index"]: one for one in old.watched_tokens()}
    begun = []
    for index in range(past.prompt, forced.index + 1):
        known = watched.get(index, {})
        token = forced.id if index == forced.index else past.tokens[index]
        begun.append(BegunToken(token, _logprob(known, token), known))
    return tuple(begun)


def _logprob(watched: dict[str, Any], token: int) -> float:
    if watched.get("id") == token:
        return watched["logprob"]
    likely_ones = {one["id"]: one["p_raw"] for one in watched.get("top", ())}
    return math.log(likely_ones[token]) if likely_ones.get(token) else MIN_LOGPROB
