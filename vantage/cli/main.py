"""``vantage``: reads the verb and hands over to its file."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from vantage import __version__
from vantage.cli.interrupts import listen_on_a_terminal
from vantage.errors import VantageError

# A verb is a module here with `add(subparsers)`, which describes it, and `run(args) -> int`, which does it.
VERBS = (
    "chat",
    "check",
    "compare",
    "convert",
    "generate",
    "inspect",
    "pull",
    "serve",
    "studio",
    "study",
    "train",
)

EXAMPLE = """\
examples:
  vantage studio                                    # the studio, in the browser
  vantage chat                                      # chat with smollm2 (downloads 93 MB the first time)
  vantage generate "The capital of France is"
  vantage train copy --out runs/copy                # a recipe; `vantage train --list` shows all
  vantage check --filter rope

`vantage COMMAND --help` describes a command and shows examples.
"""


PARTS = "a Python file or module that registers your own parts (vantage.register); repeatable"


class Parser(argparse.ArgumentParser):
    """One clear line for bad input: argparse alone puts the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"vantage: {_one_line(message)} (see `{self.prog} --help`)\n")


def make_parser() -> Parser:
    parser = Parser(
        prog="vantage",
        description="Transformers with interchangeable attention, position encoding and cache.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"vantage {__version__}", help="print the version and exit"
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True, title="commands")
    for verb in VERBS:
        importlib.import_module(f"vantage.cli.{verb}").add(subparsers)
    for name, inner in {"parts": parser, **{f"{verb}_parts": one for verb, one in subparsers.choices.items()}}.items():
        inner.add_argument("--parts", dest=name, action="append", default=[], metavar="FILE", help=PARTS)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments. Words that come after an option belong to the list that the verb's ``rest`` names, if any."""
    parser = make_parser()
    args, left = parser.parse_known_args(argv)
    rest: str = vars(args).get("rest", "")
    if left and (not rest or any(word.startswith("-") for word in left)):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        vars(args)[rest].extend(left)  # argparse ends a list of words at the first option
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all is well, 1 the answer is no, 2 the question was wrong. Without ``argv`` it is the program."""
    if argv is not None:
        return _run(argv)
    codes: list[int] = []
    atexit.register(_end_at_once, codes)  # before anything else is: so it comes after all that
    codes.append(_run(None))
    return codes[0]


def _end_at_once(codes: Sequence[int]) -> None:
    """Everything has been said and every handler for the end has run. Python would now take apart what torch has built,
    object by object, which is half a second of processor time, and minutes on a machine that is busy."""
    if codes:  # otherwise it ends with an error of its own
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


def _run(argv: Sequence[str] | None) -> int:
    _fill_closed_streams()
    listen_on_a_terminal()
    args = parse(argv)
    try:
        _use_parts([*args.parts, *vars(args).get(f"{args.verb}_parts", [])])
        return args.run(args)
    except VantageError as error:
        print(f"vantage: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone, as in `vantage check | head`. Nobody is left to tell, and
        # Python would complain once more when it flushes at exit, so it gets somewhere else to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell reports for a closed pipe
    except OSError as error:
        if error.strerror is None:  # not the system's: a fault of ours, and where it is should be seen
            raise
        where = "" if error.filename is None else f": {error.filename}"
        print(f"vantage: {_one_line(error.strerror + where)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # what a shell reports for an interrupt


def _fill_closed_streams() -> None:
    """A process may be started with its standard streams closed. Then nothing is read, and what is written is lost; a
    file that is opened later must not come by the number of one of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 as long as the process runs


def _use_parts(sources: Sequence[str]) -> None:
    """Register what these files and modules hold, here and in all processes that are started from here."""
    if sources:
        from vantage.spec.plugins import use_parts  # not before it is wanted: it needs no torch, but parts do

        for source in sources:
            use_parts(source)


def _one_line(text: str) -> str:
    return " ".join(text.split())
