"""The mutation run: every mutant of position/, attention/ and cache/ must fail a test, or be explained.

    python -m tests.mutation                          what has changed since it was judged
    python -m tests.mutation --all                    everything
    python -m tests.mutation vantage/cache/ring.py    these files, --show for every mutant
    python -m tests.mutation --seconds 500            no longer than that; what is left comes the next time

What was judged before is kept in judged.json (judged.py), with the test that killed each mutant. In a changed file a
mutant meets that test first, or the file's commonest ones. For what lives then, all tests run once without any mutant,
and what each of them runs is recorded (recording.py). A mutant meets the tests that run its line: those of the test
files that know its file best, then the quickest of the others. It meets them in a process forked from one that has
collected them (collected.py), or from a fresh import (fresh.py).

A survivor must stand in explained.toml with the reason why it changes nothing that a caller could see; an explanation
that explains nothing fails as well. A mutant that is explained meets only the tests that killed others of its file, to
see whether the explanation still holds; --doubt runs it against all.

Exit codes: 0 all is well, 1 survivors or idle explanations, 2 tests fail without any mutant, 3 out of time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import chain
from pathlib import Path

from tests.mutation.collected import collect
from tests.mutation.covering import Covering
from tests.mutation.fork_server import TEMPORARY, ForkServer, OutOfTime
from tests.mutation.fresh import preload, serve_fresh
from tests.mutation.judged import Judged, Killers, Outcome, short_name
from tests.mutation.judging import Judge
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.recording import Part, record

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("explained.toml")
JUDGED = Path(__file__).with_name("judged.json")
TARGETS = ("position", "attention", "cache")
OPTIONS = ["-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # torch and others came in before pytest
GUESSES = 8  # tests that killed most in its file, which a mutant meets first where nothing is known of it
FOR_EXPLAINED = 40  # of them, for a mutant that none should kill
QUICK = 1.0  # seconds of a test that is tried first
RECORDING = 3600  # seconds of processor time for the tests of a file
WELL, OPEN, BROKEN, UNFINISHED = range(4)  # exit codes

# Where tests of these parts are, besides those of the kernels, families and the engine. What a part costs is tested in
# inspect, its bounds where specs are read.
MATRIX = "tests/conformance/test_matrix.py"
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
PROCESSES = {MATRIX: 12}  # that record a file together, where one would take longer than all the others


def parts() -> list[Part]:
    """What is recorded, each in a process of its own."""
    paths = [ROOT / path for path in TESTS]
    found = [f for path in paths for f in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    files = [str(file.relative_to(ROOT)) for file in found]
    return [Part(file, i, PROCESSES.get(file, 1)) for file in files for i in range(PROCESSES.get(file, 1))]


def source_files() -> list[str]:
    found = [f for target in TARGETS for f in sorted((ROOT / "vantage" / target).rglob("*.py"))]
    return [str(file.relative_to(ROOT)) for file in found if file.parent.name != "gpu"]


def explained() -> list[dict[str, str]]:
    return tomllib.loads(EXPLAINED.read_text()).get("mutant", []) if EXPLAINED.exists() else []


def explains(entry: dict[str, str], mutant: Mutant) -> bool:
    return all(entry[key] == getattr(mutant, key) for key in ("file", "line", "change"))


class Run:
    """The mutants of some files: how each ended, what is left, and files that are done written down."""

    def __init__(self, files: Sequence[str], judged: Judged, entries: Sequence[dict[str, str]], show: bool):
        self.judged, self._entries, self._show = judged, entries, show
        self._mutants = {file: sorted(mutants(ROOT / file, ROOT), key=self.is_explained) for file in files}
        self._found: dict[str, dict[Mutant, Outcome]] = defaultdict(dict)
        self.killers = {file: judged.killers(file) for file in files}
        self.counted, self.open = Counter[str](), 0

    @property
    def left(self) -> list[Mutant]:
        """Not judged yet, file by file; those that are explained come last, when tests are known that kill others."""
        return [m for file, those in self._mutants.items() for m in those if m not in self._found[file]]

    def is_explained(self, mutant: Mutant) -> bool:
        return any(explains(entry, mutant) for entry in self._entries)

    def settle(self, mutant: Mutant, outcome: Outcome) -> None:
        if outcome.how == "survived" and self.is_explained(mutant):
            outcome = Outcome("explained")
        file, found = mutant.file, self._found[mutant.file]
        found[mutant] = outcome
        self.counted[outcome.how] += 1
        if outcome.by is not None:
            self.killers[file].add(short_name(mutant), outcome.by)
        if self._show or outcome.how == "survived":
            print(f"{outcome.how:9s} {mutant.name}" + (f"\n      {outcome.by}" if outcome.by else ""), flush=True)
        if len(found) == len(self._mutants[file]):
            self.finish(file)

    def finish(self, file: str) -> None:
        """Write down a file of which nothing is left."""
        found = {mutant: self._found[file][mutant] for mutant in self._mutants[file]}
        survived = [m for m, outcome in found.items() if outcome.how == "survived"]
        alive = [m for m, outcome in found.items() if outcome.how in ("explained", "survived")]
        idle = [e for e in self._entries if e["file"] == file and not any(explains(e, mutant) for mutant in alive)]
        for entry in idle:
            print(f"explains nothing: {file}: {entry['change']}: {entry['line']}", flush=True)
        open_ends = [f"survived: {mutant.number}: {mutant.change}: {mutant.line}" for mutant in survived]
        open_ends += [f"explains nothing: {entry['change']}: {entry['line']}" for entry in idle]
        self.open += len(open_ends)
        self.judged.keep(file, found, open_ends)
        print(f"judged {file}: {dict(Counter(outcome.how for outcome in found.values()))}", flush=True)

    def finish_empty(self) -> None:
        for file, those in self._mutants.items():
            if not those:
                self.finish(file)

    def keep_begun(self) -> None:
        """Of files that are not done, keep the tests that killed: they are hints."""
        for file, found in self._found.items():
            if 0 < len(found) < len(self._mutants[file]):
                self.judged.keep_begun(file, found)


def judge_all(run: Run, todo: Sequence[Mutant], judge: Callable[[Mutant], Outcome | None], workers: int) -> None:
    """In so many threads, each waiting for a process. What gets no outcome is left."""
    begun = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(judge, mutant): mutant for mutant in todo}
        try:
            for done, job in enumerate(as_completed(jobs), 1):
                if (outcome := job.result()) is not None:
                    run.settle(jobs[job], outcome)
                if done % 200 == 0:
                    passed = time.monotonic() - begun
                    print(f"{done} of {len(todo)} mutants after {passed:.0f} s: {dict(run.counted)}", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def guess(run: Run, fresh: ForkServer, args: argparse.Namespace, deadline: float | None) -> None:
    """Judge by the tests that killed before, where there are any: nothing need be recorded for that."""
    guesses = {m: tests for m in run.left if (tests := _guesses(run, m, args.doubt))}
    files = sorted({test.partition("::")[0] for tests in guesses.values() for test in tests})
    files = [file for file in files if (ROOT / file).exists()]
    if not files:
        return
    print(f"{len(guesses)} mutants meet tests that killed them or others of their file before", flush=True)
    with ForkServer(partial(collect, ROOT, files, OPTIONS), deadline) as collected:
        judge = Judge(ROOT, fresh, collected)

        def one(mutant: Mutant) -> Outcome | None:
            outcome = judge.judge(mutant, [guesses[mutant]], again=0)
            return outcome if outcome.by is not None or run.is_explained(mutant) else None

        judge_all(run, list(guesses), one, args.workers)


def _guesses(run: Run, mutant: Mutant, doubt: bool) -> list[str]:
    """An explained mutant meets what killed others of its file, unless explanations are doubted."""
    known: Killers = run.killers[mutant.file]
    others = known if run.judged.ended(mutant.file) else Killers()
    if run.is_explained(mutant):
        return [] if doubt else others.commonest(FOR_EXPLAINED)
    return known.hints(mutant) or others.commonest(GUESSES)


def search(run: Run, covering: Covering, fresh: ForkServer, args: argparse.Namespace, deadline: float | None) -> None:
    """Judge what is left by the tests that run its line."""
    todo = run.left
    stages = {mutant: covering.stages(mutant, ROOT) for mutant in todo}
    seconds = dict(zip(covering.tests, covering.seconds, strict=True))
    files = sorted({test.partition("::")[0] for tests in chain(*stages.values()) for test in tests})
    print(f"{len(todo)} mutants meet the tests that run their lines, of {len(files)} files", flush=True)
    with ForkServer(partial(collect, ROOT, files, OPTIONS), deadline) as collected:
        judge = Judge(ROOT, fresh, collected)

        def one(mutant: Mutant) -> Outcome:
            its_own = {test for test in chain(*stages[mutant]) if seconds[test] < QUICK}
            killers = [test for test in run.killers[mutant.file].commonest() if test in its_own]
            if run.is_explained(mutant) and not args.doubt:
                return judge.judge(mutant, [killers[:FOR_EXPLAINED]], again=0)
            return judge.judge(mutant, [killers[:GUESSES], *stages[mutant]], again=2)  # not the farthest again

        judge_all(run, todo, one, args.workers)


def judge_files(run: Run, args: argparse.Namespace, deadline: float | None) -> int:
    """Exit code of judging all that is left."""
    run.finish_empty()
    preload()
    with ForkServer(partial(serve_fresh, ROOT, TARGETS, OPTIONS), deadline) as fresh:
        guess(run, fresh, args, deadline)
        if not run.left:
            return OPEN if run.open else WELL

        def record_one(part: Part) -> None:
            fresh.ask({"record": part}, RECORDING)

        covering, failed = record(ROOT, parts(), record_one, args.workers, leave_out_failing=args.leave_out_failing)
        for test in failed:
            print(f"fails without any mutant: {test}", file=sys.stderr)
        if failed and not args.leave_out_failing:
            print(f"{len(failed)} tests fail without any mutant: mend them first", file=sys.stderr)
            return BROKEN
        search(run, covering, fresh, args, deadline)
    return OPEN if run.open else WELL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument(
        "files", nargs="*", help="source files; default: those that have changed since they were judged"
    )
    parser.add_argument("--all", action="store_true", help="judge every file again")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="stop after so long, and keep the files that are done")
    parser.add_argument("--show", action="store_true", help="print every mutant with its outcome")
    parser.add_argument("--doubt", action="store_true", help="run explained mutants against all tests too")
    parser.add_argument("--leave-out-failing", action="store_true", help="go on without tests that fail by themselves")
    parser.add_argument("--merge", type=Path, metavar="JSON", help="take over what another judged.json has, and end")
    args = parser.parse_args()
    os.chdir(ROOT)
    entries = explained()
    judged = Judged(ROOT, JUDGED, entries)
    if args.merge is not None:
        print(f"{len(judged.merge(args.merge))} files taken over from {args.merge}")
        return WELL
    files = [str((ROOT / file).relative_to(ROOT)) for file in args.files] or source_files()
    standing = [] if args.all or args.files else [file for file in files if judged.stands(file)]
    todo = sorted((file for file in files if file not in standing), key=lambda file: len(judged.open_ends(file)) > 0)
    print(
        f"{len(standing)} files stand as judged before {dict(judged.counts(standing))}, {len(todo)} to judge",
        flush=True,
    )
    if not todo:
        return WELL
    begun = time.monotonic()
    run = Run(todo, judged, entries, args.show)
    number = len(run.left)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.environ[TEMPORARY] = folder
            code = judge_files(run, args, None if args.seconds is None else begun + args.seconds)
    except OutOfTime:
        code = UNFINISHED
    passed = time.monotonic() - begun
    print(f"{number - len(run.left)} of {number} mutants in {passed:.0f} s: {dict(run.counted)}")
    if code == UNFINISHED:
        run.keep_begun()
        open_files = {mutant.file for mutant in run.left}
        print(f"out of time: {len(open_files)} files are not judged to their end; run it again", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
