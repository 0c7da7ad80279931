"""``vantage study``: the documents' results, computed; and their exercises."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vantage.cli.models import import_torch
from vantage.cli.study_show import StudyDisplay, show_grade, show_list, show_outcome, show_summary
from vantage.errors import BadInput, VantageError, unknown

if TYPE_CHECKING:
    from vantage.studies.report import FailedStudy
    from vantage.studies.runner import Outcome

EXAMPLE = """\
examples:
  vantage study list
  vantage study run A2                                # a worked example, next to the document's numbers
  vantage study run A12 --set gain=8 --set keys=100   # with other parameters
  vantage study run P4 P5 --figures pictures          # figures as PNG, SVG and CSV
  vantage study all --report studies                  # all quick ones, in one page: studies/index.html
  vantage study run T3                                # a study that trains models
  vantage study exercise A2 --out a2.py               # code to complete
  vantage study grade a2.py
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "study",
        help="run the claims of the course material (S0 to S4), and exercises",
        description="Run the claims of the course material (S0 to S4) with the library's own parts, and say whether "
        "each holds.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True, title="what to do")

    listed = _parser(what, "list", "which studies there are", "Every study with its tag.")
    listed.set_defaults(run=run_list)

    run = _parser(what, "run", "run some of them", "Run studies by their tags, and show what they find.")
    run.add_argument("tags", nargs="+", metavar="TAG", help="such as A2; see `vantage study list`")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter (with several studies: TAG.NAME=VALUE); repeatable",
    )
    run.add_argument("--figures", metavar="DIR", help="write the figures there, as PNG, SVG and CSV")
    run.add_argument("--report", metavar="DIR", help="write a page there: DIR/index.html")
    run.set_defaults(run=run_some, rest="tags")

    every = _parser(
        what,
        "all",
        "run them all",
        "Run every study that trains nothing, which takes some minutes; with --train, also those that train models.",
    )
    every.add_argument("--train", action="store_true", help="also run the studies that train models (much longer)")
    every.add_argument("--report", metavar="DIR", help="write a page there: DIR/index.html")
    every.set_defaults(run=run_all)

    exercise = _parser(
        what, "exercise", "a task to fill in", "Print an exercise's starter code; without TAG, list them."
    )
    exercise.add_argument("tag", nargs="?", metavar="TAG", help="such as A2")
    exercise.add_argument("--out", metavar="FILE", help="write it to a new file")
    exercise.add_argument("--answer", action="store_true", help="print a full answer instead")
    exercise.set_defaults(run=run_exercise)

    grade = _parser(what, "grade", "check an answer", "Run the checks of an exercise on a filled-in file.")
    grade.add_argument("file", metavar="FILE", help="a completed file from `vantage study exercise`")
    grade.add_argument("--seconds", type=float, metavar="N", help="time limit for the answer")
    grade.set_defaults(run=run_grade)


