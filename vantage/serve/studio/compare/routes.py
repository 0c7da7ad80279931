"""Compare: an experiment from a form, live while it trains, and the reports of all that were finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from vantage.compare.entries import ModelShape, all_positions, attentions
from vantage.compare.experiment import Experiment, default_steps, expand_positions
from vantage.compare.names import ATTENDING, CONTROL, DEFAULT, NAMES_EXPLAINED, RANDOMISED, VARIANTS, budget_seconds
from vantage.compare.report import CSV, JSON, PAGE, VERDICTS
from vantage.compare.task_names import has_short_answers
from vantage.errors import unknown
from vantage.parts import registry
from vantage.serve.bounds import Number, StrictModel, Whole
from vantage.serve.errors import ApiError, bad
from vantage.serve.studio.answers import StreamError
from vantage.serve.studio.compare.answers import (
    CompareChoices,
    CompareDefaults,
    CompareDone,
    CompareProgress,
    ComparisonEntry,
    ComparisonStarted,
    ComparisonState,
    ComparisonStopped,
)
from vantage.serve.studio.compare.comparisons import CAN_BE_RESUMED, Comparisons, Progress, curves, rows
from vantage.serve.studio.state import Event, Studio, call, sse, studio_of
from vantage.training.tasks import TASKS

router = APIRouter(prefix="/studio/api")

BUDGET = "14m"
LOOK_S = 0.25  # how often a reader of events is told what is new
LEAST, MOST = 10.0, 86_400.0  # seconds of a budget
# The page of a report needs its own styles and nothing else: no script, no frame, nothing from anywhere.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox"
)
TABLE = "text/csv; charset=utf-8"
FILES = {PAGE: "text/html; charset=utf-8", CSV: TABLE, VERDICTS: TABLE, JSON: "application/json"}

Name = Annotated[str, Field(min_length=1, max_length=64)]
Names = Annotated[list[Name], Field(min_length=1, max_length=24)]
Length = Annotated[Whole, Field(ge=1, le=2048)]


class CompareRequest(StrictModel):
    tasks: Annotated[list[Name], Field(min_length=1, max_length=8)]
    positions: Names
    attention: Annotated[list[Name], Field(min_length=1, max_length=3)] = Field(default_factory=lambda: ["multi-head"])
    train_length: Annotated[Whole, Field(ge=1, le=512)] = Experiment.train_length
    test_lengths: Annotated[list[Length], Field(min_length=1, max_length=16)] = Field(
        default_factory=lambda: list(Experiment.test_lengths)
    )
    seeds: Annotated[Whole, Field(ge=1, le=16)] = Experiment.seeds
    steps: Annotated[Whole, Field(ge=1, le=200_000)] | None = None
    budget: Annotated[str, Field(max_length=32)] | Number | None = None  # "15m", or seconds
    batch: Annotated[Whole, Field(ge=1, le=1024)] = Experiment.batch
    width: Annotated[Whole, Field(ge=1, le=512)] = ModelShape.width
    layers: Annotated[Whole, Field(ge=1, le=16)] = ModelShape.layers
    heads: Annotated[Whole, Field(ge=1, le=32)] = ModelShape.heads
    test_examples: Annotated[Whole, Field(ge=1, le=4096)] = Experiment.test_examples

    def experiment(self) -> Experiment:
        for task in self.tasks:
            if task not in tasks_offered():
                raise bad(unknown("task", task, tasks_offered()), "tasks")
        plain = Experiment()
        return replace(
            plain,
            tasks=tuple(self.tasks),
            positions=expand_positions(tuple(self.positions)),
            attention=tuple(self.attention),
            train_length=self.train_length,
            test_lengths=tuple(sorted(set(self.test_lengths))),
            seeds=self.seeds,
            steps=default_steps(self.tasks) if self.steps is None else self.steps,
            batch=self.batch,
            shape=replace(plain.shape, width=self.width, layers=self.layers, heads=self.heads),
            test_examples=self.test_examples,
        )

    def seconds(self) -> float | None:
        """Of the budget; ``None``: as long as the steps take."""
        budget = BUDGET if self.budget is None and self.steps is None else self.budget
        if budget is None:
            return None
        allowed = budget_seconds(budget) if isinstance(budget, str) else float(budget)
        if not LEAST <= allowed <= MOST:
            raise bad(f"a budget of {allowed:g} seconds: give {LEAST:.0f} seconds to {MOST / 3600:.0f} hours", "budget")
        return allowed


def comparisons_of(request: Request) -> Comparisons:
    return studio_of(request).part(comparisons_in)


def comparisons_in(studio: Studio) -> Comparisons:
    comparisons = Comparisons(studio.folder / "comparisons")
    studio.closing.append(comparisons.close)
    return comparisons


def tasks_offered() -> tuple[str, ...]:
    return (*TASKS, *VARIANTS)


@router.get("/compare/choices")
async def choices() -> CompareChoices:
    defaults = Experiment()
    return CompareChoices(
        tasks=list(tasks_offered()),
        positions=list(all_positions()),
        attention=list(attentions()),
        control=CONTROL,
        controlled=[name for name in tasks_offered() if has_short_answers(name)],
        about=_about(),
        defaults=CompareDefaults(
            tasks=list(defaults.tasks),
            positions=list(DEFAULT),
            attention=list(defaults.attention),
            train_length=defaults.train_length,
            test_lengths=list(defaults.test_lengths),
            seeds=defaults.seeds,
            steps=None,
            budget=BUDGET,
            batch=defaults.batch,
            width=defaults.shape.width,
            layers=defaults.shape.layers,
            heads=defaults.shape.heads,
            test_examples=defaults.test_examples,
        ),
    )


def _about() -> dict[str, str]:
    """Encodings, attentions and tasks in a sentence each, from their entries where they have one."""
    kinds = ("position", *ATTENDING, "task")
    entries = [entry for kind in kinds for entry in registry(kind).entries()]
    about = {
        entry.name: " ".join(filter(None, (entry.title and f"{entry.title}:", entry.summary))) for entry in entries
    }
    drawn = "While it trains, positions are drawn at random from a larger range (Ruoss et al. 2023)."
    randomised = [name for name in all_positions() if name.startswith(RANDOMISED)]
    return about | NAMES_EXPLAINED | {name: f"{about[name.removeprefix(RANDOMISED)]} {drawn}" for name in randomised}


@router.get("/compare")
async def listed(request: Request) -> list[ComparisonEntry]:
    """All comparisons, finished or not."""
    return await asyncio.to_thread(comparisons_of(request).listed)


@router.post("/compare")
async def start(request: Request, body: CompareRequest) -> ComparisonStarted:
    comparisons = comparisons_of(request)

    def begin() -> str:
        return comparisons.start(body.experiment(), body.seconds()).name

    return ComparisonStarted(id=await call(request, begin, thread="compare"))


@router.post("/compare/{name}/resume")
async def resume(request: Request, name: str) -> ComparisonStarted:
    comparisons = comparisons_of(request)
    return ComparisonStarted(id=await call(request, lambda: comparisons.resume(name).name, thread="compare"))


@router.get("/compare/{name}/events")
async def events(request: Request, name: str) -> Response:
    comparisons = comparisons_of(request)
    await asyncio.to_thread(comparisons.known, name)
    return await sse(request, _events(comparisons, name))


async def _events(comparisons: Comparisons, name: str) -> AsyncGenerator[Event]:
    """What is new, as often as there is something. Leaving does not stop the comparison: it takes hours."""
    length = (await asyncio.to_thread(comparisons.settings, name))["train_length"]
    measures = await asyncio.to_thread(comparisons.measures, name)
    sent: CompareProgress | None = None
    drawn, learned, table = -1, 0, []
    while True:
        running = comparisons.get(name)
        state, message = _earlier(comparisons, name) if running is None else (running.state, running.message)
        count = len(await asyncio.to_thread(comparisons.results, name)) if running is None else running.results
        if count != drawn:
            results = await asyncio.to_thread(comparisons.results, name)
            drawn, table = count, rows(results, measures)
            if results:
                yield "curve", curves(results, length, measures)
        if running is not None and running.learning.version != learned:
            learned, figure = running.learning.version, running.learning.figure()
            if figure is not None:
                yield "learning", figure
        progress = Progress() if running is None else running.progress
        text = message if state == "running" else ""
        new = CompareProgress(
            done=progress.done, total=progress.total, left_s=progress.left_s, rows=table, message=text
        )
        if new != sent:
            sent = new
            yield "progress", new
        if state == "done":
            yield "done", CompareDone(report=name, short=await asyncio.to_thread(comparisons.short, name))
            return
        if state in ("error", "stopped"):
            yield "error", StreamError(message=message, code=state)
            return
        await asyncio.sleep(LOOK_S)


def _earlier(comparisons: Comparisons, name: str) -> tuple[ComparisonState, str]:
    finished = any(one.name == name for one in comparisons.reports())
    return ("done", "") if finished else ("stopped", f"the comparison does not run; {CAN_BE_RESUMED}")


@router.delete("/compare/{name}")
async def stop(request: Request, name: str) -> ComparisonStopped:
    await asyncio.to_thread(comparisons_of(request).stop, name)
    return ComparisonStopped(id=name, stopped=True)


# ---- reports


@router.get("/reports")
async def reports(request: Request) -> list[ComparisonEntry]:
    return await asyncio.to_thread(comparisons_of(request).reports)


@router.get("/reports/{name}/")
async def report(request: Request, name: str) -> Response:
    return await _file(request, name, PAGE)


@router.get("/reports/{name}/{file}")
async def report_file(request: Request, name: str, file: str) -> Response:
    if file not in FILES:
        raise ApiError(404, "not_found", f"a report has {', '.join(FILES)}, and no other file")
    return await _file(request, name, file)


async def _file(request: Request, name: str, file: str) -> Response:
    content = await asyncio.to_thread(comparisons_of(request).page, name, file)
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(content, headers=headers, media_type=FILES[file])
