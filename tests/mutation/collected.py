"""Mutants in a process that has collected all tests: quick, because nothing is imported or collected again.

One process imports the package and collects the tests. For each mutant it forks, and the child exchanges the code of
the functions that the mutant changes and runs its tests. A test that fails has killed it. A mutant that lives may owe
it to something that was worked out while tests were collected, so it runs once more the slow way (__main__.run), from a
fresh import. So do those of lines that run when a module is imported, which no exchange reaches.

A test might fail in such a process without any mutant. So each test that killed one runs there once more with nothing
changed, and where it fails its mutants run the slow way as well.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest

from tests.mutation.covering import in_functions
from tests.mutation.mutants import Mutant


class Job(NamedTuple):
    """A mutant and the tests that it meets, in their order; no mutant: the tests as they are."""

    mutant: Mutant | None
    tests: Sequence[str]


class Result(NamedTuple):
    """Of one job: whether a test failed, which, and the processor time until then."""

    job: int
    failed: bool
    by: str | None
    cost: float


Key = tuple[str, int]  # a function's qualified name and its first line


def exchangeable(mutant: Mutant, root: Path) -> bool:
    """Whether only the body of a function changes."""
    return mutant.number in in_functions(root / mutant.file)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A module's code, and that of everything defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def functions_by_file() -> dict[str, list[FunctionType]]:
    """Every function that is alive, by the file it was written in."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            found[one.__code__.co_filename].append(one)
    return found


def exchange(mutant: Mutant, root: Path, functions: Sequence[FunctionType]) -> bool:
    """Give these functions of the mutant's file its code. False, and nothing changed, where that cannot be done."""
    by_key: dict[Key, list[CodeType]] = defaultdict(list)
    for code in codes(compile(mutant.tree(root), str(root / mutant.file), "exec")):
        by_key[code.co_qualname, code.co_firstlineno].append(code)
    new: list[tuple[FunctionType, CodeType]] = []
    for function in functions:
        old = function.__code__
        same_place = by_key.get((old.co_qualname, old.co_firstlineno), [])
        # two lambdas of one line cannot be told apart
        if len(same_place) != 1 or same_place[0].co_freevars != old.co_freevars:
            return False
        new.append((function, same_place[0]))
    for function, code in new:
        function.__code__ = code
    return bool(new)


CANNOT = 3  # exit code: the code could not be exchanged


class _Collected:
    """A plugin of pytest: instead of running all tests, runs each job in a forked child."""

    def __init__(self, root: Path, jobs: Sequence[Job], workers: int, seconds: int, out: int):
        self._root, self._jobs, self._workers, self._seconds, self._out = root, jobs, workers, seconds, out
        self._pipe: int | None = None  # in a child: where the test that fails is named

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = functions_by_file()
        gc.freeze()
        running: dict[int, tuple[int, int]] = {}  # process: job, pipe
        for i, job in enumerate(self._jobs):
            while len(running) >= self._workers:
                self._reap(running)
            there = [items[test] for test in job.tests if test in items]
            mine = functions.get(str(self._root / job.mutant.file), []) if job.mutant else []
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                self._pipe = write
                self._child(job.mutant, mine, there)
            os.close(write)
            running[child] = i, read
        while running:
            self._reap(running)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._pipe is not None:
            os.write(self._pipe, report.nodeid.encode()[:4000])
            os._exit(1)

    def _child(self, mutant: Mutant | None, functions: Sequence[FunctionType], items: Sequence[pytest.Item]) -> None:
        import resource

        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (self._seconds, self._seconds))
            if mutant is not None and not exchange(mutant, self._root, functions):
                os._exit(CANNOT)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            code = 0
        finally:
            os._exit(code)

    def _reap(self, running: dict[int, tuple[int, int]]) -> None:
        child, status, used = os.wait4(-1, 0)
        if child not in running:
            return
        i, pipe = running.pop(child)
        with os.fdopen(pipe, "rb") as file:
            os.set_blocking(pipe, False)  # a grandchild may hold the other end
            by = (file.read() or b"").decode() or None
        exit_code = os.waitstatus_to_exitcode(status)
        # what ended by its limit, or could not be exchanged, is for the slow way to judge
        failed = exit_code not in (0, CANNOT, -signal.SIGKILL, -signal.SIGXCPU)
        result = Result(i, failed, by, used.ru_utime + used.ru_stime)
        os.write(self._out, json.dumps(result).encode() + b"\n")


def run(root: Path, jobs: Sequence[Job], options: Sequence[str], workers: int, seconds: int) -> Iterator[Result]:
    """The results of the jobs as they come, by a process that has collected the tests they name."""
    files = sorted({test.partition("::")[0] for job in jobs for test in job.tests})
    files = [file for file in files if (root / file).exists()]
    if not files:
        return
    read, write = os.pipe()
    if (server := os.fork()) == 0:
        os.close(read)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os._exit(int(pytest.main([*options, *files], plugins=[_Collected(root, jobs, workers, seconds, write)])))
    os.close(write)
    with os.fdopen(read) as lines:
        for line in lines:
            yield Result(*json.loads(line))
    os.waitpid(server, 0)


def confirmed(results: Sequence[Result], rerun: Callable[[Sequence[Job]], Iterator[Result]]) -> set[int]:
    """The jobs whose failing test passes where nothing is changed: their mutants are killed."""
    failed = [result for result in results if result.failed and result.by is not None]
    tests = sorted({result.by for result in failed if result.by is not None})
    alone = [Job(None, [test]) for test in tests]
    broken = {tests[result.job] for result in rerun(alone) if result.failed}
    if broken:
        print(f"{len(broken)} tests fail among collected ones by themselves, first {min(broken)}", file=sys.stderr)
    return {result.job for result in failed if result.by not in broken}


def killed(
    root: Path, todo: Sequence[Job], options: Sequence[str], workers: int, seconds: int
) -> dict[Mutant, tuple[str, float]]:
    """Which of these mutants die, of which test, and the processor time it took. The others are not judged."""
    jobs = [job for job in todo if job.mutant is not None and job.tests and exchangeable(job.mutant, root)]
    begun, results = time.monotonic(), list[Result]()

    def rerun(others: Sequence[Job]) -> Iterator[Result]:
        return run(root, others, options, workers, seconds)

    for result in rerun(jobs):
        results.append(result)
        if len(results) % 500 == 0:
            dead = sum(one.failed for one in results)
            passed = time.monotonic() - begun
            print(f"{len(results)} of {len(jobs)} in collected tests, {passed:.0f} s: {dead} killed", flush=True)
    sure = confirmed(results, rerun)
    found: dict[Mutant, tuple[str, float]] = {}
    for result in results:
        mutant = jobs[result.job].mutant
        if result.job in sure and mutant is not None and result.by is not None:
            found[mutant] = result.by, result.cost
    return found
