"""A mistyped word is refused before torch is imported, whose import alone takes seconds."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# Runs every command in one process in which torch cannot be imported, and says what came of each.
SCRIPT = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

class NoTorch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise AssertionError("torch was imported")

sys.meta_path.insert(0, NoTorch())
from vantage.cli.main import main

results = []
for args in json.load(sys.stdin):
    errors, code = io.StringIO(), None
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(errors):
        try:
            code = main(args)
        except SystemExit as stop:
            code = stop.code
        except AssertionError as error:
            errors.write(str(error))
    results.append([code, errors.getvalue()])
assert "torch" not in sys.modules
print(json.dumps(results))
"""

REFUSED: dict[str, tuple[str, str]] = {  # the command, what it must say
    "a flag": ("generate hello --max-tokns 3", "--max-tokns"),
    "a choice": ("generate hello --dtype int3", "int3"),
    "a missing model": ("generate runs/nothing-here hello", "runs/nothing-here does not exist"),
    "a mistyped model": ("generate smolm2 hello", "Did you mean 'smollm2'?"),
    "a temperature": ("generate hello --temperature -1", "temperature=-1.0"),
    "a number of tokens": ("generate hello --max-tokens 0", "give at least 1"),
    "an adapter": ("generate tiny hello --adapter nowhere", "the adapter nowhere does not exist"),
    "no adapter": ("generate tiny hello --adapter tiny", "tiny holds no adapter"),
    "a regex": ("generate hello --regex [a", "unclosed character class"),
    "an empty regex": ("generate hello --regex ''", "1 to 8,192 characters"),
    "a schema": ('generate hello --schema \'{"type": "strnig"}\'', "strnig"),
    "a schema that is no JSON": ("generate hello --schema {broken", "not JSON"),
    "a file of a schema": ("generate hello --schema @nothing.json", "nothing.json"),
    "two forms": ("generate hello --schema {} --regex a", "one of them"),
    "a stop string": ("generate hello --stop ''", "not empty"),
    "guessing ahead": ("generate hello --lookup -n 3", "do not go together"),
    "processes": ("generate hello --tensor-parallel 2", "torchrun --nproc-per-node 2"),
    "a file that is no model": ("generate book.txt hello", "book.txt is no .gguf file"),
    "a folder without a model": ("generate empty hello", "empty has no file 'config.json'"),
    "chat: a stop string": ("chat tiny --stop ''", "not empty"),
    "chat: a model": ("chat ./nowhere", "nowhere does not exist"),
    "chat: a cache": ("chat tiny --cache contigous", "Did you mean 'contiguous'?"),
    "chat: a file": ("chat tiny --load nothing", "nothing"),
    "chat: a share": ("chat tiny --top-p 2", "top_p=2.0"),
    "convert: a model": ("convert nowhere.gguf out", "nowhere.gguf does not exist"),
    "convert: a folder": ("convert tiny.gguf tiny", "tiny already holds"),
    "convert: a type": ("convert tiny other.gguf --type Q4_K_N", "'Q4_K_N'"),
    "check: a device": ("check --device abacus", "'abacus'"),
    "compare: a task": ("compare --tasks cpoy", "Did you mean 'copy'?"),
    "compare: an encoding": ("compare --positions none roep", "Did you mean 'rope'?"),
    "compare: an attention": ("compare --attention multihead", "Did you mean 'multi-head'?"),
    "compare: an equality": ("compare --equal params", "'params'"),
    "compare: a paper": ("compare --published alibii", "Did you mean 'alibi'?"),
    "compare: a scale": ("compare --published alibi --scale tny", "Did you mean 'tiny'?"),
    "compare: a budget": ("compare --budget soon", "90s, 30m or 2h"),
    "compare: a text": ("compare --tasks text --text nothing.txt", "there is no file 'nothing.txt'"),
    "compare: a file": ("compare nothing.toml", "there is no file nothing.toml"),
    "compare: nothing to resume": ("compare --resume --out nothing", "there is no experiment to continue in nothing"),
    "compare: a device": ("compare --device gpu", "'gpu'"),
    "compare: a cluster": ("compare --on slurm", "give ray"),
    "compare: workers": ("compare --workers 0", "give at least 1"),
    "compare: a model": ("compare --extend ./nowhere --text book.txt", "nowhere does not exist"),
    "compare: a scaling": ("compare --extend tiny --text book.txt --scalings yran", "Did you mean 'yarn'?"),
    "compare: a score": ("compare --score exat", "Did you mean 'exact'?"),
    "compare: a rate": ("compare --rates 2", "rates=[2.0]"),
    "compare: a share": ("compare --search 0", "search=0.0"),
    "compare: a task twice": ("compare --tasks copy copy", "twice"),
    "compare: no text": ("compare --tasks text", "--text FILES"),
    "compare: a vocabulary": ("compare --vocabulary wrods", "bpe-4096"),
    "compare: a width": ("compare --width 7", "width=7"),
    "compare: a seed": ("compare --first-seed 10000000", "999,995"),
    "compare: a scale of nothing": ("compare --scale tiny", "--published alibi"),
    "compare: a paper without its text": ("compare --published alibi", "alibi reads text"),
    "compare: no TOML": ("compare book.txt", "book.txt is not TOML"),
    "compare: a field": ("compare seds.toml", "Did you mean 'seeds'?"),
    "compare: a task of a file": ("compare cpoy.toml", "Did you mean 'copy'?"),
    "compare: a file as folder": ("compare --out book.txt", "book.txt is a file"),
    "compare: a multiple": ("compare --extend tiny --text book.txt --times 0", "times=[0.0]"),
    "compare: a factor": ("compare --extend tiny --text book.txt --factor 0.5", "factor=0.5"),
    "compare: a score of an extension": ("compare --extend tiny --text book.txt --score exact", "--score"),
    "train: a recipe": ("train cpoy", "Did you mean 'copy'?"),
    "train: a file": ("train nothing.toml", "nothing.toml"),
    "train: nothing": ("train", "vantage train --list"),
    "train: a section": ("train copy lop.steps=5", "Did you mean 'loop'?"),
    "train: a key": ("train copy loop.stesp=5", "Did you mean 'steps'?"),
    "train: a key of the model": ("train copy model.widht=64", "Did you mean 'width'?"),
    "train: an encoding": ("train copy model.position=roep", "Did you mean 'rope'?"),
    "train: a task": ("train copy data.task=cpoy", "Did you mean 'copy'?"),
    "train: no change": ("train copy steps", "write KEY=VALUE"),
    "train: a device": ("train copy --device gpu", "'gpu'"),
    "train: files": ("train shakespeare data.files=nothing.txt", "there is no file 'nothing.txt'"),
    "train: a model": ("train loaded.toml", "model.source: ./nowhere does not exist"),
    "train: a tracker": ("train copy --track wanbd", "Did you mean 'wandb'?"),
    "train: no tracker": ("train copy --track mlflow", "mlflow"),
    "train: steps": ("train copy --steps 0", "steps=0: give at least 1"),
    "train: a number": ("train copy loop.batch=many", "settings.loop.batch is 'many'; wanted int"),
    "train: a precision": ("train copy loop.precision=float3", "'float32' or 'bfloat16'"),
    "train: a schedule": ("train copy schedule=cosin", "Did you mean 'cosine'?"),
    "train: a warm-up": ("train copy schedule.warmup=-1", "warmup=-1"),
    "train: a goal": ("train copy evaluate.goal=2", "goal=2"),
    "train: a seed": ("train copy seed=-1", "seed=-1"),
    "train: an optimiser": ("train copy optimiser.is=adm", "Did you mean 'adamw'?"),
    "train: a kind of model": ("train copy model.is=decodr", "Did you mean 'decoder'?"),
    "train: a width": ("train copy model.width=wide", "settings.model.width is 'wide'; wanted int"),
    "train: a kind of data": ("train copy data.is=taks", "Did you mean 'task'?"),
    "train: nothing to resume": ("train copy --resume --out nothing", "there is no run to continue in nothing"),
    "train: a file as folder": ("train copy --out book.txt", "book.txt is a file"),
    "train: processes": ("train copy --tensor-parallel 2", "torchrun --nproc-per-node 2"),
    "train: an optimiser of whole weights": (
        "train copy --tensor-parallel 2 --check",
        "optimiser.is = 'muon'",
    ),
    "inspect: a model": ("inspect atlas ./nowhere --text x", "nowhere does not exist"),
    "inspect: a device": ("inspect atlas tiny --text x --device gpu", "'gpu'"),
    "inspect: a mesh": ("inspect cost tiny --mesh tnsor=4", "tensor=2,context=4"),
    "inspect: a broken config": ("inspect cost broken.json", "broken.json"),
    "inspect: an empty prompt": ("inspect cache --prompt ''", "an empty prompt"),
    "inspect: numbers": ("inspect attention tiny --text x --layer 0 --head a", "write numbers"),
    "inspect: no text": ("inspect scores tiny --layer 0", "--text TEXT or --file FILE"),
    "inspect: a cache": ("inspect cost tiny --kind rign", "Did you mean 'ring'?"),
    "inspect: a machine": ("inspect cost tiny --machine h300", "h300"),
    "inspect: a config": ("inspect cost nothing.json", "no file nothing.json"),
    "inspect: a file": ("inspect extend tiny --file nothing", "nothing"),
    "inspect: an encoding": ("inspect extend tiny --file book.txt --position roep", "Did you mean 'rope'?"),
    "inspect: a rule": ("inspect extend tiny --file book.txt --scaling yarn:4", "--scaling yarn:4"),
    "inspect: a saved cache": ("inspect cache nothing", "no file nothing"),
    "pull: a name": ("pull smolm2", "Did you mean 'smollm2'?"),
    "serve: a model": ("serve runs/nothing-here", "runs/nothing-here does not exist"),
    "serve: a file": ("serve book.txt", "book.txt is no .gguf file"),
    "serve: a device": ("serve tiny --device gpu", "'gpu'"),
    "serve: an adapter": ("serve tiny --lora-modules a=tiny", "tiny holds no adapter"),
    "serve: a port": ("serve --port x", "--port"),
    "studio: a model": ("studio ./nowhere", "nowhere does not exist"),
    "studio: a model twice": ("studio tiny tiny", "two models are called 'tiny'"),
    "studio: a folder": ("studio tiny --folder book.txt", "--folder book.txt"),
    "studio: a file": ("studio book.txt", "book.txt is no .gguf file"),
    "study: a tag": ("study run A99", "Did you mean A17?"),
    "study: a parameter": ("study run A2 --set nothing=3", "A2 has no parameter 'nothing'"),
    "study: a value": ("study run A12 --set gain=x", "gain is 'x'; it must be a number"),
    "study: a value out of bounds": ("study run A12 --set gain=1e99", "between 0.0 and 40.0"),
    "study: no setting": ("study run A2 --set gain", "write NAME=VALUE"),
    "study: a report": ("study all --report book.txt", "book.txt"),
    "study: an exercise": ("study exercise P99", "There are: A2"),
    "study: a file": ("study grade nothing.py", "nothing.py is not a file"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    folder = tmp_path_factory.mktemp("work")
    (folder / "book.txt").write_text("some text")
    (folder / "empty").mkdir()
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text("{}")
    (folder / "tiny.gguf").touch()
    (folder / "broken.json").write_text("{")
    (folder / "seds.toml").write_text("seds = 3\n")
    (folder / "cpoy.toml").write_text('tasks = ["cpoy"]\n')
    (folder / "loaded.toml").write_text('[model]\nis = "loaded"\nsource = "./nowhere"\n[data]\nis = "text"\n')
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([shlex.split(command) for command, _ in REFUSED.values()]),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(REFUSED, map(tuple, json.loads(done.stdout)), strict=True))


def _environment() -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[2])
    return {name: value for name, value in os.environ.items() if name != "VANTAGE_PARTS"} | {"PYTHONPATH": root}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_without_torch(case: str, refusals: dict[str, tuple[int, str]]) -> None:
    code, says = refusals[case]
    command, wanted = REFUSED[case]
    assert code == 2, f"vantage {command}: {says}"
    assert wanted in says
    assert len(says.splitlines()) == 1
