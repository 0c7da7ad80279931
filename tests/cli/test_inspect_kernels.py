"""``vantage inspect kernels``."""

import json
import platform

import pytest
import torch

from vantage import Experts, FeedForward, TopK, save
from vantage.cli.main import main
from vantage.inspect.kernels import step_kernel
from vantage.model import build, decoder


def test_what_each_layer_runs(tmp_path, capsys):
    save(build(decoder(vocab=64, width=64, layers=3, heads=2, position="t5")), tmp_path / "model")
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--context", "50000", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == (
        "self 0 to self 2: tiles\n"
        "  sdpa: it would form 5,000,000,000 numbers\n"
        "  chosen: the chosen kernel is for sparse attention, where each query has a list of keys\n"
        "  reference: not needed: an earlier one accepts\n"
        "  blocks: not needed: nothing large is formed\n"
        "a step with a cache: modules\n"
        "  lowered: DistanceTable has no native form on a CPU\n"
    )
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    chosen = [(layer["site"], layer["kernel"]) for layer in told]
    assert chosen == [*((f"self {i}", "tiles") for i in range(3)), ("a step with a cache", "modules")]


@pytest.mark.parametrize(
    ("options", "device", "way", "others"),
    [
        ({}, "cpu", "lowered", {}),
        ({}, "cuda", "lowered", {}),
        ({"position": "t5"}, "cpu", "modules", {"lowered": "DistanceTable has no native form on a CPU"}),
        ({"position": "t5"}, "cuda", "lowered", {}),
        ({"position": "fire"}, "cuda", "lowered", {}),
        ({"position": "xpos"}, "cuda", "lowered", {}),
        ({"position": "xpos"}, "cpu", "lowered", {}),
        ({"position": "fox"}, "cuda", "lowered", {}),
        (
            {"position": "cope"},
            "cuda",
            "lowered",
            {
                "passes of more than 16 tokens of a row as a graph": "what a query counts before a key is known only "
                "behind all later keys"
            },
        ),
        ({"position": "fox"}, "cpu", "modules", {"lowered": "GateSums has no native form on a CPU"}),
        ({"position": "dape"}, "cuda", "graph of modules", {"lowered": "AdaptedBias has no native form"}),
        (
            {"ffn": Experts(FeedForward(64, "silu", gated=True), 2, TopK(1))},
            "cuda",
            "modules",
            {
                "lowered": "_Experts has no native form",
                "graph of modules": "which tokens go to an expert is read by the host",
            },
        ),
    ],
)
def test_which_way_a_step_runs(options, device, way, others, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if Triton were there
    monkeypatch.setattr("vantage.model.lowered.choice.processor_features", frozenset)  # no matrix unit
    choice = step_kernel(build(decoder(vocab=64, width=64, layers=1, heads=2, **options)), device)
    assert (choice.kernel, choice.others) == (way, others)


@pytest.mark.parametrize(
    ("machine", "features", "setting", "unused"),
    [
        ("x86_64", {"avx512f", "amx_tile", "amx_int8"}, None, {}),
        ("x86_64", {"avx512f", "amx_tile", "amx_int8"}, "0", {"AMX": "VANTAGE_MATRIX_UNITS=0 turns it off"}),
        (
            "aarch64",
            {"asimd", "asimddp", "i8mm"},
            None,
            {
                "i8mm": "off, as it ran in an emulator only: VANTAGE_MATRIX_UNITS=1 turns it on, for prompts with "
                "fast=True"
            },
        ),
        ("aarch64", {"asimd", "asimddp", "i8mm"}, "1", {}),
    ],
)
def test_a_matrix_unit_that_is_off_is_named(machine, features, setting, unused, monkeypatch):
    if setting is None:
        monkeypatch.delenv("VANTAGE_MATRIX_UNITS", raising=False)
    else:
        monkeypatch.setenv("VANTAGE_MATRIX_UNITS", setting)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr("vantage.model.lowered.choice.processor_features", lambda: frozenset(features))
    model = build(decoder(vocab=64, width=64, layers=1, heads=2))
    assert step_kernel(model, "cpu").others == unused


def test_a_gpu_that_is_not_here(tmp_path, capsys):
    if torch.cuda.is_available():
        return
    save(build(decoder(vocab=64, width=64, layers=1, heads=2)), tmp_path / "model")
    assert main(["inspect", "kernels", str(tmp_path / "model"), "--device", "cuda"]) != 0
    assert "there is no GPU here" in capsys.readouterr().err
