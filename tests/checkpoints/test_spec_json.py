"""Models that were built: saved with their spec as JSON, loaded again, and equal to the last bit."""

from __future__ import annotations

import importlib
import json
import pkgutil
import time
from copy import deepcopy
from dataclasses import dataclass, is_dataclass, replace
from itertools import cycle, islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import vantage as vt
from tests.generation.vision_chat import vision_chat_model
from tests.sampling import examples
from vantage import attention, model, position
from vantage.checkpoints.spec_json import from_json, to_json
from vantage.checkpoints.spec_parts import classes_by_place, classes_by_protocol
from vantage.conformance.factors import VOCAB, allowed_by, attentions, encodings, rules
from vantage.conformance.factors import masks as mask_cases
from vantage.conformance.scenarios import sharpen, spec_for
from vantage.errors import CheckpointError, Refused, VantageError
from vantage.families import table
from vantage.model.clamped import ClampedSwiGLU
from vantage.model.experts import SomeExperts
from vantage.model.memory_plan import MemoryPlan
from vantage.model.routers import GroupLimited
from vantage.spec import masks
from vantage.spec.altup import AltUp
from vantage.spec.model import ModelSpec

TOKENS = torch.randint(0, VOCAB, (2, 20), generator=torch.Generator().manual_seed(7))
ALLOWED = allowed_by(rules())
SMALL = {"vocab": VOCAB, "width": 32, "layers": 2, "heads": 4}


def cells():
    """Every encoding, attention and mask that can work together."""
    for e, a, m in ((e, a, m) for e in encodings() for a in attentions() for m in mask_cases()):
        if ALLOWED({0: e, 1: a, 2: m}):
            yield (e, a, m, "none", "reference", "full")


def some_cells():
    """Each encoding, each attention and each mask in at least one model that is run."""
    every = [list(factor) for factor in (encodings(), attentions(), mask_cases())]
    rows = zip(*map(cycle, every), strict=True)
    fits = allowed_by(rules())
    cells = [(e, a, m, "none", "reference", "full") for e, a, m in islice(rows, max(map(len, every)))]
    chosen = []
    for e, a, m, *rest in cells:
        fitting = [cell for cell in ((e, a, m, *rest), (e, a, "causal", *rest)) if fits(dict(enumerate(cell)))]
        # where an encoding and an attention never go together, each in a model of its own
        chosen += fitting[:1] or [(e, "grouped", "causal", *rest), ("rope", a, "causal", *rest)]
    assert all(value in {c[i] for c in chosen} for i, values in enumerate(every) for value in values)
    return chosen


def again(spec: ModelSpec) -> ModelSpec:
    return from_json(json.loads(json.dumps(to_json(spec))), most=200)


def experts(router, **changes):
    ffn = vt.FeedForward(24)
    return vt.decoder(**SMALL, ffn=vt.Experts(ffn, 8, router, **changes))


OTHERS = {
    "encoder": vt.encoder(**SMALL, position="t5"),
    "encoder-decoder": vt.encoder_decoder(**SMALL, tied=True),
    "shaw": vt.encoder_decoder(**SMALL, position="shaw"),
    "sandwich": vt.decoder(**SMALL, wiring="sandwich", norm="layer", ffn="geglu"),
    "post": vt.decoder(**SMALL, wiring="post", norm="layer", ffn="gelu", position="learned", max_length=32),
    "parallel": vt.decoder(**SMALL, wiring="parallel", tied=True, kv_heads=1),
    "experts": experts(vt.TopK(2)),
    "shared-expert": experts(vt.TopK(1, "sigmoid", renormalise=False), shared=vt.FeedForward(16), weigh_input=True),
    "vision": vision_chat_model().spec,
    "altup": replace(vt.decoder(**SMALL, wiring="sandwich"), altup=AltUp(19, 4, 2)),
    "sparse": vt.decoder(**SMALL, ffn=vt.FeedForward(24, sparsity=0.5)),
    "value-norm": vt.decoder(vocab=19, width=16, attention=vt.GroupedQuery(4, value_norm=vt.RMSNorm()), layers=1),
    "gated-expert": experts(vt.TopK(2), shared=vt.FeedForward(16), shared_gate=True),
    "groups": experts(GroupLimited(2, 4, 2, "sigmoid", best=2, bias=True, renormalise=True, scale=2.5)),
    "clamped": vt.decoder(**SMALL, ffn=ClampedSwiGLU(24)),
    "randomised": vt.decoder(**SMALL, position=vt.Randomised(vt.Sinusoidal(), high=64)),
}


