"""Names, defaults, and what all encodings have in common."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.position.helpers import (
    SHAPE,
    bias_of,
    built,
    inputs_of,
    moved,
    one_by_one,
    permuted,
    pointwise_of,
    positions,
    unread,
    vectors,
)
from vantage import position
from vantage.errors import BadInput
from vantage.position import (
    ENCODINGS,
    T5,
    DualChunk,
    Kerple,
    Learned,
    NoPE,
    Randomised,
    Rope,
    SelfExtend,
    encoding,
    scaling,
)
from vantage.position.t5 import T5Bias
from vantage.spec.abilities import Effect, effect_of
from vantage.spec.parts import Encoding, Parts, Place, materialise
from vantage.spec.positions import Positions
from vantage.spec.registry import Entry, parameters

NAMES = ["none", "sinusoidal", "learned", "shifted", "rope", "mrope", "axial", "xpos", "alibi", "t5", "shaw", "xl"]
NAMES += ["kerple", "fire", "cope", "fox", "path", "bank", "ssmax", "lerope", "fope", "self-extend", "dual-chunk"]
NAMES += ["dape", "pope", "selective-rope"]

DEFAULTS = {
    "none": "NoPE()",
    "sinusoidal": "Sinusoidal(layout='interleaved', base=10000.0, dropout=0.0)",
    "learned": "Learned(max_length=100, extend=None, offset=0)",
    "shifted": "Shifted(anchor=0, base=10000.0)",
    "rope": "Rope(base=10000.0, scaling=None, pairing='halves', share=1.0)",
    "mrope": (
        "MultiAxisRope(sections=(), interleaved=False, "
        "rope=Rope(base=10000.0, scaling=None, pairing='halves', share=1.0))"
    ),
    "axial": "AxialRope(base=10000.0, layout='whole')",
    "xpos": "XPos(base=10000.0, gamma=0.4, scale_base=512, pairing='adjacent')",
    "alibi": "Alibi(slopes=None)",
    "t5": "T5(buckets=32, max_distance=128, bidirectional=None, shared=True)",
    "shaw": "Shaw(max_distance=16, values=True)",
    "xl": "TransformerXL(base=10000.0)",
    "kerple": "Kerple(kind='log')",
    "fire": "Fire(hidden=32, init_c=0.1, init_L=512.0, bidirectional=None)",
    "cope": "CoPE(max_positions=64)",
    "fox": "Forgetting(bias=4.0)",
    "path": "PaTH(rank=32, taps=3)",
    "bank": "RelativeBank(extent=128, curves=16)",
    "ssmax": (
        "SSMax(inner=Rope(base=10000.0, scaling=None, pairing='halves', share=1.0), "
        "scale=0.168, biased=True, window=None)"
    ),
    "lerope": "LeRope(rope=Rope(base=10000.0, scaling=None, pairing='halves', share=1.0))",
    "fope": "FoPE(length=512, spread=0.1, base=10000.0, pairing='halves', slow='still')",
    "self-extend": (
        "SelfExtend(group=4, window=128, rope=Rope(base=10000.0, scaling=None, pairing='halves', share=1.0))"
    ),
    "dual-chunk": (
        "DualChunk(chunk=192, local=16, rope=Rope(base=10000.0, scaling=None, pairing='halves', share=1.0))"
    ),
    "dape": "DAPE(inner=Alibi(slopes=None), hidden=32)",
    "pope": "PoPE(base=10000.0, uniform=False)",
    "selective-rope": "SelectiveRope(rank=32, taps=4, base=500000.0, shares=None)",
}

# every bias, by name, as it is built into a causal model
BIASES = {
    name: parts.bias
    for name in ENCODINGS
    if (parts := encoding(name, max_length=100).parts(causal=True)).bias is not None
}
BIASES |= {"self-extend": SelfExtend(2, 4), "dual-chunk": DualChunk(6, 2)}
BIASES |= {"kerple-power": Kerple("power"), "t5-both": T5(bidirectional=True)}
POINTWISE = ["alibi", "t5", "t5-both", "shaw", "kerple", "kerple-power", "fox", "bank"]
RELATIVE = [*POINTWISE, "shifted", "xl", "path"]  # FIRE looks at the length too, CoPE at what is said


def test_the_promised_names_are_there():
    assert [name for name in ENCODINGS if name in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_defaults(name):
    found = encoding(name, max_length=100)
    assert repr(found) == DEFAULTS[name]
    assert isinstance(found, Encoding)
    assert isinstance(found.parts(causal=True), Parts)
    hash(found)


def test_other_defaults():
    assert repr(Randomised(NoPE())) == "Randomised(inner=NoPE(), high=2048)"
    assert repr(scaling.YaRN(2, 8)) == (
        "YaRN(factor=2, original=8, beta_fast=32, beta_slow=1, attention_factor=None, mscale=None, "
        "mscale_all_dim=None, truncate=True)"
    )
    assert repr(scaling.Proportional()) == "Proportional(share=1.0, factor=1.0)"


def test_what_is_built_once_for_all_layers():
    once = {part: built_once(part) for part in NAMES if part not in ("none", "xl", "shaw")}
    own = {"kerple", "fire", "cope", "fox", "path", "bank", "dape", "pope", "selective-rope"}
    several = {"ssmax": [True, False], "self-extend": [True, True], "dual-chunk": [True, True]}
    assert once == {name: [name not in own] for name in once} | several


def built_once(name: str) -> list[bool]:
    """Of each of its parts."""
    parts = encoding(name, max_length=100).parts(causal=True)
    return [part.shared for part in (*parts.inputs, *parts.qk, parts.bias) if part is not None]


def test_what_transforms_do_to_a_score():
    """All but one are linear, so that scores can be taken apart; a count of tokens is no position."""
    effects = {name: [effect_of(part) for part in encoding(name, max_length=9).parts(causal=True).qk] for name in NAMES}
    turning = Effect("rotation", linear=True)
    assert effects["rope"] == effects["mrope"] == effects["axial"] == effects["lerope"] == [turning]
    assert effects["xpos"] == [Effect("fading rotation", linear=True)]
    assert effects["xl"] == [Effect("query bias u · key", positional=False, linear=True, own_term=True)]
    assert effects["fope"] == [Effect("Fourier mix", linear=True)]
    assert effects["pope"] == [Effect("PoPE")]  # it is not linear: scores are then left whole
    assert effects["ssmax"] == [turning, Effect("temperature", positional=False, linear=True)]


def test_the_base_of_waves_has_the_same_bounds_everywhere():
    bases = {name: parameters(entry.config).get("base") for name in NAMES if (entry := ENCODINGS[name])}
    bounds = {name: (info.low, info.high) for name, info in bases.items() if info is not None}
    assert {"sinusoidal", "shifted", "xl", "rope", "xpos", "fope"} <= set(bounds)
    assert set(bounds.values()) == {(2.0, 1e9)}


def test_bounds_of_networks_convolutions_and_gates():
    """A form offers no more: a network of one number is the least, and a convolution over one token is none. Gates
    begin between all but shut and all but open."""
    bounds = {
        (name, field): (info.low, info.high)
        for name in ("dape", "selective-rope", "fox")
        for field, info in parameters(ENCODINGS[name].config).items()
        if field != "base"
    }
    assert bounds == {
        ("dape", "hidden"): (1, 256),
        ("selective-rope", "rank"): (1, 1024),
        ("selective-rope", "taps"): (2, 16),
        ("fox", "bias"): (-8.0, 16.0),
    }


def test_which_encodings_have_a_randomised_form():
    """Not those that read no position, count by content, have several axes, or stand for distances of text as it is."""
    without = {entry.name for entry in ENCODINGS.entries() if not entry.randomised}
    content = {"cope", "fox", "path", "selective-rope"}
    assert (
        without
        == {"none", "shifted", "mrope", "axial", "xpos", "xl", "kerple", "ssmax", "self-extend", "dual-chunk"} | content
    )


@dataclasses.dataclass(frozen=True)
class Outside:
    """An encoding of somebody else's, whose one part stands where the entry says."""

    def parts(self, *, causal: bool) -> Parts:
        return Parts()