def _parser(what: Any, name: str, short: str, long: str) -> argparse.ArgumentParser:
    parser = what.add_parser(
        name, help=short, description=long, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


# ---- studies


def run_list(args: argparse.Namespace) -> int:
    from vantage.studies.registry import declared_studies

    listed = list(declared_studies().values())
    if args.json:
        from vantage.studies.study import describe_study

        print(json.dumps([describe_study(study) for study in listed], ensure_ascii=False))
    else:
        show_list(listed)
    return 0


def run_some(args: argparse.Namespace) -> int:
    from vantage.studies.registry import check_tag, check_values, find
    from vantage.studies.report_folder import check_report

    tags = list(dict.fromkeys(map(check_tag, args.tags)))
    values = _settings(tags, args.set)
    for tag in tags:
        check_values(tag, values[tag])
    for folder in (args.report, args.figures):
        if folder is not None:
            check_report(folder)
    import_torch()
    from vantage.studies.report import data, write_report
    from vantage.studies.runner import conduct

    chosen = [find(tag) for tag in tags]
    for study in chosen:  # what is wrong is said before anything runs
        study.values(values[study.tag])
    outcomes: list[Outcome] = []
    with StudyDisplay(chosen) as watch:
        for study in chosen:
            outcomes.append(conduct(study, values[study.tag], watch.began(study)))
            if not args.json:
                watch.clear()
                show_outcome(outcomes[-1])
    if args.json:
        print(json.dumps(data(outcomes, [], _command(args)), ensure_ascii=False))
    if args.figures is not None:
        _figures(outcomes, Path(args.figures))
    if args.report is not None:
        watch.note(f"the report is {write_report(args.report, outcomes, command=_command(args))}")
    return 0


def run_all(args: argparse.Namespace) -> int:
    """Those that cannot run are named with their reason, and the others go on. Exit code 1 if there were any."""
    from vantage.studies.report_folder import check_report

    if args.report is not None:
        check_report(args.report)
    import_torch()
    from vantage.studies.registry import studies
    from vantage.studies.report import FailedStudy, data, write_report
    from vantage.studies.runner import conduct

    every = list(studies().values())
    chosen = [study for study in every if args.train or not study.trains]
    outcomes: list[Outcome] = []
    failed: list[FailedStudy] = []
    with StudyDisplay(chosen) as watch:
        for study in chosen:
            try:
                outcomes.append(conduct(study, {}, watch.began(study)))
                watch.ended(study, outcomes[-1].verdict, outcomes[-1].seconds)
            except VantageError as why:
                failed.append(FailedStudy(study, str(why)))
                watch.ended(study, f"could not run: {why}", None)
            except Exception as why:  # a fault of one study is told, and is no reason to lose the others
                failed.append(FailedStudy(study, f"{study.tag} broke: {type(why).__name__}: {why}"))
                watch.ended(study, failed[-1].why, None)
    command = (
        "vantage study all" + (" --train" if args.train else "") + (f" --report {args.report}" * bool(args.report))
    )
    if args.json:
        print(json.dumps(data(outcomes, failed, command), ensure_ascii=False))
    else:
        show_summary(outcomes, failed, [study for study in every if study not in chosen])
    if args.report is not None and outcomes:
        watch.note(f"the report is {write_report(args.report, outcomes, failed, command=command)}")
    return 1 if failed else 0


def _settings(tags: list[str], texts: list[str]) -> dict[str, dict[str, str]]:
    """What --set says, by study."""
    values: dict[str, dict[str, str]] = {tag: {} for tag in tags}
    for text in texts:
        name, equals, value = text.partition("=")
        tag, dot, rest = name.partition(".")
        if not equals or not name:
            raise BadInput(f"--set {text}: write NAME=VALUE")
        if dot:
            if tag.upper() not in values:
                raise BadInput(f"--set {text}: {tag} is not among the studies to run ({', '.join(values)})")
            values[tag.upper()][rest] = value
        elif len(tags) > 1:
            raise BadInput(f"--set {text}: several studies are to run, so name the study, as in {tags[0]}.{text}")
        else:
            values[tags[0]][name] = value
    return values


def _command(args: argparse.Namespace) -> str:
    words = ["vantage study run", *args.tags, *(f"--set {text}" for text in args.set)]
    return " ".join([*words, *([f"--report {args.report}"] if args.report else [])])


def _figures(outcomes: list[Outcome], folder: Path) -> None:
    from vantage.figures.drawing import png, svg
    from vantage.figures.tables import csv

    for outcome in outcomes:
        for figure in outcome.result.figures:
            stem = folder / f"{outcome.tag}-{figure.name}"
            stem.with_suffix(".png").write_bytes(png(figure))
            stem.with_suffix(".svg").write_text(svg(figure, alone=True), encoding="utf-8")
            stem.with_suffix(".csv").write_text(csv(figure), encoding="utf-8")
            StudyDisplay.note(f"wrote {stem}.png, .svg and .csv")


# ---- exercises


def run_exercise(args: argparse.Namespace) -> int:
    from vantage.studies.exercises.registry import shown_text, tags, texts

    if args.tag is None and (args.out is not None or args.answer):
        raise BadInput(f"name an exercise: there are {', '.join(tags())}")
    tag = None if args.tag is None else _tag(args.tag, tags())
    if args.out is not None and Path(args.out).exists():
        raise BadInput(f"{args.out} already exists and is not overwritten: give another name")
    if tag is None:
        known = texts()
        if args.json:
            print(json.dumps([{"tag": tag, "title": one.title} for tag, one in known.items()], ensure_ascii=False))
        else:
            print("\n".join(f"{tag:<5} {one.title}" for tag, one in known.items()))
        return 0
    chosen = shown_text(tag)
    code = chosen.answer if args.answer else chosen.starter
    if args.json:
        content = {"tag": tag, "title": chosen.title, "task": chosen.task, "starter": chosen.starter}
        content |= {"answer": chosen.answer, "words": chosen.explanation} if args.answer else {}
        print(json.dumps(content, ensure_ascii=False))
        return 0
    if args.out is None:
        StudyDisplay.note(
            f"{chosen.explanation if args.answer else chosen.task}\n"
        )  # beside the code, which may go to a file
        print(code)
        return 0
    try:
        with Path(args.out).open("x", encoding="utf-8") as file:
            file.write(code)
    except FileExistsError:
        raise BadInput(f"{args.out} already exists and is not overwritten: give another name") from None
    except OSError as error:
        raise BadInput(f"{args.out} cannot be written: {error}") from error
    print(f"{tag} {chosen.title}\n\n{chosen.task}\n")
    print(f"wrote {args.out}; check it with `vantage study grade {args.out}`")
    return 0


def _tag(tag: str, known: list[str]) -> str:
    """The tag as it is spelt there, whatever the case."""
    wanted = tag.strip().upper()
    names = {name.upper(): name for name in known}
    if wanted in names:
        return names[wanted]
    raise BadInput(unknown("exercise", tag, known))


def run_grade(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise BadInput(f"{args.file} is not a file: `vantage study exercise TAG --out FILE` writes one to complete")
    if args.seconds is not None and not 0 < args.seconds < float("inf"):
        raise BadInput(f"--seconds {args.seconds}: give a time above 0")
    from dataclasses import asdict

    from vantage.studies.exercises import grade

    result = grade(path) if args.seconds is None else grade(path, seconds=args.seconds)
    if args.json:
        print(json.dumps(asdict(result), ensure_ascii=False))
    else:
        show_grade(result)
    return 0 if result.passed else 1
