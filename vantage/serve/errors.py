"""Errors as OpenAI's clients know them: a status that picks the exception, and an envelope that says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from vantage.errors import VantageError


@final
class ApiError(VantageError):
    """A refusal with its HTTP status. ``retry``: seconds after which to try again."""

    def __init__(self, status: int, code: str, message: str, *, param: str | None = None, retry: int | None = None):
        super().__init__(message)
        self.status, self.code, self.message, self.param, self.retry = status, code, message, param, retry

    @property
    def kind(self) -> str:
        """OpenAI's word for this sort of error."""
        return KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> Mapping[str, str]:
        headers = {} if self.retry is None else {"Retry-After": str(self.retry)}
        return {**headers, "WWW-Authenticate": "Bearer"} if self.status == 401 else headers


KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The request cannot be right."""
    return ApiError(400, code, message, param=param)


def unknown_model(name: str) -> ApiError:
    return ApiError(
        404, "model_not_found", f"there is no model {name[:100]!r}: GET /v1/models lists them", param="model"
    )


def overloaded(retry: int) -> ApiError:
    return ApiError(429, "queue_full", "too many requests are waiting: try again later", retry=retry)


def draining() -> ApiError:
    return ApiError(503, "draining", "the server is shutting down: try another, or later", retry=5)


def group_lost() -> ApiError:
    return ApiError(503, "group_lost", "a process that has a share of this model is gone: ask again later", retry=10)


def late() -> ApiError:
    return ApiError(504, "timeout", "the answer took longer than this server allows: ask for less, or later")


def slow_reader() -> ApiError:
    return ApiError(503, "slow_reader", "the answer was not read fast enough, so it was ended")


def cancelled() -> ApiError:
    return ApiError(499, "cancelled", "the client went away")


def failed(error: BaseException | None, *, own: bool) -> ApiError:
    """A step failed. ``own``: by what this very request asked for (its grammar or bias left no token)."""
    if isinstance(error, VantageError) and own:
        return bad(f"no answer can be made: {error}", code="unsatisfiable")
    if out_of_memory(error):
        return ApiError(500, "out_of_memory", "there was not enough memory for this request: ask for less, or later")
    return ApiError(500, "step_failed", "the step that computed this answer failed: see the server's log")


def out_of_memory(error: BaseException | None) -> bool:
    # torch's CPU allocator has no type of its own for it
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error))
    )
