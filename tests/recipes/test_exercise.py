"""Adding an exercise, as CONTRIBUTING.md says it: a folder with its checks, its text, a starter and an answer."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

FOLDER = "vantage/studies/exercises/tasks/a90_equal_keys"
CHECK = """
import contextlib, io

from fastapi import FastAPI
from fastapi.testclient import TestClient

from vantage.cli.main import main
from vantage.serve.studio.studies.routes import router
from vantage.studies.exercises import exercises, grade_many


def printed(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):  # the task goes to stderr
        assert main(["study", "exercise", *words]) == 0, words
    return out.getvalue()


assert "The weights of equal keys" in printed()
assert "Write weights(n)" in printed("A90")
assert "a softmax looks at differences only" in " ".join(printed("A90", "--answer").split())

exercise = exercises()["A90"]
starter, answer, wrong = grade_many([exercise.starter, exercise.answer, exercise.answer.replace("1 / n", "1.0")])
assert not starter.passed and "not written yet" in starter.checks[-1].words, starter
assert answer.passed, answer
assert wrong.checks[-1].words == "these add up to 3; weights add up to 1", wrong

app = FastAPI()
app.include_router(router)
assert "A90" in [one["tag"] for one in TestClient(app).get("/studio/api/exercises").json()]
print("found everywhere")
"""


def test_an_exercise_is_a_folder_of_four_files(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("exercise.py", f"{FOLDER}/__init__.py")
    copy.add_file("exercise.md", f"{FOLDER}/text.md")
    copy.add_file("exercise_starter.py", f"{FOLDER}/starter.py")
    copy.add_file("exercise_answer.py", f"{FOLDER}/answer.py")
    assert copy.run(CHECK).strip() == "found everywhere"
    assert len(copy.edits) == 4
