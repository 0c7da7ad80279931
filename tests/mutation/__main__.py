"""The mutation run: every mutant of position/, attention/ and cache/ must fail a test, or be explained.

    python -m tests.mutation                      all of it
    python -m tests.mutation vantage/cache/ring.py --show
    python -m tests.mutation --remember           and write down where the slow ones died

First the tests run once without any mutant, and what each of them runs is recorded (covering.py; kept in .mutation/).
Then each mutant runs in a process forked from one that has torch loaded, against the tests that run its line: those of
the test files that know its file best, then the quickest of the others. A survivor must stand in explained.toml with
the reason why it changes nothing that a caller could see; an explanation that explains nothing fails as well.

Two things save time and change no result. killers.json says which test a mutant died of that took long to find:
that test runs first, and if it passes or is gone, all the others follow. And a mutant that is explained runs
against the nearest tests only, to see whether the explanation still holds; --doubt runs it against all.
"""

from __future__ import annotations

import argparse
import gc
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tests import sampling
from tests.mutation import collected
from tests.mutation.covering import Covering, record, record_file
from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
KILLERS = Path(__file__).with_name("killers.json")
TARGETS = ("position", "attention", "cache")
MATRIX = "tests/conformance/test_matrix.py"
SECONDS = 200  # of processor time, so that a busy machine kills nobody
HANGS = 900  # seconds on the clock: asleep for ever
NO_TESTS = 5  # pytest's exit code when none was chosen
FORKING = threading.Lock()  # libraries that watch forks (filelock) refuse two at once
QUICK = 3  # seconds of processor time: what dies sooner needs no hint
OPTIONS = ["-q", "--tb=native", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # torch and others came in before pytest

# Where tests of these parts are, besides those of the kernels, families and the engine. What a part costs is tested in
# inspect, its bounds where specs are read.
TESTS = (
    *(f"tests/{target}" for target in TARGETS),
    "tests/conformance/test_variants.py",
    "tests/test_functional.py",
    "tests/sources",
    "tests/model",
    "tests/oracles",
    "tests/inspect",
    "tests/spec",
    "tests/checkpoints/test_spec_json.py",
    MATRIX,
)


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from mutated source."""

    def __init__(self, mutant: Mutant):
        self.path = str(ROOT / mutant.file)
        parts = Path(mutant.file).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.source = mutant.source(ROOT)

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


class Outcome(NamedTuple):
    """How a mutant ended."""

    how: str  # "killed", "timeout" or "survived"
    by: str | None = None  # the test that failed
    cost: float = 0.0  # seconds of processor time until then


def run(mutant: Mutant, stages: Sequence[Sequence[str]], hints: Sequence[str] = ()) -> Outcome:
    """Against the tests that killed it before, then stage by stage against the others."""
    spent = 0.0
    for tests in (hints, *stages):
        outcome = _fork(mutant, tests) if tests else Outcome("survived")
        spent += outcome.cost
        if outcome.how != "survived":
            return outcome._replace(cost=spent)
    return Outcome("survived", cost=spent)


def _fork(mutant: Mutant, tests: Sequence[str]) -> Outcome:
    told, tell = os.pipe()
    with FORKING:
        child = os.fork()
    if child == 0:
        _child(mutant, _Watch(tell, tests))
    os.close(tell)
    os.set_blocking(told, False)  # a child of another thread may hold the other end
    with os.fdopen(told, "rb") as pipe:
        deadline = time.monotonic() + HANGS
        while time.monotonic() < deadline:
            done, status, used = os.wait4(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                how = {0: "survived", -signal.SIGKILL: "timeout", -signal.SIGXCPU: "timeout"}.get(code, "killed")
                if code == NO_TESTS:  # they are gone
                    how = "survived"
                return Outcome(how, (pipe.read() or b"").decode() or None, used.ru_utime + used.ru_stime)
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return Outcome("timeout")


class _Watch:
    """A plugin of pytest: leaves only these tests, in this order, and tells the parent which one failed."""

    def __init__(self, tell: int, tests: Sequence[str]):
        self._tell, self._order = tell, {test: i for i, test in enumerate(tests)}

    def files(self) -> list[str]:
        named = {test.partition("::")[0] for test in self._order}
        return sorted(file for file in named if (ROOT / file).exists())

    def pytest_collection_modifyitems(self, items: list) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            os.write(self._tell, report.nodeid.encode()[:4000])
            os._exit(1)  # nobody waits for a summary


def _child(mutant: Mutant, watch: _Watch) -> None:
    """Runs the tests and ends the process; a mutant that cannot even be imported counts as killed."""
    code = 1
    try:
        _alone(SECONDS)
        import pytest

        sys.meta_path.insert(0, Planted(mutant))
        code = int(pytest.main(["-x", *OPTIONS, *watch.files()], plugins=[watch])) if watch.files() else NO_TESTS
    finally:
        os._exit(code)


def _alone(seconds: int) -> None:
    """A process that says nothing, hears nothing and ends by itself."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _record(test_file: str, into: Path) -> None:
    """In a process of its own: what the tests of a file run."""
    with FORKING:
        child = os.fork()
    if child == 0:
        try:
            _alone(3600)
            if test_file == MATRIX:
                os.environ[sampling.NAME] = "0"  # some of its cells; all of them say the same of most lines
            record_file(ROOT, TARGETS, test_file, OPTIONS, into)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def recorded(workers: int) -> Covering:
    """What every test runs, of the tests that there are."""
    paths = [ROOT / path for path in TESTS]
    files = [f for path in paths for f in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    return record(ROOT, [str(f.relative_to(ROOT)) for f in files], _record, workers)


def explained() -> list[dict[str, str]]:
    return tomllib.loads(EXPLAINED.read_text()).get("mutant", []) if EXPLAINED.exists() else []


def explains(entry: dict[str, str], mutant: Mutant) -> bool:
    return all(entry[key] == getattr(mutant, key) for key in ("file", "line", "change"))


Killers = dict[str, dict[str, list[str]]]  # file, then mutant, then the tests it died of


def killers() -> Killers:
    return json.loads(KILLERS.read_text()) if KILLERS.exists() else {}


def hints(known: Killers, mutant: Mutant) -> list[str]:
    return known.get(mutant.file, {}).get(_key(mutant), [])


def remember(known: Killers, found: dict[Mutant, Outcome], files: Sequence[Path]) -> None:
    """Write down what the slow ones died of, and what the hinted ones died of again."""
    new: Killers = {file: of for file, of in known.items() if ROOT / file not in files}
    for mutant, outcome in found.items():
        slow = outcome.cost > QUICK or outcome.by in hints(known, mutant)
        if outcome.how == "killed" and outcome.by is not None and slow:
            tests = new.setdefault(mutant.file, {}).setdefault(_key(mutant), [])
            tests += [] if outcome.by in tests else [outcome.by]
    KILLERS.write_text(json.dumps(new, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def _key(mutant: Mutant) -> str:
    return f"{mutant.change}: {mutant.line}"


def _sick(todo: Sequence[Mutant], covering: Covering, known: Killers, workers: int) -> list[str]:
    """Files whose tests fail though nobody changed them: every mutant would seem to be killed. One of each package."""
    packages = {Path(mutant.file).parts[1]: mutant.file for mutant in todo}
    tests: dict[str, set[str]] = {package: set() for package in packages}
    for mutant in todo:
        tests[Path(mutant.file).parts[1]].update(hints(known, mutant))

    def fails(package: str) -> bool:
        same = Mutant(packages[package], 1, "", "nothing", None)
        return run(same, covering.stages(same, ROOT), sorted(tests[package])).how != "survived"

    with ThreadPoolExecutor(workers) as pool:
        return [packages[p] for p, failed in zip(packages, pool.map(fails, packages), strict=True) if failed]


def preload() -> None:
    """What every child would import anyway, the package itself excepted."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import transformers  # noqa: F401

    for plugin in entry_points(group="pytest11"):
        plugin.load()
    os.environ["VANTAGE_HYPOTHESIS"] = "mutation"
    os.environ[sampling.NAME] = sampling.EVERY
    torch.set_num_threads(1)
    gc.freeze()  # pytest collects garbage, and need not look through all of this


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="source files; default: all of position/, attention/ and cache/")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print every mutant with its outcome")
    parser.add_argument("--doubt", action="store_true", help="run explained mutants against all tests too")
    parser.add_argument("--remember", action="store_true", help="write killers.json: what the slow ones died of")
    args = parser.parse_args()
    os.chdir(ROOT)
    files = [ROOT / f for f in args.files] or [
        f for target in TARGETS for f in sorted((ROOT / "vantage" / target).rglob("*.py")) if f.parent.name != "gpu"
    ]
    todo = [mutant for file in files for mutant in mutants(file, ROOT)]
    preload()
    covering = recorded(args.workers)
    if covering.failed:
        print(f"tests fail without any mutant, first {covering.failed[0]}: mend that before", file=sys.stderr)
        return 2
    known = killers()
    entries = [entry for entry in explained() if ROOT / entry["file"] in files]
    found = _run_all(todo, covering, entries, known, args)
    if sick := _sick(todo, covering, known, args.workers):
        print(f"the tests of {sick[0]} have begun to fail by themselves: these results mean nothing", file=sys.stderr)
        return 2
    if args.remember:
        remember(known, found, files)
    alive = [mutant for mutant, outcome in found.items() if outcome.how == "survived"]
    stale = [entry for entry in entries if not any(explains(entry, mutant) for mutant in alive)]
    for entry in stale:
        print(f"explains nothing: {entry['file']}: {entry['change']}: {entry['line']}")
    return 1 if stale or any(not _reasons(entries, mutant) for mutant in alive) else 0


def _reasons(entries: Sequence[dict[str, str]], mutant: Mutant) -> list[str]:
    return [entry["reason"] for entry in entries if explains(entry, mutant)]


def _run_all(
    todo: Sequence[Mutant],
    covering: Covering,
    entries: Sequence[dict[str, str]],
    known: Killers,
    args: argparse.Namespace,
) -> dict[Mutant, Outcome]:
    found, counted, started = dict[Mutant, Outcome](), Counter[str](), time.monotonic()

    def stages(mutant: Mutant) -> list[list[str]]:
        all_of_them = covering.stages(mutant, ROOT)
        return all_of_them[:1] if _reasons(entries, mutant) and not args.doubt else all_of_them

    def job(mutant: Mutant) -> collected.Job:
        return collected.Job(mutant, list(dict.fromkeys([*hints(known, mutant), *chain(*stages(mutant))])))

    quick = collected.killed(ROOT, [job(mutant) for mutant in todo], OPTIONS, args.workers, SECONDS)

    def one(mutant: Mutant) -> Outcome:
        if mutant in quick:
            return Outcome("killed", *quick[mutant])
        return run(mutant, stages(mutant), hints(known, mutant))

    with ThreadPoolExecutor(args.workers) as pool:
        jobs = {pool.submit(one, mutant): mutant for mutant in todo}
        for done, one_job in enumerate(as_completed(jobs), 1):
            mutant, outcome = jobs[one_job], one_job.result()
            found[mutant] = outcome
            how = "explained" if outcome.how == "survived" and _reasons(entries, mutant) else outcome.how
            counted[how] += 1
            if args.show or how == "survived":
                print(f"{how:9s} {mutant.name}", flush=True)
            if done % 100 == 0:
                print(f"{done} of {len(todo)} after {time.monotonic() - started:.0f} s: {dict(counted)}", flush=True)
    print(f"{len(todo)} mutants in {time.monotonic() - started:.0f} s: {dict(counted)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
