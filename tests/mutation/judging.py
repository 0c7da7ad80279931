"""How one mutant is judged: by which tests, in which process, and when a failing test counts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutation.collected import exchangeable
from tests.mutation.fork_server import ForkServer
from tests.mutation.judged import Outcome
from tests.mutation.mutants import Mutant

SECONDS = 200  # of processor time, so that a busy machine kills nobody
SURVIVED = Outcome("survived")
NOT_EXCHANGED = Outcome("not exchanged")


class Judge:
    """Runs mutants against tests: where its code can be exchanged among collected tests, else from a fresh import.

    A test that fails has killed a mutant if it passes in the same process without one; else it is left out there.
    """

    def __init__(self, root: Path, fresh: ForkServer, collected: ForkServer):
        self._root, self._fresh, self._collected = root, fresh, collected
        self._passes: dict[tuple[ForkServer, str], bool] = {}

    def judge(self, mutant: Mutant, stages: Sequence[Sequence[str]], again: int | None = None) -> Outcome:
        """Against these tests, stage by stage.

        What lives among collected tests meets the first ``again`` stages, or all, once more from a fresh import:
        something may have been worked out while tests were collected.
        """
        if exchangeable(mutant, self._root):
            everything = list(dict.fromkeys(test for stage in stages for test in stage))
            outcome = self.run(self._collected, mutant, everything)
            if outcome.by is not None:
                return outcome
            if outcome is not NOT_EXCHANGED:
                stages = stages[:again]
        for stage in stages:
            outcome = self.run(self._fresh, mutant, stage)
            if outcome.by is not None:
                return outcome
        return SURVIVED

    def run(self, server: ForkServer, mutant: Mutant | None, tests: Sequence[str]) -> Outcome:
        """In one of the two processes. Nothing but a failure that a mutant is guilty of ends it early."""
        while tests:
            outcome = self._ask(server, mutant, tests)
            if mutant is None or outcome.by is None or self._passes_unchanged(server, outcome.by):
                return outcome
            tests = [test for test in tests if test != outcome.by]
        return SURVIVED

    def _ask(self, server: ForkServer, mutant: Mutant | None, tests: Sequence[str]) -> Outcome:
        answer = server.ask({"mutant": None if mutant is None else asdict(mutant), "tests": list(tests)}, SECONDS)
        if answer.content is None:
            return Outcome("died", answer.last or tests[0])
        if answer.content.get("exchanged") is False:
            return NOT_EXCHANGED
        by = answer.content["failed"]
        return SURVIVED if by is None else Outcome("killed", by)

    def _passes_unchanged(self, server: ForkServer, test: str) -> bool:
        if (server, test) not in self._passes:
            passes = self.run(server, None, [test]) is SURVIVED
            if not passes:
                where = "among collected tests" if server is self._collected else "from a fresh import"
                print(f"left out {where}, where it fails without a mutant: {test}", file=sys.stderr, flush=True)
            self._passes[server, test] = passes
        return self._passes[server, test]
