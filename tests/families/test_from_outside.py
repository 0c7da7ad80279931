"""A family from outside the package, as docs/how-to/own-parts.md has it: in an installed package, and in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import vantage as vt
from tests.generation.folder import tokenizer
from tests.outside_package import good, install, run
from tests.processes import ROOT
from tests.test_docs import blocks
from vantage.errors import BadInput, CheckpointError
from vantage.families import families, family_of
from vantage.families.family import Family
from vantage.families.llama import FAMILY as LLAMA
from vantage.families.registry import FAMILIES

(CODE,) = [code for code in blocks(ROOT / "docs" / "how-to" / "own-parts.md", "python") if "Family(" in code]
CONFIG = {
    "model_type": "finch",
    "vocab": len(tokenizer()),
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "ffn_dim": 48,
    "norm_eps": 1e-5,
    "context": 64,
}
TOKENS = torch.arange(3, 20)[None]
# transformers' names, and Finch's
NAMES = {
    "model.embed_tokens": "tokens",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    "self_attn.q_proj": "wq",
    "self_attn.k_proj": "wk",
    "self_attn.v_proj": "wv",
    "self_attn.o_proj": "wo",
    "mlp.gate_proj": "w1",
    "mlp.up_proj": "w3",
    "mlp.down_proj": "w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


def finch_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaMA of transformers, its tensors and its config under Finch's names, and beside it what it computes."""
    folder = tmp_path_factory.mktemp("checkpoint") / "finch"
    folder.mkdir()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=CONFIG["vocab"],
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    weights = {finch_name(name): weight.contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    tokenizer().save(folder)
    with torch.no_grad():
        torch.save(model(TOKENS).logits, folder.parent / "logits.pt")
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package: its code, and the entry point that says where its family is."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "finch.py").write_text(CODE, encoding="utf-8")
    install(folder, "finch", "finch")
    return folder


USE = """
import json, sys
from pathlib import Path
import torch
import vantage as vt
from safetensors.torch import load_file
from vantage.families import read_spec
from vantage.inspect.cost import cost

folder = Path(sys.argv[1])
tokens = torch.arange(3, 20)[None]
model = vt.load(folder)
assert read_spec(folder) == model.spec
with torch.no_grad():
    logits = model(tokens)
torch.testing.assert_close(logits, torch.load(folder.parent / "logits.pt"))
assert vt.check(model).ok
assert cost(model, context=8).uncounted == ()

vt.save(model, "saved")
stored, written = load_file(folder / "model.safetensors"), load_file("saved/model.safetensors")
assert stored.keys() == written.keys() and all(torch.equal(stored[name], written[name]) for name in stored)
saved = json.loads(Path("saved/config.json").read_text())
assert {**saved, "dtype": None} == {**json.loads((folder / "config.json").read_text()), "dtype": None}

vt.save_gguf(model, "finch.gguf", "F32")
with torch.no_grad():
    torch.testing.assert_close(vt.load("finch.gguf")(tokens), logits)
    quantised = vt.load(folder, dtype="int8")(tokens)
assert 0 < (quantised - logits).abs().max() < 0.5
print(list(vt.generate(model, "the cat", max_tokens=6, ends=False).tokens))
"""


@pytest.mark.sampled
def test_an_installed_package_works_everywhere(checkpoint, package, tmp_path):
    """Loaded, it computes what transformers does; saved, it has the tensors that it came with."""
    assert len(json.loads(good(run(tmp_path, "-c", USE, str(checkpoint), path=package)))) == 6


@pytest.mark.sampled
def test_the_commands_take_it(checkpoint, package, tmp_path):
    generate = ("-m", "vantage", "generate", str(checkpoint), "the cat", "--max-tokens", "4", "--temperature", "0")
    text = good(run(tmp_path, *generate, path=package))
    by_file = good(run(tmp_path, *generate, "--parts", str(package / "finch.py")))
    assert text == by_file
    costs = good(run(tmp_path, "-m", "vantage", "inspect", "cost", str(checkpoint), "--json", path=package))
    assert json.loads(costs)["total"] == sum(t.numel() for t in load_file(checkpoint / "model.safetensors").values())
    good(run(tmp_path, "-m", "vantage", "convert", str(checkpoint), "q8.gguf", "--type", "Q8_0", path=package))
    assert vt.load(tmp_path / "q8.gguf").spec.vocab == CONFIG["vocab"]  # without the package: it is a LLaMA by now


def test_without_the_package_it_is_refused_and_nothing_is_imported(checkpoint, package, tmp_path):
    """The module is on the path, and the config names it: that is no reason to import it."""
    (package / "canary.py").write_text("open('imported', 'w').close()")
    for kind in ("finch", "canary", "vantage.families.llama", "../llama"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps({**CONFIG, "model_type": kind}))
        (tmp_path / "model" / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
        with pytest.raises(CheckpointError, match="no family is called") as refused:
            vt.load(tmp_path / "model")
        assert "a family of your own is registered first (vantage.register, --parts FILE)" in str(refused.value)
    code = "import sys, vantage as vt\ntry: vt.load('model')\nexcept ValueError: print('canary' in sys.modules)"
    (tmp_path / "model" / "config.json").write_text(json.dumps({**CONFIG, "model_type": "canary"}))
    assert good(run(tmp_path, "-c", code, path=package)) == "False\n"
    assert not (tmp_path / "imported").exists()


# ---- in this process


@pytest.fixture
def taken_out():
    yield
    for family in FAMILIES.from_outside():
        FAMILIES.unregister(family.name)


def test_registered_once_more_it_is_replaced(taken_out):
    """A cell of a notebook that is run again."""
    for _ in range(2):
        exec(CODE, {"__name__": "finch"})
    assert [family.name for family in FAMILIES.from_outside()] == ["finch"]
    assert family_of(CONFIG) is FAMILIES["finch"]
    assert "finch" in FAMILIES
    assert list(FAMILIES) == [*families(), "finch"]


def test_what_is_not_read_is_refused(taken_out, checkpoint, tmp_path):
    exec(CODE, {"__name__": "finch"})
    folder = tmp_path / "finch"
    folder.mkdir()
    weights = load_file(checkpoint / "model.safetensors")
    for config, tensors, says in (
        ({**CONFIG, "wing_span": 3}, weights, "'wing_span' may change the model"),
        (CONFIG, {**weights, "beak": torch.ones(2)}, "holds 'beak', which this model has no use for"),
        (CONFIG, {k: v for k, v in weights.items() if k != "norm.weight"}, "lacks 'norm.weight'"),
        ({**CONFIG, "ffn_dim": 40}, weights, "has shape"),
    ):
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=says):
            vt.load(folder)


def test_a_gguf_file_is_refused_where_it_would_be_another_model(taken_out, checkpoint, tmp_path):
    code = CODE.replace('ffn=vt.FeedForward(c.whole("ffn_dim"))', 'ffn=vt.FeedForward(c.whole("ffn_dim"), "gelu")')
    assert code != CODE
    exec(code, {"__name__": "finch"})
    with pytest.raises(BadInput, match=r"has no place for this model: layers.*activation is 'gelu'"):
        vt.save_gguf(vt.load(checkpoint), tmp_path / "finch.gguf", "F32")
    exec(CODE.replace(', gguf="llama"', ""), {"__name__": "finch"})
    with pytest.raises(BadInput, match=r"the family 'finch' cannot be written as GGUF.*Family\(…, gguf='llama'\)"):
        vt.save_gguf(vt.load(checkpoint), tmp_path / "finch.gguf", "F32")
    assert not (tmp_path / "finch.gguf").exists()


def test_what_cannot_be_registered(taken_out):
    finch = Family("finch", LLAMA.spec, LLAMA.links)
    gemma = Family("gemma3_text", LLAMA.spec, LLAMA.links)
    for arguments, says in (
        (("family", "finch", Family), r"is no family: register a vantage.families.family.Family"),
        (("family", "sparrow", finch), "has the name 'finch': register it under that, not as 'sparrow'"),
        (("family", "gemma3_text", gemma), "is called 'gemma3_text' already"),
        (("familly", "finch", finch), "Did you mean 'family'"),
    ):
        with pytest.raises(BadInput, match=says):
            vt.register(*arguments)
    with pytest.raises(BadInput, match="by its name alone: leave out summary"):
        vt.register("family", "finch", finch, summary="A bird.")
    with pytest.raises(BadInput, match="no family 'llama' was registered from outside"):
        FAMILIES.unregister("llama")
    with pytest.raises(BadInput, match="no family is called 'finch'"):
        FAMILIES["finch"]
