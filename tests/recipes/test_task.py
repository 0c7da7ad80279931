"""Adding a task, as CONTRIBUTING.md says it: one file and one line in the registry."""

from __future__ import annotations

from pathlib import Path

from tests.recipes.copies import PackageCopy

CHECK = """
import tomllib
from vantage.compare.experiment import Experiment
from vantage.compare.learning import chance_of
from vantage.parts import table
from vantage.serve.studio.compare.routes import tasks_offered
from vantage.training.settings import settings_of
from vantage.training.tasks import TASKS, task

assert task("last-symbol", kinds=3).symbols == ("a", "b", "c")
assert chance_of("last-symbol(kinds=4)") == 0.25
SETTINGS = '''
[model]
is = "decoder"
width = 16
layers = 1
heads = 2
[data]
is = "task"
task = {is = "last-symbol", kinds = 5}
lengths = [1, 4]
'''
assert settings_of(tomllib.loads(SETTINGS)).data.task == task("last-symbol", kinds=5)
assert Experiment(tasks=("last-symbol",), positions=("rope",)).tasks == ("last-symbol",)
assert "last-symbol" in tasks_offered()
assert any("`last-symbol` | `LastSymbol`" in line for line in table("task", TASKS))
print("found everywhere")
"""


def test_a_task_is_one_file_and_one_line(tmp_path: Path) -> None:
    copy = PackageCopy.of(tmp_path)
    copy.add_file("task.py", "vantage/training/tasks/last_symbol.py")
    copy.add_line("vantage/training/tasks/__init__.py", '"needles",', '"last_symbol",')
    assert copy.run(CHECK) == "found everywhere\n"
    assert len(copy.edits) == 2
