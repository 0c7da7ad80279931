"""The mutation run: every mutant of position/, attention/ and cache/ must fail a test, or be explained.

    python -m tests.mutation                      all of it
    python -m tests.mutation vantage/cache/ring.py --show

Each mutant runs in a process forked from one that has torch loaded, against the tests of its own file first
and then those of the whole package. A survivor must stand in explained.toml with the reason why it changes
nothing that a caller could see; an explanation that explains nothing fails as well.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
TARGETS = ("position", "attention", "cache")
SECONDS = 240  # of processor time, so that a busy machine kills nobody
HANGS = 1200  # seconds on the clock: asleep for ever

# Beyond the tests of its own folder: what else a mutant of a folder must pass. Cheapest first.
MORE = {
    "position": ["tests/test_functional.py", "tests/sources", "tests/conformance/test_matrix.py"],
    "attention": ["tests/model", "tests/sources", "tests/oracles", "tests/conformance/test_matrix.py"],
    "cache": ["tests/model", "tests/sources", "tests/conformance/test_matrix.py"],
}


# Files without a test of their own name: whose tests know them best.
NEAR = {
    "cache/blocks.py": ["paged", "pool"],
    "cache/build.py": ["model_cache"],
    "cache/layer_cache.py": ["stores"],
    "cache/ledger.py": ["contiguous", "ring", "model_cache"],
    "cache/moves.py": ["stores", "paged", "ring"],
    "cache/paged_state.py": ["paged", "join"],
    "cache/report.py": ["model_cache", "paged"],
    "cache/saved_states.py": ["saved"],
}


def stages(file: str) -> list[list[str]]:
    """Test paths for a source file: its own test, its folder, the rest."""
    package, stem = Path(file).parts[1], Path(file).stem
    names = NEAR.get(f"{package}/{stem}.py", [stem])
    own = [f"tests/{package}/test_{name}.py" for name in names]
    first = [[path for path in own if (ROOT / path).exists()]]
    first = [paths for paths in first if paths]
    return [*first, [f"tests/{package}"], [path for path in MORE[package] if (ROOT / path).exists()]]


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from mutated source."""

    def __init__(self, mutant: Mutant):
        self.path = str(ROOT / mutant.file)
        parts = Path(mutant.file).with_suffix("").parts
        self.module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.source = mutant.source

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


def run(mutant: Mutant) -> str:
    """ "killed", "timeout" or "survived"."""
    for paths in stages(mutant.file):
        outcome = _fork(mutant, paths)
        if outcome != "survived":
            return outcome
    return "survived"


def _fork(mutant: Mutant, paths: list[str]) -> str:
    child = os.fork()
    if child == 0:
        _child(mutant, paths)
    deadline = time.monotonic() + HANGS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", -signal.SIGKILL: "timeout", -signal.SIGXCPU: "timeout"}.get(code, "killed")
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _child(mutant: Mutant, paths: list[str]) -> None:
    """Runs the tests and ends the process; a mutant that cannot even be imported counts as killed."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        import pytest

        sys.meta_path.insert(0, Planted(mutant))
        options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # torch and others came in before pytest
        code = int(pytest.main([*options, *paths]))
    finally:
        os._exit(code)


def explained() -> list[dict[str, str]]:
    return tomllib.loads(EXPLAINED.read_text()).get("mutant", []) if EXPLAINED.exists() else []


def explains(entry: dict[str, str], mutant: Mutant) -> bool:
    return all(entry[key] == getattr(mutant, key) for key in ("file", "line", "change"))


def unharmed(file: str) -> bool:
    """Whether a file that nobody changed passes: if not, every mutant would seem to be killed."""
    return run(Mutant(file, 1, "", "nothing", (ROOT / file).read_text())) == "survived"


def preload() -> None:
    """What every child would import anyway, the package itself excepted."""
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import transformers  # noqa: F401

    os.environ["VANTAGE_HYPOTHESIS"] = "mutation"
    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="source files; default: all of position/, attention/ and cache/")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print every mutant with its outcome")
    args = parser.parse_args()
    os.chdir(ROOT)
    files = [ROOT / f for f in args.files] or [
        f for target in TARGETS for f in sorted((ROOT / "vantage" / target).glob("*.py"))
    ]
    todo = [mutant for file in files for mutant in mutants(file, ROOT)]
    preload()
    canaries = sorted({mutant.file for mutant in {Path(m.file).parts[1]: m for m in todo}.values()})
    if sick := [file for file in canaries if not unharmed(file)]:
        print(f"the tests fail without any mutant, first for {sick[0]}: mend that before", file=sys.stderr)
        return 2
    entries, outcomes, survivors, used = explained(), Counter[str](), [], set()
    started = time.monotonic()
    with ThreadPoolExecutor(args.workers) as pool:
        jobs = {pool.submit(run, mutant): mutant for mutant in todo}
        for done, job in enumerate(as_completed(jobs), 1):
            mutant, outcome = jobs[job], job.result()
            reasons = [i for i, entry in enumerate(entries) if explains(entry, mutant)]
            if outcome == "survived" and reasons:
                outcome = "explained"
                used.update(reasons)
            outcomes[outcome] += 1
            if outcome == "survived":
                survivors.append(mutant)
            if args.show or outcome == "survived":
                print(f"{outcome:9s} {mutant.name}", flush=True)
            if done % 100 == 0:
                print(f"{done} of {len(todo)} after {time.monotonic() - started:.0f} s: {dict(outcomes)}", flush=True)
    print(f"{len(todo)} mutants in {time.monotonic() - started:.0f} s: {dict(outcomes)}")
    if sick := [file for file in canaries if not unharmed(file)]:
        print(f"the tests of {sick[0]} have begun to fail by themselves: these results mean nothing", file=sys.stderr)
        return 2
    here = {str(f.relative_to(ROOT)) for f in files}
    stale = [e for i, e in enumerate(entries) if i not in used and e["file"] in here]
    for entry in stale:
        print(f"explains nothing: {entry['file']}: {entry['change']}: {entry['line']}")
    return 1 if survivors or stale else 0


if __name__ == "__main__":
    sys.exit(main())
