"""Responses that a later request may go on from: the last ones of each key, within a bound on their size."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from vantage.serve.errors import ApiError
from vantage.serve.requests import Message

BYTES = 64 * 2**20  # of all keys together, about; a conversation counts anew with each of its responses


@final
@dataclass(frozen=True)
class StoredResponse:
    """``messages``: the conversation up to its answer, without instructions, which hold for one request."""

    response: dict[str, Any]
    messages: tuple[Message, ...]
    size: int


@final
class StoredResponses:
    """By key: another key's response is not found. For the event loop alone."""

    def __init__(self, responses: int, most_bytes: int = BYTES):
        self._responses, self._most_bytes = responses, most_bytes
        self._kept: OrderedDict[tuple[str | None, str], StoredResponse] = OrderedDict()  # the least recently used first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, tenant: str | None, response: dict[str, Any], messages: Sequence[Message]) -> None:
        """One that is too large by itself is not kept."""
        size = len(json.dumps(response)) + sum(len(message.model_dump_json()) for message in messages)
        if not self._responses or size > self._most_bytes:
            return
        self._kept[tenant, response["id"]] = StoredResponse(response, tuple(messages), size)
        self.bytes += size
        own = [key for key in self._kept if key[0] == tenant]
        for key in own[: max(0, len(own) - self._responses)]:
            self._drop(key)
        while self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, tenant: str | None, id: str, *, param: str) -> StoredResponse:
        if (tenant, id) not in self._kept:
            raise ApiError(
                404,
                "response_not_found",
                f"there is no stored response of this id: the last {self._responses} of a key are kept, unless they "
                "were requested with store: false",
                param=param,
            )
        self._kept.move_to_end((tenant, id))
        return self._kept[tenant, id]

    def delete(self, tenant: str | None, id: str) -> None:
        self.get(tenant, id, param="response_id")
        self._drop((tenant, id))

    def _drop(self, key: tuple[str | None, str]) -> None:
        self.bytes -= self._kept.pop(key).size
