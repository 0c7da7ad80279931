"""Entries and registries: what is asked by name, what is taken from outside, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from vantage.errors import BadInput
from vantage.spec.registry import Entry, Fit, Registry, parameter, parameters


@dataclass(frozen=True)
class Small:
    size: int = field(default=3, metadata=parameter("how small", 1, 9))
    name: str = "small"

    def build(self) -> int:
        return self.size


@dataclass(frozen=True)
class Large:
    size: int = 300

    def build(self) -> int:
        return self.size


@dataclass
class Loose:
    def build(self) -> int:
        return 0


@dataclass(frozen=True)
class Idle:
    pass


def registry() -> Registry[Small | Large]:
    return Registry("thing", (Entry("small", Small, "Small", "A small thing."),), needs=("build",))


def test_a_part_is_made_by_its_name():
    things = registry()
    assert list(things) == ["small"]
    assert "small" in things
    assert "large" not in things
    assert things["small"].make() == Small(3)
    assert things.classes() == (Small,)
    assert things.name_of(Small) == "small"
    assert things.name_of(Large) is None


def test_a_default_may_need_the_length():
    entry = Entry("small", Small, default=lambda max_length: Small(max_length or 1))
    assert (entry.make(7), entry.make()) == (Small(7), Small(1))


def test_a_name_that_is_wrong_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"no thing is called 'smal'\. Did you mean 'small'\? There are: small"):
        registry()["smal"]


def test_a_part_from_outside_is_as_good_as_ours():
    things = registry()
    things.register(Entry("large", Large))
    assert list(things) == ["small", "large"]
    assert things["large"].make() == Large()
    assert [entry.name for entry in things.from_outside()] == ["large"]
    things.register(Entry("large", Large, "again"))  # a notebook's cell that is run twice
    assert things["large"].title == "again"
    things.unregister("large")
    assert list(things) == ["small"]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (Entry("small", Large), "a thing is called 'small' already .*test_registry.Small.: choose another name"),
        (Entry("loose", Loose), "Loose, registered as the thing 'loose', is no frozen dataclass: write @dataclass"),
        (Entry("idle", Idle), "Idle, registered as the thing 'idle', has no build: every thing needs build"),
        (Entry("object", Small()), "is no class: register the class of a thing"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_be_registered(entry, says):
    things = registry()
    with pytest.raises(BadInput, match=says):
        things.register(entry)
    assert list(things) == ["small"]


def test_ours_cannot_be_taken_out():
    with pytest.raises(BadInput, match="no thing 'small' was registered from outside"):
        registry().unregister("small")


def test_the_parameters_of_a_part_stand_in_its_fields():
    assert list(parameters(Small)) == ["size"]
    info = parameters(Small)["size"]
    assert (info.help, info.low, info.high) == ("how small", 1, 9)
    assert parameters(Large) == {}


def test_what_is_shown_may_be_read_in_another_way():
    info = parameter("", default="none", read=lambda word, fit: fit.length if word == "all" else None)["vantage"]
    assert info.read is not None
    assert (info.read("all", Fit(9, 4)), info.read("none", Fit(9, 4))) == (9, None)