@dataclasses.dataclass(frozen=True)
class Drawn:
    draw = None


@dataclasses.dataclass(frozen=True)
class Acting:
    build = shared = None


@dataclasses.dataclass
class Loose:
    build = shared = None


@pytest.mark.parametrize(
    ("place", "part", "lacks"),
    [
        ("sampler", Drawn, None),
        ("qk", Acting, None),
        ("sampler", Acting, "Acting, the sampler of 'outside', has no draw"),
        ("qk", Drawn, "Drawn, the qk of 'outside', has no build and no shared"),
        ("bias", Loose, "Loose, the bias of 'outside', is no frozen dataclass"),
    ],
)
def test_what_an_encoding_from_outside_is_made_of(place, part, lacks):
    entry = Entry("outside", Outside, components={place: (part,)})
    with pytest.raises(BadInput, match=lacks) if lacks else contextlib.nullcontext():
        ENCODINGS.register(entry)
    assert ("outside" in ENCODINGS) is (lacks is None)
    if lacks is None:
        ENCODINGS.unregister("outside")


def test_NoPE_acts_nowhere():
    assert NoPE().parts(causal=True) == NoPE().parts(causal=False) == Parts()


def test_an_object_is_taken_as_it_is():
    rope = Rope(base=5.0)
    assert encoding(rope) is rope


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            "ropee",
            "no position encoding is called 'ropee'. Did you mean 'rope'\\? There are: none, sinusoidal, learned",
        ),
        ("Rope", "Did you mean 'rope'"),
        ("qqq", "no position encoding is called 'qqq'. There are"),
        ("learned", 'position="learned" needs max_length='),
        (Rope, r"write Rope\(\.\.\.\)"),
        (3, "position=3 is neither a name nor an encoding object$"),
        (None, "position=None is neither"),
    ],
)
def test_bad_input(wrong, says):
    with pytest.raises(BadInput, match=says):
        encoding(wrong)


