"""Constrained answers always fit, whatever the model; what cannot be held to is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

import vantage as vt
from tests.generation.folder import chat_model, tokenizer
from tests.sampling import examples
from vantage.checkpoints.pull import place
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import BadInput, Refused
from vantage.generation import Constraint, Picker, Sampling, constrain
from vantage.generation.constrain import json_schema, regex
from vantage.model import Model


@torch.inference_mode()
def answer(model: Model, grammar: Constraint, seed: int, most: int = 500, prompt: tuple[int, ...] = (1,)) -> list[int]:
    """Tokens drawn from the model until the grammar is done or an end comes."""
    picker = Picker(Sampling(temperature=1.5, seed=seed), prompt, vocab=model.spec.vocab, constraint=grammar)
    cache, new, out = model.new_cache(), list(prompt), []
    while len(out) < most and not grammar.done():
        token = picker.pick(model(torch.tensor([new]), cache=cache)[0, -1]).token
        picker.took(token)
        if token == model.tokenizer.eos:
            break
        out.append(token)
        new = [token]
    return out


# ---- schemas, and what they say: a small checker of our own


def fits(value: Any, schema: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(known)
            and all(fits(v, known[k]) for k, v in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema["minItems"] <= len(value) <= schema["maxItems"]
            and all(fits(v, schema["items"]) for v in value)
        )
    if kind == "string":
        return (
            isinstance(value, str)
            and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 999)
            and bool(re.search(schema.get("pattern", ""), value))
        )
    if kind in ("integer", "number"):
        number = isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
        return number and schema["minimum"] <= value <= schema["maximum"]
    return value is None if kind == "null" else isinstance(value, bool)


words = st.text('abcXYZ äß世"\\\n', max_size=5)
leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)},
        st.integers(-500, 500),
        st.integers(-500, 500),
    ),
    st.builds(
        lambda a, b: {"type": "string", "minLength": min(a, b), "maxLength": max(a, b)},
        st.integers(0, 6),
        st.integers(0, 6),
    ),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-c]{1,4}$", "^(yes|no)$", "^[0-9]{4}-[0-9]{2}$")]),
    st.lists(st.one_of(words, st.integers(-9, 9), st.none(), st.booleans()), min_size=1, max_size=3).map(
        lambda those: {"enum": those}
    ),
)


def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda items, a, b: {"type": "array", "items": items, "minItems": min(a, b), "maxItems": max(a, b)},
            inner,
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        st.dictionaries(words, inner, max_size=3).flatmap(
            lambda known: st.sets(st.sampled_from(sorted(known) or [""])).map(
                lambda must: {
                    "type": "object",
                    "properties": known,
                    "required": sorted(must & set(known)),
                    "additionalProperties": False,
                }
            )
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda those: {"anyOf": those}),
    )


@settings(max_examples=examples(60))
@given(st.recursive(leaves, wider, max_leaves=5), st.integers(0, 2**32))
def test_what_a_random_model_says_fits_the_schema(schema: dict[str, Any], seed: int) -> None:
    model = chat_model()
    grammar = json_schema(schema, model.tokenizer)
    text = model.tokenizer.decode(answer(model, grammar, seed))
    assert grammar.complete()
    assert fits(json.loads(text), schema), text


@settings(max_examples=examples(40))
@given(
    st.sampled_from(
        [
            r"[0-9]{3}-[a-z]{2}",
            r"(cat|dog)s?",
            r"^a{2,5}b$",
            r"[^a-z]{1,4}",
            r"é[ü世]{1,3}",
            r"x\$",
            r"\d{2}(:\d{2}){0,2}",
        ]
    ),
    st.integers(0, 2**32),
)
def test_what_a_random_model_says_matches_the_regex(pattern: str, seed: int) -> None:
    model = chat_model()
    grammar = regex(pattern, model.tokenizer)
    text = model.tokenizer.decode(answer(model, grammar, seed))
    assert grammar.complete()
    assert re.fullmatch(pattern, text), text


def test_without_a_grammar_it_would_not_fit() -> None:
    """So that the tests above cannot pass by accident."""

    class Anything:
        def allow(self, logits_V: torch.Tensor) -> None: ...
        def take(self, token: int) -> None: ...
        def done(self) -> bool:
            return False

    text = chat_model().tokenizer.decode(answer(chat_model(), Anything(), 0, most=30))
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)


def test_an_answer_may_end_where_it_is_complete_and_only_there() -> None:
    tok = tokenizer()
    grammar = regex("ab?", tok)
    (a,), (b,) = tok.encode("a", special=False), tok.encode("b", special=False)
    logits = torch.zeros(len(tok) + 3)  # heads are often wider than vocabularies
    grammar.allow(logits)
    assert not torch.isfinite(logits[tok.eos])
    assert torch.isfinite(logits[a])
    assert not torch.isfinite(logits[len(tok) :]).any()
    grammar.take(a)
    assert grammar.complete()
    assert not grammar.done()
    other = grammar.fork()
    logits = torch.zeros(len(tok))
    grammar.allow(logits)
    assert logits.isfinite().nonzero().flatten().tolist() == sorted([tok.eos, b])
    grammar.take(b)
    assert grammar.done()
    assert not other.done()  # the fork stands where it stood
    logits = torch.zeros(len(tok))
    grammar.allow(logits)
    assert logits.isfinite().nonzero().flatten().tolist() == [tok.eos]
    grammar.take(tok.eos)
    with pytest.raises(BadInput, match="cannot come here"):
        other.take(a)
    other.take(b)  # a refusal changes nothing


def test_other_tokens_may_end_an_answer() -> None:
    tok = tokenizer()
    grammar = regex("a", tok, ends=[0, 2])
    grammar.take(tok.encode("a", special=False)[0])
    logits = torch.zeros(len(tok))
    grammar.allow(logits)
    assert logits.isfinite().nonzero().flatten().tolist() == [0, 2]
    with pytest.raises(BadInput, match="ends"):
        regex("a", tok, ends=[10**6])
    nameless = Tokenizer(lambda: tok.backend, About())
    with pytest.raises(BadInput, match="no end of text"):
        regex("a", nameless)


BAD_SCHEMAS = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[]", "object or a boolean"),
    "a type": ({"type": "strin"}, "strin"),
    "unsupported": ({"not": {}}, "not"),
    "unsupported, leniently": ({"not": {}, "x-guidance": {"lenient": True}}, "not"),
    "unique": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "nothing": (False, "nothing can satisfy"),
    "nowhere": ({"$ref": "#/nowhere"}, "nowhere"),
    "remote": ({"$ref": "http://example.com/s.json"}, "example.com"),
    "itself": ({"$ref": "#"}, "nothing can satisfy"),
    "long": ({"enum": ["x" * 70_000]}, "characters"),
    "many keys": ({"properties": {str(i): {} for i in range(600)}}, "600 keys"),
    "many parts": ({"enum": [[] for _ in range(12_000)]}, "parts"),
    "exponential": (
        {"allOf": [{"anyOf": [{"properties": {f"{n}{i}": {}}} for n in "pq"]} for i in range(12)]},
        "large",
    ),
    "an object of ours": ({"enum": [object()]}, "cannot be written"),
    "deep": ('{"items":' * 500 + "true" + "}" * 500, "recursion"),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_a_bad_schema_is_refused_by_name(name: str) -> None:
    schema, why = BAD_SCHEMAS[name]
    with pytest.raises(BadInput, match=why) as caught:
        json_schema(schema, tokenizer())
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unclosed"),
        ("", "1 to 8,192"),
        ("a" * 9_000, "1 to 8,192"),
        (r"a(?=b)", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"[^\s\S]", "nothing can satisfy"),
        ("(" * 500 + "a" + ")" * 500, "nest"),
    ],
)
def test_a_bad_regex_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        regex(pattern, tokenizer())


def test_a_grammar_that_becomes_too_complex_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled lazily, a pattern may cost too much only on the way: that is an error, not an endless step."""
    monkeypatch.setattr(constrain, "LIMITS", LLParserLimits(max_lexer_states=40, verbose_errors=False))
    tok = tokenizer()
    grammar = regex(r"(a|b)*a(a|b){12}", tok)

    def follow() -> None:
        for token in tok.encode("abbaaabbabab" * 9, special=False):
            grammar.allow(torch.zeros(len(tok)))
            grammar.take(token)

    with pytest.raises(Refused, match="any further"):
        follow()


