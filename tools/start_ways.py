"""Runs tests in every way in which people start them: on a terminal, in the background of a script, under nohup, and
without a terminal, with standard input closed.

    python tools/start_ways.py                     the tests that start processes and send signals
    python tools/start_ways.py make test           all of them, four times
    python tools/start_ways.py --ways nohup -- .venv/bin/pytest tests/cli/test_chat.py

What a way changes is what a process inherits: which signals it ignores, and whether it has a terminal.
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/cli/test_interrupts.py",
    "tests/cli/test_chat.py",
    "tests/cli/test_studio.py",
    "tests/cli/test_compare.py",
    "tests/compare/test_run.py",
    "tests/faults/test_training.py",
    "tests/serve/test_faults.py",
    "tests/serve/test_studio_compare.py",
    "tests/browser/test_shell.py",
    "tests/studies/test_exercises_safety.py",
)
COMMAND = (str(ROOT / ".venv/bin/pytest"), "-q", "-n", "2", "--dist", "worksteal", "-m", "not slow", *TESTS)


def on_a_terminal(command: list[str]) -> int:
    return os.waitstatus_to_exitcode(pty.spawn(command))


def in_the_background(command: list[str]) -> int:
    """A shell that is not interactive starts it with SIGINT and SIGQUIT ignored, and without its own input."""
    return subprocess.run(["sh", "-c", '"$@" & wait $!', "sh", *command], check=False).returncode


def under_nohup(command: list[str]) -> int:
    """SIGHUP is ignored, and with ``&`` the others are too: `nohup make test &` in a script."""
    background = ["sh", "-c", 'nohup "$@" & wait $!', "sh", *command]
    done = subprocess.run(background, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)  # not to a terminal at once: nohup would write it into a file
    return done.returncode


def without_a_terminal(command: list[str]) -> int:
    """A session of its own, as cron and many CI runners give it, with standard input closed."""
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    return subprocess.run(closed, start_new_session=True, check=False).returncode


WAYS = {
    "terminal": on_a_terminal,
    "background": in_the_background,
    "nohup": under_nohup,
    "no-terminal": without_a_terminal,
}


def main() -> int:
    about, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(prog="tools/start_ways.py", description=about)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all of them")
    parser.add_argument("command", nargs="*", default=list(COMMAND), help="default: pytest on the tests with processes")
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as make test does
    outcomes: dict[str, str] = {}
    for way in args.ways:
        began = time.monotonic()
        code = WAYS[way](args.command)
        outcomes[way] = f"{'passed' if code == 0 else f'failed with {code}'} in {time.monotonic() - began:.0f} s"
    for way, outcome in outcomes.items():
        print(f"{way:12} {outcome}", file=sys.stderr)
    return 0 if all(outcome.startswith("passed") for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
