"""Which tests run which lines, recorded once: a mutant meets the tests that run its line, and no others.

A test that never runs a line cannot see that it was changed. What a module does when it is imported (constants,
defaults) belongs to no test; there every test counts that runs anything in the file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

from tests.mutation.mutants import Mutant

KEPT = ".mutation"  # the folder of what was recorded
NEAREST = 3  # files of tests that know a source file best, which a mutant meets first
SECONDS = 40.0  # of other tests, the quickest first; what passes them all has survived


@dataclass
class Covering:
    """Tests are numbers in what is kept."""

    tests: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lines: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # of a source file: tests of each line
    failed: list[str] = field(default_factory=list)  # without any mutant

    def stages(self, mutant: Mutant, root: Path) -> list[list[str]]:
        """The tests for a mutant: those of the files that know it best, then the quickest of the others."""
        of = self.lines.get(mutant.file, {})
        covering = of.get(mutant.number, []) if mutant.number in in_functions(root / mutant.file) else []
        covering = covering or sorted({test for tests in of.values() for test in tests})
        nearest = self._nearest(mutant.file)
        near = [i for i in covering if self.file(i) in nearest]
        return [self._quickest(near), self._quickest([i for i in covering if self.file(i) not in nearest])]

    def file(self, test: int) -> str:
        return self.tests[test].partition("::")[0]

    def _quickest(self, tests: Sequence[int]) -> list[str]:
        chosen, spent = list[str](), 0.0
        for test in sorted(tests, key=lambda i: self.seconds[i]):
            spent += self.seconds[test]
            if spent > SECONDS and chosen:
                break
            chosen.append(self.tests[test])
        return chosen

    def _nearest(self, source: str) -> set[str]:
        """The test files of whose work the largest share is in this source file."""
        shares = {file: work[source] / sum(work.values()) for file, work in self._work.items() if source in work}
        return set(sorted(shares, key=lambda file: -shares[file])[:NEAREST])

    @functools.cached_property
    def _work(self) -> dict[str, dict[str, int]]:
        """Of each test file: how many lines of each source file it runs."""
        work: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for name, of in self.lines.items():
            for tests in of.values():
                for file in {self.file(test) for test in tests}:
                    work[file][name] += 1
        return work


@functools.cache
def in_functions(path: Path) -> frozenset[int]:
    """Lines that run when a function is called, and not when the file is imported."""
    lines = set[int]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines |= set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


class _Recorder:
    """A plugin of pytest: switches the context with the test, and measures it."""

    def __init__(self, measured: coverage.Coverage):
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self._measured.switch_context(item.nodeid)
        begun = time.process_time()
        yield
        self.seconds[item.nodeid] = time.process_time() - begun
        self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def record_file(root: Path, targets: Iterable[str], test_file: str, options: Sequence[str], into: Path) -> None:
    """Run the tests of a file in this process, which has not imported the package, and write down what they ran."""
    include = [str(root / "vantage" / target / "*") for target in targets]
    measured = coverage.Coverage(data_file=None, include=include, config_file=False, messages=False)
    recorder = _Recorder(measured)
    measured.start()
    pytest.main([*options, test_file], plugins=[recorder])
    measured.stop()
    data, lines = measured.get_data(), {}
    for file in data.measured_files():
        of = {line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(file).items()}
        if any(of.values()):
            lines[str(Path(file).relative_to(root))] = of
    digests = {file: digest(root / file) for file in (test_file, *lines)}
    kept = {"digests": digests, "seconds": recorder.seconds, "failed": recorder.failed, "lines": lines}
    into.write_text(json.dumps(kept))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def still_true(root: Path, into: Path) -> bool:
    """Whether neither the tests nor anything that they ran has changed since."""
    kept = json.loads(into.read_text())["digests"] if into.exists() else {"": "nothing"}
    return all(digest(root / file) == old for file, old in kept.items())


def record(root: Path, test_files: Sequence[str], run: Callable[[str, Path], None], workers: int) -> Covering:
    """``run`` runs one file of tests in a process of its own and writes what it ran, where that is not known yet."""
    folder = root / KEPT
    folder.mkdir(exist_ok=True)
    begun = time.monotonic()

    def one(test_file: str) -> Path:
        into = folder / (test_file.replace("/", ".") + ".json")
        if not still_true(root, into):
            into.unlink(missing_ok=True)
            run(test_file, into)
        return into

    covering, number = Covering(), dict[str, int]()
    with ThreadPoolExecutor(workers) as pool:
        for done, part in enumerate(pool.map(one, test_files), 1):
            if done % 20 == 0:
                passed = time.monotonic() - begun
                print(f"recorded what {done} of {len(test_files)} test files run, {passed:.0f} s", flush=True)
            if not part.exists():
                covering.failed.append(test_files[done - 1])
                continue
            recorded = json.loads(part.read_text())
            covering.failed += recorded["failed"]
            for test, seconds in recorded["seconds"].items():
                number[test] = len(covering.tests)
                covering.tests.append(test)
                covering.seconds.append(seconds)
            for file, of in recorded["lines"].items():
                kept = covering.lines.setdefault(file, {})
                for line, tests in of.items():
                    kept.setdefault(int(line), []).extend(number[test] for test in tests if test in number)
    return covering
