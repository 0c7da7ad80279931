"""README's table is made of kept result files, and README explains its words before it uses them."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from bench import readme

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURES = [figure for peer in readme.peers() for figure in peer["figures"]]


def test_the_table_is_that_of_the_result_files() -> None:
    assert readme.written(README) == README, "run `python -m bench.readme`"


def test_another_result_gives_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = FIGURES[0]
    result = readme.result_of(figure)
    for one in (*result["goals"], *result["ratios"]):
        one["value"] = 0.25
    (tmp_path / "own.json").write_text(json.dumps(result))
    assert readme.number(figure, readme.result_of({**figure, "file": str(tmp_path / "own.json")})) == "4.00"
    with pytest.raises(readme.MissingFigure):
        readme.number({**figure, "over": "nobody"}, result)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["what"])
def test_every_number_has_a_file_with_machine_and_date(figure: dict[str, str]) -> None:
    result = readme.result_of(figure)
    assert date.fromisoformat(result["date"][:10]) >= date(2026, 11, 1)
    assert result["machine"].get("gpu") or result["machine"]["cpu"]
    link = f"[{readme.number(figure, result)}]({readme.file_of(figure).relative_to(ROOT).as_posix()})"
    assert link in README


def section(link: str) -> str:
    """What stands under the heading that a link names."""
    path, _, anchor = link.partition("#")
    parts = re.split(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = dict(zip(map(anchor_of, parts[1::2]), parts[2::2], strict=True))
    return texts[anchor] if anchor else "".join(parts)


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("file", sorted((readme.KEPT / "gpu").glob("*.json")), ids=lambda file: file.stem)
def test_what_a_gpu_did_stands_in_the_dated_section_it_is_from(file: Path) -> None:
    """Nobody can run it again without one."""
    result = json.loads(file.read_text(encoding="utf-8"))
    text = " ".join(section(result["source"]).split())
    day = date.fromisoformat(result["date"])
    assert f"{day.day} November {day.year}" in text
    forward, both = result["rates"]["forward"], result["rates"]["forward and backward"]
    for one in forward:
        assert f"{forward[one]} / {both[one]}" in text


def test_every_proof_is_there() -> None:
    for peer in readme.peers():
        for link in peer["proof"].values():
            assert section(link)


def test_there_are_six_short_examples() -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert len(examples) == 6
    assert all(len(code.splitlines()) <= 40 for code in examples)


def test_the_course_material_is_introduced_before_it_is_used() -> None:
    introduced = README.index("five sets of course material")
    for name in ("S0", "S1", "S2", "S3", "S4"):
        assert introduced < README.index(name) < README.index("## Install")