def test_max_length_is_for_the_learned_table():
    assert encoding("learned", max_length=7) == Learned(7)
    assert encoding("rope", max_length=7) == Rope()


# ---- properties of every bias


@pytest.mark.parametrize("name", POINTWISE)
@settings(deadline=None, max_examples=12)
@given(positions(max_width=4), positions(max_width=5))
def test_a_pointwise_bias_is_the_same_called_whole_or_one_by_one(name, q_pos, k_pos):
    part = built(BIASES[name])
    bias, pair = pointwise_of(part, q_pos, k_pos), q_pos.against(k_pos)
    whole = bias_of(part, q_pos, k_pos)
    torch.testing.assert_close(one_by_one(bias, pair, SHAPE.heads), whole)
    b, h, i, j = 1, 2, q_pos.shape[1] - 1, k_pos.shape[1] - 1
    q = Place(q_pos.pos[b, i], q_pos.order[b, i], None)
    k = Place(k_pos.pos[b, j], k_pos.order[b, j], None, torch.tensor(j))
    single = bias(*map(torch.tensor, (b, h, i)), q, k)
    assert single.shape == ()
    torch.testing.assert_close(single, whole[b, h, i, j])


@pytest.mark.parametrize("name", POINTWISE)
def test_a_pointwise_bias_broadcasts_over_equal_rows(name):
    part, q_pos, k_pos = built(BIASES[name]), Positions.arange(2, 3, start=4), Positions.arange(2, 7)
    narrow = bias_of(part, q_pos, k_pos)
    torch.testing.assert_close(narrow, bias_of(part, unread(q_pos.pos), unread(k_pos.pos)))


@pytest.mark.parametrize("name", RELATIVE)
@settings(deadline=None, max_examples=12)
@given(positions(), positions(), st.integers(1, 2000))
def test_a_relative_bias_does_not_change_when_everything_moves(name, q_pos, k_pos, by):
    part = built(BIASES[name])
    both = (q_pos.filled[:, None, :, None] & k_pos.filled[:, None, None, :]).expand(-1, 4, -1, -1)
    here, there = bias_of(part, q_pos, k_pos), bias_of(part, moved(q_pos, by), moved(k_pos, by))
    torch.testing.assert_close(here[both], there[both], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", BIASES)
@settings(deadline=None, max_examples=12)
@given(positions(), positions(), st.data())
def test_a_bias_does_not_care_where_keys_and_queries_are_kept(name, q_pos, k_pos, data):
    part = built(BIASES[name])
    q_index = torch.tensor(data.draw(st.permutations(range(q_pos.shape[1]))))
    k_index = torch.tensor(data.draw(st.permutations(range(k_pos.shape[1]))))
    q, k = vectors(2, 4, q_pos.shape[1], 6, 1), vectors(2, 2, k_pos.shape[1], 6, 2)
    straight = bias_of(part, q_pos, k_pos, q=q, k=k)[:, :, q_index][..., k_index]
    q_there, k_there = permuted(q_pos, q_index), permuted(k_pos, k_index)
    there = bias_of(part, q_there, k_there, q=q[:, :, q_index], k=k[:, :, k_index])
    seen = (q_there.filled[:, None, :, None] & k_there.filled[:, None, None, :]).expand(-1, 4, -1, -1)
    torch.testing.assert_close(there[seen], straight[seen])


@pytest.mark.parametrize("name", BIASES)
@settings(deadline=None, max_examples=12)
@given(positions(), positions())
def test_empty_places_are_finite(name, q_pos, k_pos):
    assert bias_of(built(BIASES[name]), q_pos, k_pos).isfinite().all()


@pytest.mark.parametrize("name", BIASES)
def test_positions_of_which_the_host_knows_nothing_give_the_same(name):
    q_pos, k_pos = Positions.arange(2, 3, start=4), Positions.arange(2, 7)
    known, blind = (
        bias_of(built(BIASES[name]), q_pos, k_pos),
        bias_of(built(BIASES[name]), unread(q_pos.pos), unread(k_pos.pos)),
    )
    torch.testing.assert_close(known, blind)


@pytest.mark.parametrize("name", BIASES)
def test_every_bias_works_in_bfloat16(name):
    part = built(BIASES[name], dtype=torch.bfloat16)
    q, k = (vectors(2, h, 9, 6, h, torch.bfloat16) for h in (4, 2))
    pos = Positions.rows([9, 7])
    value = materialise(part.at(inputs_of(part, q, k, pos, pos)), pos.against(pos), 4, torch.bfloat16)
    assert value.dtype == torch.bfloat16
    exact = bias_of(part.double(), Positions.rows([9, 7]), Positions.rows([9, 7]), q=q.double(), k=k.double())
    torch.testing.assert_close(value.double(), exact.double(), atol=0.1, rtol=0.1)


def test_t5_bias_by_hand():
    """lookup = buckets of -2 … 2; anything further out is as 2."""
    bias = T5Bias(torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]]), torch.tensor([0, 1, 2, 3, 4]))
    q, zero = Place(torch.tensor(10), torch.tensor(10), None), torch.tensor(0)
    got = [
        bias(zero, zero, zero, q, Place(torch.tensor(j), torch.tensor(j), None)).item()
        for j in (0, 8, 9, 10, 11, 12, 40)
    ]
    assert got == [1, 1, 2, 3, 4, 5, 5]