def same_outputs(spec, folder, dtype=torch.float64):
    built = sharpen(vt.build(spec).to(dtype)).eval()
    vt.save(built, folder)
    loaded = vt.load(folder, dtype=dtype)
    assert loaded.spec == spec
    for (name, a), (other, b) in zip(loaded.named_parameters(), built.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(a, b), name
        a.data = a.data.clone()  # out of the file: a product rounds by where in memory its operands begin
    source = {} if spec.encoder is None else {"source": TOKENS[:, :7]}
    with torch.inference_mode():
        assert torch.equal(loaded(TOKENS, **source), built(TOKENS, **source))
    return loaded


@pytest.mark.sampled
def test_every_spec_of_the_conformance_matrix():
    count = 0
    for cell in cells():
        spec = spec_for(cell)
        assert again(spec) == spec
        count += 1
    assert count > 1000


@pytest.mark.sampled
@pytest.mark.parametrize("cell", some_cells(), ids=lambda cell: "-".join(cell[:3]))
def test_logits_are_equal_to_the_last_bit(cell, tmp_path):
    same_outputs(spec_for(cell), tmp_path)


@pytest.mark.sampled
@pytest.mark.parametrize("spec", OTHERS.values(), ids=OTHERS)
def test_what_else_a_spec_can_hold(spec, tmp_path):
    loaded = same_outputs(spec, tmp_path)
    vt.save(loaded, tmp_path / "again")  # and once more, from what was loaded
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "config.json").read_text()


@pytest.mark.sampled
def test_every_family_of_the_table():
    for system in table.systems():
        spec = system.spec()
        assert again(spec) == spec, system.name


def test_a_tied_head_stays_tied(tmp_path):
    loaded = same_outputs(OTHERS["parallel"], tmp_path, torch.float32)
    assert loaded.head.linear.weight is loaded.embed.tokens.weight


def test_every_part_there_is_has_a_place():
    """A new part must stand in a registry: this is where it is missed."""
    listed = {cls for group in (*classes_by_protocol().values(), *classes_by_place().values()) for cls in group}
    found = set()
    for package in (attention, model, position):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for value in vars(importlib.import_module(info.name)).values():
                if isinstance(value, type) and is_dataclass(value) and value.__module__ == info.name:
                    found.add(value)
    concrete = {cls for cls in vars(masks).values() if isinstance(cls, type) and is_dataclass(cls)}
    found |= {cls for cls in concrete if issubclass(cls, masks.Mask)}
    configs = {c for c in found - {masks.Mask} if {"build", "parts", "frequencies", "reach"} & set(dir(c))}
    # what one of several processes has of a part, and what a model takes of a device: neither is saved
    assert configs - listed == {SomeExperts, MemoryPlan}
    assert len(configs) > 40


# ---- refused


def plain():
    return to_json(vt.decoder(**SMALL))


def at(said, *path):
    for step in path:
        said = said[step]
    return said


