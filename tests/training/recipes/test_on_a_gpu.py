"""What the two recipes reach that want a GPU and a text: minutes each, so they are slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.text.real import real
from vantage.model import Model
from vantage.training import Trained, train
from vantage.training.log import read_log
from vantage.training.translate import TranslationScores, evaluate, read_gold, read_pairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: on cores it takes hours"),
]
GOLD = Path(__file__).parents[1] / "translate" / "alignments.json"


def test_translation(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    scores = translated(tmp_path, "cuda")
    assert scores.bleu >= 55
    assert scores.aer is not None
    assert scores.aer < 0.35


@pytest.mark.parametrize("position", ["rope", "learned"])
def test_characters_of_shakespeare(position: str, tmp_path: Path) -> None:
    assert lowest_loss(tmp_path, "cuda", position) <= 1.47  # nanoGPT's, with as many parameters


def translated(folder: Path, device: str, *changes: str) -> TranslationScores:
    names = {"source": "train.en", "target": "train.fr", "valid_source": "val.en", "valid_target": "val.fr"}
    files = [f"data.{key}={real(f'multi30k/{name}.gz')}" for key, name in names.items()]
    trained = learned("translate", folder, device, *files, *changes)
    assert isinstance(trained.model, Model)
    pairs = read_pairs(real("multi30k/test_2016_flickr.en.gz"), real("multi30k/test_2016_flickr.fr.gz"))
    return evaluate(trained.model.eval(), pairs, gold=read_gold(GOLD), beams=5)


def lowest_loss(folder: Path, device: str, position: str, *changes: str) -> float:
    files = f"data.files={real('tinyshakespeare.txt')}"
    learned("shakespeare", folder, device, files, f"model.position={position}", *changes)
    return min(score.loss for score in read_log(folder / "run")[1])


def learned(recipe: str, folder: Path, device: str, *changes: str) -> Trained:
    trained = train(recipe, [*changes], out=folder / "run", device=device)
    assert trained.finished
    return trained
