"""A run is a model: it is loaded by the run's folder and asked in the symbols of its task."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vantage as vt
from tests.training.runs import go, tiny
from vantage.cli.main import main
from vantage.errors import BadInput, CheckpointError
from vantage.families.recurrent import load_recurrent
from vantage.model import Model
from vantage.training import Trained
from vantage.training.learners import Learner
from vantage.training.saved_model import load_classifier
from vantage.training.sequences import HELD_OUT, Sequences
from vantage.training.tasks import TASKS, Example, task, text_of

SAVED = Path(__file__).parents[1] / "saved" / "v0.1"
TASK = {"is": "task", "task": {"is": "copy", "tokens": 3}, "lengths": [1, 4], "test_lengths": [4], "test_examples": 64}
LEARNS: dict[str, Any] = {
    "data": TASK,
    "loop": {"steps": 300, "batch": 64},
    "optimiser": {"is": "muon", "lr": 0.02},
    "schedule": {"is": "cosine", "warmup": 20},
    "evaluate": {"every": 50, "goal": 0.98},
}
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"is": "decoder", "width": 32, "layers": 2, "heads": 2, "position": "learned", "max_length": 16},
    "encoder_decoder": {
        "is": "encoder_decoder",
        "width": 32,
        "layers": 1,
        "heads": 2,
        "wiring": "pre",
        "position": "learned",
        "max_length": 16,
    },
}


@pytest.fixture(scope="module", params=KINDS)
def learned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp(request.param)
    return go(folder / "run", tiny(**LEARNS, model=KINDS[request.param]))


def held_out(learner: Learner, data: Sequences, count: int = 64) -> list[tuple[Example, bool]]:
    """Held-out examples, and whether evaluation finds each exact."""
    examples = [data.example(HELD_OUT + 4 * 64 + i, 4) for i in range(count)]
    batch = data.collate(examples)
    with torch.no_grad():
        right = (learner(batch).argmax(-1) == batch.targets) | (batch.targets < 0)
    return [(example, bool(row.all())) for example, row in zip(examples, right, strict=True)]


def sequences(model: Model) -> Sequences:
    """The data that the model was trained on."""
    return Sequences(task("copy", tokens=3), "line" if model.encoder is None else "pair", (1, 4), (4,), 64)


def test_a_run_is_loaded_and_answers_as_it_was_evaluated(learned: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert learned.scores[0].exact >= 0.95
    model = vt.load(learned.folder)
    data = sequences(model)
    scored = held_out(learned.learner, data)
    assert sum(exact for _, exact in scored) / len(scored) == learned.scores[0].exact
    answers = vt.generate(model, [text_of(data.task, example.prompt) for example, _ in scored])
    for answer, (example, exact) in zip(answers, scored, strict=True):
        assert (answer.text == text_of(data.task, example.answer)) is exact
        assert answer.finish_reason == "stop"
    prompt = next(text_of(data.task, example.prompt) for example, exact in scored if exact)
    assert main(["generate", str(learned.folder), " ".join(prompt)]) == 0  # with spaces, as one may write it
    assert capsys.readouterr().out == f"{prompt}\n"
    assert vt.generate(learned.model, prompt).text == prompt  # what vt.train gives back as well


def test_a_decoder_of_a_task_can_be_chatted_with(learned: Trained) -> None:
    model = vt.load(learned.folder)
    if model.encoder is not None:
        return
    conversation = vt.Conversation(model)
    for prompt in ("cab", "ba"):
        assert conversation.ask(prompt).text == prompt
    with pytest.raises(BadInput, match="takes no system message"):
        vt.Conversation(model, system="Be brief.").ask("cab")


def test_the_command_line_says_how_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "mine.toml"
    settings.write_text('[model]\nis="decoder"\nwidth=16\nlayers=1\nheads=2\n[data]\nis="task"\ntask="lookup"\n')
    assert main(["train", str(settings), "loop.steps=2", "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith(f"try it: vantage generate {tmp_path / 'a'} 'k")
    assert main(["generate", str(tmp_path / "a"), said[1].split("'")[1], "--max-tokens", "2"]) == 0


# ---- which model of a run


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model: torch.nn.Module, expected: dict[str, torch.Tensor]) -> None:
    assert model.state_dict().keys() == expected.keys()
    assert [name for name, value in model.state_dict().items() if not value.equal(expected[name])] == []


def test_a_run_that_has_not_finished_is_its_last_checkpoint(tmp_path: Path) -> None:
    settings = tiny(save={"every": 2, "keep": 3})
    stopped = go(tmp_path / "run", settings, stop=5)
    assert (stopped.finished, stopped.step) == (False, 4)
    for place in ("", "checkpoints", "checkpoints/step-00000004"):
        model = vt.load(tmp_path / "run" / place)
        assert_same(model, tensors(stopped.model))
        assert model.tokenizer.encode("ab") == [1, 4, 5, 3]
    earlier = vt.load(tmp_path / "run" / "checkpoints" / "step-00000002")
    with pytest.raises(AssertionError):
        assert_same(earlier, tensors(stopped.model))
    vt.save(earlier, tmp_path / "kept")
    assert_same(vt.load(tmp_path / "kept"), tensors(earlier))
    finished = go(tmp_path / "run", settings, resume=True)
    assert_same(vt.load(tmp_path / "run"), tensors(finished.model))
    more = go(tmp_path / "run", tiny(save={"every": 2, "keep": 3}, loop={"steps": 20}), resume=True, stop=10)
    assert not more.finished
    assert more.step > finished.step  # it has gone on since it saved its model
    assert_same(vt.load(tmp_path / "run"), tensors(more.model))


def test_of_averages_it_is_those_that_are_evaluated(tmp_path: Path) -> None:
    settings = tiny(average={"decay": 0.5})
    stopped = go(tmp_path / "run", settings, stop=5)
    model = vt.load(tmp_path / "run")
    with pytest.raises(AssertionError):
        assert_same(model, tensors(stopped.model))
    go(tmp_path / "whole", tiny(average={"decay": 0.5}, loop={"steps": 5}))
    assert_same(model, tensors(vt.load(tmp_path / "whole")))


def test_the_best_so_far_where_the_run_keeps_it(tmp_path: Path) -> None:
    settings = tiny(evaluate={"every": 1, "best": True}, optimiser={"is": "adamw", "lr": 3e-3}, loop={"steps": 9})
    go(tmp_path / "run", settings, stop=4)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # a run may be moved
    best = next((tmp_path / "copy" / "best").iterdir())
    assert_same(vt.load(tmp_path / "copy"), tensors(vt.load(best)))
    shutil.rmtree(tmp_path / "copy" / "best")
    assert vt.load(tmp_path / "copy").spec.width == 16


def test_checkpoints_as_the_trainer_of_transformers_calls_them(tmp_path: Path) -> None:
    spec = vt.decoder(vocab=8, width=16, layers=1, heads=2)
    for step in (5, 10):
        vt.save(vt.build(spec, seed=step), tmp_path / f"checkpoint-{step}")
    assert_same(vt.load(tmp_path), tensors(vt.build(spec, seed=10)))


def test_runs_of_an_earlier_version(tmp_path: Path) -> None:
    assert vt.load(SAVED / "finished").spec.layers[0].bias == vt.Kerple("power")
    with pytest.raises(CheckpointError, match=r"does not say what its model is.*--resume"):
        vt.load(SAVED / "run")


def test_a_run_that_has_saved_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(CheckpointError, match="a run that has saved nothing yet"):
        vt.load(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(), stop=3)
    (here,) = (tmp_path / "run" / "checkpoints").iterdir()
    config = json.loads((here / "config.json").read_text())
    (here / "config.json").write_text(json.dumps(config | {"eos_token_id": 0}))
    with pytest.raises(CheckpointError, match=r"damaged: config\.json"):
        vt.load(tmp_path / "run")


# ---- models that vt.load does not make


def test_a_classifier_says_what_it_was_evaluated_to_say(tmp_path: Path) -> None:
    data = {"is": "task", "task": "even-pairs", "lengths": [2, 5], "test_lengths": [5], "test_examples": 32}
    trained = go(tmp_path / "run", tiny(model={"is": "encoder", "width": 16, "layers": 1, "heads": 2}, data=data))
    classifier, labels = load_classifier(tmp_path / "run")
    assert labels == ["a", "b", "yes", "no"]
    made = Sequences(task("even-pairs"), "label", (2, 5), (5,), 32)
    examples = [made.example(HELD_OUT + i, 5) for i in range(16)]
    with torch.no_grad():
        wanted = [labels[i] for i in trained.learner(made.collate(examples)).argmax(-1).tolist()]
    assert [classifier.classify(text_of(made.task, e.prompt)) for e in examples] == wanted


def test_a_recurrent_model_answers_in_text(tmp_path: Path) -> None:
    go(tmp_path / "run", tiny(model={"is": "recurrent", "width": 16}))
    model = load_recurrent(tmp_path / "run")
    tokens = model.greedy(torch.tensor([[4, 5, 6]]), max_tokens=9, start=1, end=2)[0].tolist()
    assert model.answer("abc", max_tokens=9) == model.tokenizer.decode(tokens)
    with pytest.raises(CheckpointError, match="load_recurrent"):
        vt.load(tmp_path / "run")


# ---- a task of one's own


@dataclass(frozen=True)
class Compass:
    """``north left`` → ``west``. A task from outside, with symbols of its own."""

    symbols = ("north", "east", "south", "west", "left", "right")
    shortest = 1

    def sample(self, rng: np.random.Generator, length: int) -> Example:
        turns = rng.integers(2, size=length)
        start = int(rng.integers(4))
        return Example((start, *(4 + turns).tolist()), ((start + int((2 * turns - 1).sum())) % 4,))


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    vt.register("task", "compass", Compass, summary="Where one looks after some turns.")
    try:
        data = {"is": "task", "task": "compass", "lengths": [1, 1], "test_lengths": [1], "test_examples": 64}
        trained = go(tmp_path / "run", tiny(**LEARNS | {"data": data}, model=KINDS["decoder"]))
        assert trained.scores[0].exact == 1.0
        model = vt.load(tmp_path / "run")
        assert isinstance(model, Model)
        assert [vt.generate(model, f"{start} left").text for start in ("north", "east")] == ["west", "north"]
        with pytest.raises(BadInput, match=r"no 'up': leave them out\. It has 'north', 'east'"):
            vt.generate(model, "up left")
    finally:
        TASKS.unregister("compass")
