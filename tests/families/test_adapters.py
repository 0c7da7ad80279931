"""Adapters as files: what we write peft reads, what peft writes we read, and what does not fit is refused."""

from __future__ import annotations

import json
import shutil

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

import vantage as vt
from tests.parity.cases import CASES
from vantage.errors import BadInput, CheckpointError
from vantage.families.adapters import load_adapter, save_adapter
from vantage.model.lora import Lora, adapted, add_lora, merge

TOKENS = torch.randint(3, 67, (2, 12), generator=torch.Generator().manual_seed(3))
CASE = {case.family: case for case in CASES}
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def their_model(family: str, folder, option: str = "plain"):
    theirs = CASE[family].make(option)
    theirs.save_pretrained(folder)
    return theirs


def shake(parameters, seed: int = 0) -> None:
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p.copy_(torch.randn(p.shape, generator=random) * 0.2)


def shaken(model, config: Lora):
    add_lora(model, config, seed=5)
    shake(p for p in model.parameters() if p.requires_grad)
    return model


@torch.no_grad()
def off(a, b) -> float:
    return float((a - b).abs().max() / b.abs().max())


@torch.no_grad()
def answers(theirs):
    out = theirs(TOKENS)
    return out.logits if "logits" in out else out.last_hidden_state


FAMILIES = [  # q, k and v apart with rows as ours; biases; in one weight, transposed or head by head; an encoder
    ("llama", "grouped", ("attention", "ffn")),
    ("llama", "grouped", ("q", "v")),
    ("llama", "plain", ("blocks.1.*",)),
    ("qwen2", "plain", ("attention", "ffn")),
    ("gpt2", "plain", ("attention", "ffn")),
    ("gpt_neox", "plain", ("q", "down")),
    ("phi3", "plain", ("attention", "ffn")),
    ("bert", "plain", ("attention", "ffn")),
    ("bert-model", "plain", ("attention", "ffn")),  # without a head: shorter names
]


@pytest.mark.sampled
@pytest.mark.parametrize(("family", "option", "targets"), FAMILIES, ids=[f"{f}-{'+'.join(t)}" for f, _, t in FAMILIES])
def test_peft_reads_ours(family, option, targets, tmp_path):
    theirs = their_model(family, tmp_path / "base", option)
    ours = shaken(vt.load(tmp_path / "base"), Lora(4, alpha=6.0, targets=targets))
    assert save_adapter(ours, tmp_path / "adapter", base="somewhere/base") == []
    before = answers(theirs)
    wanted = answers(peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval())
    assert off(before, wanted) > 0.05
    with torch.no_grad():
        assert off(ours(TOKENS), wanted) < 1e-4
    again = vt.load(tmp_path / "base")
    load_adapter(again, tmp_path / "adapter")
    with torch.no_grad():
        assert off(again(TOKENS), wanted) < 1e-4
        merge(again)
        assert off(again(TOKENS), wanted) < 1e-4


def test_an_adapter_of_a_model_with_a_head_fits_one_without(tmp_path):
    """The names differ by how they begin, as with checkpoints."""
    CASE["bert"].make("plain").save_pretrained(tmp_path / "base")
    masked = shaken(vt.load(tmp_path / "base"), Lora(4))
    save_adapter(masked, tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / WEIGHTS)
    assert all(name.startswith("base_model.model.bert.") for name in tensors)
    save_file({n.replace(".bert.", "."): t for n, t in tensors.items()}, tmp_path / "adapter" / WEIGHTS)
    other = vt.load(tmp_path / "base")
    load_adapter(other, tmp_path / "adapter")
    with torch.no_grad():
        assert torch.equal(other(TOKENS), masked(TOKENS))


MADE_BY_PEFT = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "all": {"target_modules": "all-linear", "lora_dropout": 0.1},
    "patterns": {
        "target_modules": ["q_proj", "down_proj", "k_proj"],
        "rank_pattern": {"down_proj": 2, "model.layers.1.self_attn.k_proj": 3},
        "alpha_pattern": {"q_proj": 11},
    },
    "root": {"target_modules": ["o_proj", "gate_proj"], "use_rslora": True},
}


@pytest.mark.parametrize("kind", MADE_BY_PEFT)
def test_ours_reads_pefts(kind, tmp_path):
    theirs = their_model("llama", tmp_path / "base", "grouped")
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=7, **MADE_BY_PEFT[kind])).eval()
    shake(p for name, p in theirs.named_parameters() if "lora_" in name)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = vt.load(tmp_path / "base")
    load_adapter(ours, tmp_path / "adapter")
    with torch.no_grad():
        assert off(ours(TOKENS), answers(theirs)) < 1e-4
    save_adapter(ours, tmp_path / "again")  # and back, to the bit
    first, second = load_file(tmp_path / "adapter" / WEIGHTS), load_file(tmp_path / "again" / WEIGHTS)
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_peft_reads_back_what_it_wrote_on_gpt2(tmp_path):
    theirs = their_model("gpt2", tmp_path / "base")
    config = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    theirs = peft.get_peft_model(theirs, config).eval()
    shake(p for name, p in theirs.named_parameters() if "lora_" in name)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = vt.load(tmp_path / "base")
    assert "blocks.0.steps.0.sublayer.qkv" in load_adapter(ours, tmp_path / "adapter")
    with torch.no_grad():
        assert off(ours(TOKENS), answers(theirs)) < 1e-4


