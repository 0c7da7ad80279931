"""The loop: every objective learns, and what changes how a step is computed does not change what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import Notes, go, losses, tiny
from vantage.errors import BadInput, Refused, VantageError
from vantage.model import Model, build, decoder, encoder_decoder
from vantage.training import Run, read_log
from vantage.training.batch import Batch
from vantage.training.checkpoint import steps
from vantage.training.compiled import in_precision
from vantage.training.divergence import Diverged
from vantage.training.evaluate import evaluate
from vantage.training.learners import PairLearner, TokenLearner
from vantage.training.learners import losses as losses_of
from vantage.training.optimise import WSD
from vantage.training.settings import settings_of

ROOT = Path(__file__).parents[2]
WORDS = "the quick brown fox jumps over the lazy dog and runs away. " * 60


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VANTAGE_HOME", str(tmp_path / "home"))
    file = tmp_path / "text.txt"
    file.write_text(WORDS)
    return str(file)


# ---- every objective learns


def falls(folder: Path, said: dict[str, Any], to: float) -> None:
    """The last losses against the first."""
    go(folder, said)
    curve = losses(folder)
    assert sum(curve[-5:]) / 5 < to * curve[0]


def test_the_next_token_of_a_text_is_learned(tmp_path: Path, text: str) -> None:
    data = {"is": "text", "files": text, "length": 24}
    said = tiny(data=data, loop={"steps": 60}, optimiser={"lr": 1e-2}, model={"width": 32})
    falls(tmp_path / "run", said, 0.35)


@pytest.mark.sampled
def test_hidden_tokens_are_learned_by_an_encoder(tmp_path: Path, text: str) -> None:
    Path(text).write_text("abcdefgh" * 400)
    data = {"is": "text", "files": text, "length": 16, "hidden": 0.2, "vocabulary": "characters"}
    model = {"is": "encoder", "width": 32, "layers": 2, "heads": 2}
    falls(tmp_path / "run", tiny(data=data, model=model, loop={"steps": 100}, optimiser={"lr": 1e-2}), 0.6)


@pytest.mark.parametrize(
    "model",
    [
        {"is": "encoder_decoder", "width": 32, "layers": 1, "heads": 2, "wiring": "pre"},
        {"is": "recurrent", "width": 32, "cell": "gru", "attention": "general"},
    ],
    ids=lambda model: model["is"],
)
def test_pairs_are_learned(tmp_path: Path, model: dict[str, Any]) -> None:
    data = {"is": "task", "task": "reverse", "lengths": [1, 3], "test_examples": 8}
    falls(tmp_path / "run", tiny(model=model, data=data, loop={"steps": 80}, optimiser={"lr": 1e-2}), 0.75)


@pytest.mark.sampled
def test_classes_are_learned_by_an_encoder(tmp_path: Path) -> None:
    model = {"is": "encoder", "width": 32, "layers": 1, "heads": 2}
    data = {"is": "task", "task": "even-pairs", "lengths": [2, 3], "test_lengths": [3], "test_examples": 64}
    said = tiny(model=model, data=data, loop={"steps": 120, "batch": 32}, optimiser={"lr": 1e-2})
    trained = go(tmp_path / "run", said)
    assert trained.scores[0].exact > 0.7  # 0.5 is chance
    assert trained.scores[0].loss < 0.55  # and so is 0.69
    assert trained.scores[0].rows == 64
    torch.manual_seed(1)  # nothing depends on the state of the process
    go(tmp_path / "again", said)
    assert losses(tmp_path / "again") == losses(tmp_path / "run")


# ---- the same computation, otherwise


def test_a_batch_in_parts_gives_the_same_losses(tmp_path: Path) -> None:
    go(tmp_path / "one", tiny())
    go(tmp_path / "four", tiny(loop={"accumulate": 4}))
    assert losses(tmp_path / "four") == pytest.approx(losses(tmp_path / "one"), abs=2e-6)
    one, four = read_log(tmp_path / "one")[0], read_log(tmp_path / "four")[0]
    assert [r.targets for r in one] == [r.targets for r in four]
    assert [r.norm for r in four] == pytest.approx([r.norm for r in one], rel=1e-5)


ENCODINGS: list[Any] = ["none", "sinusoidal", "learned", "rope", "xpos", "alibi", "t5", "shaw", "xl", "kerple"]
ENCODINGS += ["fire", "cope", {"is": "randomised", "inner": {"is": "rope"}, "high": 64}]


@pytest.mark.sampled
@pytest.mark.parametrize("position", ENCODINGS, ids=lambda p: p if isinstance(p, str) else p["is"])
def test_computing_again_gives_the_same_losses(tmp_path: Path, position: Any) -> None:
    model = {"position": position, "max_length": 16, "layers": 3, "dropout": 0.1}
    for again in (False, True):
        said = tiny(model=model, loop={"steps": 3, "batch": 2, "recompute": again}, data={"test_examples": 2})
        go(tmp_path / str(again), said)
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-6)


@pytest.mark.parametrize("position", ["t5", "rope"])
def test_computing_again_with_a_source_gives_the_same_losses(tmp_path: Path, position: str) -> None:
    model = {"is": "encoder_decoder", "width": 16, "layers": 2, "heads": 2, "position": position}
    for again in (False, True):
        said = tiny(model=model, loop={"steps": 3, "batch": 2, "recompute": again}, data={"test_examples": 2})
        go(tmp_path / str(again), said)
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-6)


def test_computing_again_keeps_less(tmp_path: Path) -> None:
    """What autograd holds on to between the two passes."""

    def held(again: bool) -> int:
        loop = Run(settings_of(tiny(loop={"recompute": again})), tmp_path / str(again)).loop
        kept: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loop.state.loss(loop.state.data.batch(range(8)))
        return sum(kept.values())

    assert held(True) < 0.6 * held(False)


COMPILED = """
import json, sys
from pathlib import Path
from torch._dynamo.utils import counters
from tests.training.runs import Notes, go
notes = Notes()
go(Path(sys.argv[1]), json.loads(sys.argv[2]), report=notes)
print(json.dumps({"notes": notes.notes, "breaks": len(counters["graph_break"])}))
"""


def compiled(folder: Path, said: dict[str, Any], **environment: str) -> dict[str, Any]:
    """Run it in a process of its own: torch's compiler warns of itself, and what it compiled stays in a process."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(folder), json.dumps(said)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": f"{folder}-cache", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("position", "again"), [("rope", False), ("t5", True)])
