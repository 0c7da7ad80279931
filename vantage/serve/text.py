"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vantage.serve.errors import bad
from vantage.serve.generation_call import unless_client_leaves
from vantage.serve.image_parts import read_images, with_images
from vantage.serve.model_pool import LoadedModel
from vantage.serve.openapi import answers
from vantage.serve.requests import DetokenizeRequest, TokenizeRequest
from vantage.serve.responses import Detokenized, Tokens
from vantage.serve.state import ServerState, entry_of, state_of
from vantage.serve.submissions import chat_tokens

router = APIRouter()


@router.post("/tokenize", responses=answers(Tokens), tags=["tokens"])
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """The tokens of a text or a conversation."""
    if (body.prompt is None) == (body.messages is None):
        raise bad("give a prompt or messages, one of them", "prompt")
    entry_of(request).model = body.model
    return JSONResponse(await unless_client_leaves(request, _tokenized(state_of(request), body)))


async def _tokenized(state: ServerState, body: TokenizeRequest) -> dict[str, object]:
    async with state.model_pool.lease(body.model) as loaded:
        tokens = await state.model_pool.prepare(lambda: _tokens(loaded, body))
        return {"tokens": tokens, "count": len(tokens), "max_model_len": loaded.context}


def _tokens(loaded: LoadedModel, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        images = read_images(loaded, body.messages)
        return with_images(loaded, chat_tokens(loaded, body.messages, []), images)
    assert body.prompt is not None, "one of the two was given"
    if body.parse_special:
        return loaded.safe_tokenizer.tokenizer.encode(body.prompt, special=body.add_special_tokens)
    return loaded.safe_tokenizer.encode(body.prompt, special=body.add_special_tokens)


@router.post("/detokenize", responses=answers(Detokenized), tags=["tokens"])
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """The text of some tokens."""
    entry_of(request).model = body.model
    return JSONResponse(await unless_client_leaves(request, _detokenized(state_of(request), body)))


async def _detokenized(state: ServerState, body: DetokenizeRequest) -> dict[str, str]:
    async with state.model_pool.lease(body.model) as loaded:
        vocab = loaded.model.spec.vocab
        if any(token >= vocab for token in body.tokens):
            raise bad(f"a token is not in the vocabulary, which has 0 to {vocab - 1}", "tokens")
        special = not body.skip_special_tokens
        text = await state.model_pool.prepare(
            lambda: loaded.safe_tokenizer.tokenizer.decode(body.tokens, special=special)
        )
        return {"prompt": text}
