"""What the studio's API answers with: models, from which the page's types are written (``types.py``).

Figures stand in them as the dataclasses that they are. pydantic takes those as they come and writes them straight to
JSON, so the largest heat map is neither validated nor copied on its way. A number that is not finite is sent as null.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from vantage.studies.study import Parameter, Value


class StudioAnswer(BaseModel):
    """An answer of a route, an event of a stream, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamError(StudioAnswer):
    """The last event of a stream that failed."""

    message: str
    code: str | None


class WorkProgress(StudioAnswer):
    """The event ``progress`` of work that takes its time."""

    share: float
    doing: str


class EncodingEntry(StudioAnswer):
    """A position encoding that can be chosen, with what may be said about it."""

    name: str
    title: str
    about: str
    parameters: tuple[Parameter, ...]


class EncodingValues(StudioAnswer):
    """An encoding by name; what its values do not say is as it comes."""

    name: str
    values: dict[str, Value]


class EncodingInfo(StudioAnswer):
    """The encoding that something was looked at with.

    ``name``: null where a model's own encoding is none of those offered. ``swapped``: another one than the model's own.
    ``untrained``: its weights are its own, and nobody trained them. ``same``: it is the model's own, put in once more.
    """

    name: str | None
    values: dict[str, Value]
    title: str
    swapped: bool
    untrained: bool
    same: bool


class PartCount(StudioAnswer):
    """Parameters of one part of a model."""

    part: str
    count: int
