"""What travels between the parts: biases as functions or tensors, chains of transforms, the context."""

from dataclasses import dataclass, replace

import pytest
import torch

from tests.attention.helpers import Forgetting, vectors
from vantage.attention import GroupedQuery, Latent
from vantage.errors import BadInput
from vantage.kernels import chooser, kernel_named
from vantage.model.norms import RMSNorm
from vantage.position import Rope
from vantage.spec.masks import Causal
from vantage.spec.parts import Context, Dense, Need, Pointwise, Shape, View, materialise
from vantage.spec.positions import Positions
from vantage.spec.transforms import chain


@dataclass(frozen=True, eq=False)
class Sum(Pointwise):
    """Everything it is given, at different places of a number."""

    table: torch.Tensor
    factor: float = 1.0

    def __call__(self, b, h, i, q, k):
        return self.factor * (1000 * b + 100 * h + 10 * q.pos + k.pos) + self.table[i]


def test_a_bias_is_read_at_every_row_head_query_and_key():
    q, k = Positions.rows([2, 2], [3, 5]), Positions.arange(2, 3)
    value = materialise(Sum(torch.tensor([0.25, 0.5])), q.against(k), 2, torch.float64)
    assert value is not None
    assert value.dtype == torch.float64
    assert value.shape == (2, 2, 2, 3)
    for b, h, i, j in ((0, 0, 0, 0), (1, 0, 1, 2), (0, 1, 1, 1), (1, 1, 0, 2)):
        place = int(q.pos[b, i])
        assert float(value[b, h, i, j]) == 1000 * b + 100 * h + 10 * place + j + (0.25, 0.5)[i]


def test_a_bias_is_built_once_for_what_it_is_made_of():
    pos = Positions.arange(1, 2)
    pair, table = pos.against(pos), torch.zeros(2)
    first = materialise(Sum(table), pair, 1, torch.float32)
    assert materialise(Sum(table), pair, 1, torch.float32) is first
    assert materialise(Sum(table), pair, 1, torch.float64) is not first
    assert materialise(Sum(table, 2.0), pair, 1, torch.float32) is not first
    assert materialise(Sum(table.clone()), pair, 1, torch.float32) is not first
    assert Sum(table).key() == Sum(table).key() != Sum(table.clone()).key()


def test_no_bias_and_a_dense_one():
    pos = Positions.arange(1, 2)
    assert materialise(None, pos.against(pos), 1, torch.float32) is None
    value = torch.ones(1, 1, 2, 2)
    assert materialise(Dense(value), pos.against(pos), 1, torch.float32) is value
    wide = materialise(Dense(value), pos.against(pos), 1, torch.float64)
    assert wide is not None
    assert wide.dtype == torch.float64


class Add:
    def __init__(self, query, key):
        self.by = query, key

    def query(self, q, pos):
        return 2 * q + self.by[0]

    def key(self, k, pos):
        return 2 * k + self.by[1]


def test_a_chain_goes_in_order():
    pos, x = Positions.arange(1, 1), torch.zeros(1)
    parts = [Add(1, 10), Add(3, 30)]
    assert chain(parts, "query", x, pos).item() == 5
    assert chain(parts, "key", x, pos).item() == 50
    assert chain([], "key", x, pos) is x


def test_the_context_shows_the_result_to_whoever_watches():
    pos = Positions.arange(1, 3)
    q, view = vectors(1, 2, 3, 4), View(vectors(1, 1, 3, 4, seed=1), vectors(1, 1, 3, 4, seed=2), pos)
    need, seen = Need(Causal(), 0.5), []
    quiet = Context(pos, chooser("auto"), (Forgetting(),))
    out = quiet.attend("self", 3, q, view, need)
    watched = Context(pos, chooser("auto"), (Forgetting(),), watch=lambda *args: seen.append(args))
    torch.testing.assert_close(watched.attend("self", 3, q, view, need), out)
    ((site, index, shown, asked, done),) = seen
    assert (site, index) == ("self", 3)
    assert shown is view
    assert asked.weights
    assert not need.weights
    assert done.weights is not None
    torch.testing.assert_close(done.weights @ view.v, out)
    assert kernel_named("sdpa").refuses(asked, q, view) is not None  # so the reference ran


@pytest.mark.parametrize(
    ("config", "rotary"),
    [(GroupedQuery(2), 4), (Latent(2, 6, 4, 2, 4, norm=RMSNorm()), 2), (GroupedQuery(2, head_dim=6), 6)],
)
def test_a_part_is_built_for_what_it_acts_on(config, rotary):
    shape = config.shape(8)
    assert shape.rotary_dim == rotary
    assert Rope().build(shape).dim == rotary


@pytest.mark.parametrize("name", ["width", "key_dim", "value_dim"])
def test_a_head_has_a_width(name):
    smallest = Shape(width=1, heads=1, kv_heads=1, key_dim=1, value_dim=1, rotary_dim=0)
    with pytest.raises(BadInput, match=f"^{name}=0: use 1 or more$"):
        replace(smallest, **{name: 0})
