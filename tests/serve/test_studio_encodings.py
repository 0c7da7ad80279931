"""What the studio offers of position encodings, held to ``offered.json``: names, words, bounds, and what they make."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from vantage.errors import BadInput
from vantage.position import ENCODINGS
from vantage.position.scaling import SCALINGS
from vantage.serve.studio.encodings import choice_of, choices, make_encoding
from vantage.spec.registry import Fit, parameters

OFFERED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("offered.json").read_text(encoding="utf-8"))
RANDOMISED = next(one for one in OFFERED if one["name"] == "randomised")
WITH_RANDOM_POSITIONS = next(p["choices"] for p in RANDOMISED["parameters"] if p["name"] == "inner")
FIT = Fit(256, 16)
LEFT_OUT = {("Sinusoidal", "dropout"), ("Rope", "scaling"), ("T5", "shared")}
LEFT_OUT |= {("YaRN", "mscale"), ("YaRN", "mscale_all_dim"), ("MultiAxisRope", "sections"), ("MultiAxisRope", "rope")}
LEFT_OUT |= {("DAPE", "inner"), ("SelectiveRope", "shares")}
LEFT_OUT |= {("SSMax", "inner"), ("SSMax", "window"), ("LeRope", "rope"), ("SelfExtend", "rope"), ("DualChunk", "rope")}


def test_the_encodings_and_their_parameters():
    """Those that were there stay as they were; more may come."""
    shown = [
        {"name": c.name, "title": c.title, "about": c.about, "parameters": [asdict(p) for p in c.parameters]}
        for c in choices().values()
        if c.name in {one["name"] for one in OFFERED}
    ]
    inner = next(p for one in shown if one["name"] == "randomised" for p in one["parameters"] if p["name"] == "inner")
    inner["choices"] = [name for name in inner["choices"] if name in WITH_RANDOM_POSITIONS]
    assert json.loads(json.dumps(shown)) == [{k: v for k, v in one.items() if k != "made"} for one in OFFERED]


@pytest.mark.parametrize("one", OFFERED, ids=lambda one: one["name"])
def test_what_they_make(one):
    choice = choice_of(one["name"])
    types = {p.name: type(p.default) for p in choice.parameters}
    for words, wanted in one["made"].items():
        name, _, value = words.partition("=")
        try:
            result = repr(choice.encoding({name: types[name](value)} if name else {}, FIT))
        except BadInput as e:
            result = f"BadInput: {e}"
        assert result == wanted, words


def test_a_table_has_a_row_for_every_position_of_the_context():
    assert repr(make_encoding("learned", {}, FIT)) == "Learned(max_length=256, extend=None, offset=0)"
    assert repr(make_encoding("learned", {"offset": 2}, FIT)) == "Learned(max_length=256, extend=None, offset=2)"
    assert repr(make_encoding("randomised", {"inner": "learned", "high": 99}, FIT).inner) == repr(
        make_encoding("learned", {}, Fit(99, 1))
    )


def test_every_field_of_our_parts_is_a_parameter_or_left_out_on_purpose():
    for entry in (*ENCODINGS.entries(), *SCALINGS.entries()):
        left_out = {f.name for f in fields(entry.config)} - set(parameters(entry.config))
        assert left_out == {name for part, name in LEFT_OUT if part == entry.config.__name__}
