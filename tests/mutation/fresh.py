"""Mutants from a fresh import: a process that has torch loaded forks, and the child imports the package with a mutant.

The tests are recorded in such children as well, with no mutant.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests import sampling
from tests.mutation.fork_server import Request, Serve, Tell
from tests.mutation.mutants import Mutant
from tests.mutation.recording import SEED, Part, record_part


def preload() -> None:
    """What every child would import anyway, the package itself excepted."""
    import hypothesis  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import transformers  # noqa: F401

    for plugin in entry_points(group="pytest11"):
        plugin.load()
    os.environ[sampling.PROFILE] = "mutation"
    os.environ.setdefault(sampling.NAME, SEED)
    torch.set_num_threads(1)
    gc.freeze()  # pytest collects garbage, and need not look through all of this


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from mutated source."""

    def __init__(self, mutant: Mutant, root: Path):
        self.path = str(root / mutant.file)
        parts = Path(mutant.file).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.source = mutant.source(root)

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.module:
            return None
        package = [str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=package
        )

    def get_filename(self, fullname):
        return self.path

    def get_data(self, path):
        return self.source.encode()

    def path_stats(self, path):
        raise OSError("never from a cached .pyc")


class _Chosen:
    """A plugin of pytest: leaves only these tests, in this order, and tells which one begins and which one failed."""

    def __init__(self, tests: Sequence[str], tell: Tell):
        self._order, self._tell = {test: i for i, test in enumerate(tests)}, tell
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def serve_fresh(root: Path, targets: Sequence[str], options: Sequence[str], serve: Serve) -> None:
    """In a process that serves: record what tests run, or run tests with a mutant."""

    def handle(request: Request, tell: Tell) -> dict[str, Any]:
        if "record" in request:
            record_part(root, targets, Part(*request["record"]), [*options, "-m", "not slow"], tell)
            return {}
        if request["mutant"] is not None:
            sys.meta_path.insert(0, Planted(Mutant(**request["mutant"]), root))
        chosen = _Chosen(request["tests"], tell)
        files = sorted({test.partition("::")[0] for test in request["tests"]})
        files = [file for file in files if (root / file).exists()]
        code = pytest.main(["-x", *options, *files], plugins=[chosen]) if files else pytest.ExitCode.OK
        passed = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        # where the package cannot even be imported no test failed, and any of them would have
        return {"failed": None if passed else chosen.failed or request["tests"][0]}

    serve(handle)
