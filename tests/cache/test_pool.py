"""The allocator: all or nothing, side by side where it can be, nothing lost and nothing given back twice."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vantage.cache.blocks import BlockCopy, BlockRow, Plan, cropped, let_go, plan, stride
from vantage.cache.pool import BIN, Pool, Want
from vantage.errors import BadInput, CacheError


def test_a_pool_counts_in_blocks():
    pool = Pool(33, block=16)
    assert (pool.blocks, pool.free, pool.grows, pool.block) == (3, 3, False, 16)
    assert pool.places == 4 * 16  # and the bin
    assert pool.uses(BIN) == 1
    assert Pool(32, block=16).blocks == 2
    assert Pool(1, 1).blocks == 1
    empty = Pool()
    assert (empty.blocks, empty.free, empty.grows, empty.block, empty.places) == (0, 0, True, 16, 16)


@pytest.mark.parametrize(
    ("tokens", "block", "says"), [(0, 16, "at least 1, or None"), (8, 0, "0 tokens"), (-1, 4, "-1")]
)
def test_a_pool_of_nothing_is_refused(tokens, block, says):
    with pytest.raises(BadInput, match=says):
        Pool(tokens, block)


def test_rows_start_apart_and_grow_side_by_side():
    pool = Pool(12 * 4, block=4)
    a, b, c = pool.take([Want(2), Want(1), Want(1)])
    assert (a, b, c) == ([1, 2], [5], [9])
    assert pool.free == 8
    assert pool.take([Want(2, after=2), Want(1, after=5)]) == [[3, 4], [6]]
    # the next block of the first row is taken: it goes on elsewhere
    assert pool.take([Want(1, after=4)]) not in ([[5]], [[9]])
    assert pool.free == 4


def test_what_does_not_fit_beside_a_row_goes_on_elsewhere_and_is_no_more_than_asked_for():
    pool = Pool(9 * 4, block=4)
    assert pool.take([Want(1), Want(1)]) == [[1], [5]]
    (more,) = pool.take([Want(5, after=1)])
    assert more[:3] == [2, 3, 4]
    assert len(more) == 5
    assert pool.free == 2


def test_a_new_row_leaves_room_for_the_one_before_it():
    pool = Pool(9, block=1)
    assert pool.take([Want(1)]) == [[1]]
    assert pool.take([Want(1)]) == [[6]]  # the middle of 2 … 9
    assert pool.take([Want(2)]) == [[4, 5]]  # the middle of 2 … 5


def test_blocks_come_in_few_pieces_when_the_pool_is_full_of_holes():
    pool = Pool(10, block=1)
    everything = pool.take([Want(10)])[0]
    assert everything == list(range(1, 11))
    pool.release([1, 4, 5, 6, 9])
    assert pool.take([Want(4)]) == [[4, 5, 6, 1]]
    assert pool.take([Want(1)]) == [[9]]
    assert pool.free == 0


def test_a_fixed_pool_gives_all_or_nothing():
    pool = Pool(4, block=1)
    pool.take([Want(1)])
    with pytest.raises(CacheError, match=r"4 of 1 tokens, 3 are free and 4 are needed.*larger"):
        pool.take([Want(2), Want(2)])
    assert pool.free == 3
    pool.take([Want(3)])
    assert pool.free == 0


def test_a_growing_pool_doubles():
    pool = Pool(block=2, follows=0)
    pool.take([Want(3)])
    assert (pool.blocks, pool.free) == (3, 0)
    assert pool.take([Want(1, after=3)]) == [[4]]
    assert (pool.blocks, pool.free) == (6, 2)
    pool.prepare(2)
    assert pool.blocks == 6
    pool.prepare(3)
    assert (pool.blocks, pool.free) == (12, 8)
    pool.prepare(30)
    assert (pool.blocks, pool.free) == (34, 30)


def test_a_growing_pool_has_room_for_what_follows():
    pool = Pool(block=16)
    pool.take([Want(3)])
    assert (pool.blocks, pool.free) == (7, 4)  # 64 tokens
    pool = Pool(block=16, follows=65)
    pool.take([Want(3)])
    assert (pool.blocks, pool.free) == (8, 5)
    pool.prepare(6)
    assert (pool.blocks, pool.free) == (16, 13)
    pool = Pool(block=16)
    pool.take([Want(100)])
    assert (pool.blocks, pool.free) == (125, 25)  # a quarter


def test_reserve_finds_or_makes_a_gap():
    pool = Pool(block=1, follows=0)
    pool.take([Want(4)])
    pool.release([2, 3])
    pool.reserve(2)
    assert pool.blocks == 4
    pool.reserve(3)
    assert pool.blocks == 8
    assert pool.follows(4, 4)
    pool.reserve(20)
    assert pool.blocks == 28
    assert pool.follows(4, 24)


def test_follows():
    pool = Pool(5, block=1)
    pool.take([Want(2)])
    assert pool.follows(2, 3)
    assert not pool.follows(2, 4)
    assert not pool.follows(1, 1)
    assert pool.follows(5, 0)
    assert pool.follows(1, 0)


def test_blocks_are_shared_and_given_back_once():
    pool = Pool(2, block=1)
    (blocks,) = pool.take([Want(2)])
    pool.share(blocks)
    assert pool.uses(blocks[0]) == 2
    pool.release(blocks)
    assert (pool.uses(blocks[0]), pool.free) == (1, 0)
    pool.release(blocks)
    assert (pool.uses(blocks[0]), pool.free) == (0, 2)
    with pytest.raises(AssertionError, match="twice"):
        pool.release(blocks)
    with pytest.raises(AssertionError, match="free block"):
        pool.share(blocks)
    with pytest.raises(AssertionError, match="bin"):
        pool.release([BIN])
    assert pool.free == 2


# ---- rows of blocks


def test_a_row_knows_whether_it_is_a_run():
    row = BlockRow().with_blocks([3, 4])
    assert row.run
    assert row.with_blocks([5]).run
    assert not row.with_blocks([6]).run
    assert not row.with_blocks([6]).with_blocks([7]).run
    assert not BlockRow().with_blocks([3, 5]).run
    assert row.with_blocks([]) is row
    assert BlockRow((7, 8), 9, gone=2).place(4) == 20


@pytest.mark.parametrize(
    ("rows", "apart"),
    [
        ([BlockRow((3, 4), 5)], 0),
        ([BlockRow((3, 5), 5, run=False)], None),
        ([BlockRow()], None),
        ([BlockRow((1, 2), 7), BlockRow((4, 5), 7), BlockRow((7, 8), 7)], 12),
        ([BlockRow((1, 2), 7), BlockRow((4, 5), 7), BlockRow((8, 9), 7)], None),
        ([BlockRow((4, 5), 7), BlockRow((1, 2), 7)], None),  # strides go up
        ([BlockRow((1, 2), 7), BlockRow((1, 2), 7)], None),  # one in the place of the other
        ([BlockRow((1, 2), 7), BlockRow((4, 5), 6)], None),
        ([BlockRow((1, 2), 7), BlockRow((4,), 7, gone=1)], None),
        ([BlockRow((1, 2), 7), BlockRow((4, 6), 7, run=False)], None),
        ([BlockRow((1,), 2), BlockRow((), 2)], None),
    ],
)
def test_stride(rows, apart):
    assert stride(rows, 4) == apart


def test_a_plan_without_new_blocks_takes_none():
    pool = Pool(8, block=4)
    first = plan(pool, [BlockRow()], [3])
    assert first == Plan((BlockRow((1,), 3),), (1,))
    assert plan(pool, first.rows, [1]) == Plan((BlockRow((1,), 4),))
    assert plan(pool, [BlockRow((1,), 4)], [0]) == Plan((BlockRow((1,), 4),))
    assert plan(pool, [BlockRow((1,), 4)], [1]) == Plan((BlockRow((1, 2), 5),), (2,))
    assert pool.free == 0


def test_a_shared_last_block_is_copied_before_it_is_written():
    pool = Pool(24, block=4)
    row = plan(pool, [BlockRow()], [6]).rows[0]
    assert row.blocks == (1, 2)
    pool.share(row.blocks)
    done = plan(pool, [row], [3])
    new, more = done.rows[0].blocks[1:]
    assert done.copies == (BlockCopy(2, new),)
    assert done.left == (2,)
    assert done.taken == (new, more)
    assert more == new + 1
    assert not done.rows[0].run
    # what is full, or gets nothing, is left alone
    pool.share([1])
    assert plan(pool, [BlockRow((1,), 4)], [1]).copies == ()
    assert plan(pool, [BlockRow((1,), 3)], [0]).copies == ()


def test_rows_that_meet_move_apart_in_a_growing_pool():
    pool = Pool(block=2, follows=0)
    rows = plan(pool, [BlockRow(), BlockRow()], [4, 4]).rows
    assert [row.blocks for row in rows] == [(1, 2), (3, 4)]
    done = plan(pool, rows, [1, 1])
    assert done.left == (1, 2, 3, 4)
    assert [row.tokens for row in done.rows] == [5, 5]
    assert all(row.run and len(row.blocks) == 3 for row in done.rows)
    assert [(c.source, c.target) for c in done.copies] == list(
        zip([1, 2, 3, 4], done.rows[0].blocks[:2] + done.rows[1].blocks[:2], strict=True)
    )
    assert stride(done.rows, 2) is not None
    # with room for as much again
    assert all(pool.follows(row.blocks[-1], 3) for row in done.rows)
    assert len(done.taken) == 6


def test_rows_stay_where_they_are_if_blocks_are_shared_or_the_pool_is_fixed():
    for pool in (Pool(block=2), Pool(20, block=2)):
        rows = [BlockRow((1, 2), 4), BlockRow((3, 4), 4)]
        pool.prepare(4)
        pool.take([Want(4)])
        if pool.grows:
            pool.share([1])
        done = plan(pool, rows, [1, 1])
        assert done.copies == ()
        assert [row.blocks[:2] for row in done.rows] == [(1, 2), (3, 4)]


def test_crop_and_let_go_give_blocks_back():
    pool = Pool(20, block=4)
    rows = plan(pool, [BlockRow()], [20]).rows
    assert cropped(pool, rows, [20]) == rows
    rows = cropped(pool, rows, [16])
    assert rows == (BlockRow((1, 2, 3, 4), 16),)
    assert pool.free == 1
    rows = let_go(pool, rows, 12)
    assert rows == (BlockRow((2, 3, 4), 16, 1),)
    assert let_go(pool, rows, 9) is not rows
    assert let_go(pool, rows, 9) == rows
    rows = let_go(pool, rows, 8)
    assert rows == (BlockRow((3, 4), 16, 2),)
    assert cropped(pool, rows, [13]) == (BlockRow((3, 4), 13, 2),)
    assert cropped(pool, rows, [12]) == (BlockRow((3,), 12, 2),)
    assert pool.free == 4
    assert cropped(pool, [BlockRow((3,), 1)], [0]) == (BlockRow(),)
    assert pool.free == 5


def test_a_row_in_pieces_is_a_run_again_when_the_pieces_are_gone():
    pool = Pool(8, block=1)
    pool.take([Want(8)])
    assert cropped(pool, [BlockRow((1, 2, 5), 3, run=False)], [2])[0].run
    assert let_go(pool, [BlockRow((3, 7, 8), 3, run=False)], 2)[0].run


class Allocator(RuleBasedStateMachine):
    """Takes, shares and releases against a dict of counts."""

    @initialize(tokens=st.one_of(st.none(), st.integers(1, 12)))
    def begin(self, tokens):
        self.pool = Pool(tokens, block=1)
        self.held = []

    @rule(wants=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), min_size=1, max_size=3))
    def take(self, wants):
        ends = [held[-1] for held in self.held if held]
        asked = [Want(n, ends[i % len(ends)] if ends and i < 10 else None) for n, i in wants]
        before = self.pool.free
        try:
            taken = self.pool.take(asked)
        except CacheError:
            assert not self.pool.grows
            assert sum(n for n, _ in wants) > before
            assert self.pool.free == before
            return
        assert [len(blocks) for blocks in taken] == [n for n, _ in wants]
        self.held += taken

    @rule(which=st.integers(0, 20))
    def share(self, which):
        if self.held:
            blocks = self.held[which % len(self.held)]
            self.pool.share(blocks)
            self.held.append(list(blocks))

    @rule(which=st.integers(0, 20))
    def release(self, which):
        if self.held:
            self.pool.release(self.held.pop(which % len(self.held)))

    @rule(n=st.integers(0, 9))
    def reserve(self, n):
        if self.pool.grows:
            self.pool.reserve(n)

    @invariant()
    def every_block_is_counted(self):
        uses = {}
        for blocks in self.held:
            for block in blocks:
                assert block != BIN
                uses[block] = uses.get(block, 0) + 1
        assert all(self.pool.uses(b) == uses.get(b, 0) for b in range(1, self.pool.blocks + 1))
        assert self.pool.free == self.pool.blocks - len(uses)

    def teardown(self):
        for blocks in self.held:
            self.pool.release(blocks)
        self.held = []
        assert self.pool.free == self.pool.blocks


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=min(60, settings().max_examples), stateful_step_count=20)
