"""Grading: run the answer in its own process, put it to the checks on this side, and say what came of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from pathlib import Path

from vantage.errors import BadInput, did_you_mean, unknown
from vantage.files import GIB
from vantage.studies.exercises.exercise import Check, Exercise, Grade
from vantage.studies.exercises.registry import FIRST_LINE, exercises
from vantage.studies.sandbox import CLOSED_CONNECTION, CodeFailed, CodeSandbox, ProcessEnded, SandboxProcess

MOST_BYTES = 256 * 1024  # of an answer
# What a comparison may raise when it is handed a value of an unexpected kind: no reason to stop grading.
INCOMPARABLE = (TypeError, ValueError, AttributeError, RuntimeError, LookupError, ArithmeticError)
INCOMPARABLE_WORDS = "what came back is of a kind that cannot be compared with the result"


def grade(source: str | Path, *, tag: str | None = None, seconds: float = 20.0, memory: int = 4 * GIB) -> Grade:
    """Grade one answer: the text of it, or the path of a file.

    ``tag`` is needed only where the first line does not name the exercise. ``seconds`` bounds what the answer takes
    beside loading torch, ``memory`` what it may allocate.
    """
    return next(iter(grade_many([source], tag=tag, seconds=seconds, memory=memory)))


def grade_many(
    sources: Iterable[str | Path], *, tag: str | None = None, seconds: float = 20.0, memory: int = 4 * GIB
) -> list[Grade]:
    """Grade many, each in a process of its own; torch is loaded once for all."""
    if not 0 < seconds <= 3600:
        raise BadInput(f"seconds={seconds}: use more than 0 and at most 3600")
    if memory < 2**20:
        raise BadInput(f"memory={memory}: these are bytes, use at least 2**20")
    submissions = [_submission(source, tag) for source in sources]
    if all(text is None for _, text, _ in submissions):
        return [_too_long(exercise) for exercise, _, _ in submissions]
    with CodeSandbox() as sandbox:
        return [
            _too_long(exercise) if text is None else grade_in(sandbox, exercise, text, name, seconds, memory)
            for exercise, text, name in submissions
        ]


def _submission(source: str | Path, tag: str | None) -> tuple[Exercise, str | None, str]:
    """The exercise, the text (None: too long) and the name it is shown by."""
    if isinstance(source, Path):
        try:
            with source.open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise BadInput(f"{source} cannot be read ({error.strerror}): give the path of your answer") from error
        name = re.sub(r"[^\w.-]", "_", source.name)[:80]
    else:
        raw, name = source.encode(errors="surrogatepass"), "answer.py"
    text = raw.decode(errors="replace")
    return _exercise(text, tag, name), text if len(raw) <= MOST_BYTES else None, name


def _exercise(text: str, tag: str | None, name: str) -> Exercise:
    known = exercises()
    line = text.partition("\n")[0]
    match = FIRST_LINE.match(line)
    named = None if match is None else _spelt(match[1])
    if tag is not None and named is not None and _spelt(tag) != named:
        raise BadInput(f"{name} says it is exercise {named}, and {tag} was asked for: which is it?")
    wanted = _spelt(tag) if tag is not None else named
    if wanted is None:
        raise BadInput(
            f"the first line of {name} names no exercise: {line[:60]!r}. Start it with a line such as "
            f"'# vantage exercise P10', or say which it is"
        )
    if wanted not in known:
        raise BadInput(unknown("exercise", wanted, known))
    return known[wanted]


def _spelt(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _too_long(exercise: Exercise) -> Grade:
    words = f"the file has more than {MOST_BYTES // 1024} kB; an answer has a few lines. Nothing of it was run"
    return Grade(exercise.tag, False, (Check("the file can be read", False, words),))


def grade_in(
    sandbox: CodeSandbox,
    exercise: Exercise,
    text: str,
    name: str = "answer.py",
    seconds: float = 20.0,
    memory: int = 4 * GIB,
    without: tuple[str, ...] = (),
) -> Grade:
    """Grade in a sandbox that is open already. ``without``: restrictions to leave out, for tests of the others."""
    with sandbox.process(name, seconds=seconds, memory=memory, without=without) as process:
        checks, ended = _checks(process, exercise, text)
    if ended is not None:
        check_name, reason = ended
        words = _describe_end(reason, process, seconds, memory)
        checks.append(Check(check_name, False, words))
        rest = [what for what, _ in exercise.checks if what not in {check.name for check in checks}]
        checks += [Check(what, False, "not looked at, because the process had ended") for what in rest]
    passed = bool(checks) and all(check.passed for check in checks)
    return Grade(exercise.tag, passed, tuple(checks), process.output, process.restrictions)


def _checks(process: SandboxProcess, exercise: Exercise, text: str) -> tuple[list[Check], tuple[str, str] | None]:
    """All checks, and if the process ended: in which, and why."""
    check_name, checks = "the file runs", []
    try:
        try:
            names, functions = process.run_file(text)
        except CodeFailed as error:
            return [Check(check_name, False, _describe_error(error.details))], None
        checks.append(Check(check_name, True))
        missing = _missing(exercise, names, functions)
        if missing is not None:
            return [*checks, missing], None
        messages: set[str] = set()
        for check_name, probe in exercise.checks:
            try:
                words = probe(process)
            except CodeFailed as error:
                words = _describe_error(error.details)
                if error.details["kind"] == "unwritten":
                    return [*checks, Check(check_name, False, words)], None
            except INCOMPARABLE as error:
                words = f"{INCOMPARABLE_WORDS} ({type(error).__name__}: {str(error)[:200]})"
            if words is not None and words in messages:
                words = "the same as above"
            messages.add(words or "")
            checks.append(Check(check_name, words is None, words or ""))
    except ProcessEnded as error:
        return checks, (check_name, error.reason)
    if process.changed:
        names = ", ".join(sorted(set(process.changed)))
        words = f"{names} changes its argument in place: whoever called it still needs it. Make a new tensor instead"
        checks.append(Check("the arguments stay as they are", False, words))
    return checks, None


def _missing(exercise: Exercise, names: list[str], functions: list[str]) -> Check | None:
    defined = names if exercise.numbers else functions
    for wanted in exercise.names:
        if wanted in defined:
            continue
        what = f"{wanted} is there"
        if wanted in names:
            return Check(what, False, f"{wanted} is no function: define it with def {wanted}(…)")
        kind = "value" if exercise.numbers else "function"
        return Check(what, False, f"the file defines no {kind} named {wanted}.{did_you_mean(wanted, names)}")
    return None


ERROR_WORDS = {
    "syntax": "Python cannot read the file: {text}",
    "exit": "the code ends the program (sys.exit or exit()). Return the result instead",
    "memory": "it asked for more memory than an answer may have. Does a size grow by mistake? ({text})",
    "input": "it reads standard input, which is empty here. Take what you need from the arguments",
    "refused": "{text}",
    "value": "what it returns cannot be sent back: {text}",
    "unwritten": "it is not written yet: replace the line with raise NotImplementedError",
    "recursion": "a function calls itself without end (RecursionError)",
    "error": "it raises {type}: {text}",
}


def _describe_error(details: dict[str, str]) -> str:
    words = ERROR_WORDS.get(details["kind"], ERROR_WORDS["error"]).format(text=details["text"], type=details["type"])
    return f"{words}\n{details['where']}" if details["where"] else words


def _describe_end(reason: str, process: SandboxProcess, seconds: float, memory: int) -> str:
    status = process.status
    if (
        reason == "timeout"
        or status == -signal.SIGXCPU
        or (status == -signal.SIGKILL and process.cpu_seconds >= seconds)
    ):
        return f"it did not finish within {seconds:g} seconds and was stopped. Is there a loop that never ends?"
    if reason == "protocol":
        return "what came back from the process is no answer to what it was asked"
    if process.alive or status == CLOSED_CONNECTION:  # the first: whatever its status says, we ended it
        return "the code closed the connection over which it is asked, and was stopped. Close only what you opened"
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        more = f": it may have needed more than {memory / GIB:.1f} GiB" if status == -signal.SIGKILL else ""
        return f"the process died of {name}{more}"
    return f"the code ended its own process (exit code {status}). Return the result instead"
