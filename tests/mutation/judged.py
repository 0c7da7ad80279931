"""What was judged before, kept in judged.json: of each source file how its mutants ended, and which test killed which.

A file stands as judged while it, the operators that make its mutants, its explanations and every test file that killed
one of its mutants are what they were, and nothing was left open. What else might matter (another source file, helpers
of tests) is not watched: ``--all`` judges everything again. judged.json may come from another machine; its digests say
what of it holds here.

The tests that killed a file's mutants are hints as well: after a change they run first, and most mutants meet no other.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutation.mutants import Mutant
from tests.mutation.recording import digest

OPERATORS = Path(__file__).with_name("mutants.py")


class Outcome(NamedTuple):
    """How a mutant ended."""

    how: str  # "killed" (a test failed), "died" (a crash, or out of time), "explained" or "survived"
    by: str | None = None  # the test it died of


class Killers:
    """Of one source file: which test killed which mutant, now or before."""

    def __init__(self) -> None:
        self._by_mutant: dict[str, list[str]] = defaultdict(list)
        self._by_test = Counter[str]()

    def add(self, key: str, test: str) -> None:
        if test not in self._by_mutant[key]:
            self._by_mutant[key].append(test)
            self._by_test[test] += 1

    def hints(self, mutant: Mutant) -> list[str]:
        """What killed this mutant, or those of the same words, before."""
        return list(self._by_mutant.get(short_name(mutant), []))

    def commonest(self, number: int | None = None) -> list[str]:
        """The tests that killed most, all or so many."""
        counted = list(self._by_test.items())  # at once: another thread may be adding to it
        return [test for test, _ in sorted(counted, key=lambda pair: -pair[1])][:number]


def short_name(mutant: Mutant) -> str:
    """Of a mutant in its file, wherever its line moves."""
    return hashlib.sha256(f"{mutant.change}: {mutant.line}".encode()).hexdigest()[:6]


class Judged:
    """judged.json, read and written."""

    def __init__(self, root: Path, path: Path, explained: Sequence[Mapping[str, str]]):
        self._root, self._path, self._explained = root, path, explained
        self._files: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def digest(self, file: str) -> str:
        """Of what the mutants of a source file are made from, and of which of them are explained."""
        words = sorted([entry["line"], entry["change"]] for entry in self._explained if entry["file"] == file)
        made_from = [digest(self._root / file), digest(OPERATORS), words]
        return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]

    def stands(self, file: str) -> bool:
        entry = self._files.get(file)
        if entry is None or entry["digest"] != self.digest(file) or entry["open"]:
            return False
        return all(digest(self._root / test) == old for test, old in entry["tests"].items())

    def ended(self, file: str) -> bool:
        """Whether it was judged to its end before, as it was then."""
        return file in self._files and self._files[file]["digest"] != ""

    def open_ends(self, file: str) -> list[str]:
        """Mutants that survived when the file was judged last, and explanations that explained nothing."""
        return self._files.get(file, {}).get("open", [])

    def counts(self, files: Sequence[str]) -> Counter[str]:
        """How the mutants of these files ended, together."""
        total = Counter[str]()
        for file in files:
            entry = self._files[file]
            total.update(killed=entry["killed"], explained=entry["explained"], open=len(entry["open"]))
        return total

    def killers(self, file: str) -> Killers:
        known = Killers()
        for test_file, tests in self._files.get(file, {}).get("killers", {}).items():
            for test, names in tests.items():
                for name in names.split():
                    known.add(name, f"{test_file}::{test}")
        return known

    def keep(self, file: str, found: Mapping[Mutant, Outcome], open_ends: Sequence[str]) -> None:
        """Write down how all the mutants of a file ended, and what is left to be done about it."""
        self._keep(file, self.digest(file), found, open_ends)

    def keep_begun(self, file: str, found: Mapping[Mutant, Outcome]) -> None:
        """Of a file that was not judged to its end, the tests that killed, unless some are known already."""
        if file not in self._files:
            self._keep(file, "", found, [])

    def _keep(self, file: str, digest_then: str, found: Mapping[Mutant, Outcome], open_ends: Sequence[str]) -> None:
        killers: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for mutant, outcome in found.items():
            if outcome.by is not None:
                test_file, _, test = outcome.by.partition("::")
                killers[test_file][test].append(short_name(mutant))
        self._files[file] = {
            "digest": digest_then,
            "killed": sum(outcome.how in ("killed", "died") for outcome in found.values()),
            "explained": sum(outcome.how == "explained" for outcome in found.values()),
            "open": list(open_ends),
            "tests": {test_file: digest(self._root / test_file) for test_file in sorted(killers)},
            "killers": {
                test_file: {test: " ".join(sorted(set(names))) for test, names in sorted(tests.items())}
                for test_file, tests in sorted(killers.items())
            },
        }
        self._write()

    def merge(self, other: Path) -> list[str]:
        """Take over what another machine has judged, where it holds here or nothing is known here; those files."""
        theirs = Judged(self._root, other, self._explained)
        taken = [file for file in theirs._files if theirs.stands(file) or file not in self._files]
        self._files |= {file: theirs._files[file] for file in taken}
        self._write()
        return taken

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._files, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
        new.replace(self._path)
