"""Chat and watch: an answer as it is written, with what the model saw, held and computed for each token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.generation import Sampling
from vantage.model import Model
from vantage.serve.bounds import ModelName, Number, StrictModel, Text, Whole
from vantage.serve.errors import bad
from vantage.serve.model_pool import LoadedModel
from vantage.serve.studio.chat.answer import WatchedAnswer, likely
from vantage.serve.studio.chat.answers import EVENTS, ConversationAnswer, DistributionAnswer
from vantage.serve.studio.chat.conversations import Conversations, StudioConversation
from vantage.serve.studio.state import Event, call, sse, studio_of, work

router = APIRouter(prefix="/studio/api")
LISTED = 20  # tokens of a distribution that was asked for
ANSWER = 512  # tokens, unless told

Conversation = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
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


class BranchPoint(StrictModel):
    conversation: Conversation
    turn: Annotated[Whole, Field(ge=0, lt=2**31)]


class WatchedLayer(StrictModel):
    layer: Layer = "mean"


class Watch(StrictModel):
    attention: WatchedLayer | Layer | None = None

    @property
    def layer(self) -> Layer | None:
        return self.attention.layer if isinstance(self.attention, WatchedLayer) else self.attention


class ChatMessage(StrictModel):
    model: ModelName
    message: Text
    conversation: Conversation | None = None
    branch_of: BranchPoint | None = None
    system: Text | None = None
    sampling: SamplingFields = SamplingFields()
    watch: Watch | None = None


class DistributionRequest(StrictModel):
    conversation: Conversation
    index: Annotated[Whole, Field(ge=0, lt=2**31)]
    sampling: SamplingFields = SamplingFields()


@router.post("/chat")
async def chat(request: Request, body: ChatMessage) -> Response:
    """Say something. The answer is a stream of events. A reader that leaves stops it; what was said so far stays."""
    studio = studio_of(request)
    if body.conversation is not None and body.branch_of is not None:
        raise bad("conversation and branch_of: go on with one, or branch from one", "branch_of")
    loaded = await studio.loaded(body.model)
    if loaded.model.kind != "decoder":
        raise bad(
            f"{body.model} is an {loaded.model.kind} and cannot converse: choose a decoder", "model", "wrong_model"
        )
    model = await studio.model(body.model, "chat")
    conversations, how = studio.part(Conversations), body.sampling
    layer = None if body.watch is None else body.watch.layer
    most = how.max_tokens or ANSWER

    def answered() -> Iterator[Event]:  # all of it in the thread: the turn before this one may still be on its way
        conversation = _conversation(conversations, loaded, model, body)
        answer = WatchedAnswer(conversations, conversation, body.message, how.sampling, most, layer)
        with contextlib.closing(answer.run()) as events:
            for name, fields in events:
                yield name, EVENTS[name].model_validate(fields)

    return await sse(request, work(request, answered, thread=f"chat {body.model}"))


@router.get("/chat/{conversation}")
async def shown(request: Request, conversation: Conversation) -> ConversationAnswer:
    return ConversationAnswer.model_validate(studio_of(request).part(Conversations).get(conversation).page_state)


@router.delete("/chat/{conversation}")
async def forget(request: Request, conversation: Conversation) -> Response:
    studio_of(request).part(Conversations).drop(conversation)
    return Response(status_code=204)


@router.post("/distribution")
async def distribution(request: Request, body: DistributionRequest) -> DistributionAnswer:
    """What could have come at a token that was written, under other settings."""
    conversations = studio_of(request).part(Conversations)
    talk, logits = conversations.get(body.conversation), conversations.logits(body.conversation, body.index)

    def read() -> DistributionAnswer:
        top = likely(talk.conversation.model, body.sampling.sampling, logits, LISTED)
        return DistributionAnswer.model_validate({"top": top})

    return await call(request, read, thread="tokens")


def _conversation(
    conversations: Conversations, loaded: LoadedModel, model: Model, body: ChatMessage
) -> StudioConversation:
    """The conversation that goes on here: an old one, a branch of one, or a new one."""
    at = body.conversation or (body.branch_of and body.branch_of.conversation)
    if at is None:
        return StudioConversation.new(body.model, model, loaded.safe_tokenizer, body.system)
    talk = conversations.get(at)
    if talk.model != body.model:
        raise bad(f"this conversation was begun with {talk.model}: go on with that, or start a new one", "model")
    if body.system is not None and body.system != talk.system:
        raise bad("a conversation keeps its system message: start a new one for another", "system")
    if talk.conversation.model is not model:
        raise bad("the model was loaded anew since this conversation began: start a new one", "conversation")
    if body.branch_of is None:
        return talk
    branch = talk.branch(body.branch_of.turn)
    inherited = talk.turns[body.branch_of.turn - 1].tokens if body.branch_of.turn else ()
    conversations.inherit_logits(branch.id, talk.id, len(inherited))
    return branch
