"""A spec's text stays what it was when a class gains a field."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import vantage as vt
from vantage.spec.fingerprint import LATER, stable_repr
from vantage.spec.masks import Causal


@dataclass(frozen=True)
class Part:
    width: int
    inner: tuple[Part, ...] = ()
    later: int | None = field(default=None, metadata=LATER)


def test_a_later_field_shows_only_where_it_is_used():
    part = Part(1, (Part(2), Part(3, later=4)))
    assert stable_repr(part) == ("Part(width=1, inner=(Part(width=2, inner=()), Part(width=3, inner=(), later=4)))")
    assert stable_repr((part.inner[0],)) == "(Part(width=2, inner=()),)"
    assert stable_repr("a") == "'a'"


def test_a_spec_without_later_fields_reads_as_repr():
    spec = vt.decoder(vocab=9, width=8, layers=2, heads=2, position="rope", mask=Causal())
    whole = repr(spec)
    layer, model = ", output=(), source=None, indexer=None", ", altup=None, vision=None"
    for later in (layer, ", kept=1.0", ", value_norm=None", ", sparsity=0.0", model):
        assert later in whole
        whole = whole.replace(later, "")
    assert stable_repr(spec) == whole
    gated = replace(spec, layers=(replace(spec.layers[0], output=(vt.OutputGate(),)), spec.layers[1]))
    assert "OutputGate(per='number'" in stable_repr(gated)
