"""One line of JSON for each request and each fault. Prompts and answers only where that was asked for."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, TextIO, final

from vantage.serve.settings import Logs

ORDER = {"debug": 10, "info": 20, "warning": 30, "error": 40}


@final
@dataclass
class LogEntry:
    """What is known of a request, filled in on its way."""

    id: str
    method: str
    route: str
    begun: float
    key: str | None = None  # which key, by number: never the key itself
    model: str | None = None
    replica: str | None = None  # that it was passed on to
    user: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    first_token_ms: float | None = None
    finish: list[str] = field(default_factory=list)
    status: int = 0
    error: str | None = None
    prompt: Any = None  # these two are set only where prompts are logged
    answer: Any = None


@final
class ServerLog:
    def __init__(self, settings: Logs, stream: TextIO | None = None):
        self._stream = stream
        self._least = ORDER[settings.level]
        self.prompts = settings.prompts

    def write(self, level: str, event: str, **fields: Any) -> None:
        """``json.dumps`` writes line breaks as escapes, so nothing a client sends can begin a line of its own."""
        if ORDER[level] < self._least:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "level": level, "event": event} | {k: v for k, v in fields.items() if v not in (None, [])}
        print(json.dumps(line, default=str), file=self._stream or sys.stderr, flush=True)

    def request(self, entry: LogEntry, seconds: float) -> None:
        fields = {name: getattr(entry, name) for name in entry.__dataclass_fields__ if name != "begun"}
        level = "error" if entry.status >= 500 and entry.status != 503 else "info"
        self.write(level, "request", **fields, total_ms=round(1e3 * seconds, 1))

    def fault(self, model: str, where: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self.write("error", "fault", model=model, where=where, error=repr(error), trace=trace)


@final
class UvicornHandler(logging.Handler):
    """What uvicorn says, in the same form."""

    def __init__(self, log: ServerLog):
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        trace = None if record.exc_info is None else logging.Formatter().formatException(record.exc_info)
        self._log.write(level if level in ORDER else "error", "server", message=record.getMessage(), trace=trace)