LAYER = ("layers", 0, "of")
WRONG = {
    "an unknown part": (
        (*LAYER, "ffn", "is"),
        "FeedForwards",
        r"'FeedForwards'\. Did you mean 'FeedForward'\?",
    ),
    "an import path": ((*LAYER, "ffn", "is"), "os.system", "no part that fits here is called 'os.system'"),
    "a part elsewhere": (
        (*LAYER, "norm", "is"),
        "Rope",
        r"spec\.layers\[0\]\.norm: no part .* called 'Rope'",
    ),
    "RoPE as a bias": (
        (*LAYER, "bias"),
        {"is": "Rope"},
        r"\.bias: no part .* called 'Rope'.* There are: .*Alibi",
    ),
    "an unknown field": (
        (*LAYER, "attention", "head"),
        4,
        r"no field of GroupedQuery .* 'head'\. Did you mean 'heads'",
    ),
    "a word for a number": ((*LAYER, "attention", "heads"), "4", r"heads is '4'; wanted int"),
    "a truth for a number": (("width",), True, "width is True; wanted int"),
    "a fraction": (("vocab",), 1.5, "vocab is 1.5; wanted int"),
    "too large": (("vocab",), 10**30, "vocab is 1000.*; wanted int"),
    "infinity": ((*LAYER, "dropout"), float("inf"), "dropout is inf; wanted float"),
    "NaN": ((*LAYER, "dropout"), float("nan"), "dropout is nan; wanted float"),
    "a list for a part": ((*LAYER, "norm"), [], r"norm is \[\]; wanted NormConfig"),
    "a number for a list": (("layers",), 3, "layers is 3; wanted tuple"),
    "too many layers": (("layers", 0, "times"), 10**9, r"times is 1000000000; wanted from 1 to 30"),
    "too few": (("layers", 0, "times"), 0, "times is 0; wanted from 1 to 30"),
    "what the part refuses": ((*LAYER, "ffn", "activation"), "sine", "no activation is called 'sine'"),
    "clip": ((*LAYER, "attention", "clip"), 0, "clip=0: use a positive number"),
    "no spec": ((), [], r"spec: no part that fits here is called \[\]"),
}


@pytest.mark.parametrize(("path", "value", "says"), WRONG.values(), ids=WRONG)
def test_what_is_not_understood_is_refused(path, value, says):
    whole = {"spec": plain()}
    *way, last = ("spec", *path)
    at(whole, *way)[last] = value
    with pytest.raises(CheckpointError, match=says):
        from_json(whole["spec"], most=30)


def test_what_is_missing_is_named():
    said = plain()
    del at(said, *LAYER, "attention")["heads"]
    with pytest.raises(CheckpointError, match=r"spec\.layers\[0\]\.attention: GroupedQuery needs 'heads'"):
        from_json(said, most=30)


def test_what_has_a_default_may_be_missing():
    """So that an older checkpoint is read by a newer Vantage."""
    said = plain()
    del at(said, *LAYER, "attention")["clip"]
    assert from_json(said, most=30) == vt.decoder(**SMALL)


def test_nesting_ends():
    said = plain()
    mask = {"is": "Causal"}
    for _ in range(200):
        mask = {"is": "And", "a": mask, "b": {"is": "SameSegment"}}
    at(said, *LAYER)["mask"] = mask
    with pytest.raises(CheckpointError, match="levels deep"):
        from_json(said, most=30)


def test_parts_of_other_makers_are_not_written(tmp_path):
    @dataclass(frozen=True)
    class Sparkle:
        shared = True

        def build(self, shape):
            return nn.Identity()

    spec = vt.decoder(**SMALL)
    odd = replace(spec, layers=(replace(spec.layers[0], qk=(Sparkle(),)), *spec.layers[1:]))
    with pytest.raises(Refused, match=r"qk\[0\]: 'tests.*:.*Sparkle' is a part from outside, and no such class"):
        to_json(odd)
    Sparkle.__name__, Sparkle.__module__ = "ContentBias", "vantage.position.xl"  # without fields, as the real one
    with pytest.raises(Refused, match="not the one of Vantage by that name"):
        to_json(odd)
    mine = vt.Randomised(vt.Rope(), generator=torch.Generator())
    with pytest.raises(Refused, match=r"spec\.sampler\.generator is .* cannot be written"):
        to_json(vt.decoder(**SMALL, position=mine))


