"""Grading: run the answer in its own process, put it to the checks on this side, and say what came of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from vantage.errors import BadInput
from vantage.studies.exercises.exercise import Check, Exercise, Grade
from vantage.studies.exercises.inside.child import HUNG_UP
from vantage.studies.exercises.registry import exercises
from vantage.studies.exercises.room import Ended, Failed, Room, Sitting

LONGEST = 256 * 1024  # bytes of an answer
GIB = 2**30
# What a comparison may raise when it is handed a value of an unexpected kind: no reason to stop grading.
STRANGE = (TypeError, ValueError, AttributeError, RuntimeError, LookupError, ArithmeticError)
STRANGE_WORDS = "what came back is of a kind that cannot be compared with the result"
FIRST_LINE = re.compile(r"^\ufeff?#\s*vantage exercise\s+([A-Za-z]\d+(?:-[a-z0-9]+)?)\b")


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
    papers = [_paper(source, tag) for source in sources]
    if all(text is None for _, text, _ in papers):
        return [_too_long(exercise) for exercise, _, _ in papers]
    with Room() as room:
        return [
            _too_long(exercise) if text is None else grade_in(room, exercise, text, name, seconds, memory)
            for exercise, text, name in papers
        ]


def _paper(source: str | Path, tag: str | None) -> tuple[Exercise, str | None, str]:
    """The exercise, the text (None: too long) and the name it is shown by."""
    if isinstance(source, Path):
        try:
            with source.open("rb") as file:
                raw = file.read(LONGEST + 1)
        except OSError as error:
            raise BadInput(f"{source} cannot be read ({error.strerror}): give the path of your answer") from error
        name = re.sub(r"[^\w.-]", "_", source.name)[:80]
    else:
        raw, name = source.encode(errors="surrogatepass"), "answer.py"
    text = raw.decode(errors="replace")
    return _exercise(text, tag, name), text if len(raw) <= LONGEST else None, name


def _exercise(text: str, tag: str | None, name: str) -> Exercise:
    known = exercises()
    line = text.partition("\n")[0]
    found = FIRST_LINE.match(line)
    named = None if found is None else _spelt(found[1])
    if tag is not None and named is not None and _spelt(tag) != named:
        raise BadInput(f"{name} says it is exercise {named}, and {tag} was asked for: which is it?")
    wanted = _spelt(tag) if tag is not None else named
    if wanted is None:
        raise BadInput(
            f"the first line of {name} names no exercise: {line[:60]!r}. Start it with a line such as "
            f"'# vantage exercise P10', or say which it is"
        )
    if wanted not in known:
        near = ", ".join(get_close_matches(wanted, known)) or ", ".join(known)
        raise BadInput(f"there is no exercise {wanted!r}; there is {near}")
    return known[wanted]


def _spelt(tag: str) -> str:
    return tag[:1].upper() + tag[1:]


def _too_long(exercise: Exercise) -> Grade:
    words = f"the file has more than {LONGEST // 1024} kB; an answer has a few lines. Nothing of it was run"
    return Grade(exercise.tag, False, (Check("the file can be read", False, words),))


def grade_in(
    room: Room,
    exercise: Exercise,
    text: str,
    name: str = "answer.py",
    seconds: float = 20.0,
    memory: int = 4 * GIB,
    without: tuple[str, ...] = (),
) -> Grade:
    """Grade in a room that is open already. ``without``: guards to leave out, for tests of the others."""
    with room.sit(name, seconds=seconds, memory=memory, without=without) as sitting:
        checks, ended = _checks(sitting, exercise, text)
    if ended is not None:
        where, how = ended
        words = _of_an_end(how, sitting, seconds, memory)
        checks.append(Check(where, False, words))
        rest = [what for what, _ in exercise.checks if what not in {check.name for check in checks}]
        checks += [Check(what, False, "not looked at, because the process had ended") for what in rest]
    passed = bool(checks) and all(check.passed for check in checks)
    return Grade(exercise.tag, passed, tuple(checks), sitting.output, sitting.held)


def _checks(sitting: Sitting, exercise: Exercise, text: str) -> tuple[list[Check], tuple[str, str] | None]:
    """All checks, and if the process ended: in which, and how."""
    doing, checks = "the file runs", []
    try:
        try:
            names, functions = sitting.read(text)
        except Failed as error:
            return [Check(doing, False, _of_an_error(error.told))], None
        checks.append(Check(doing, True))
        missing = _missing(exercise, names, functions)
        if missing is not None:
            return [*checks, missing], None
        said: set[str] = set()
        for doing, probe in exercise.checks:
            try:
                words = probe(sitting)
            except Failed as error:
                words = _of_an_error(error.told)
                if error.told["kind"] == "unwritten":
                    return [*checks, Check(doing, False, words)], None
            except STRANGE as error:
                words = f"{STRANGE_WORDS} ({type(error).__name__}: {str(error)[:200]})"
            if words is not None and words in said:
                words = "the same as above"
            said.add(words or "")
            checks.append(Check(doing, words is None, words or ""))
    except Ended as error:
        return checks, (doing, error.how)
    if sitting.changed:
        names = ", ".join(sorted(set(sitting.changed)))
        words = f"{names} changes its argument in place: whoever called it still needs it. Make a new tensor instead"
        checks.append(Check("the arguments stay as they are", False, words))
    return checks, None


def _missing(exercise: Exercise, names: list[str], functions: list[str]) -> Check | None:
    there = names if exercise.numbers else functions
    for wanted in exercise.names:
        if wanted in there:
            continue
        what = f"{wanted} is there"
        if wanted in names:
            return Check(what, False, f"{wanted} is no function: define it with def {wanted}(…)")
        near = get_close_matches(wanted, names, n=1)
        hint = f" There is {near[0]}: is it meant?" if near else ""
        kind = "value" if exercise.numbers else "function"
        return Check(what, False, f"the file defines no {kind} named {wanted}.{hint}")
    return None


KINDS = {
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


def _of_an_error(told: dict[str, str]) -> str:
    words = KINDS.get(told["kind"], KINDS["error"]).format(text=told["text"], type=told["type"])
    return f"{words}\n{told['where']}" if told["where"] else words


def _of_an_end(how: str, sitting: Sitting, seconds: float, memory: int) -> str:
    status = sitting.status
    if how == "time" or status == -signal.SIGXCPU or (status == -signal.SIGKILL and sitting.cpu >= seconds):
        return f"it did not finish within {seconds:g} seconds and was stopped. Is there a loop that never ends?"
    if how == "silence":
        return "what came back from the process is no answer to what it was asked"
    if sitting.alive or status == HUNG_UP:  # the first: whatever its status says, we ended it
        return "the code closed the connection over which it is asked, and was stopped. Close only what you opened"
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        more = f": it may have needed more than {memory / GIB:.1f} GiB" if status == -signal.SIGKILL else ""
        return f"the process died of {name}{more}"
    return f"the code ended its own process (exit code {status}). Return the result instead"