def test_everything_that_is_exported_is_there():
    names = {type(encoding(name, max_length=9)).__name__ for name in NAMES} | {"Randomised", "encoding", "components"}
    names |= {"ENCODINGS", "INPUT_PARTS", "LearnedGrid", "SAMPLERS", "SCORE_PARTS", "LogTemperature"}
    names |= {"alibi_bias", "alibi_slopes", "permutation", "ropes_among", "scaling", "sinusoid", "t5_bucket"}
    assert set(position.__all__) == names
    assert all(getattr(position, name) is not None for name in names)


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("causal", [True, False])
def test_nothing_is_read_back_from_a_device(name, causal):
    """On the meta device there are no numbers: reading one, or mixing in a tensor of the host, would fail."""
    if name in ("cope", "fox", "path", "selective-rope", "ssmax", "self-extend", "dual-chunk") and not causal:
        return  # refused
    parts = encoding(BIASES[name] if name in ("self-extend", "dual-chunk") else name, max_length=100).parts(
        causal=causal
    )
    pos = Positions.of(torch.tensor([[3, 1, 2], [5, -1, 4]], device="meta"), bounds=(0, 99))
    shape = dataclasses.replace(SHAPE, key_dim=8, rotary_dim=8) if name == "axial" else SHAPE
    q, k = (torch.zeros(2, heads, 3, shape.key_dim, device="meta") for heads in (4, 2))
    with torch.device("meta"):
        inputs, qk = [[p.build(shape) for p in group] for group in (parts.inputs, parts.qk)]
        bias = None if parts.bias is None else parts.bias.build(shape)
        values = None if parts.value_bias is None else parts.value_bias.build(shape)
    out = [part(torch.zeros(2, 3, 12, device="meta"), pos) for part in inputs]
    out += [side for part in qk for side in (part.query(q, pos), part.key(k, pos))]
    if bias is not None:
        out.append(materialise(bias.at(inputs_of(bias, q, k, pos, pos)), pos.against(pos), 4, torch.float32))
    if values is not None:
        out.append(values.at(torch.zeros(2, 4, 3, 3, device="meta"), pos, pos))
    assert all(x.device.type == "meta" for x in out)
    for part in (*inputs, *qk, bias, values):
        assert part is None or all(p.device.type == "meta" for p in part.state_dict().values())
    assert Randomised(Rope(), 50).draw(pos).pos.device.type == "meta"


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_biases_are_frozen_and_equal_only_to_themselves(name):
    pos = Positions.arange(2, 3)
    one, two = (pointwise_of(built(BIASES[name], seed=s), Positions.arange(2, 3), pos) for s in (0, 1))
    assert one == one
    assert one != two
    assert len({one, two}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, dataclasses.fields(one)[0].name, None)


@pytest.mark.parametrize(
    "config",
    [
        *BIASES.values(),
        *(part for name in ("xl", "shaw") for part in (encoding(name).parts(causal=True).qk)),
        encoding("shaw").parts(causal=True).value_bias,
        scaling.Default(),
        scaling.Linear(2.0),
        scaling.Proportional(0.5),
        scaling.DynamicNTK(2.0, 9),
        scaling.YaRN(2.0, 9),
        scaling.LongRope((1.0,), (2.0,), 9, factor=2.0),
        scaling.Llama3(8.0, 1.0, 4.0, 9),
        Randomised(Rope()),
    ],
)
def test_configuration_is_frozen_data(config):
    assert config == copy.copy(config)
    assert hash(config) == hash(copy.copy(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.anything = 1
