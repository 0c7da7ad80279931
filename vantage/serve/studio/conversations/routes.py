"""The list of conversations: which there are, whether they are kept over restarts, deleting, exporting, importing."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from vantage.serve.bounds import Flag, StrictModel
from vantage.serve.studio.chat.answers import (
    ConversationEntry,
    ConversationList,
    ConversationOrigin,
    ImportedConversation,
)
from vantage.serve.studio.chat.conversations import Conversations
from vantage.serve.studio.chat.running import RunningAnswers
from vantage.serve.studio.chat.transcripts import FORMAT, ConversationId, SavedConversation, SavedHead
from vantage.serve.studio.state import call, studio_of

router = APIRouter(prefix="/studio/api")


class Keeping(StrictModel):
    keeping: Flag


@router.get("/conversations")
async def listed(request: Request) -> ConversationList:
    """All of them, the newest first."""
    studio = studio_of(request)
    conversations, running = studio.part(Conversations), studio.part(RunningAnswers)

    def read() -> ConversationList:
        files = conversations.files
        kept = files.all()
        entries = [_entry(one.head, one.turns, one.updated, True, one.head.id in running) for one in kept.values()]
        for live in conversations.all_live():
            if live.id not in kept and (live.turns or live.id in running):
                head, turns = live.transcript.head, len(live.turns)
                entries.append(_entry(head, turns, live.updated, False, live.id in running))
        entries.sort(key=lambda entry: -entry.updated)
        return ConversationList(
            keeping=files.keeping, folder=str(files.folder), problem=files.problem, conversations=entries
        )

    return await call(request, read, thread="conversations")


def _entry(head: SavedHead, turns: int, updated: float, kept: bool, writing: bool) -> ConversationEntry:
    origin = head.origin and ConversationOrigin(conversation=head.origin.conversation, turn=head.origin.turn)
    return ConversationEntry(
        conversation=head.id,
        model=head.model,
        title=head.title,
        turns=turns,
        updated=updated,
        origin=origin,
        kept=kept,
        writing=writing,
    )


@router.post("/conversations/keeping")
async def keep(request: Request, body: Keeping) -> Response:
    """Whether conversations are written to files from now on."""
    files = studio_of(request).part(Conversations).files
    await call(request, lambda: files.keep(body.keeping), thread="conversations")
    return Response(status_code=204)


@router.get("/conversations/export")
async def export(request: Request, conversation: ConversationId | None = None) -> Response:
    """One conversation, or all that are kept, as one file."""
    conversations = studio_of(request).part(Conversations)

    def read() -> bytes:
        ids = list(conversations.files.all()) if conversation is None else [conversation]
        ids += [live.id for live in conversations.all_live() if conversation is None and live.turns]
        transcripts = [conversations.transcript(id) for id in dict.fromkeys(ids)]
        return to_json({"format": FORMAT, "conversations": [one.data() for one in transcripts if one.turns]})

    body = await call(request, read, thread="conversations")
    return Response(body, media_type="application/json")


@router.post("/conversations/import")
async def take_in(request: Request, body: SavedConversation) -> ImportedConversation:
    """One conversation of such a file."""
    conversations = studio_of(request).part(Conversations)
    id, new = await call(request, lambda: conversations.take_in(body), thread="conversations")
    return ImportedConversation(conversation=id, new=new)


@router.delete("/chat/{conversation}")
async def forget(request: Request, conversation: ConversationId) -> Response:
    studio = studio_of(request)
    running = studio.part(RunningAnswers).get(conversation)
    if running is not None:
        running.stop()
    await call(request, lambda: studio.part(Conversations).drop(conversation), thread="conversations")
    return Response(status_code=204)


@router.delete("/conversations")
async def forget_all(request: Request) -> Response:
    studio = studio_of(request)
    studio.part(RunningAnswers).stop_all()
    await call(request, studio.part(Conversations).clear, thread="conversations")
    return Response(status_code=204)
