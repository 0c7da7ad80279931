"""The one sentence for a name that is not known."""

from __future__ import annotations

import pytest

from vantage.errors import did_you_mean, nearest, unknown

KNOWN = ("none", "rope", "alibi", "KERPLE")


@pytest.mark.parametrize(
    ("name", "near"),
    [("rop", "rope"), ("ROPE", "rope"), ("kerpel", "KERPLE"), ("zzz", None), ("", None), (7, None)],
)
def test_the_nearest_name_whatever_the_case(name: object, near: str | None) -> None:
    assert nearest(name, KNOWN) == near
    assert did_you_mean(name, KNOWN) == ("" if near is None else f" Did you mean {near!r}?")


def test_the_message_has_the_nearest_and_all_of_them() -> None:
    known = (name for name in KNOWN)  # read once
    says = "no encoding is called 'rop'. Did you mean 'rope'? There are: none, rope, alibi, KERPLE"
    assert unknown("encoding", "rop", known) == says
    assert unknown("encoding", "zzz", ()) == "no encoding is called 'zzz'. There are: none"


@pytest.mark.parametrize("name", ["x" * 1000, ["x" * 1000]])
def test_a_long_name_is_cut(name: object) -> None:
    assert len(unknown("encoding", name, KNOWN)) < 150
