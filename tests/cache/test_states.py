"""States of constant size beside keys and values: where each row stands."""

import pytest
import torch

import vantage as vt
from tests.cache.saving import again
from tests.generation import zoo
from vantage.cache import LayerPlan, make_cache
from vantage.cache.states import NoStates, StateRows
from vantage.errors import BadInput, CacheError, CheckpointError
from vantage.spec.kept import StateShape
from vantage.spec.masks import Causal
from vantage.spec.positions import Positions

SHAPES = (StateShape((2,)), StateShape((1, 3), wide=True))
CPU = torch.device("cpu")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["contiguous", "kivi"])
def test_a_row_without_a_token_in_a_pass_stands_where_it_stood(kind: str) -> None:
    """Its states were said to be those of no token, and were lost when the cache was saved or taken back."""
    model: vt.Model = zoo.model("states", dtype=torch.float32)
    cache = zoo.cache(model, kind, 2, length=64)
    model(zoo.tokens(4, 2), cache=cache)
    empty = torch.tensor([[4, 5], [-1, -1]])
    model(zoo.tokens(2, 2, seed=1), positions=Positions.of(empty), cache=cache)
    states = [layer.own_states for layer in cache.layers if layer.own_states is not None]
    ends = [[row[-1].end for row in kept.rows] for kept in states]
    assert ends
    assert all(end == [6, 4] for end in ends)


# ---- by themselves: after a token of order n a state holds n + 1 in every number, its row times 100 more


def state_rows(batch: int = 2, draft: int = 0, every: int | None = None) -> StateRows:
    return StateRows(SHAPES, batch, dtype=torch.bfloat16, device=CPU, draft=draft, every=every)


def write(rows: StateRows, pos: Positions) -> tuple[int, ...]:
    """A pass that keeps what is wanted of it; after which columns that is."""
    columns = rows.wanted(pos)
    marks = pos.order + 1 + 100 * torch.arange(pos.shape[0])[:, None]
    dtypes = (torch.bfloat16, torch.float32)
    rows.write(
        pos,
        columns,
        [
            tuple(
                marks[:, c].view(-1, *[1] * len(s.shape)).expand(-1, *s.shape).to(dtype)
                for s, dtype in zip(SHAPES, dtypes, strict=True)
            )
            for c in columns
        ],
    )
    return columns


def ends(rows: StateRows) -> list[list[int]]:
    return [[snapshot.end for snapshot in row] for row in rows.rows]


def marks(rows: StateRows) -> list[list[float]]:
    """What a pass would read: of each state its number, row by row."""
    read = rows.read()
    assert [(tuple(t.shape[1:]), t.dtype) for t in read] == [((2,), torch.bfloat16), ((1, 3), torch.float32)]
    assert all(bool((t == t.flatten(1)[:, 0].view(-1, *[1] * (t.dim() - 1))).all()) for t in read)
    return [t.flatten(1)[:, 0].tolist() for t in read]


def test_after_which_tokens_of_a_pass_a_state_is_kept():
    assert StateRows(SHAPES, 2, dtype=torch.float32, device=CPU).wanted(Positions.arange(2, 5)) == (4,)
    assert state_rows(draft=2).wanted(Positions.arange(2, 5)) == (2, 3, 4)
    assert state_rows(draft=9).wanted(Positions.arange(2, 5)) == (0, 1, 2, 3, 4)
    # 4 to 9 come in: 6 and 9 tokens are multiples of 3, and after the last there is always one
    assert state_rows(every=3).wanted(Positions.arange(2, 6, 4)) == (1, 4, 5)
    assert state_rows(every=3).wanted(Positions.rows([6, 5], [4, 4])) == (5,)  # rows that differ have no such places
    assert NoStates(SHAPES).wanted(Positions.arange(2, 5)) == ()


def test_what_was_not_committed_is_not_held():
    rows = state_rows()
    assert marks(rows) == [[0, 0], [0, 0]]
    write(rows, Positions.arange(2, 3))
    assert ends(rows) == [[], []]
    rows.abandon()
    rows.commit()
    assert ends(rows) == [[], []]
    write(rows, Positions.arange(2, 3))
    rows.commit()
    rows.commit()
    assert ends(rows) == [[3], [3]]
    assert marks(rows) == [[3, 103], [3, 103]]
    one = state_rows(1)
    assert marks(one) == [[0], [0]]
    write(one, Positions.arange(1, 2))
    one.commit()
    assert marks(one) == [[2], [2]]


def test_a_row_goes_back_over_its_draft_and_to_every_so_many_tokens():
    rows = state_rows(draft=2, every=4)
    write(rows, Positions.arange(2, 10))
    rows.commit()
    assert ends(rows) == [[4, 8, 9, 10]] * 2
    write(rows, Positions.arange(2, 1, 10))
    rows.commit()
    assert ends(rows) == [[4, 8, 9, 10, 11]] * 2
    write(rows, Positions.arange(2, 2, 11))
    rows.commit()
    assert ends(rows) == [[4, 8, 11, 12, 13]] * 2
    assert [rows.nearest(0, to) for to in (13, 12, 10, 8, 7, 4, 3)] == [13, 12, 8, 8, 4, 4, 0]
    rows.check_crop([13, 99])
    rows.check_crop([12, 4])
    rows.check_crop([0, 13])
    with pytest.raises(CacheError, match="cannot take row 1 back to 10: its states are held for 4, 8, 11, 12, 13"):
        rows.check_crop([13, 10])
    with pytest.raises(CacheError, match="with a draft of 3 or more"):
        rows.check_crop([13, 10])
    rows.crop([12, 0])
    assert ends(rows) == [[4, 8, 11, 12], []]
    assert marks(rows) == [[12, 0], [12, 0]]
    rows.check_crop([12, 0])
    short = state_rows(draft=1)
    write(short, Positions.arange(2, 10))
    short.commit()
    write(short, Positions.arange(2, 1, 10))
    short.commit()
    assert ends(short) == [[10, 11]] * 2
    seldom = state_rows(every=4)
    write(seldom, Positions.arange(2, 10))
    seldom.commit()
    assert ends(seldom) == [[4, 8, 10]] * 2
    with pytest.raises(CacheError, match="cannot take row 0 back to 9"):
        seldom.check_crop([9, 10])


