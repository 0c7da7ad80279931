"""The tests run once without any mutant, and what each of them runs is written down in .mutation/.

The seed of sampled tests is fixed, so a twentieth of those of a file is recorded. The test that kills a mutant may be
another one: ``VANTAGE_TEST_SEED=all`` finds it, and judged.json remembers it. What was recorded of a test file holds
until the file or anything that it ran changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests import sampling
from tests.mutation.covering import Covering
from tests.mutation.fork_server import Tell

KEPT = ".mutation"  # the folder of what was recorded
SEED = "0"


class Part(NamedTuple):
    """Tests that one process records: every so many of a file."""

    file: str
    first: int
    step: int

    def kept(self, root: Path) -> Path:
        part = f"-{self.first}-of-{self.step}" if self.step > 1 else ""
        return root / KEPT / f"seed-{os.environ[sampling.NAME]}" / (self.file.replace("/", ".") + part + ".json")


class Lines(Protocol):
    """Which lines of some folders run in each test; those outside of any test are of the test ''."""

    def start(self) -> None: ...
    def switch(self, test: str) -> None: ...
    def stop(self) -> dict[str, dict[int, list[str]]]: ...


class TracedLines:
    """By coverage.py, which sees every call of every function: for Python 3.11."""

    def __init__(self, folders: Sequence[str]):
        import coverage

        include = [folder + "*" for folder in folders]
        self._measured = coverage.Coverage(data_file=None, include=include, config_file=False, messages=False)

    def start(self) -> None:
        self._measured.start()

    def switch(self, test: str) -> None:
        self._measured.switch_context(test)

    def stop(self) -> dict[str, dict[int, list[str]]]:
        self._measured.stop()
        data = self._measured.get_data()
        return {file: data.contexts_by_lineno(file) for file in data.measured_files()}


class MonitoredLines:
    """By sys.monitoring, of Python 3.12: a line costs once in a test, and a function of another file as much."""

    def __init__(self, folders: Sequence[str]):
        self._folders = tuple(folders)
        self._lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._test = ""

    def start(self) -> None:
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutation")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.PY_START, self._function)
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._line)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.PY_START)

    def _function(self, code: Any, _offset: int) -> object:
        if code.co_filename.startswith(self._folders):
            sys.monitoring.set_local_events(sys.monitoring.COVERAGE_ID, code, sys.monitoring.events.LINE)
        return sys.monitoring.DISABLE

    def _line(self, code: Any, number: int) -> object:
        tests = self._lines[code.co_filename][number]
        if not tests or tests[-1] != self._test:
            tests.append(self._test)
        return sys.monitoring.DISABLE

    def switch(self, test: str) -> None:
        self._test = test
        sys.monitoring.restart_events()

    def stop(self) -> dict[str, dict[int, list[str]]]:
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, 0)
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
        return self._lines


class _Recorder:
    """A plugin of pytest: says which test begins, and measures it."""

    def __init__(self, lines: Lines, part: Part, tell: Tell):
        self._lines, self._part, self._tell = lines, part, tell
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self._part.first :: self._part.step]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self._tell(item.nodeid)
        self._lines.switch(item.nodeid)
        begun = processor_time()
        yield
        self.seconds[item.nodeid] = processor_time() - begun
        self._lines.switch("")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def processor_time() -> float:
    """Of this process and of those that it has started and seen the end of."""
    return sum(os.times()[:4])


def record_part(root: Path, targets: Sequence[str], part: Part, options: Sequence[str], tell: Tell) -> None:
    """Run these tests in this process, which has not imported the package, and write down what they ran."""
    recorder_of_lines = MonitoredLines if hasattr(sys, "monitoring") else TracedLines
    lines = recorder_of_lines([f"{root / 'vantage' / target}/" for target in targets])
    recorder = _Recorder(lines, part, tell)
    lines.start()
    pytest.main([*options, part.file], plugins=[recorder])
    seconds = {test: spent for test, spent in recorder.seconds.items() if test not in recorder.failed}
    number = {test: i for i, test in enumerate(seconds)}
    ran: dict[str, dict[int, list[int]]] = {}
    for file, of in lines.stop().items():
        by_line = {line: [number[test] for test in tests if test in number] for line, tests in of.items()}
        if by_line := {line: tests for line, tests in by_line.items() if tests}:
            ran[str(Path(file).relative_to(root))] = by_line
    kept = {
        "digests": {file: digest(root / file) for file in (part.file, *ran)},
        "seconds": seconds,
        "failed": recorder.failed,
        "lines": ran,
    }
    into = part.kept(root)
    into.parent.mkdir(parents=True, exist_ok=True)
    into.with_suffix(".new").write_text(json.dumps(kept))
    into.with_suffix(".new").replace(into)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def kept_record(root: Path, part: Part) -> dict[str, Any] | None:
    """What was recorded before, of these tests with this seed."""
    path = part.kept(root)
    return json.loads(path.read_text()) if path.exists() else None


def still_true(root: Path, kept: dict[str, Any] | None, leave_out_failing: bool) -> bool:
    """Whether neither the tests nor anything that they ran has changed since; tests that failed are tried again."""
    if kept is None or (kept["failed"] and not leave_out_failing):
        return False
    return all(digest(root / file) == old for file, old in kept["digests"].items())


def _seconds(root: Path, part: Part, kept: dict[str, Any] | None) -> float:
    """How long a part takes, as far as that is known before."""
    if kept is not None:
        return sum(kept["seconds"].values())
    return (root / part.file).stat().st_size / 1000 + 1000 * (part.step > 1)  # a guess; what is divided is long


def record(
    root: Path, parts: Sequence[Part], run: Callable[[Part], None], workers: int, *, leave_out_failing: bool = False
) -> tuple[Covering, list[str]]:
    """What every test runs, and the tests that fail. ``run`` records a part in a process of its own."""
    begun = time.monotonic()
    known = {part: kept_record(root, part) for part in parts}
    todo = [part for part in parts if not still_true(root, known[part], leave_out_failing)]
    todo.sort(key=lambda part: _seconds(root, part, known[part]), reverse=True)  # the longest first
    print(f"what {len(parts) - len(todo)} of {len(parts)} test files run is known, {len(todo)} to record", flush=True)
    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(run, part): part for part in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            job.result()
            if done % 20 == 0 or done == len(todo):
                print(f"recorded {done} of {len(todo)} test files, {time.monotonic() - begun:.0f} s", flush=True)
    covering, failed = Covering(), list[str]()
    for part in parts:
        kept = kept_record(root, part) if part in todo else known[part]
        if kept is None or not still_true(root, kept, leave_out_failing=True):
            failed.append(part.file)  # its process died
            continue
        failed += kept["failed"]
        covering.add(kept["seconds"], kept["lines"])
    return covering, failed