def test_compiled_gives_the_same_losses(tmp_path: Path, position: str, again: bool) -> None:
    said = tiny(model={"position": position}, loop={"compile": True, "recompute": again})
    assert compiled(tmp_path / "fast", said) == {"notes": [], "breaks": 0}
    go(tmp_path / "plain", tiny(model={"position": position}))
    assert losses(tmp_path / "fast") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)


@pytest.mark.sampled
def test_without_a_compiler_it_says_so_once_and_trains_on(tmp_path: Path) -> None:
    said = tiny(loop={"compile": True, "steps": 3})
    done = compiled(tmp_path / "run", said, CXX="/bin/false")
    assert len(done["notes"]) == 1
    assert "not compiled, because the compiler failed" in done["notes"][0]
    go(tmp_path / "plain", tiny(loop={"steps": 3}))
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


@pytest.mark.sampled
def test_bfloat16_trains_with_weights_in_float32(tmp_path: Path) -> None:
    probe = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum()"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode:
        pytest.skip("this CPU cannot multiply matrices in bfloat16")
    for precision in ("float32", "bfloat16"):
        trained = go(tmp_path / precision, tiny(loop={"precision": precision}, average={"decay": 0.5}))
        assert {p.dtype for p in trained.model.parameters()} == {torch.float32}
    half, whole = losses(tmp_path / "bfloat16"), losses(tmp_path / "float32")
    assert half != whole
    assert half == pytest.approx(whole, abs=0.05)


def shares_its_table() -> Model:
    spec = encoder_decoder(vocab=20, width=16, layers=1, heads=2, tied=True)
    return build(replace(spec, embedding=replace(spec.embedding, shared=True)))


@pytest.mark.parametrize(
    "model",
    [
        lambda: build(decoder(vocab=20, width=16, layers=1, heads=2, tied=True)),
        lambda: build(decoder(vocab=20, width=16, layers=2, heads=2, position="t5")),
        shares_its_table,
    ],
    ids=["tied", "one bias for two layers", "one table for two ends"],
)
def test_another_precision_leaves_every_parameter_in_its_place(model: Callable[[], Model]) -> None:
    torch.manual_seed(0)
    core = model()
    learner = TokenLearner(core) if core.encoder is None else PairLearner(core)
    tokens = torch.randint(20, (2, 5))
    batch = Batch(tokens, tokens, source=None if core.encoder is None else tokens.flip(1))
    places = dict(learner.named_parameters(remove_duplicate=False))
    cast = in_precision(learner, torch.float64)
    for logits in (learner, cast, cast):  # the second time shows what the first left behind
        learner.zero_grad()
        losses_of(logits(batch), batch.targets, 0.0).backward()
        found = {name: p.grad for name, p in learner.named_parameters()}
        if logits is learner:
            wanted = found
        for name, grad in found.items():
            torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-5, msg=name)
        now = dict(learner.named_parameters(remove_duplicate=False))
        assert all(now[name] is p for name, p in places.items())


