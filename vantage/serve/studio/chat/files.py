"""Conversations kept in the user's own folder: a file each, which nobody else may read.

The first line of a file says whose conversation it is, each further line is a turn. A turn is added at its end, so a
file that was cut off by a crash lacks its last turn and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from pydantic import ValidationError
from pydantic_core import to_json

from vantage.files import write_text
from vantage.serve.studio.chat.transcripts import SavedHead, SavedTurn, StudioTurn, Transcript

NAME = re.compile(r"[0-9a-f]{16}\.jsonl")
SETTINGS = "settings.json"
HEAD_BYTES = 2**20


@final
@dataclass(frozen=True)
class KeptConversation:
    """A file in the list. ``turns``: how many it holds; ``updated``: when the last one was added."""

    head: SavedHead
    turns: int
    updated: float


@final
class ConversationFiles:
    """The folder with its files. Used by several threads."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.problem: str | None = None  # why the last one could not be kept
        self._lock = threading.RLock()
        self._kept: dict[str, KeptConversation] | None = None  # read when first wanted

    # ---- the switch

    @property
    def keeping(self) -> bool:
        try:
            settings = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return True
        return not isinstance(settings, dict) or settings.get("keep") is not False

    def keep(self, on: bool) -> None:
        """Whether turns are written from now on. What is there stays until it is deleted."""
        with self._lock:
            self._make_folder()
            write_text(self.folder / SETTINGS, json.dumps({"keep": on}) + "\n")

    # ---- what is there

    def all(self) -> dict[str, KeptConversation]:
        with self._lock:
            if self._kept is None:
                self._kept = dict(self._read_all())
            return dict(self._kept)

    def read(self, id: str) -> Transcript | None:
        """A conversation as it was kept; ``None``: there is no such file, or none that can be read."""
        if id not in self.all():
            return None
        with self._lock:
            try:
                lines = self._path(id).read_bytes().splitlines()
                head = SavedHead.model_validate_json(lines[0])
                turns = tuple(StudioTurn.of(SavedTurn.model_validate_json(line)) for line in lines[1:])
            except (OSError, ValidationError, IndexError):
                return None
        return Transcript(head.id, head.model, head.fingerprint, head.system, head.origin, head.created, turns)

    def _read_all(self) -> Iterator[tuple[str, KeptConversation]]:
        paths = [path for path in self.folder.glob("*.jsonl") if NAME.fullmatch(path.name)]
        for path in paths:
            try:
                with path.open("rb+") as file:
                    head = SavedHead.model_validate_json(file.readline(HEAD_BYTES))
                    start, turns = file.tell(), 0
                    while line := file.readline():
                        if not line.endswith(b"\n"):  # the writer was killed
                            file.truncate(start)
                            break
                        start, turns = file.tell(), turns + 1
                yield path.stem, KeptConversation(head, turns, path.stat().st_mtime)
            except (OSError, ValidationError):
                continue  # nothing of ours

    # ---- writing

    def write(self, transcript: Transcript) -> None:
        """Add the turns that the file has not got yet. What fails is told in ``problem``: a talk goes on without."""
        if not transcript.turns or not self.keeping:
            return
        with self._lock:
            try:
                self._write(transcript)
                self.problem = None
            except OSError as e:
                self.problem = f"conversations cannot be kept in {self.folder}: {e.strerror}"

    def _write(self, transcript: Transcript) -> None:
        kept, path = self.all().get(transcript.id), self._path(transcript.id)
        lines = [] if kept is not None else [transcript.head.model_dump_json().encode()]
        lines += [to_json(turn.data()) for turn in transcript.turns[0 if kept is None else kept.turns :]]
        self._make_folder()
        new = os.O_CREAT | os.O_EXCL if kept is None else 0
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | new, 0o600), "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        updated = KeptConversation(transcript.head, len(transcript.turns), path.stat().st_mtime)
        self._kept = {**self.all(), transcript.id: updated}

    def remove(self, id: str) -> None:
        with self._lock:
            self._path(id).unlink(missing_ok=True)
            self._kept = {other: kept for other, kept in self.all().items() if other != id}

    def clear(self) -> None:
        for id in self.all():
            self.remove(id)

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}.jsonl"

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
