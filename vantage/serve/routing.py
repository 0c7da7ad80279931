"""Which replica gets a request: the one that has computed most of its prompt, unless that one is too busy.

What a replica has computed is not asked but remembered: a request leaves digests of its prefixes here. They hold the
key that asked, because prefixes are never shared between keys, and nothing that could be read back.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

PIECE = 256  # characters; a token or two apart, prompts share the pieces before
TOKENS = 64  # of a prompt that comes as tokens
PIECES = 256  # how far into a prompt is looked
MIN_PREFIX_CHARACTERS = 1024  # characters that are worth going to a replica for, whoever else says them
MAX_IMBALANCE = 4  # requests that the replica with the prefix may have more than the least busy one
MAX_DIGESTS = 65_536  # digests


def chain(tenant: str | None, path: str, body: bytes) -> tuple[bytes, ...]:
    """Digests of longer and longer prefixes of what is asked; none where nothing could be shared."""
    try:
        request = json.loads(body) if body else None
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        return ()
    digest = hashlib.blake2b(_plain([tenant, request.get("model"), request.get("tools")]), digest_size=16)
    digests: list[bytes] = []
    size = 0
    for number, (piece, own) in enumerate(_pieces(path, request)):
        if number == PIECES:
            break
        digest.update(hashlib.blake2b(piece, digest_size=16).digest())
        size += len(piece)
        if own or size >= MIN_PREFIX_CHARACTERS:
            digests.append(digest.digest())
    return tuple(digests)


def _pieces(path: str, request: dict[str, Any]) -> Iterator[tuple[bytes, bool]]:
    """With whether they are this conversation's own: a short system message is everybody's, and sharing it alone would
    put everybody on one replica."""
    if path == "/v1/chat/completions" and isinstance(request.get("messages"), list):
        own = False
        for message in request["messages"]:
            own = own or not isinstance(message, dict) or message.get("role") not in ("system", "developer")
            whole = _plain(message)
            yield from ((whole[at : at + PIECE], own) for at in range(0, len(whole), PIECE))
    elif path == "/v1/responses":
        for part, own in ((request.get("instructions"), False), (request.get("input"), True)):
            whole = b"" if part is None else _plain(part)
            yield from ((whole[at : at + PIECE], own) for at in range(0, len(whole), PIECE))
    elif path == "/v1/completions":
        prompt = request.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        size = PIECE if isinstance(prompt, str) else TOKENS
        if isinstance(prompt, (str, list)):
            yield from ((_plain(prompt[at : at + size]), True) for at in range(0, len(prompt), size))


def _plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


@final
class Routes:
    """Where prefixes were last sent."""

    def __init__(self, ahead: int = MAX_IMBALANCE, kept: int = MAX_DIGESTS):
        self._ahead, self._kept = ahead, kept
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def choose(self, prefixes: Sequence[bytes], loads: Mapping[str, int]) -> str:
        """One of the replicas that ``loads`` has, with how many requests each is busy."""
        least = min(loads.values())
        free = [name for name, load in loads.items() if load <= least + self._ahead]
        chosen = next((name for one in reversed(prefixes) if (name := self._known.get(one)) in free), None)
        if chosen is None:
            # by a hash, so that it is the same one after this table was lost and moves little as replicas come and go
            seed = prefixes[0] if prefixes else b""
            idle = free if prefixes else [name for name in free if loads[name] == least]
            chosen = max(idle, key=lambda name: hashlib.blake2b(seed + name.encode(), digest_size=8).digest())
        for one in prefixes:
            self._known[one] = chosen
            self._known.move_to_end(one)
        while len(self._known) > self._kept:
            self._known.popitem(last=False)
        return chosen
