"""Biases that say what they are: the form, evaluated, is the bias, its gradients included."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.position.helpers import SHAPE, bias_of, built, inputs_of, permuted, positions, vectors
from vantage.position import ENCODINGS, T5, Fire, Kerple, Shaw, Shifted
from vantage.position.late_temperature import LateTemperature
from vantage.position.relative import runs
from vantage.spec.forms import (
    CountTable,
    DistanceKeys,
    DistanceTable,
    Form,
    HasForm,
    LogDistance,
    PowerDistance,
    QueryAndKey,
    RatioNetwork,
    RowTable,
    Slope,
    ValueTable,
    form_of,
    value_form_of,
)
from vantage.spec.parts import Pointwise, materialise
from vantage.spec.positions import Positions

FORMS = {
    "alibi": Slope,
    "kerple": LogDistance,
    "kerple-power": PowerDistance,
    "t5": DistanceTable,
    "t5-both": DistanceTable,
    "shaw": RowTable,
    "bank": RowTable,
    "fox": QueryAndKey,
    "fire": RatioNetwork,
    "fire-both": RatioNetwork,
}
DENSE = ["path", "self-extend", "dual-chunk", "dape", "selective-rope"]
PRODUCTS = ["xl", "shifted", "shifted-far"]
COUNTED = ["cope"]
CONFIGS = {name: parts.bias for name in ENCODINGS if (parts := ENCODINGS[name].make(100).parts(causal=True)).bias}
CONFIGS |= {
    "shifted-far": Shifted(anchor=3).parts(causal=True).bias,
    "kerple-power": Kerple("power"),
    "t5-both": T5(bidirectional=True),
    "fire-both": Fire(bidirectional=True),
}


def value(bias, q_pos: Positions, k_pos: Positions) -> Tensor:
    made = materialise(bias, q_pos.against(k_pos), SHAPE.heads, torch.float64)
    assert made is not None
    return made.expand(q_pos.shape[0], SHAPE.heads, q_pos.shape[1], k_pos.shape[1])


def bias_at(part, q_pos: Positions, k_pos: Positions):
    q, k = vectors(2, 4, q_pos.shape[1], 6, 1), vectors(2, 2, k_pos.shape[1], 6, 2)
    return part.at(inputs_of(part, q, k, q_pos, k_pos))


def test_every_bias_that_has_a_form_is_in_one_of_the_lists():
    pos = Positions.arange(2, 4)
    listed = {*FORMS, *DENSE, *PRODUCTS, *COUNTED}
    assert listed <= set(CONFIGS)
    for name in set(CONFIGS) - listed:
        assert form_of(bias_at(built(CONFIGS[name]), pos, pos)) is None, f"put {name} into a list above"


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=12)
@given(positions(), positions())
def test_the_form_is_the_bias(name, q_pos, k_pos):
    part = built(CONFIGS[name])
    form = form_of(bias_at(part, q_pos, k_pos))
    assert isinstance(form, FORMS[name])
    assert isinstance(form, Form)
    seen = (q_pos.filled[:, None, :, None] & k_pos.filled[:, None, None, :]).expand(-1, 4, -1, -1)
    wanted = bias_of(part, q_pos, k_pos)
    torch.testing.assert_close(value(form, q_pos, k_pos)[seen], wanted[seen])


@pytest.mark.parametrize("name", [name for name in FORMS if name != "alibi"])  # it learns nothing
def test_gradients_go_through_the_form(name):
    q_pos, k_pos = Positions.arange(2, 5, start=2), Positions.arange(2, 7)
    grads = []
    for by_form in (False, True):
        part = built(CONFIGS[name])
        bias = bias_at(part, q_pos, k_pos)
        shown = value(form_of(bias) if by_form else bias, Positions.arange(2, 5, start=2), Positions.arange(2, 7))
        (shown * vectors(*shown.shape, seed=9)).sum().backward()
        grads.append([p.grad for p in part.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", DENSE)
def test_what_has_no_form_says_so(name):
    pos = Positions.arange(2, 4)
    assert form_of(bias_at(built(CONFIGS[name]), pos, pos)) is None


@pytest.mark.parametrize("first", [0, 3, 9])  # of the queries: behind the keys' first, or before it
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_queries_and_distances_is_the_bias(name, first):
    part = built(CONFIGS[name])
    q_pos, k_pos = Positions.arange(2, 5, start=first), Positions.arange(2, 7, start=2)
    q, k = vectors(2, 4, 5, 6, 1).requires_grad_(), vectors(2, 2, 7, 6, 2)
    bias = part.at(inputs_of(part, q, k, q_pos, k_pos))
    form = form_of(bias)
    assert isinstance(form, DistanceKeys)
    highest, lowest = first + 4 - 2, first - 8
    keys = form.keys(highest, highest - lowest + 1).expand(SHAPE.heads, -1, -1)
    queries = q + (0.0 if form.offset is None else form.offset[:, None]) if form.queries is None else form.queries
    every = form.factor * queries @ keys.transpose(-1, -2)
    index = highest - (q_pos.pos[:, None, :, None] - k_pos.pos[:, None, None, :])
    shown = every.gather(-1, index.expand(-1, SHAPE.heads, -1, -1))
    torch.testing.assert_close(shown, value(bias, q_pos, k_pos))
    of_form, of_whole = (
        torch.autograd.grad((x * vectors(*x.shape, seed=9)).sum(), [*part.parameters(), q], retain_graph=True)
        for x in (shown, value(bias, q_pos, k_pos))
    )
    for one, other in zip(of_form, of_whole, strict=True):
        torch.testing.assert_close(one, other)


def test_queries_of_their_own_are_left_to_the_kernel():
    """Shifted positions read the raw queries, Transformer-XL those with v. If the attention's own are these, or differ
    by a vector, a kernel is not given them twice."""
    pos, q, k = Positions.arange(2, 5), vectors(2, 4, 5, 6, 1), vectors(2, 2, 5, 6, 2)
    part = built(CONFIGS["shifted"])
    inputs = inputs_of(part, q, k, pos, pos)
    assert form_of(part.at(inputs)).queries is None
    turned = form_of(part.at(inputs._replace(q=q + 1.0)))
    assert turned.queries is q

    part = built(CONFIGS["xl"])
    inputs, shift = inputs_of(part, q, k, pos, pos), vectors(1, 1, 4, 6, 3)[0, 0]
    given = form_of(part.at(inputs))
    left = form_of(part.at(inputs._replace(q=q + shift[:, None], shift=shift)))
    assert left.queries is None
    torch.testing.assert_close(q + shift[:, None] + left.offset[:, None], given.queries)
    torch.testing.assert_close(left.keys(4, 9), given.keys(4, 9))


def test_distances_are_known_beforehand_if_both_sides_run():
    run, padded = Positions.arange(1, 3), Positions.rows([2], width=3, pad="left")
    assert runs(run, run)
    assert not runs(run, padded)
    assert not runs(padded, run)


# Each number of these is of its own query and key alone; of the others, of the keys between as well.
PAIRWISE = ["fire", "fire-both", "self-extend", "dual-chunk", "dape", "late-temperature", *PRODUCTS]


@pytest.mark.parametrize("name", [*PAIRWISE, *COUNTED, "path", "selective-rope"])
@pytest.mark.parametrize("run_on", [True, False])
def test_which_biases_may_be_made_for_some_of_the_keys(name, run_on):
    """Keys that lie over several processes are met in parts, by these alone."""
    part = built((CONFIGS | {"late-temperature": LateTemperature(8, 1.5)})[name])
    q_pos, k_pos = Positions.arange(2, 4, start=1003), Positions.arange(2, 7, start=1000)
    k_pos = k_pos if run_on else permuted(k_pos, torch.tensor([3, 0, 6, 1, 5, 2, 4]))
    inputs = inputs_of(part, vectors(2, 4, 4, 6, 1), vectors(2, 2, 7, 6, 2), q_pos, k_pos)
    bias = part.at(inputs)
    some = part.at(inputs_of(part, inputs.q, inputs.k[:, :, :3], q_pos, k_pos.narrow(0, 3)))
    made_alike = torch.allclose(some.value, bias.value[..., :3])
    assert (bias.pairwise, some.pairwise, made_alike) == ((name in PAIRWISE,) * 3)


def test_a_bias_of_queries_that_differ_by_a_vector_may_be_made_for_some_of_the_keys():
    part, pos = built(CONFIGS["xl"]), Positions.arange(2, 4)
    inputs = inputs_of(part, vectors(2, 4, 4, 6, 1), vectors(2, 2, 4, 6, 2), pos, pos)
    assert part.at(inputs._replace(shift=vectors(1, 1, 4, 6, 3)[0, 0])).pairwise


def test_counts_say_what_each_query_has_for_each_of_them():
    part, pos = built(CONFIGS["cope"]), Positions.arange(2, 5)
    q, k = vectors(2, 4, 5, 6, 1), vectors(2, 2, 5, 6, 2)
    inputs = inputs_of(part, q, k, pos, pos)
    form = form_of(part.at(inputs))
    assert isinstance(form, CountTable)
    assert form.scale == inputs.scale
    torch.testing.assert_close(form.by_count, q @ part.table.T)


@pytest.mark.parametrize("name", [*PRODUCTS, *COUNTED])
def test_a_product_has_no_form_where_distances_are_not_known_beforehand(name):
    pos = Positions.of(torch.tensor([[0, 2, 3], [0, 1, 2]]))
    assert form_of(bias_at(built(CONFIGS[name]), pos, pos)) is None


def test_a_module_says_its_form_where_its_inputs_do_not_matter():
    part = built(CONFIGS["alibi"])
    assert isinstance(part, HasForm)
    assert tuple(part.form().slopes.tolist()) == part.slopes


def test_a_bias_with_a_form_is_made_whole_when_it_is_asked_for():
    part, pos = built(CONFIGS["fire"]), Positions.arange(2, 4)
    bias = bias_at(part, pos, pos)
    part.whole = None  # it would be called
    assert isinstance(form_of(bias), RatioNetwork)
    assert form_of(bias) is form_of(bias)


def test_a_hidden_unit_without_a_weight_cuts_nothing():
    part, pos = built(Fire(hidden=3, bidirectional=False)), Positions.arange(2, 9)
    with torch.no_grad():
        part.f[0].weight[1] = 0.0
        part.f[0].bias[1] = 2.0
    form = form_of(bias_at(part, pos, pos))
    assert form.pieces().breaks.isfinite().all()
    torch.testing.assert_close(value(form, pos, pos), bias_of(part, pos, pos))


def test_the_form_of_values_by_distance():
    part = built(Shaw(max_distance=2).parts(causal=True).value_bias)
    form = value_form_of(part)
    assert isinstance(form, ValueTable)
    pos = Positions.arange(1, 6)
    weights = torch.eye(6, dtype=torch.float64)[None, None].expand(1, 1, 6, 6).roll(1, -2)  # each sees the one before
    assert form.first == -2
    torch.testing.assert_close(part.at(weights, pos, pos)[0, 0, 1:], form.values[3].expand(5, -1))


@dataclass(frozen=True, eq=False)
class Mine(Pointwise):
    """A bias of one's own: 4 less from the third token back on."""

    far: int

    def __call__(self, b, h, i, q, k):
        return torch.where(q.pos - k.pos < self.far, 0.0, -4.0) + 0.0 * h

    def form(self):
        return DistanceTable(torch.tensor([[0.0, -4.0]] * 4), first=self.far - 1)


@dataclass(frozen=True, eq=False)
class WithoutForm(Pointwise):
    def __call__(self, b, h, i, q, k):
        return 0.0 * h + q.pos % 2


def test_a_bias_of_ones_own():
    pos = Positions.arange(2, 9)
    form = form_of(Mine(3))
    assert isinstance(form, DistanceTable)
    torch.testing.assert_close(value(form, pos, pos), value(Mine(3), pos, pos))
    assert form_of(WithoutForm()) is None
