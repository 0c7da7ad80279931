"""What ``vantage study`` shows in a terminal: tables, and a bar while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vantage.cli.progress import BAR_DELAY_S

if TYPE_CHECKING:
    from vantage.studies.report import FailedStudy
    from vantage.studies.runner import Outcome
    from vantage.studies.study import Progress, Study

COLOURS = {"agrees": "green", "erratum": "red", "mixed": "yellow"}
WORDS = {"agrees": "agrees", "erratum": "erratum", "mixed": "agrees in part"}
WIDEST = 110  # letters of a line of prose


class StudyDisplay:
    """A bar over all studies, by the time they are said to take. Where there is no terminal: a line for each."""

    def __init__(self, chosen: Sequence[Study]) -> None:
        self._many = len(chosen) > 1
        self._total = sum(study.seconds for study in chosen)
        self._done = 0.0
        self._started = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def began(self, study: Study) -> Progress:
        """What the study is to call."""
        before, self._done = self._done, self._done + study.seconds

        def moved(share: float, doing: str) -> None:
            if not sys.stderr.isatty() or time.monotonic() - self._started < BAR_DELAY_S:
                return
            bar = self._drawn()
            label = f"{study.tag}: {doing}"
            bar.update(self._task, description=label[:60], completed=before + share * study.seconds)

        moved(0.0, study.title)
        return moved

    def ended(self, study: Study, how: str, seconds: float | None) -> None:
        took = "" if seconds is None else f" ({seconds:.1f} s)"
        if self._bar is None or seconds is None:
            self.clear()
            self.note(f"{study.tag:<4} {study.title}: {' '.join(how.split())}{took}")

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @staticmethod
    def note(text: str) -> None:
        print(text, file=sys.stderr)

    def _drawn(self) -> Any:
        if self._bar is not None:
            return self._bar
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=self._total)
        self._bar.start()
        return self._bar


def show_list(studies: Sequence[Study]) -> None:
    from rich.table import Table
    from rich.text import Text

    from vantage.studies.sources import SOURCES

    table = Table("tag", "study", "sources", "about", "parameters", box=None, pad_edge=False)
    for study in studies:
        takes = f"{max(1.0, study.seconds):.0f} s" if study.seconds < 90 else f"{study.seconds / 60:.0f} min"
        about = (
            takes + (", trains" if study.trains else "") + (f", needs {', '.join(study.needs)}" if study.needs else "")
        )
        names = ", ".join(f"{p.name}={p.default}" for p in study.parameters)
        table.add_row(*map(Text, (study.tag, study.title, ", ".join(study.sources), about, names)))
    console = _console()
    console.print(table)
    console.print()
    for source in SOURCES:
        if any(source in study.sources for study in studies):
            console.print(Text(f"{source:<4} {SOURCES[source]}"))


def show_outcome(outcome: Outcome) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from vantage.studies.sources import SOURCES

    study, result = outcome.study, outcome.result
    console = _console()
    wide = min(console.width, WIDEST)

    def say(text: Text | str, left: int = 0) -> None:
        shown = Text(" ".join(text.split())) if isinstance(text, str) else text
        console.print(Padding(shown, (0, 0, 0, left), expand=False), width=wide)

    say(Text.assemble((f"{study.tag} {study.title}", "bold"), "  ", _verdict(outcome.verdict)))
    console.print()
    say(Text("Claim", "dim"))
    say(study.statement, 2)
    say(Text("Result", "dim"))
    say(result.words, 2)
    console.print()
    console.print(_numbers(outcome))
    console.print()
    for part in study.explanation.split("\n\n"):
        say(part)
        console.print()
    settings = ", ".join(f"{name} = {value}" for name, value in outcome.values.items())
    say(Text(f"{settings + '; ' if settings else ''}{outcome.seconds:.1f} s", "dim"))
    for source in study.sources:
        if source in SOURCES:  # a study of one's own may have another
            say(Text(f"{source}: {SOURCES[source]}", "dim"))


def show_summary(outcomes: Sequence[Outcome], failed: Sequence[FailedStudy], left: Sequence[Study]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = _console()
    table = Table("tag", "study", "verdict", "seconds", box=None, pad_edge=False)
    for outcome in outcomes:
        cells = Text(outcome.tag), Text(outcome.study.title), _verdict(outcome.verdict), Text(f"{outcome.seconds:.1f}")
        table.add_row(*cells)
    for one in failed:
        table.add_row(Text(one.study.tag), Text(one.study.title), Text(f"could not run: {one.why}"), Text(""))
    console.print(table)
    counts = [
        f"{sum(one.verdict == verdict for one in outcomes)} {word}"
        for verdict, word in {"agrees": "agree", "erratum": "errata", "mixed": "agree in part"}.items()
    ]
    took = sum(outcome.seconds for outcome in outcomes)
    console.print(f"{len(outcomes)} studies in {took:.0f} s: {', '.join(counts)}", highlight=False)
    if failed:
        console.print(f"{len(failed)} could not run", style="bold red", highlight=False)
    if left:
        tags = ", ".join(study.tag for study in left)
        console.print(
            f"left out, since they train models: {tags} (--train, or `vantage study run TAG`)", highlight=False
        )


def show_grade(result: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    console = _console()
    table = Table("check", "", "", box=None, pad_edge=False)
    for check in result.checks:
        word = Text("passed", "green") if check.passed else Text("failed", "red")
        table.add_row(Text(check.name), word, Text(check.words))
    console.print(table)
    if result.output.strip():
        console.print(Text("What it printed:", "dim"))
        console.print(Text(result.output.rstrip()))
    right = sum(check.passed for check in result.checks)
    verdict = Text("passed", "bold green") if result.passed else Text("not yet", "bold red")
    console.print(Text.assemble(verdict, f": {right} of {len(result.checks)} checks"))


def _numbers(outcome: Outcome) -> Any:
    from rich.table import Table
    from rich.text import Text

    from vantage.studies.runner import format_value

    table = Table("what", box=None, pad_edge=False)
    for name in ("ours", "document"):
        table.add_column(name, justify="right")
    table.add_column("")
    for number in outcome.result.numbers:
        ours = format_value(number.ours)
        if number.interval is not None:
            ours += f" [{format_value(number.interval[0])}, {format_value(number.interval[1])}]"
        word = {None: Text(""), True: Text("agrees", "green"), False: Text("does not agree", "red")}[number.agrees]
        document = "" if number.document is None else format_value(number.document)
        table.add_row(Text(number.what), Text(ours), Text(document), word)
    return table


def _verdict(verdict: str) -> Any:
    from rich.text import Text

    return Text(WORDS[verdict], f"bold {COLOURS[verdict]}")


def _console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDEST + 30, no_color=True)