def built(seed: int = 0) -> vt.Model:
    return vt.build(vt.decoder(vocab=67, width=32, layers=2, heads=4, kv_heads=2), seed=seed).eval()


def test_a_model_that_was_built_here_goes_by_our_names_and_comes_back_to_the_bit(tmp_path):
    m = shaken(built(), Lora(4, alpha=3.0, dropout=0.25))
    own = save_adapter(m, tmp_path)
    assert "blocks.0.steps.0.sublayer.qkv.q" in own
    assert len(own) == 2 * 7
    other = built()
    load_adapter(other, tmp_path)
    kept = {name: p for name, p in m.named_parameters() if p.requires_grad}
    assert {name for name, p in other.named_parameters() if p.requires_grad} == set(kept)
    assert all(torch.equal(other.get_parameter(name), p) for name, p in kept.items())
    parts = [part for module in adapted(other).values() for part in module.named_parts().values()]
    assert {(part.alpha, part.dropout.p) for part in parts} == {(3.0, 0.25)}
    with torch.no_grad():
        assert torch.equal(m(TOKENS), other(TOKENS))


def test_a_quantised_or_rounded_model_below_is_the_same_model(tmp_path):
    theirs = CASE["llama"]
    theirs = type(theirs)(**{**vars(theirs), "base": {**theirs.base, "hidden_size": 64, "intermediate_size": 96}})
    theirs.make("plain").save_pretrained(tmp_path / "base")
    save_adapter(shaken(vt.load(tmp_path / "base"), Lora(4)), tmp_path / "adapter")
    for dtype in ("int8", "int4", torch.bfloat16):
        m = vt.load(tmp_path / "base", dtype=dtype)
        assert len(load_adapter(m, tmp_path / "adapter")) == 3 * 7


# ---- what does not fit


@pytest.fixture
def saved(tmp_path):
    save_adapter(shaken(built(), Lora(4)), tmp_path / "adapter")
    return tmp_path / "adapter"


def refused(folder, match: str, model: vt.Model | None = None, error: type[Exception] = CheckpointError) -> None:
    m = built() if model is None else model
    state = {name: p.clone() for name, p in m.named_parameters()}
    with pytest.raises(error, match=match):
        load_adapter(m, folder)
    assert not adapted(m)
    assert all(torch.equal(p, state[name]) and p.requires_grad for name, p in m.named_parameters())


def changed(folder, **values) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **values}))


def test_another_base_is_refused(saved):
    refused(saved, "made on another model", built(seed=1))
    refused(saved, "maps 32 numbers", vt.build(vt.decoder(vocab=67, width=48, layers=2, heads=4, kv_heads=2)))
    refused(saved, r"for 'blocks\.1\.", vt.build(vt.decoder(vocab=67, width=32, layers=1, heads=4, kv_heads=2)))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"r": 5}, "rank 5"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"lora_alpha": "much"}, "finite number"),
        ({"lora_dropout": 1.5}, "lora_dropout"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"some_new_method": {"x": 1}}, "some_new_method"),
        ({"rank_pattern": {"(a+)+$": 3}}, "plain names"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
    ],
)
def test_a_config_that_cannot_be_followed_is_refused(saved, values, match):
    changed(saved, **values)
    refused(saved, match)


def test_damaged_files_are_refused(saved):
    tensors = load_file(saved / WEIGHTS)
    name = "base_model.model.blocks.0.steps.1.sublayer.down.lora_A.weight"

    def rewritten(new) -> None:
        save_file(new, saved / WEIGHTS)

    rewritten({n: t for n, t in tensors.items() if n != name})
    refused(saved, "lacks.*down.lora_A")
    rewritten({**tensors, "base_model.model.lm_head.weight": torch.zeros(2)})
    refused(saved, "lm_head")
    rewritten({**tensors, name: tensors[name] * float("nan")})
    refused(saved, "NaN")
    rewritten({**tensors, name: tensors[name][0]})
    refused(saved, "shapes")
    whole = (name.replace("down", "gate_up").replace("A", x) for x in "AB")
    shapes = (4, 32), (2 * len(tensors[name][0]), 4)
    rewritten(tensors | {n: torch.zeros(s) for n, s in zip(whole, shapes, strict=True)})
    refused(saved, "one for all of")
    save_file(tensors, saved / WEIGHTS, {"vantage_base": "{"})
    refused(saved, "cannot be read")
    save_file(tensors, saved / WEIGHTS, {"vantage_base": '{"blocks.0.steps.1.sublayer.down": [1.0]}'})
    refused(saved, "cut off")
    (saved / WEIGHTS).write_bytes(b"\x08\x00\x00")
    refused(saved, WEIGHTS)
    (saved / WEIGHTS).unlink()
    refused(saved, "never opened")
    shutil.rmtree(saved)
    refused(saved, "not a folder")


def test_saving_twice_or_nothing_is_refused(saved):
    with pytest.raises(BadInput, match="already holds"):
        save_adapter(shaken(built(), Lora(4)), saved)
    with pytest.raises(BadInput, match="no adapters"):
        save_adapter(built(), saved / "other")
    m = built()
    load_adapter(m, saved)
    with pytest.raises(BadInput, match="already"):
        load_adapter(m, saved)
