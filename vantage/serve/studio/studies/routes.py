"""Studies and exercises: the documents' results run with other parameters, and the student's answers graded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.errors import BadInput, unknown
from vantage.serve.bounds import Number, StrictModel, Whole
from vantage.serve.errors import ApiError
from vantage.serve.studio.progress_events import progress_events
from vantage.serve.studio.state import Event, call, sse, studio_of, work
from vantage.serve.studio.studies.answers import (
    CheckResult,
    ExerciseAnswer,
    ExerciseEntry,
    GradeAnswer,
    StudyEntry,
    StudyResult,
)
from vantage.studies.registry import find, studies
from vantage.studies.runner import Outcome, conduct
from vantage.studies.study import Study, Value

if TYPE_CHECKING:
    from vantage.studies.exercises import Exercise, Grade

router = APIRouter(prefix="/studio/api")

THREADS = ("studies a", "studies b")  # so many run at once; the others wait, or are refused
CODE = 256 * 1024  # characters of an answer; the grader has its own limit in bytes

Name = Annotated[str, Field(min_length=1, max_length=64)]
ParameterValue = Whole | Number | Annotated[str, Field(max_length=1000)]


class StudyRequest(StrictModel):
    values: Annotated[dict[Name, ParameterValue], Field(max_length=32)] = Field(default_factory=dict)


class GradeRequest(StrictModel):
    code: Annotated[str, Field(max_length=CODE)]


@router.get("/studies")
async def listed() -> list[StudyEntry]:
    all_studies = await asyncio.to_thread(studies)  # the first time they are imported
    return [_entry(study) for study in all_studies.values()]


def _entry(study: Study) -> StudyEntry:
    return StudyEntry(
        tag=study.tag,
        title=study.title,
        sources=list(study.sources),
        statement=study.statement,
        explanation=study.explanation,
        parameters=study.parameters,
        seconds=study.seconds,
        trains=study.trains,
        needs=list(study.needs),
    )


@router.post("/studies/{tag}")
async def run(request: Request, tag: str, body: StudyRequest) -> Response:
    study = await asyncio.to_thread(_study, tag)
    study.values(body.values)  # refuses before anything runs
    studio = studio_of(request)
    thread = min(THREADS, key=lambda name: studio.thread(name).busy)
    return await sse(request, work(request, lambda: run_events(study, body.values), thread=thread))


def _study(tag: str) -> Study:
    try:
        return find(tag[:64])
    except BadInput as e:
        raise ApiError(404, "not_found", str(e)) from e


def run_events(study: Study, values: dict[str, Value]) -> Iterator[Event]:
    """A study as events. Whoever closes this ends it the next time it says how far it is."""
    return progress_events(lambda report: ("result", _result(conduct(study, values, report))), f"study-{study.tag}")


def _result(outcome: Outcome) -> StudyResult:
    result = outcome.result
    return StudyResult(
        verdict=result.verdict,
        words=result.words,
        numbers=result.numbers,
        figures=result.figures,
        values=dict(outcome.values),
        seconds=outcome.seconds,
        command=outcome.command,
    )


# ---- exercises


@router.get("/exercises")
async def exercises_listed() -> list[ExerciseEntry]:
    all_exercises = await asyncio.to_thread(_exercises)
    return [ExerciseEntry(tag=e.tag, title=e.title, task=e.task, starter=e.starter) for e in all_exercises.values()]


@router.post("/exercises/{tag}/grade")
async def grade_answer(request: Request, tag: str, body: GradeRequest) -> GradeAnswer:
    """One at a time; the answer runs in a process with limits."""
    exercise = await asyncio.to_thread(_exercise, tag)

    def run() -> Grade:
        from vantage.studies.exercises import grade

        return grade(body.code, tag=exercise.tag)

    grade = await call(request, run, thread="grade")
    checks = [CheckResult(name=check.name, passed=check.passed, words=check.words) for check in grade.checks]
    return GradeAnswer(passed=grade.passed, checks=checks, output=grade.output, held=list(grade.held))


@router.get("/exercises/{tag}/answer")
async def answer(tag: str) -> ExerciseAnswer:
    exercise = await asyncio.to_thread(_exercise, tag)
    return ExerciseAnswer(code=exercise.answer, words=exercise.words)


def _exercises() -> dict[str, Exercise]:
    """Imported when first wanted, away from the event loop: each of them builds its own checks."""
    from vantage.studies.exercises import exercises

    return exercises()


def _exercise(tag: str) -> Exercise:
    known = _exercises()
    if tag not in known:
        raise ApiError(404, "not_found", unknown("exercise", tag, known))
    return known[tag]
