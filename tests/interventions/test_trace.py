"""Activations by name: what is read is what the model used, and an edit does what a model built that way would do."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vantage as vt
from tests.generation import zoo
from tests.inspect.models import EACH, model, source, tokens
from vantage.errors import BadInput, Refused
from vantage.interventions import activations
from vantage.model import Model
from vantage.spec.kept import PoolsKeys
from vantage.spec.model import Parallel, Wiring
from vantage.spec.parts import BiasInputs, Dense

N = 14
PAGE = Path(__file__).parents[2] / "docs/inspect.md"


def with_kernel(of: Model, kernel: str) -> Model:
    own = copy.deepcopy(of)
    for one in (own, own.encoder):
        if one is not None:
            one.kernel = kernel
    return own


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_reading_everything_changes_no_bit(which: tuple[str, str, str]) -> None:
    of = with_kernel(model(*which), "reference")
    x, y = tokens(N, 2), source(of, 2)
    with torch.inference_mode():
        plain = of(x, source=y)
    seen = vt.trace(of, x, source=y, read=list(activations(of)))
    assert torch.equal(seen.logits, plain)
    assert not seen.switched


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_what_kernels_show_anyway_leaves_them_as_they_are(which: tuple[str, str, str]) -> None:
    of = model(*which)
    x, y = tokens(N, 2), source(of, 2)
    with torch.inference_mode():
        plain = of(x, source=y)
    shown = [name for name, one in activations(of).items() if not one.from_kernel]
    seen = vt.trace(of, x, source=y, read=shown)
    assert torch.equal(seen.logits, plain)
    assert not seen.switched


@pytest.mark.parametrize("which", EACH, ids="-".join)
def test_the_residual_stream_adds_up(which: tuple[str, str, str]) -> None:
    of = model(*which)
    seen = vt.trace(of, tokens(N, 2), source=source(of, 2), read=list(activations(of)))
    x = seen["embedding"]
    for layer in range(len(of.blocks)):
        torch.testing.assert_close(seen[f"layers.{layer}.residual_before"], x)
        x = x + seen[f"layers.{layer}.attention"]
        if f"layers.{layer}.cross.attention" in seen:
            x = x + seen[f"layers.{layer}.cross.attention"]
        torch.testing.assert_close(seen[f"layers.{layer}.residual_mid"], x)
        x = x + seen[f"layers.{layer}.feed_forward"]
        torch.testing.assert_close(seen[f"layers.{layer}.residual_after"], x)
    torch.testing.assert_close(seen["hidden"], of.norm(x))
    torch.testing.assert_close(seen.logits, of.head(of.norm(x)))


@pytest.mark.parametrize("which", [one for one in EACH if one[1] != "gated-convolution"], ids="-".join)
def test_weights_are_those_that_capture_shows(which: tuple[str, str, str]) -> None:
    of = model(*which)
    if isinstance(of.spec.layers[1].attention, PoolsKeys):
        with pytest.raises(BadInput, match=r"layers\.1\.weights"):  # two keys may have one order
            vt.trace(of, tokens(N), read="layers.1.weights")
        return
    seen = vt.trace(of, tokens(N), source=source(of), read="layers.1.weights")
    captured = vt.capture(of, tokens(N), source=source(of), layers=1, kinds="self").weights(1)
    torch.testing.assert_close(seen["layers.1.weights"][0], captured)


def test_weights_times_values_are_the_heads() -> None:
    seen = vt.trace(model(), tokens(N), read=["layers.1.weights", "layers.1.v", "layers.1.heads"])
    values = seen["layers.1.v"].repeat_interleave(2, 2)  # two query heads share one
    torch.testing.assert_close(
        torch.einsum("bhqk,bkhd->bqhd", seen["layers.1.weights"], values), seen["layers.1.heads"]
    )


def test_layers_that_cannot_show_weights_switch_and_say_so() -> None:
    of = with_kernel(model(), "sdpa")
    seen = vt.trace(of, tokens(N), read="layers.1.weights")
    assert seen.switched == {"layers.1": "sdpa"}
    assert "layers.1 ran the reference kernel in the place of sdpa" in repr(seen)


# ---- edits


def test_a_head_without_output_is_a_head_whose_map_is_zero() -> None:
    of = copy.deepcopy(model())
    edited = vt.trace(of, tokens(N), edits=vt.Edit("layers.1.heads", 0.0, heads=[1, 3])).logits
    width = of.blocks[1].sublayers[0].shape.value_dim
    with torch.inference_mode():
        for head in (1, 3):
            of.blocks[1].sublayers[0].out.weight[:, head * width : (head + 1) * width] = 0
        torch.testing.assert_close(edited, of(tokens(N)))


def test_neurons_without_output_are_columns_of_zero() -> None:
    of = copy.deepcopy(model())
    mute = torch.ones(of.blocks[0].sublayers[-1].hidden, dtype=of.dtype)
    mute[5:9] = 0
    edited = vt.trace(of, tokens(N), edits=vt.Edit("layers.0.neurons", lambda x: x * mute)).logits
    with torch.inference_mode():
        of.blocks[0].sublayers[-1].down.weight[:, 5:9] = 0
        torch.testing.assert_close(edited, of(tokens(N)))


class WithoutPair:
    """A bias by which query 9 does not see key 4."""

    def at(self, inputs: BiasInputs) -> Dense:
        bias = torch.zeros(1, inputs.q.shape[1], N, N, dtype=torch.float64)
        bias[:, :, 9, 4] = float("-inf")
        return Dense(bias)


@pytest.mark.parametrize("attention", ["grouped", "sinks", "softcap", "latent", "off-by-one"])
def test_a_score_of_minus_infinity_hides_a_key(attention: str) -> None:
    of = copy.deepcopy(model("rope", attention))
    cut = vt.Edit("layers.*.scores", float("-inf"), positions=9, keys=4)
    edited = vt.trace(of, tokens(N), edits=cut).logits
    for block in of.blocks:
        block.sublayers[0].scorer.bias = WithoutPair()
    with torch.inference_mode():
        torch.testing.assert_close(edited, of(tokens(N)))
        assert not torch.allclose(edited[:, 9], model("rope", attention)(tokens(N))[:, 9])


def test_queries_of_zero_look_everywhere_alike() -> None:
    seen = vt.trace(model(), tokens(N), read="layers.0.weights", edits=vt.Edit("layers.0.q", 0.0, heads=2))
    even = torch.ones(N, N).tril().double()
    torch.testing.assert_close(seen["layers.0.weights"][0, 2], even / even.sum(-1, keepdim=True))


def test_a_latent_of_another_text_brings_its_keys_and_values() -> None:
    of = model("rope", "latent")
    other = vt.trace(of, tokens(N, seed=1), read=["layers.0.latent", "layers.0.heads", "layers.0.q"])
    edits = [vt.Edit(f"layers.0.{name}", other[f"layers.0.{name}"]) for name in ("latent", "q")]
    seen = vt.trace(of, tokens(N), read="layers.0.heads", edits=edits)
    torch.testing.assert_close(seen["layers.0.heads"], other["layers.0.heads"])


def test_tensors_stand_at_what_was_chosen() -> None:
    of, x = model(), tokens(N, 3)
    value = torch.randn(2, 3, 2, of.blocks[0].sublayers[0].shape.value_dim, dtype=of.dtype)
    edit = vt.Edit("layers.0.heads", value, rows=[2, 0], positions=[7, 1, 4], heads=[3, 1])
    plain = vt.trace(of, x, read="layers.0.heads")["layers.0.heads"].clone()
    for r, row in enumerate((2, 0)):
        for p, position in enumerate((7, 1, 4)):
            for h, head in enumerate((3, 1)):
                plain[row, position, head] = value[r, p, h]
    assert torch.equal(vt.trace(of, x, read="layers.0.heads", edits=edit)["layers.0.heads"], plain)


def test_edits_of_one_activation_follow_each_other_and_add_adds() -> None:
    vector = torch.randn(model().spec.width, dtype=torch.float64)
    edits = [vt.Edit("layers.0.residual_after", 0.0), vt.Edit("layers.0.residual_after", vector, positions=3, add=True)]
    seen = vt.trace(model(), tokens(N), read="layers.*.residual_before", edits=edits)["layers.1.residual_before"]
    assert torch.equal(seen[0, 3], vector)
    assert not seen[0, 4:].any()


def test_cross_attention_and_the_encoder() -> None:
    of = model("rope", "cross")
    names = ["layers.1.cross.weights", "encoder.layers.0.weights", "layers.1.cross.v", "layers.1.cross.heads"]
    seen = vt.trace(of, tokens(N), source=source(of), read=names)
    assert seen["layers.1.cross.weights"].shape[-2:] == (N, 7)
    assert seen["encoder.layers.0.weights"].shape[-2:] == (7, 7)
    edited = vt.trace(
        of, tokens(N), source=source(of), read=names, edits=vt.Edit("layers.1.cross.v", 0.0, positions=range(7))
    )
    assert not edited["layers.1.cross.heads"].any()


# ---- with a cache


EDITS = (
    vt.Edit("layers.0.residual_before", 0.5, positions=[2, 9], add=True),
    vt.Edit("layers.1.attention", 0.0, positions=[3, 10]),
    vt.Edit("layers.0.feed_forward", lambda x: -x, positions=[0, 11]),
)


@pytest.mark.parametrize(("kind", "cache"), zoo.EVERY, ids=["-".join(one) for one in zoo.EVERY])
def test_cached_equals_uncached_under_edits(kind: str, cache: str) -> None:
    of = zoo.model(kind)
    exact = cache in ("contiguous", "ring", "paged")
    y = zoo.tokens(5, seed=3) if of.encoder is not None else None
    x = zoo.tokens(N)
    names = [name for name in activations(of) if name.endswith("weights") and "encoder" not in name]
    edits = [*EDITS]
    if names and cache != "heavy-hitters":
        edits.append(vt.Edit(names[-1], 0.25, positions=[4, 12], keys=[1], heads=0))
    with torch.inference_mode(), vt.tracing(of, read=["logits", *names], edits=edits) as seen:
        held = zoo.cache(of, cache)
        logits = [of(x[:, :6], cache=held, source=y)]
        logits += [of(x[:, at : at + 1], cache=held) for at in range(6, N)]
    assert seen.logits.shape == (1, N, zoo.VOCAB)
    assert torch.equal(seen.logits, torch.cat(logits, 1))
    if exact:
        whole = vt.trace(of, x, source=y, read=["logits", *names], edits=edits)
        torch.testing.assert_close(seen.logits, whole.logits)
        for name in names:
            torch.testing.assert_close(seen[name], whole[name])


def test_an_intervention_holds_while_it_writes() -> None:
    of = zoo.model("plain")
    vector = torch.randn(24, generator=torch.Generator().manual_seed(1)).double() * 3
    edits = [vt.Edit("layers.0.residual_after", vector, add=True), vt.Edit("layers.1.heads", 0.0, heads=2)]
    row = zoo.tokens(5)
    with vt.tracing(of, edits=edits):
        answer = vt.generate(of, row[0].tolist(), max_tokens=8)
    for _ in range(8):
        logits = vt.trace(of, row, edits=edits).logits
        row = torch.cat((row, logits[:, -1:].argmax(-1)), 1)
    assert list(answer.tokens) == row[0, 5:].tolist()
    assert list(vt.generate(of, row[0, :5].tolist(), max_tokens=8).tokens) != row[0, 5:].tolist()


def test_logits_can_be_replaced_while_it_writes() -> None:
    of = zoo.model("plain")
    force = torch.full((zoo.VOCAB,), -100.0)
    force[7] = 100.0
    with vt.tracing(of, edits=vt.Edit("logits", force)):
        assert list(vt.generate(of, [1, 2, 3], max_tokens=4).tokens) == [7] * 4


def test_native_steps_stand_aside() -> None:
    of = zoo.model("plain", dtype=torch.float32)
    with (
        torch.inference_mode(),
        vt.tracing(of, read="layers.*.heads", edits=vt.Edit("layers.0.attention", 0.0)) as seen,
    ):
        cache = of.new_cache()
        stepped = torch.cat([of(zoo.tokens(6)[:, at : at + 1], cache=cache) for at in range(6)], 1)
    assert len(seen.passes["layers.0.heads"]) == 6
    torch.testing.assert_close(stepped, vt.trace(of, zoo.tokens(6), edits=vt.Edit("layers.0.attention", 0.0)).logits)


def test_gradients_go_through() -> None:
    of = model()
    start = torch.zeros(of.spec.width, dtype=of.dtype, requires_grad=True)
    with vt.tracing(of, edits=vt.Edit("layers.0.residual_after", start, add=True)):
        of(tokens(N))[0, -1, 3].backward()
    assert start.grad is not None
    assert start.grad.any()


# ---- what is refused


def test_memory_stays_within_the_limit() -> None:
    with pytest.raises(Refused, match="limit= allows"):
        vt.trace(model(), tokens(N), read=list(activations(model())), limit=20_000)
    with pytest.raises(Refused, match="limit= allows"):  # formed and not kept counts as well
        vt.trace(model(), tokens(N), edits=vt.Edit("layers.0.scores", 0.0), read=(), limit=4_000)
    seen = vt.trace(model(), tokens(N), read="layers.*.q", limit=100_000)
    assert seen.bytes == sum(one.untyped_storage().nbytes() for some in seen.passes.values() for one in some)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"read": "layers.0.query"}, "no activation is called 'layers.0.query'"),
        ({"read": "layers.7.q"}, "no activation"),
        ({"edits": 3.0}, "not iterable"),
        ({"edits": [3.0]}, "is no edit"),
        ({"edits": vt.Edit("layers.0.heads", 0.0, heads=4)}, "has no head 4"),
        ({"edits": vt.Edit("layers.0.attention", 0.0, heads=0)}, "has no heads"),
        ({"edits": vt.Edit("layers.0.heads", 0.0, keys=0)}, "has no keys"),
        ({"edits": vt.Edit("layers.0.attention", torch.zeros(3, 3, 3, 3))}, "more dimensions"),
        ({"edits": vt.Edit("layers.0.attention", torch.zeros(5))}, "5 long"),
        ({"edits": vt.Edit("layers.0.attention", lambda x: x[:, 1:])}, "returned a tensor"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises((BadInput, TypeError), match=words):
        vt.trace(model(), tokens(N), **arguments)


def test_an_edit_chooses_whole_numbers() -> None:
    for wrong in ({"heads": -1}, {"positions": []}, {"keys": "a"}, {"value": "b"}):
        with pytest.raises(BadInput):
            vt.Edit(**{"activation": "layers.0.scores", "value": 0.0} | wrong)


def test_training_mode_is_refused() -> None:
    of = copy.deepcopy(model()).train()
    with pytest.raises(BadInput, match="training mode"):
        vt.trace(of, tokens(N))


def test_several_sequences_are_kept_pass_by_pass() -> None:
    of = zoo.model("plain")
    with torch.inference_mode(), vt.tracing(of, read="hidden") as seen:
        of.hidden(zoo.tokens(4))
        of.hidden(zoo.tokens(4, rows=3))
    assert [len(one) for one in seen.passes["hidden"]] == [1, 3]
    with pytest.raises(BadInput, match="several sequences"):
        seen["hidden"]


def test_blocks_side_by_side_and_norms_around() -> None:
    base = vt.decoder(vocab=40, width=24, layers=2, heads=4)
    for wiring in (Parallel(1), Parallel(2), Wiring(before=True, after=True), Wiring(before=False, outer=True)):
        of = vt.build(replace(base, layers=tuple(replace(layer, wiring=wiring) for layer in base.layers))).eval()
        seen = vt.trace(of, zoo.tokens(N), read=[name for name in activations(of) if "weights" not in name])
        added = seen["layers.0.attention"] + seen["layers.0.feed_forward"]
        total = seen["layers.0.residual_before"] + added
        if not (isinstance(wiring, Wiring) and wiring.outer):
            torch.testing.assert_close(seen["layers.0.residual_after"], total)
        without = [vt.Edit("layers.0.attention", 0.0), vt.Edit("layers.0.feed_forward", 0.0)]
        edited = vt.trace(of, zoo.tokens(N), read="layers.0.residual_after", edits=without)
        if not (isinstance(wiring, Wiring) and wiring.outer):
            assert torch.equal(edited["layers.0.residual_after"], seen["embedding"])


def test_every_activation_is_on_the_page() -> None:
    """Names are promised to stay: docs/inspect.md lists them."""
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    listed = {name.rpartition(".")[2] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    names = {name.rpartition(".")[2] for which in EACH for name in activations(model(*which))}
    assert names <= listed, names - listed