def test_a_dead_end_is_refused_by_the_picker() -> None:
    """A model without the tokens that a grammar needs."""
    grammar = regex("世", tokenizer())
    picker = Picker(Sampling(), [1], vocab=10, constraint=grammar)
    with pytest.raises(Refused, match="no token is left"):
        picker.pick(torch.zeros(10))


@pytest.mark.slow
def test_smollm2_answers_in_json() -> None:
    if not place("smollm2").is_dir():
        pytest.skip("smollm2 was not pulled")
    model = vt.load("smollm2")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "minimum": 0}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    text = model.tokenizer.chat([{"role": "user", "content": "Name a city and how many people live there, as JSON."}])
    prompt = tuple(model.tokenizer.encode(text, special=False))
    for seed in range(3):
        said = json.loads(
            model.tokenizer.decode(answer(model, json_schema(schema, model.tokenizer), seed, prompt=prompt))
        )
        assert set(said) == {"city", "people"}
        assert isinstance(said["people"], int)
        assert len(said["city"]) <= 20
        found = model.tokenizer.decode(
            answer(model, regex(r"[A-Z][a-z]{2,9}, [0-9]{1,3} years", model.tokenizer), seed, prompt=prompt)
        )
        assert re.fullmatch(r"[A-Z][a-z]{2,9}, [0-9]{1,3} years", found)
