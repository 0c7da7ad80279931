"""What stays in float32 when a model is loaded in half precision: what transformers keeps there, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors import safe_open

import vantage as vt
from tests.parity.cases import CASES
from tests.parity.rows import deepseek, deepseek_v32, gpt_oss, t5
from vantage.families import families
from vantage.model.wide import WideLinear

HALVES = [torch.bfloat16, torch.float16]
TOKENS = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(1))


def stored(folder):
    """The dtype of each tensor of a checkpoint."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (it has no iterator)


def both(case, dtype, folder):
    """Their model in half precision, and ours loaded from the same float32 checkpoint; each saved."""
    theirs = case.make("plain")
    theirs.save_pretrained(folder / "theirs")
    theirs = type(theirs).from_pretrained(folder / "theirs", dtype=dtype, experts_implementation="eager")
    theirs.save_pretrained(folder / "their-half")
    ours = vt.load(folder / "theirs", dtype=dtype)
    vt.save(ours, folder / "our-half")
    return theirs, ours


def check(case, dtype, folder):
    _, model = both(case, dtype, folder)
    theirs, ours = stored(folder / "their-half"), stored(folder / "our-half")
    family = families()[model.config["model_type"]]
    for old, new in family.older:
        theirs = {name.removesuffix(old) + new if name.endswith(old) else name: kept for name, kept in theirs.items()}
    # the prefix of a base model, which transformers stores without
    theirs = {name if name in ours else family.prefix + name: kept for name, kept in theirs.items()}
    assert {name: theirs[name] for name in ours} == ours
    return {name for name, kept in ours.items() if kept == "F32"}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_bias_of_deepseeks_router(dtype, tmp_path):
    wide = check(deepseek.V3, dtype, tmp_path)
    assert wide == {f"model.layers.{i}.mlp.gate.e_score_correction_bias" for i in (1, 2)}
    again = vt.load(tmp_path / "our-half", dtype=dtype)
    assert again.blocks[1].steps[1].sublayer.router.bias.dtype == torch.float32
    assert again.dtype == dtype


def test_its_bits_survive(tmp_path):
    """Two experts whose biases bfloat16 cannot tell apart are told apart."""
    _, ours = both(deepseek.V3, torch.bfloat16, tmp_path)
    exact = vt.load(tmp_path / "theirs").blocks[1].steps[1].sublayer.router.bias
    assert torch.equal(ours.blocks[1].steps[1].sublayer.router.bias, exact)
    assert not torch.equal(exact.bfloat16().float(), exact)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("case", "step"), [(t5.FULL, "wo"), (gpt_oss.CASES[0], "norm")], ids=["t5", "gpt_oss"])
def test_in_float16_alone(case, step, dtype, tmp_path):
    wide = check(case, dtype, tmp_path)
    assert bool(wide) == (dtype == torch.float16)
    assert all(step in name for name in wide)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_an_indexer_weighs_its_heads_by(dtype, tmp_path):
    wide = check(deepseek_v32.CASES[0], dtype, tmp_path)
    assert any("weights_proj" in name for name in wide) == (dtype == torch.float16)
    assert any("e_score_correction_bias" in name for name in wide)


def test_float32_and_float64_have_nothing_to_keep(tmp_path):
    t5.FULL.make("plain").save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.float64):
        model = vt.load(tmp_path, dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert not any(isinstance(m, WideLinear) for m in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_every_family_keeps_what_transformers_keeps(case, dtype, tmp_path):
    check(case, dtype, tmp_path)


def test_every_step_that_a_family_names_is_in_its_table():
    """A misspelt one would keep nothing, and nobody would see it."""
    named = {name: f.wide + f.wide_in_float16 for name, f in families().items() if f.wide or f.wide_in_float16}
    assert named == {
        "deepseek_v3": ("e_score_correction_bias",),
        "deepseek_v32": ("e_score_correction_bias", "weights_proj"),
        "glm_moe_dsa": ("e_score_correction_bias", "weights_proj"),
        "t5": ("wo",),
        "gpt_oss": ("input_layernorm", "post_attention_layernorm", "norm"),
    }


def can_multiply_halves() -> bool:
    """Some processors die of it (SIGILL): ask another process."""
    code = "import torch; a = torch.ones(8, 8, dtype=torch.float16); print(float((a @ a).sum()))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@torch.no_grad()
def test_t5_in_float16_does_not_overflow(tmp_path):
    """Sums past 65,504, as the large T5s have: they pass through float32, as in transformers."""
    if not can_multiply_halves():
        pytest.skip("this processor cannot multiply float16")
    theirs = t5.FULL.make("plain")
    for name, p in theirs.named_parameters():
        if name.endswith("wo.weight"):
            p.mul_(60_000)
    theirs.save_pretrained(tmp_path)
    wanted = theirs(input_ids=TOKENS, decoder_input_ids=TOKENS).logits
    half = type(theirs).from_pretrained(tmp_path, dtype=torch.float16)(input_ids=TOKENS, decoder_input_ids=TOKENS)
    ours = vt.load(tmp_path, dtype=torch.float16)
    got = ours(TOKENS, source=TOKENS)
    assert got.dtype == torch.float16
    assert got.isfinite().all()
    size = wanted.abs().max()
    off = float((got.float() - wanted).abs().max() / size)
    assert off < max(2 * float((half.logits.float() - wanted).abs().max() / size), 5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", [gpt_oss.CASES[0], deepseek.V3], ids=["gpt_oss", "deepseek_v3"])
@torch.no_grad()
def test_mixed_precision_runs(case, tmp_path):
    if not can_multiply_halves():
        pytest.skip("this processor cannot multiply float16")
    theirs, ours = both(case, torch.float16, tmp_path)
    wanted = vt.load(tmp_path / "theirs")(TOKENS)
    got = ours(TOKENS)
    assert got.dtype == torch.float16
    off, their_off = (
        float((x.float() - wanted).abs().max() / wanted.abs().max()) for x in (got, theirs(TOKENS).logits)
    )
    assert off < max(2 * their_off, 5e-3)