@pytest.fixture
def saved(tmp_path):
    vt.save(vt.build(experts(vt.TopK(2))), tmp_path)
    return tmp_path


def changed(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(spec_version=2), "spec_version is 2; wanted 1"),
        (lambda c: c.update(auto_map={"AutoModel": "x.Y"}), "'auto_map' cannot be followed"),
        (lambda c: c.update(extra=1), "'extra' may change the model"),
        (lambda c: c.pop("spec"), "'spec' is missing"),
        (lambda c: at(c, "spec", *LAYER, "ffn").update(count=10**9), "feed-forward parts, and there are"),
        (lambda c: at(c, "spec", *LAYER, "attention").update(heads=10**9), "heads is 1000000000, and the checkpoint"),
        (lambda c: at(c, "spec", *LAYER, "attention").update(heads=5), "width 32 does not divide into 5 heads"),
        (lambda c: at(c, "spec", *LAYER, "ffn").update(count=7), "which this model has no use for"),
        (lambda c: at(c, "spec", "embedding").update(dropout=7), "dropout probability has to be between 0 and 1"),
        (lambda c: at(c, "spec", "layers", 0).update(times=3), "the checkpoint lacks 'blocks.2"),
        (lambda c: at(c, "spec", *LAYER, "ffn", "expert").update(hidden=23), "has shape .* and the config asks for"),
    ],
)
def test_folders_that_are_refused(saved, change, says):
    with pytest.raises(CheckpointError, match=says):
        vt.load(changed(saved, change))


def test_another_head_beside_a_tied_one(tmp_path):
    """As for every family: see tests/families/test_tied.py."""
    vt.save(vt.build(vt.decoder(**SMALL, tied=True)), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    twice = {**tensors, "head.linear.weight": tensors["embed.tokens.weight"].clone()}
    save_file(twice, tmp_path / "model.safetensors")
    vt.load(tmp_path)
    twice["head.linear.weight"] += 1
    save_file(twice, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'head\.linear\.weight' differs from 'embed\.tokens\.weight'"):
        vt.load(tmp_path)


# ---- any JSON


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


WHOLE = {"spec": to_json(OTHERS["shared-expert"])}
PATHS = [path for path in paths(WHOLE) if path]
NAMES = sorted(
    {cls.__name__ for group in (*classes_by_protocol().values(), *classes_by_place().values()) for cls in group}
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 40),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES).map(lambda name: {"is": name}),
    st.just([]),
    st.just({"times": 2**40, "of": {"is": "Layer"}}),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzzed")
    vt.save(vt.build(OTHERS["shared-expert"]), path)
    return path


FUZZED = st.lists(st.tuples(st.sampled_from(PATHS), JUNK), min_size=1, max_size=3)
CALM = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@settings(max_examples=examples(150), **CALM)
@given(FUZZED)
def test_any_change_is_read_or_refused(folder, changes):
    read_or_refused(folder, changes)


@pytest.mark.slow
@settings(max_examples=5_000, **CALM)
@given(FUZZED)
def test_many_changes_are_read_or_refused(folder, changes):
    read_or_refused(folder, changes)


def read_or_refused(folder, changes):
    whole = deepcopy(WHOLE)
    for path, value in changes:
        try:
            at(whole, *path[:-1])[path[-1]] = deepcopy(value)
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    (folder / "config.json").write_text(json.dumps({"model_type": "vantage", "spec_version": 1, **whole}))
    start = time.process_time()
    try:
        loaded = vt.load(folder)
        assert isinstance(loaded.spec, ModelSpec)
    except VantageError:
        pass
    assert time.process_time() - start < 5.0  # some 10 ms; a garbage collection of a large process takes a second
