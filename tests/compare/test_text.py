"""Text in an experiment: every token is scored once, with as much before it as the way of reading says."""

from __future__ import annotations

import pytest
import torch

from vantage.compare import text as texts
from vantage.compare.entries import ModelShape
from vantage.compare.executors import LocalBackend
from vantage.compare.experiment import Experiment
from vantage.compare.jobs import TrainingJob, run
from vantage.compare.report import write_report
from vantage.compare.run import run_experiment
from vantage.compare.text import NAME, OVER_POSITION, READINGS, SLIDING, Reading, shards
from vantage.errors import BadInput
from vantage.training.batch import Batch

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """Bytes that count up: what stands before a byte tells it."""
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_bytes(bytes(i * i % 251 for i in range(6000)))
    return str(path)


def reading(book, **changes):
    settings = {"train_length": 8, "test_lengths": (8, 24, 40), "tokens": 100, "seed": 0} | changes
    return Reading(shards((book,), "bytes"), **settings)


class Counting:
    """A model whose loss for a token is known: ln 256, less as many thousandths as there are tokens before it."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        rows, width = batch.tokens.shape
        logits = torch.zeros(rows, width, 256)
        # softmax over 256 with one raised by x: the loss of that one is ln(255 + e^x) - x; of position t we set x = t
        x = torch.arange(width, dtype=torch.float32)[None, :, None].expand(rows, width, 1)
        return logits.scatter(2, batch.targets[..., None], x)


def loss_at(t):
    x = torch.tensor(float(t), dtype=torch.float64)
    return float((255 + x.exp()).log() - x)


def test_windows_that_do_not_overlap_and_windows_that_slide(book):
    found = reading(book).score(Counting(), CPU)
    assert set(found) == set(READINGS)
    for n, plain, slid in zip((8, 24, 40), found[NAME], found[SLIDING], strict=True):
        assert plain.rows == slid.rows == 100
        assert plain.loss == pytest.approx(sum(loss_at(i % n) for i in range(100)) / 100, rel=1e-5)
        # stride 4: the first window is scored whole, each later one in its last four tokens
        before = [i if i < n else n - 4 + (i - n) % 4 for i in range(100)]
        tail = (100 - n) % 4  # what is left over is read at the end of a whole window
        before[100 - tail :] = range(n - tail, n)
        assert slid.loss == pytest.approx(sum(map(loss_at, before)) / 100, rel=1e-5)
        assert slid.loss <= plain.loss


def test_over_position_is_by_where_a_token_stands(book):
    found = reading(book).score(Counting(), CPU)[OVER_POSITION]
    assert [score.length for score in found] == [2, 4, 8, 24, 40]
    starts = [0, 2, 4, 8, 24]
    for start, score in zip(starts, found, strict=True):
        mean = sum(loss_at(t) for t in range(start, score.length)) / (score.length - start)
        assert score.loss == pytest.approx(mean, rel=1e-5, abs=1e-6)
        assert score.rows == 2 * (score.length - start)  # two whole windows of 40 in 100 tokens


def test_what_is_read_is_not_trained_on(tmp_path):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"a" * 5400 + b"z" * 600)
    one = reading(str(path))
    batch = one.batch(range(3000))  # four epochs
    assert set(batch.tokens.flatten().tolist()) == set(batch.targets.flatten().tolist()) == {ord("a")}
    assert set(one.held.tolist()) == {ord("z")}


def test_vocabularies():
    assert texts.vocabulary("bpe-300").size == 300
    for bad in ("byte", "bpe", "bpe-12", "words"):
        with pytest.raises(BadInput, match="bpe-"):
            texts.vocabulary(bad)


SMALL = {
    "tasks": ("text",),
    "positions": ("none", "randomised-rope"),
    "train_length": 8,
    "test_lengths": (8, 24),
    "seeds": 2,
    "steps": 6,
    "batch": 4,
    "shape": ModelShape(16, 1, 2),
    "test_examples": 8,
    "rates": (1e-3,),
}


@pytest.mark.sampled
def test_an_experiment_of_text_is_read_in_three_ways_and_trained_once(book, tmp_path):
    experiment = Experiment(**SMALL, text=(book,))
    assert experiment.trainings() == 4
    assert len(experiment.wanted()) == 12
    assert len(list(experiment.entries())) == 2
    results = run_experiment(experiment, tmp_path, LocalBackend(CPU, 1))
    assert [r.key for r in results] == experiment.wanted()
    plain, places = (next(r for r in results if r.key.task == name) for name in (NAME, OVER_POSITION))
    assert [s.length for s in plain.scores] == [8, 24]
    assert [s.length for s in places.scores] == [2, 4, 8, 24]
    assert all(0 < s.loss < 10 for r in results for s in r.scores)
    page = write_report(tmp_path, {"train_length": 8}, results).read_text()
    assert "4 runs: 1 task, 2 entries, 2 seeds" in page
    assert "text, over position: perplexity" in page
    assert "position in the window" in page
    (again,) = [
        r for r in run(TrainingJob(experiment, "text", "none", "multi-head", (1,), 1e-3), CPU) if r.key.task == SLIDING
    ]
    there = next(r for r in results if r.key == again.key)
    assert there.scores == again.scores  # alone it learns what it learns in an experiment


def test_another_text_is_another_experiment(book, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(bytes(range(250)) * 30)
    assert Experiment(**SMALL, text=(book,)).fingerprint() != Experiment(**SMALL, text=(str(other),)).fingerprint()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": ()}, "--text"),
        ({"tasks": ("ordering",)}, "add the task text"),
        ({"test_lengths": (8, 5000)}, "lengths up to 599"),
        ({"vocabulary": "bpe"}, "bpe-4096"),
        ({"text": ("nowhere.txt",)}, "no file"),
        ({"positions": ("none-bidirectional",)}, "causal"),
    ],
)
def test_bad_texts_are_refused(book, changes, said):
    with pytest.raises(BadInput, match=said):
        Experiment(**({**SMALL, "text": (book,)} | changes))
