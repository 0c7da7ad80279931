"""Against TransformerLens on the same weights: activations, patched logits, attribution. `make lens` installs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vantage as vt
from tests.inspect.models import published
from vantage.interventions import attribute, patch
from vantage.model import Model

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "bench" / ".lens" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="TransformerLens is not here: make lens"),
]
CLOSE = 1e-4


def random_folder(folder: Path, family: str) -> Path:
    """A small model with weights large enough that every head does something."""
    import transformers

    small = {
        "llama": transformers.LlamaConfig(
            vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=64,
        ),
        "gpt2": transformers.GPT2Config(vocab_size=64, n_embd=48, n_layer=3, n_head=4, n_positions=64),
        "qwen3": transformers.Qwen3Config(
            vocab_size=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
            max_window_layers=2,
        ),
    }[family]  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(small)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name or "ln_" in name else 0.0, 0.15)
    model.save_pretrained(folder)
    return folder


def by_transformer_lens(folder: Path, job: dict[str, object], out: Path) -> dict[str, Tensor]:
    script = Path(__file__).with_name("transformer_lens_run.py")
    run = [str(PYTHON), str(script), str(folder), json.dumps(job), str(out)]
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "WANDB_MODE": "disabled"}
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, **offline}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out)


def compare(of: Model, folder: Path, job: dict[str, object], out: Path) -> None:
    theirs = by_transformer_lens(folder, job, out)
    clean, corrupted = (torch.tensor([job[name]]) for name in ("clean", "corrupted"))
    measured = {"target": job["target"], "against": job["against"]}
    names = [name for name in theirs if name.startswith("layers.")]
    ours = vt.trace(of, clean, read=["logits", *names])
    for name in ("logits", *names):
        seen = torch.ones_like(theirs[name]).tril().bool() if name.endswith("scores") else slice(None)
        size = float(theirs[name][seen].abs().max())  # the residual stream of SmolLM2 goes up to thousands
        assert (ours[name][seen] - theirs[name][seen]).abs().max() < CLOSE * max(1.0, size), name
    for activation in ("residual_before", "heads"):
        values = patch(of, clean, corrupted, activation=activation, **measured).values
        assert (values - theirs[f"patched {activation}"]).abs().max() < CLOSE * max(1.0, float(values.abs().max()))
    place = f"layers.{job['layer']}.heads"
    value = vt.trace(of, clean, read=place)[place][:, :, job["head"] : job["head"] + 1]
    edited = vt.trace(of, corrupted, edits=vt.Edit(place, value, heads=job["head"])).logits
    assert (edited - theirs["logits with one head"]).abs().max() < CLOSE * float(edited.abs().max())
    heads = attribute(of, clean, **measured).by_layer("head").flatten()
    assert (heads - theirs["attributed heads"]).abs().max() < CLOSE * max(1.0, float(heads.abs().max()))


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_a_small_model_of_each_family(family: str, tmp_path: Path) -> None:
    folder = random_folder(tmp_path / family, family)
    random = torch.Generator().manual_seed(1)
    clean, corrupted = (torch.randint(0, 64, (10,), generator=random).tolist() for _ in range(2))
    job = {"clean": clean, "corrupted": corrupted, "target": 7, "against": 11, "layer": 1, "head": 3}
    compare(vt.load(folder), folder, job, tmp_path / "found.safetensors")


def test_smollm2(tmp_path: Path) -> None:
    of = published("smollm2")
    vt.save(of, tmp_path / "smollm2")
    clean, corrupted = (
        of.tokenizer.encode(f"When Mary and John went out, {name} gave a drink to") for name in ("John", "Mary")
    )
    target, against = (of.tokenizer.encode(name)[0] for name in (" Mary", " John"))
    job = {"clean": clean, "corrupted": corrupted, "target": target, "against": against, "layer": 23, "head": 3}
    compare(of, tmp_path / "smollm2", job, tmp_path / "found.safetensors")
