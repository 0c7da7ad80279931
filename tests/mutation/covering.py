"""Which tests run which lines, recorded once: a mutant meets the tests that run its line, and no others.

A test that never runs a line cannot see that it was changed. What a module does when it is imported (constants,
defaults) belongs to no test; there every test counts that runs anything in the file, and those of the file that reads
what all parts of a package declare.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.mutants import Mutant

NEAREST = 3  # files of tests that know a source file best, which a mutant meets first
DECLARED = {"attention": "tests/attention/test_bounds.py", "position": "tests/position/test_registry.py"}
SECONDS = 40.0  # of other tests, the quickest first; what passes them all has survived


@dataclass
class Covering:
    """Tests are numbers in what is kept."""

    tests: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lines: dict[str, dict[int, list[int]]] = field(default_factory=dict)  # of a source file: tests of each line

    def add(self, seconds: Mapping[str, float], lines: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        """What was recorded of a test file: its tests with their times, and which of them, by number, run a line."""
        first = len(self.tests)
        self.tests += seconds
        self.seconds += seconds.values()
        for file, of in lines.items():
            kept = self.lines.setdefault(file, {})
            for line, tests in of.items():
                kept.setdefault(int(line), []).extend(first + test for test in tests)

    def stages(self, mutant: Mutant, root: Path) -> list[list[str]]:
        """The tests for a mutant: those of the files that know it best, then the quickest of the others."""
        of = self.lines.get(mutant.file, {})
        called = mutant.number in in_functions(root / mutant.file)
        covering = of.get(mutant.number, []) if called else []
        covering = covering or sorted({test for tests in of.values() for test in tests})
        nearest = self._nearest(mutant.file)
        if not called and (declared := DECLARED.get(Path(mutant.file).parent.name)) is not None:
            covering = sorted({*covering, *(i for i in range(len(self.tests)) if self.file(i) == declared)})
            nearest.add(declared)
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
