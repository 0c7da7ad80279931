"""``schema=`` with a class: the answer is held to it, and can be had as an object of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

import vantage as vt
from tests.generation.folder import chat_model
from vantage.errors import BadInput

TEXT = "the cat sat on a mat"
MANY = {"max_tokens": 300, "temperature": 1.0, "seed": 3}


class Colour(BaseModel):
    """A docstring, which becomes a description."""

    name: Literal["red", "green"]
    share: Annotated[int, Field(ge=0, le=9)] = 1


class Animal(BaseModel):
    legs: Literal[2, 4]
    colours: Annotated[list[Colour], Field(min_length=1, max_length=2)]
    near: Colour | None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Literal[7, 9]


class Dog(BaseModel):
    kind: Literal["dog"]
    loud: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclass
class Point:
    x: Literal[1, 2]
    y: bool


class Pair(TypedDict):
    a: Literal["p", "q"]
    b: bool


class Odd(BaseModel):
    number: Literal[2, 4]

    @field_validator("number")
    @classmethod
    def odd(cls, number: int) -> int:
        if number % 2 == 0:
            raise ValueError("must be odd")
        return number


@pytest.fixture(scope="module")
def model():
    return chat_model()


@pytest.mark.parametrize("kind", [Colour, Animal, Owner, Point], ids=lambda kind: kind.__name__)
def test_the_answer_is_an_object_of_the_class(model: Any, kind: Any) -> None:
    for seed in range(3):
        got = vt.generate(model, TEXT, schema=kind, max_tokens=300, temperature=1.0, seed=seed)
        assert got.finish_reason == "stop"
        assert isinstance(got.parsed, kind)


def test_typed_dicts_lists_and_samples(model: Any) -> None:
    got = vt.generate(model, TEXT, schema=Pair, **MANY)
    assert set(got.parsed) == {"a", "b"}
    one, two = vt.generate(model, TEXT, schema=Annotated[list[Point], Field(min_length=1, max_length=2)], n=2, **MANY)
    assert all(isinstance(point, Point) for point in (*one.parsed, *two.parsed))
    for answer in vt.generate(model, [TEXT, "a"], schema=Colour, draft=vt.Lookup(), **MANY):
        assert isinstance(answer.parsed, Colour)


def test_a_json_schema_is_parsed_as_json(model: Any) -> None:
    got = vt.generate(model, TEXT, schema={"enum": [12, "cat"]}, max_tokens=20)
    assert got.parsed == json.loads(got.text)
    assert vt.generate(model, TEXT, schema=json.dumps({"enum": [[1]]}), max_tokens=20).parsed == [1]
    assert vt.generate(model, TEXT, max_tokens=2).parsed is None
    assert vt.generate(model, TEXT, regex="12", max_tokens=9).parsed is None


def test_what_was_cut_off_is_not_parsed(model: Any) -> None:
    got = vt.generate(model, TEXT, schema=Animal, max_tokens=3)
    assert (got.finish_reason, got.parsed) == ("length", None)
    assert got.text


def test_what_a_schema_cannot_say_is_the_validators_business(model: Any) -> None:
    got = vt.generate(model, TEXT, schema=Odd, max_tokens=60)
    assert json.loads(got.text)["number"] in (2, 4)  # nothing is lost
    with pytest.raises(ValidationError, match="must be odd"):
        _ = got.parsed


@pytest.mark.parametrize("wrong", [5, object(), [1], Colour(name="red"), lambda: 0], ids=lambda one: type(one).__name__)
def test_what_is_no_schema_is_refused(model: Any, wrong: Any) -> None:
    with pytest.raises(BadInput, match="give a JSON schema, or a class"):
        vt.generate(model, TEXT, schema=wrong)


def test_without_pydantic_a_class_says_what_to_install(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(BadInput, match="pip install pydantic"):
        vt.generate(model, TEXT, schema=Point)


def test_pydantic_is_imported_only_where_a_class_is_given() -> None:
    script = "import sys, vantage.generation; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
