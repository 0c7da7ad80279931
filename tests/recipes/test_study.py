"""Adding a study, as CONTRIBUTING.md says it: its code and its text."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import contextlib, io, json

from fastapi import FastAPI
from fastapi.testclient import TestClient

import vantage as vt
from vantage.cli.main import main
from vantage.serve.studio.studies.routes import router


def printed(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["study", *words]) == 0, words
    return out.getvalue()


(listed,) = [study for study in json.loads(printed("list", "--json")) if study["tag"] == "A90"]
assert listed["title"] == "Keys that are all alike"
assert listed["parameters"][0]["help"] == "how many there are"
assert "Keys that are all alike" in printed("list")

assert "Each of the 5 keys has a weight of 0.200." in printed("run", "A90")
outcome = vt.studies.run("a90", keys=4)
assert outcome.verdict == "agrees", outcome
assert outcome.numbers == {"largest weight": 0.25}
assert outcome.result.figures[0].caption == "The weights of 4 equal keys."

page = vt.studies.write_report("report", [outcome]).read_text()
assert "Keys that are all alike" in page and "Each of the 4 keys has a weight of 0.250." in page

app = FastAPI()
app.include_router(router)
assert "A90" in [study["tag"] for study in TestClient(app).get("/studio/api/studies").json()]
print("found everywhere")
"""


def test_a_study_is_its_code_and_its_text(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("study.py", "vantage/studies/a90_equal_keys.py")
    copy.add_file("study.md", "vantage/studies/a90_equal_keys.md")
    assert copy.run(CHECK).strip() == "found everywhere"
    assert len(copy.edits) == 2
