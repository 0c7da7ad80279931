"""Mutants in a process that has collected the tests: quick, because nothing is imported or collected again.

For each mutant that process forks, and the child exchanges the code of the functions that the mutant changes and runs
its tests. A mutant that lives may owe it to something that was worked out while tests were collected, and lines that
run when a module is imported are out of reach: for those there is the slow way, from a fresh import (fresh.py).
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutation.covering import in_functions
from tests.mutation.fork_server import Request, Serve, Tell, silence
from tests.mutation.mutants import Mutant

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
    gc.unfreeze()  # what is frozen is not listed, and tests/conftest.py freezes what was collected
    for one in gc.get_objects():
        if type(one) is FunctionType:  # isinstance asks the object, and some of torch warn when they are asked
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


class _Collected:
    """A plugin of pytest: instead of running all tests, runs in forked children those that are asked for."""

    def __init__(self, root: Path, serve: Serve):
        self._root, self._serve = root, serve
        self._failed: str | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = functions_by_file()
        gc.freeze()  # pytest collects garbage, and need not look through all of this

        def handle(request: Request, tell: Tell) -> dict[str, Any]:
            if request["mutant"] is not None:
                mutant = Mutant(**request["mutant"])
                if not exchange(mutant, self._root, functions.get(str(self._root / mutant.file), [])):
                    return {"exchanged": False}
            chosen = [items[test] for test in request["tests"] if test in items]
            for item, following in zip(chosen, [*chosen[1:], None], strict=False):
                tell(item.nodeid)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._failed is not None:
                    break
            return {"exchanged": True, "failed": self._failed}

        self._serve(handle)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid


def collect(root: Path, files: Sequence[str], options: Sequence[str], serve: Serve) -> None:
    """In a process that serves: collect the tests of these files, and be ready to run some of them."""
    silence(0, 1)
    pytest.main([*options, *files], plugins=[_Collected(root, serve)])
