"""Recurrent models in a folder: what was saved is what is loaded, and nothing else is."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.recurrent.helpers import SHAPES, WAYS, padded, spec_of, tokens
from vantage.errors import BadInput, CheckpointError
from vantage.families.recurrent import load_recurrent, save_recurrent
from vantage.model.recurrent import build_recurrent

WAY = ("general", "attended")


@pytest.fixture
def folder(tmp_path):
    save_recurrent(build_recurrent(spec_of(WAY, ("lstm", 2, True), dropout=0.25), seed=5), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_was_saved_is_loaded(tmp_path, way, shape):
    model = build_recurrent(spec_of(way, shape, dropout=0.25), seed=5).eval()
    save_recurrent(model, tmp_path / "model")
    loaded = load_recurrent(tmp_path / "model")
    assert loaded.spec == model.spec
    assert not loaded.training
    for (name, p), q in zip(model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p, q), name
    source, mask = padded([4, 2, 6])
    said = tokens(3, 5, seed=1)
    assert torch.equal(loaded(said, source=source, source_mask=mask), model(said, source=source, source_mask=mask))
    loaded(said, source=source).sum().backward()  # it can be trained further
    assert all(p.grad is not None for p in loaded.parameters())


def test_another_dtype(folder):
    wide, plain = load_recurrent(folder, dtype=torch.float64), load_recurrent(folder)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    source, said = tokens(2, 4), tokens(2, 3, seed=1)
    torch.testing.assert_close(wide(said, source=source).float(), plain(said, source=source))


def test_a_folder_with_weights_is_not_written_over(folder):
    with pytest.raises(BadInput, match="already holds"):
        save_recurrent(build_recurrent(spec_of()), folder)


def configured(folder, change):
    path = folder / "config.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(model_type="llama"), "model_type is 'llama'.*use load"),
        (lambda c: c.update(spec_version=2), "spec_version is 2"),
        (lambda c: c.update(rope_theta=1.0), "'rope_theta' may change the model"),
        (lambda c: c.pop("spec"), "'spec' is missing"),
        (lambda c: c.update(spec=[1]), "wanted an object"),
        (lambda c: c["spec"].update(heads=3), "an unknown 'heads'"),
        (lambda c: c["spec"].pop("cell"), "lacks 'cell'"),
        (lambda c: c["spec"].update(cell="os.system"), "no cell is called 'os.system'"),
        (lambda c: c["spec"].update(cell=["gru"]), "no cell is called"),
        (lambda c: c["spec"].update(width="6"), "width='6'"),
        (lambda c: c["spec"].update(width=8), "has shape .* and the config asks for"),
        (lambda c: c["spec"].update(width=2**61), "width is 2305843009213693952"),
        (lambda c: c["spec"].update(layers=10**9), "layers is 1000000000"),
        (lambda c: c["spec"].update(layers=1), "which this model has no use for"),
        (lambda c: c["spec"].update(layers=3), "the checkpoint lacks"),
        (lambda c: c["spec"].update(attention=None, feed=None), "which this model has no use for"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, change, says):
    configured(folder, change)
    with pytest.raises(CheckpointError, match=says):
        load_recurrent(folder)


def test_damaged_tensors_are_refused(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "head.bias": tensors["head.bias"].fill_(float("nan"))}, path)
    with pytest.raises(CheckpointError, match=r"head\.bias"):
        load_recurrent(folder)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError):
        load_recurrent(folder)
