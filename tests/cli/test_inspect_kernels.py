"""``vantage inspect kernels``."""

import json

import torch

from vantage import save
from vantage.cli.main import main
from vantage.model import build, decoder


def test_what_each_layer_runs(tmp_path, capsys):
    save(build(decoder(vocab=64, width=64, layers=3, heads=2, position="t5")), tmp_path / "model")
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--context", "50000", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == (
        "self 0 to self 2: tiles\n"
        "  sdpa: yields: it would form 5,000,000,000 numbers\n"
        "  reference: not needed: another one comes first\n"
    )
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(layer["site"], layer["kernel"]) for layer in told] == [(f"self {i}", "tiles") for i in range(3)]


def test_a_gpu_that_is_not_here(tmp_path, capsys):
    if torch.cuda.is_available():
        return
    save(build(decoder(vocab=64, width=64, layers=1, heads=2)), tmp_path / "model")
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--device", "cuda"]) != 0
    assert "there is no GPU here" in capsys.readouterr().err