def test_rows_are_picked_forked_and_begun_anew():
    rows = state_rows(draft=1)
    write(rows, Positions.rows([3, 2]))
    rows.commit()
    assert ends(rows) == [[2, 3], [2, 2]]
    assert marks(rows)[0][0] == 3
    fork = rows.fork()
    fork.reorder([1, 0, 0])
    assert [row[-1].end for row in fork.rows] == [2, 3, 3]
    assert marks(fork)[0][1:] == [3, 3]
    assert len(rows.rows) == 2
    write(fork, Positions.onward(torch.tensor([2, 3, 3]), 1))
    fork.commit()
    assert ends(fork) == [[2, 3], [3, 4], [3, 4]]
    assert ends(fork.fresh(1)) == [[]]
    fork.free()
    assert ends(fork) == [[], [], []]
    assert fork.bytes == 0
    assert rows.bytes == 2 * 2 * (2 * 2 + 3 * 4)  # two columns of two rows, each batch of states counted once


def test_a_part_of_the_rows_in_their_order_is_not_copied():
    rows = state_rows(3)
    write(rows, Positions.arange(3, 1))
    rows.commit()
    held = rows.rows[0][0].states.tensors[0]
    assert rows.read()[0].data_ptr() == held.data_ptr()
    rows.reorder([0, 1])
    assert rows.read()[0].data_ptr() == held.data_ptr()
    assert marks(rows) == [[1, 101]] * 2
    rows.reorder([1, 0])
    assert marks(rows) == [[101, 1]] * 2


def test_states_that_do_not_fit_are_refused():
    rows, pos = state_rows(), Positions.arange(2, 1)
    good = torch.zeros(2, 2, dtype=torch.bfloat16), torch.zeros(2, 1, 3)
    with pytest.raises(BadInput, match="a cache keeps no gradients"):
        rows.write(pos, (0,), [(good[0].float().requires_grad_(), good[1])])
    with pytest.raises(BadInput, match="for a cache that takes"):
        rows.write(pos, (0,), [good[:1]])
    with torch.no_grad():
        rows.write(pos, (0,), [(good[0].float().requires_grad_(), good[1])])


def test_a_pass_without_a_cache_begins_with_zeros_and_keeps_nothing():
    before = NoStates(SHAPES).read(torch.ones(3, 4, 8, dtype=torch.bfloat16))
    assert [(tuple(t.shape), t.dtype) for t in before] == [((3, 2), torch.bfloat16), ((3, 1, 3), torch.float32)]
    assert not any(bool(t.any()) for t in before)


def test_states_as_plain_data():
    rows = state_rows(draft=1, every=8)
    write(rows, Positions.arange(2, 4))
    rows.commit()
    rows.crop([4, 0])
    restored = StateRows.from_description(rows.describe(), 2, CPU)
    assert restored.describe() == rows.describe()
    assert (restored.tensor_count, len(rows.dump())) == (3, 3)
    restored.load(rows.dump())
    assert ends(restored) == [[4], []]
    assert marks(restored) == [[4, 0]] * 2
    unbounded = StateRows.from_description({**rows.describe(), "every": None, "draft": 0}, 2, CPU)
    assert unbounded.wanted(Positions.arange(2, 16)) == (15,)


def test_states_are_saved_with_their_cache(tmp_path):
    cache = make_cache([LayerPlan(0, 0, 0, Causal(), states=SHAPES)], batch=2, dtype=torch.bfloat16)
    pos = Positions.arange(2, 3)
    with cache.step(pos):
        write(cache.layers[0].states, pos)
    assert marks(again(cache, tmp_path).layers[0].states) == [[3, 103]] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"shapes": None},
        {"dtype": "float8"},
        {"draft": -1},
        {"draft": True},
        {"draft": 2**20},
        {"every": 0},
        {"every": -1},
        {"every": "4"},
        {"shapes": [[2], False]},
        {"shapes": [[[2], 0]]},
        {"shapes": [[[2]]]},
        {"shapes": [[2, True]]},
        {"shapes": [[[0], True]]},
        {"shapes": [[[2**20], True]]},
        {"shapes": [[[True], True]]},
    ],
    ids=str,
)
def test_a_damaged_description(wrong):
    whole = state_rows(draft=1).describe()
    widest = {**whole, "draft": 2**20 - 1, "shapes": [[[2**20 - 1, 1], True]]}
    assert StateRows.from_description(widest, 1, CPU).shapes == (StateShape((2**20 - 1, 1), wide=True),)
    with pytest.raises(CheckpointError):
        StateRows.from_description({**whole, **wrong}, 1, CPU)


def test_damaged_states():
    rows = state_rows()
    write(rows, Positions.arange(2, 4))
    rows.commit()
    whole_ends, a, b = rows.dump()
    for wrong in (
        (whole_ends, a.float(), b),
        (whole_ends, a[:1], b),
        (whole_ends.int(), a, b),
        (whole_ends[:, None], a, b),
        (whole_ends[:1], a, b),
        (torch.tensor([4, -1]), a, b),
    ):
        with pytest.raises(CheckpointError):
            state_rows().load(wrong)
    state_rows().load((whole_ends, a, b))
