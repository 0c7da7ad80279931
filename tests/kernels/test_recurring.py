"""Which shapes a plan is made for: those that come again, and of these not too many."""

from vantage.kernels.recurring import PASSES, RecurringShapes, without_plans


class Pass:
    """Stands for the positions of one."""


def asked(shapes: RecurringShapes, shape: object, passes: int, layers: int = 1, work: float = 0.0) -> list[list[bool]]:
    return [[shapes.planned(shape, at, work) for _ in range(layers)] for at in (Pass() for _ in range(passes))]


def test_a_shape_must_come_in_three_passes_however_many_layers_each_has():
    assert asked(RecurringShapes(1e9), "a", 4, layers=3) == [[False] * 3] * (PASSES - 1) + [[True] * 3] * 2


def test_a_pass_that_is_gone_is_not_taken_for_the_next_one():
    """Two objects may have one address, one after the other."""
    shapes = RecurringShapes(1e9)
    assert [shapes.planned("a", Pass(), 0.0) for _ in range(PASSES)][-1]


def test_much_work_in_one_pass_is_as_good():
    shapes, one = RecurringShapes(100.0), Pass()
    assert [shapes.planned("a", one, 30.0) for _ in range(5)] == [False, False, False, True, True]


def test_shapes_that_do_not_come_again_are_forgotten():
    shapes = RecurringShapes(1e9, most=5)
    for other in range(50):
        assert asked(shapes, "a", 1) == [[False]] or other >= PASSES - 1
        assert not any(asked(shapes, (other, n), 1)[0][0] for n in range(5))
        assert len(shapes._seen) <= 5
    assert not shapes._planned


def test_only_so_many_are_planned():
    shapes = RecurringShapes(1e9, plans=2)
    planned = [asked(shapes, shape, PASSES)[-1][0] for shape in range(4)]
    assert planned == [True, True, False, False]
    assert asked(shapes, 0, 1) == [[True]]


def test_without_plans_nothing_that_ran_before_counts():
    shapes = RecurringShapes(1e9)
    assert asked(shapes, "a", PASSES)[-1] == [True]
    with without_plans():
        assert asked(shapes, "a", 1) == [[False]]
        assert asked(shapes, "b", 2 * PASSES) == [[False]] * 2 * PASSES
    assert asked(shapes, "a", 1) == [[True]]
    assert asked(shapes, "b", 1) == [[False]], "and nothing of it is counted"
