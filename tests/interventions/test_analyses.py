"""Lens, attribution, ablation, patching and steering: against the same thing done one by one, in other words."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vantage as vt
from tests.generation import zoo
from tests.inspect.models import EACH, model, source, tokens
from vantage.errors import BadInput, Refused
from vantage.interventions import (
    TunedLens,
    ablate,
    ablation,
    activations,
    attribute,
    fit_lens,
    knock_out,
    logit_lens,
    patch,
    patch_path,
    steering_vector,
)
from vantage.model import Model
from vantage.model.lora import Lora, add_lora
from vantage.spec.model import POST, SANDWICH, ModelSpec, Parallel, Wiring

N = 9
SOME = [
    ("rope", "grouped", "causal"),
    ("alibi", "multi-head", "causal"),
    ("learned", "multi-query", "window"),
    ("rope", "latent", "causal"),
    ("rope", "gated-delta", "causal"),
    ("t5", "sinks", "causal"),
    ("rope", "cross", "causal"),
]


def read(of: Model, text: Tensor, name: str, edits: object = ()) -> Tensor:
    return vt.trace(of, text, source=source(of), read=name, edits=edits)[name]  # pyright: ignore[reportArgumentType]


def difference(logits: Tensor, position: int = -1) -> float:
    return float(logits[0, position, 3] - logits[0, position, 5])


TWO = {"target": 3, "against": 5}


# ---- patching and ablation


@pytest.mark.parametrize("which", SOME, ids="-".join)
@pytest.mark.parametrize("activation", ["residual_before", "residual_mid", "attention", "feed_forward", "heads", "q"])
def test_a_sweep_is_its_patches_one_by_one(which: tuple[str, str, str], activation: str) -> None:
    of = model(*which)
    clean, corrupted = tokens(N, seed=1), tokens(N, seed=2)
    done = patch(of, clean, corrupted, activation=activation, source=source(of), position=-2, **TWO)
    assert done.before == pytest.approx(difference(read(of, corrupted, "logits"), -2))
    assert done.goal == pytest.approx(difference(read(of, clean, "logits"), -2))
    for i, layer in enumerate(done.layers):
        name = f"layers.{layer}.{activation}"
        value = read(of, clean, name)
        for j, cell in enumerate(done.cells):
            chosen = {"positions": cell} if done.by == "positions" else {"heads": cell}
            part = value[:, cell : cell + 1] if done.by == "positions" else value[:, :, cell : cell + 1]
            one = difference(read(of, corrupted, "logits", vt.Edit(name, part, **chosen)), -2)
            assert float(done.values[i, j]) == pytest.approx(one, abs=1e-5)
    whole = done.values - done.before
    torch.testing.assert_close(done.effects, whole / (done.goal - done.before))


def test_patching_all_of_a_layer_brings_the_clean_answer() -> None:
    of = model()
    clean, corrupted = tokens(N, seed=1), torch.cat((tokens(N, seed=1)[:, :4], tokens(N, seed=2)[:, 4:5],
                                                      tokens(N, seed=1)[:, 5:]), 1)  # fmt: skip
    done = patch(of, clean, corrupted, **TWO)
    assert done.layers == (0, 1)
    assert done.effects[0, 4] == pytest.approx(1.0)  # only this token differs
    assert not done.effects[0, :4].any()
    assert len(done.top(3)) == 3


def test_weights_can_be_patched_by_heads_and_by_positions() -> None:
    of = model()
    clean, corrupted = tokens(N, seed=1), tokens(N, seed=2)
    by_heads = patch(of, clean, corrupted, activation="weights", **TWO)
    value = read(of, clean, "layers.1.weights")[:, 2:3]
    one = difference(read(of, corrupted, "logits", vt.Edit("layers.1.weights", value, heads=2)))
    assert float(by_heads.values[1, 2]) == pytest.approx(one, abs=1e-5)
    by_positions = patch(of, clean, corrupted, activation="weights", by="positions", layers=1, **TWO)
    value = read(of, clean, "layers.1.weights")[:, :, 6:7]
    one = difference(read(of, corrupted, "logits", vt.Edit("layers.1.weights", value, positions=6)))
    assert float(by_positions.values[0, 6]) == pytest.approx(one, abs=1e-5)


def test_layers_that_read_the_keys_of_others_are_swept_too() -> None:
    of = zoo.model("shared-keys")
    done = patch(of, zoo.tokens(N, seed=1), zoo.tokens(N, seed=2), activation="heads", **TWO)
    value = vt.trace(of, zoo.tokens(N, seed=1), read="layers.1.heads")["layers.1.heads"][:, :, 3:4]
    one = vt.trace(of, zoo.tokens(N, seed=2), edits=vt.Edit("layers.1.heads", value, heads=3)).logits
    assert float(done.values[1, 3]) == pytest.approx(difference(one), abs=1e-5)


def test_a_sweep_in_several_batches_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, corrupted = tokens(N, seed=1), tokens(N, seed=2)
    at_once = patch(model(), clean, corrupted, activation="heads", **TWO)
    monkeypatch.setattr("vantage.interventions.sweeps.MAX_BATCH_TOKENS", 2 * N)
    torch.testing.assert_close(patch(model(), clean, corrupted, activation="heads", **TWO).values, at_once.values)


@pytest.mark.parametrize("how", ["zero", "mean", "resample"])
def test_ablation_takes_away_what_it_says(how: str) -> None:
    of, text = model(), tokens(N)
    reference = [tokens(5, seed=8)[0].tolist(), tokens(7, seed=9)[0].tolist()]
    done = ablate(of, text, how=how, reference=reference, seed=4, **TWO)
    pool = torch.cat([read(of, torch.tensor([one]), "layers.0.heads")[0] for one in reference])
    drawn = torch.randint(12, (N,), generator=torch.Generator().manual_seed(4))
    value = {"zero": torch.zeros_like(pool[:1]), "mean": pool.mean(0, keepdim=True), "resample": pool[drawn]}[how]
    edit = vt.Edit("layers.0.heads", value[None, :, 2:3], heads=2)
    assert float(done.values[0, 2]) == pytest.approx(difference(read(of, text, "logits", edit)), abs=1e-5)
    torch.testing.assert_close(done.effects, done.values - done.before)


def test_ablation_by_positions_and_without_reference_texts() -> None:
    of, text = model(), tokens(N)
    done = ablate(of, text, activation="feed_forward", how="mean", layers=1, positions=[2, 8], **TWO)
    assert done.cells == (2, 8)
    mean = read(of, text, "layers.1.feed_forward").mean(1, keepdim=True)
    one = difference(read(of, text, "logits", vt.Edit("layers.1.feed_forward", mean, positions=8)))
    assert float(done.values[0, 1]) == pytest.approx(one, abs=1e-5)


def test_without_a_target_it_is_the_token_that_the_model_would_write() -> None:
    of, text = model(), tokens(N)
    logits = read(of, text, "logits")[0, -1]
    done = ablate(of, text)
    assert done.before == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-5)
    assert "log-probability" in done.measure


def test_ablations_as_edits_hold_while_it_writes() -> None:
    of = zoo.model("plain")
    reference = [zoo.tokens(6, seed=3)]
    mean = vt.trace(of, reference[0], read="layers.1.heads")["layers.1.heads"].mean((0, 1))
    edits = ablation(of, "layers.1.heads", how="mean", heads=[1, 3], reference=reference)
    seen = vt.trace(of, zoo.tokens(N), read="layers.1.heads", edits=edits)["layers.1.heads"]
    torch.testing.assert_close(seen[0, 4, [1, 3]], mean[[1, 3]])
    zero = ablation(of, "layers.*.feed_forward", positions=[0, 5])
    assert len(zero) == 2
    with vt.tracing(of, edits=zero, read="layers.1.feed_forward") as run:
        vt.generate(of, [1, 2, 3], max_tokens=6)
    written = run["layers.1.feed_forward"][0]
    assert not written[[0, 5]].any()
    assert written[[1, 4, 6]].any(-1).all()


# ---- paths


@pytest.mark.parametrize("through", ["q", "k", "v"])
def test_a_path_is_what_reaches_the_receiver_directly(through: str) -> None:
    """With two layers there is nothing between but the first feed-forward layer: written out by hand."""
    of = model()
    clean, corrupted = tokens(N, seed=1), tokens(N, seed=2)
    done = patch_path(of, clean, corrupted, receiver=(1, 3), through=through, **TWO)
    assert done.layers == (0,)
    attention = of.blocks[0].sublayers[0]
    sent, kept = (read(of, text, "layers.0.heads") for text in (clean, corrupted))
    for sender in range(4):
        mixed = kept.clone()
        mixed[:, :, sender] = sent[:, :, sender]
        with torch.inference_mode():
            added = attention.out(mixed.flatten(2)) + read(of, corrupted, "layers.0.feed_forward")
            entering = read(of, corrupted, "embedding") + added
            first = of.blocks[1].steps[0]
            columns = first.sublayer.activations()[through]
            projected = first.sublayer.qkv(first.before(entering))
        value = projected[..., columns.first : columns.first + columns.width].unflatten(-1, (columns.heads, -1))
        at = 3 * columns.heads // 4
        edit = vt.Edit(f"layers.1.{through}", value[:, :, at : at + 1], heads=at)
        one = difference(read(of, corrupted, "logits", edit))
        assert float(done.values[0, sender]) == pytest.approx(one, abs=1e-5)


def test_paths_through_feed_forward_layers_are_more() -> None:
    clean, corrupted = tokens(N, seed=1), tokens(N, seed=2)
    direct, both = (
        patch_path(model(), clean, corrupted, receiver=(1, 0), through_feed_forward=through, **TWO).values
        for through in (False, True)
    )
    assert not torch.allclose(direct, both)


# ---- lens and attribution


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_the_lens_ends_at_the_models_own_answer(which: tuple[str, str, str]) -> None:
    of = model(*which)
    lens = logit_lens(of, tokens(N), target=3, top=2, source=source(of))
    final = read(of, tokens(N), "logits")[0].log_softmax(-1)
    torch.testing.assert_close(lens.probabilities[-1], final.topk(2).values.exp())
    torch.testing.assert_close(lens.target[-1], final[:, 3])
    torch.testing.assert_close(lens.divergence[-1], torch.zeros_like(lens.divergence[-1]), atol=1e-9, rtol=0)
    middle = of.head(of.norm(read(of, tokens(N), "layers.0.residual_after")))[0].log_softmax(-1)
    assert torch.equal(lens.tokens[1], middle.topk(2).indices)
    torch.testing.assert_close(lens.entropy[1], torch.distributions.Categorical(logits=middle).entropy())
    torch.testing.assert_close(lens.divergence[1], (final.exp() * (final - middle)).sum(-1))
    assert torch.equal(lens.rank[1], (middle > middle[:, 3:4]).sum(-1))


def test_a_tuned_lens_comes_nearer(tmp_path: Path) -> None:
    of = model()
    fitted = fit_lens(of, [tokens(60, seed=n) for n in range(20)])
    plain = logit_lens(of, tokens(40, seed=99)).divergence
    tuned = logit_lens(of, tokens(40, seed=99), tuned=fitted).divergence
    assert tuned[0].mean() < 0.7 * plain[0].mean()
    assert tuned[1].mean() < 0.7 * plain[1].mean()
    assert not tuned[2].any()
    fitted.save(tmp_path / "lens.safetensors")
    again = logit_lens(of, tokens(40, seed=99), tuned=TunedLens.load(tmp_path / "lens.safetensors")).divergence
    torch.testing.assert_close(again, tuned)


def test_a_lens_for_another_width_is_refused() -> None:
    fitted = fit_lens(zoo.model("plain"), [zoo.tokens(20)])
    with pytest.raises(BadInput, match="fitted to a width of 24"):
        logit_lens(model(), tokens(N), tuned=fitted)


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_the_parts_of_a_logit_add_up(which: tuple[str, str, str]) -> None:
    of = model(*which)
    parts = attribute(of, tokens(N), position=-3, source=source(of), groups=3, **TWO)
    assert parts.logit == pytest.approx(difference(read(of, tokens(N), "logits"), -3))
    assert parts.error < 1e-9


def test_a_head_adds_what_its_output_says_with_the_norm_held() -> None:
    of = model()
    parts = attribute(of, tokens(N), **TWO)
    out = of.blocks[1].sublayers[0].out.weight.unflatten(1, (4, -1))
    head = read(of, tokens(N), "layers.1.heads")[0, -1]
    residual = read(of, tokens(N), "layers.1.residual_after")[0, -1]
    with torch.inference_mode():
        scale = (residual.square().mean() + 1e-6).rsqrt()
        direction = (of.head.linear.weight[3] - of.head.linear.weight[5]) * of.norm.weight * scale
        for n in range(4):
            expected = float(out[:, n] @ head[n] @ direction)
            assert float(parts.by_layer("head")[1, n]) == pytest.approx(expected, abs=1e-6)
    # the norm's scale moves when a head is taken away, and little else of a last layer does: the sign is the same
    total = parts.total(1, "neurons", "feed-forward") + parts.total(1, "head", "attention")
    assert total == pytest.approx(parts.total(1))


def rewired(wiring: object, **more: object) -> ModelSpec:
    spec = replace(zoo.spec("plain"), **more)  # pyright: ignore[reportArgumentType]
    return replace(spec, layers=tuple(replace(layer, wiring=wiring) for layer in spec.layers))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "spec",
    [
        rewired(Parallel(2)),
        rewired(SANDWICH),
        rewired(Parallel(1), norm=vt.LayerNorm()),
        rewired(SANDWICH, head=replace(zoo.spec("plain").head, scale=0.5, bias=True)),
    ],
    ids=["parallel", "sandwich", "layer-norm", "scaled"],
)
def test_other_wirings_add_up_as_well(spec: ModelSpec) -> None:
    of = vt.build(spec, seed=1).double().eval()
    for parameter in of.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    assert attribute(of, zoo.tokens(N), **TWO).error < 1e-9
    assert attribute(of, zoo.tokens(N)).error < 1e-9


def test_maps_of_another_kind_add_up_too() -> None:
    of = zoo.model("plain", dtype=torch.float32)
    adapted = copy.deepcopy(of)
    add_lora(adapted, Lora(2))
    for name, parameter in adapted.named_parameters():
        if name.endswith(".b"):  # which begins at 0
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(1))
    adapted.eval()
    assert attribute(adapted, zoo.tokens(N), **TWO).error < 1e-4
    assert not torch.allclose(vt.trace(adapted, zoo.tokens(N)).logits, vt.trace(of, zoo.tokens(N)).logits)


def test_what_is_no_sum_is_refused() -> None:
    for wiring, does in ((POST, "norms"), (Wiring(kept=2.0), "scales")):
        with pytest.raises(Refused, match=f"{does} the residual stream itself"):
            attribute(vt.build(rewired(wiring)).eval(), zoo.tokens(N))


def test_experts_count_as_one_part() -> None:
    spec = zoo.spec("plain")
    experts = vt.Experts(vt.FeedForward(16), 4, vt.TopK(2))
    of = vt.build(replace(spec, layers=tuple(replace(layer, ffn=experts) for layer in spec.layers))).double().eval()
    assert "layers.0.neurons" not in activations(of)
    parts = attribute(of, zoo.tokens(N), **TWO)
    assert parts.error < 1e-9
    assert parts.total(1, "feed-forward") != 0


# ---- knock-out and steering


def test_a_pair_that_is_knocked_out_has_no_weight() -> None:
    of = model()
    seen = vt.trace(of, tokens(N), read="layers.*.weights", edits=knock_out(of, [(7, 2), (7, 3), (8, 0)], layers=[1]))
    weights = seen["layers.1.weights"][0]
    assert not weights[:, 7, 2:4].any()
    assert not weights[:, 8, 0].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, N, dtype=torch.float64))
    assert seen["layers.0.weights"][0, :, 7, 2].all()


def test_a_steering_vector_is_a_difference_of_means() -> None:
    of = copy.deepcopy(model())
    sets = [[tokens(N, seed=n) for n in some] for some in (range(3), range(3, 8))]
    vector = steering_vector(of, *sets, activation="layers.0.residual_after")
    ends = [torch.cat([read(of, one, "layers.0.residual_after")[:, -1] for one in some]).mean(0) for some in sets]
    torch.testing.assert_close(vector, ends[0] - ends[1])
    seen = vt.trace(
        of, tokens(N), read="layers.0.residual_after", edits=vt.Edit("layers.0.residual_after", vector, add=True)
    )
    torch.testing.assert_close(seen["layers.0.residual_after"], read(of, tokens(N), "layers.0.residual_after") + vector)


# ---- what is refused


def test_what_is_wrong_is_named() -> None:
    of, text = model(), tokens(N)
    wrong = [
        (lambda: patch(of, text, tokens(N + 1)), "has 9 tokens and the corrupted one 10"),
        (lambda: patch(of, text, text, activation="residual"), "no layer has 'residual'"),
        (lambda: patch(of, text, text, activation="attention", by="heads"), "swept by positions"),
        (lambda: patch(of, text, text, target=999), "target=999"),
        (lambda: patch(of, text, text, target="a"), "no tokenizer"),
        (lambda: patch(of, text, text, position=9), "no position 9"),
        (lambda: patch(of, tokens(N, 2), text), "one text"),
        (lambda: ablate(of, text, how="none"), "way to ablate"),
        (lambda: ablate(of, text, how="mean", reference=[]), "at least one text"),
        (lambda: ablate(of, text, activation="weights", how="mean"), "use 'zero'"),
        (lambda: patch_path(of, text, text, receiver=(0, 0)), "choose a later receiver"),
        (lambda: patch_path(of, text, text, receiver=(1, 0), through="heads"), "give 'q', 'k' or 'v'"),
        (lambda: patch_path(of, text, text, receiver=(1, 7)), "no head 7"),
        (lambda: patch_path(model("rope", "latent"), text, text, receiver=(1, 0), through="k"), "has no k by name"),
        (lambda: logit_lens(of, text, top=0), "top=0"),
        (lambda: attribute(of, text, groups=0), "groups=0"),
        (lambda: knock_out(of, []), "at least one pair"),
        (lambda: steering_vector(of, [], [text], activation="hidden"), "positive"),
    ]
    for call, words in wrong:
        with pytest.raises(BadInput, match=words):
            call()