def test_a_recurrent_model_has_nothing_to_compute_again(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="leave it out"):
        go(tmp_path / "run", tiny(model={"is": "recurrent", "width": 8}, loop={"recompute": True}))


# ---- what cannot be tested is found out first, and nothing is lost


def test_a_test_that_the_model_cannot_read_is_refused_before_training(tmp_path: Path) -> None:
    said = tiny(model={"position": "learned", "max_length": 20}, data={"test_lengths": [5, 40]})
    with pytest.raises(VantageError, match=r"cannot read the test set 'length 40': .*table of 20"):
        go(tmp_path / "run", said)
    assert read_log(tmp_path / "run")[0] == []


def test_a_test_that_fails_at_the_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError("no memory")

    with monkeypatch.context() as during:
        during.setattr("vantage.training.loop.evaluate", fails)
        with pytest.raises(RuntimeError, match="no memory"):
            go(tmp_path / "run", tiny())
    assert steps(tmp_path / "run" / "checkpoints") == [6]
    assert go(tmp_path / "run", tiny(), resume=True).kept is not None


@pytest.mark.sampled
def test_a_run_that_was_stopped_for_a_spike_can_go_on(tmp_path: Path) -> None:
    said = tiny(optimiser={"lr": 1e-9}, loop={"steps": 130}, guard={"spike": 1e-6})
    with pytest.raises(Diverged, match=r"guard\.spike=0"):
        go(tmp_path / "run", said)
    assert go(tmp_path / "run", said | {"guard": {"spike": 0.0}}, resume=True).step == 130


# ---- what is logged


def test_rates_norms_and_targets_are_logged_as_they_are(tmp_path: Path) -> None:
    said = tiny(loop={"clip": 0.01}, schedule={"is": "wsd", "warmup": 2, "decay": 0.5}, optimiser={"lr": 0.25})
    run = Run(settings_of(said), tmp_path / "run")
    run.go()
    schedule = WSD(total=6, warmup=2, decay=0.5)
    stepped, scored = read_log(tmp_path / "run")
    assert [r.step for r in stepped] == [1, 2, 3, 4, 5, 6]
    assert [r.lr for r in stepped] == [0.25 * schedule.at(i) for i in range(6)]
    assert stepped[0].lr == 0.125
    assert all(r.norm > 0.01 for r in stepped)  # before clipping
    assert [r.targets for r in stepped] == [
        run.opened.data.batch(range(i * 8, i * 8 + 8)).target_count for i in range(6)
    ]
    assert [(s.step, s.set, s.rows) for s in scored] == [(6, "length 5", 8)]


def test_clipping_bounds_the_update(tmp_path: Path) -> None:
    def moved(clip: float) -> float:
        plain = {"is": "adamw", "lr": 1e-3, "eps": 1.0, "betas": [0.0, 0.0], "weight_decay": 0.0}
        run = Run(settings_of(tiny(loop={"clip": clip, "steps": 1}, optimiser=plain)), tmp_path / str(clip))
        before = [p.detach().clone() for p in run.loop.state.learner.parameters()]
        run.go()
        after = [p.detach() for p in run.loop.state.learner.parameters()]
        return sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True)) ** 0.5

    # with so large an eps the update is the gradient, nearly
    assert moved(1e-3) == pytest.approx(1e-3 * 1e-3, rel=0.05)
    assert moved(1e-4) == pytest.approx(1e-3 * 1e-4, rel=0.05)


# ---- evaluation and reasons to stop


def test_the_average_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    trained = go(tmp_path / "mean", tiny(average={"decay": 0.9}))
    go(tmp_path / "plain", tiny())
    assert losses(tmp_path / "mean") == losses(tmp_path / "plain")  # the training itself is not touched
    held = Run(settings_of(tiny(average={"decay": 0.9})), tmp_path / "other").opened.data.held_out()
    learner: Any = trained.learner
    again = evaluate(learner, learner, held, trained.step, torch.device("cpu"))
    assert again == trained.scores  # the model that comes back has the averages
    assert again != read_log(tmp_path / "plain")[1]


