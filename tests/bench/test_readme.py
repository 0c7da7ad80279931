"""README's table is made of what was kept, and README explains its words before it uses them."""

from __future__ import annotations

import re
from pathlib import Path

from bench import readme

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_result_file() -> None:
    assert readme.written(README) == README, "run `python -m bench.readme`"


def test_every_figure_stands_in_the_dated_table_it_is_from() -> None:
    kept = readme.read()
    for peer in kept["peers"]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", kept["machines"][peer["machine"]]["date"])
        for figure in peer["figures"]:
            page = " ".join((ROOT / figure["from"]).read_text(encoding="utf-8").split())
            assert " ".join(figure["as"].split()) in page, f"{figure['from']} does not say {figure['as']!r}"
            numbers = re.findall(r"\d+(?:\.\d+)?", figure["value"])
            assert numbers
            assert all(number in figure["as"] for number in numbers)


def test_every_proof_is_there() -> None:
    for peer in readme.read()["peers"]:
        for _, link in peer["proof"]:
            path, _, anchor = link.partition("#")
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_there_are_six_short_examples() -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(examples) == 6
    assert all(len(code.splitlines()) <= 40 for code in examples)


def test_the_course_material_is_introduced_before_it_is_used() -> None:
    introduced = README.index("five sets of course material")
    for name in ("S0", "S1", "S2", "S3", "S4"):
        assert introduced < README.index(name) < README.index("## Install")