def test_it_stops_when_the_goal_is_reached(tmp_path: Path) -> None:
    notes = Notes()
    data = {"is": "task", "task": "even-pairs", "lengths": [2, 2], "test_lengths": [2], "test_examples": 32}
    model = {"is": "encoder", "width": 32, "layers": 1, "heads": 2}
    said = tiny(data=data, model=model, loop={"steps": 2000, "batch": 16}, optimiser={"lr": 1e-2})
    said["evaluate"] = {"every": 10, "goal": 1.0}
    trained = go(tmp_path / "run", said, report=notes)
    assert trained.finished
    assert trained.step < 2000
    assert trained.step % 10 == 0
    assert trained.scores[0].exact == 1.0
    assert trained.kept is not None
    assert len(notes.notes) == 1
    assert "the goal was 100.0%" in notes.notes[0]
    # whoever goes on with it finds it finished, and the same model
    again = go(tmp_path / "run", said, resume=True)
    assert (again.finished, again.step, again.scores) == (True, trained.step, trained.scores)


def test_it_stops_when_nothing_gets_better_and_keeps_the_best(tmp_path: Path) -> None:
    notes = Notes()
    said = tiny(loop={"steps": 400, "batch": 4}, optimiser={"lr": 0.5}, save={"every": 4})  # far too large a rate
    said["evaluate"] = {"every": 4, "patience": 3, "best": True}
    said["guard"] = {"spike": 0.0}
    trained = go(tmp_path / "run", said, report=notes)
    scores = [s.loss for s in read_log(tmp_path / "run")[1]]
    best = min(range(len(scores)), key=scores.__getitem__)
    assert trained.finished
    assert len(scores) == best + 1 + 3
    assert "no better loss in 3 evaluations" in notes.notes[-1]
    learner: Any = trained.learner
    held = Run(settings_of(said), tmp_path / "other").opened.data.held_out()
    again = evaluate(learner, learner, held, 0, torch.device("cpu"))
    assert again[0].loss == scores[best]
    assert again[0].loss < scores[-1]


def test_sets_are_watched_by_name(tmp_path: Path) -> None:
    said = tiny(data={"test_lengths": [5, 9]}, evaluate={"every": 3, "watch": "length 9", "best": True})
    run = Run(settings_of(said), tmp_path / "run")
    run.go()
    scores = read_log(tmp_path / "run")[1]
    assert {s.set for s in scores} == {"length 5", "length 9"}
    assert run.loop.best is not None
    assert run.loop.best[0] == min(s.loss for s in scores if s.set == "length 9")


def test_a_set_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    said = tiny(evaluate={"every": 3, "watch": "length 7", "best": True})
    with pytest.raises(BadInput, match="length 5"):
        Run(settings_of(said), tmp_path / "run")


def test_checkpoints_are_written_when_they_are_due_and_the_last_are_kept(tmp_path: Path) -> None:
    notes = Notes()
    go(tmp_path / "run", tiny(loop={"steps": 7}, save={"every": 2, "keep": 3}), report=notes)
    assert [int(path.name[5:]) for path in notes.saves] == [2, 4, 6, 7]
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-00000004", "step-00000006", "step-00000007"]


def test_smoothing_raises_the_loss_of_a_sure_model_only_in_training(tmp_path: Path) -> None:
    go(tmp_path / "plain", tiny(loop={"steps": 1}))
    go(tmp_path / "smooth", tiny(loop={"steps": 1, "smoothing": 0.1}))
    assert losses(tmp_path / "plain") != losses(tmp_path / "smooth")


def test_steps_have_examples_of_their_own(tmp_path: Path) -> None:
    loop = Run(settings_of(tiny(loop={"accumulate": 2})), tmp_path / "run").loop
    rows = [[str(row.tolist()) for batch in loop._make_batches(step) for row in batch.tokens] for step in range(4)]
    assert all(a != b for a, b in pairwise(rows))
    assert loop._make_batches(2)[1].tokens.equal(loop.state.data.batch(range(20, 24)).tokens)


def test_a_batch_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="9 does not divide into 2 parts"):
        settings_of(tiny(loop={"batch": 9, "accumulate": 2}))
