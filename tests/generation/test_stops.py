"""Stops: text is shown as soon as it is certain, never half a character, never a part of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import BadInput
from vantage.generation.stops import REPLACEMENT, AnswerText, Detokeniser, Stop, StopWatcher


def by_bytes():
    """Every byte a token: a character is as many as it can be."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return Tokenizer(lambda: backend, About())


def by_pieces():
    """SentencePiece's way: a space belongs to the piece after it, and unknown characters are bytes."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "▁b", "ab", "▁ab"]
    backend = Backend(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁", "ab")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(lambda: backend, About())


TOKENIZERS = {"bytes": by_bytes(), "pieces": by_pieces()}
EVERY = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
TEXT = st.text(st.sampled_from("ab €😀é\n"), max_size=12)


def shown(watcher, tokens):
    return [watcher.push(token) for token in tokens]


@EVERY
@given(text=TEXT)
def test_pieces_are_whole_characters_and_make_the_text(tokenizer, text):
    tokens = tokenizer.encode(text)
    watcher = Detokeniser(tokenizer)
    pieces = shown(watcher, tokens)
    assert "".join(pieces) + watcher.flush() == tokenizer.decode(tokens)
    assert not any(REPLACEMENT in piece for piece in pieces)


@given(tokens=st.lists(st.integers(0, 255), max_size=10))
def test_any_bytes_come_out_as_the_tokenizer_says(tokens):
    """Bytes that are no text at all: what is shown is what decoding all at once says.

    Not so with SentencePiece, which takes back characters that were whole when a wrong byte follows.
    """
    tokenizer = TOKENIZERS["bytes"]
    watcher = Detokeniser(tokenizer)
    pieces = shown(watcher, tokens)
    assert "".join(pieces) + watcher.flush() == tokenizer.decode(tokens)


def test_a_character_comes_with_its_last_byte():
    tokenizer = TOKENIZERS["bytes"]
    watcher = Detokeniser(tokenizer)
    assert shown(watcher, tokenizer.encode("a😀b")) == ["a", "", "", "", "😀", "b"]
    half = tokenizer.encode("😀")[:2]
    assert shown(watcher, half) == ["", ""]
    assert REPLACEMENT in watcher.flush()
    assert watcher.flush() == ""


def test_a_special_token_says_nothing():
    tokenizer = TOKENIZERS["bytes"]
    watcher = Detokeniser(tokenizer)
    assert shown(watcher, tokenizer.encode("a<end>b")) == ["a", "", "b"]


# ---- stop strings


@EVERY
@given(text=TEXT, strings=st.lists(st.text(st.sampled_from("ab €\n"), min_size=1, max_size=3), max_size=3))
def test_what_is_shown_ends_before_the_first_stop_string(tokenizer, text, strings):
    tokens = tokenizer.encode(text)
    whole = tokenizer.decode(tokens)
    watcher, told = StopWatcher(tokenizer, strings), ""
    for token in tokens:
        told += watcher.push(token)
        assert whole.startswith(told)
        if watcher.stopped:
            break
    told += watcher.flush()
    ends = [whole.find(string) for string in strings if string in whole]
    if watcher.stopped is None:
        assert not ends
        assert told == whole
    else:
        assert watcher.stopped in strings
        assert told == whole[: whole.find(watcher.stopped)]
        assert not any(string in told for string in strings)
    assert bool(watcher.stopped) == bool(ends)


def test_what_may_become_a_stop_string_is_held_back():
    tokenizer = TOKENIZERS["bytes"]
    watcher = StopWatcher(tokenizer, ["ba\n"])
    assert shown(watcher, tokenizer.encode("abab")) == ["a", "", "", "ba"]
    assert shown(watcher, tokenizer.encode("a\n")) == ["", ""]
    assert watcher.stopped == "ba\n"
    assert shown(watcher, tokenizer.encode("ab")) == ["", ""]
    assert watcher.flush() == ""


# ---- what is asked for


def test_stops_are_made_of_what_a_user_says():
    assert Stop.of(None) == Stop()
    assert Stop.of("x") == Stop(("x",))
    assert Stop.of(3) == Stop((), frozenset({3}))
    assert Stop.of(["x", 3, "y"]) == Stop(("x", "y"), frozenset({3}))
    assert Stop.of(Stop(("x",))) == Stop(("x",))
    assert Stop(("x",)).also([3, None]) == Stop(("x",), frozenset({3}))


@pytest.mark.parametrize("stop", ["", [""], [-1], [True], [1.5], [None]])
def test_bad_stops_are_refused(stop):
    with pytest.raises(BadInput, match="stop"):
        Stop.of(stop)


def test_a_bare_string_is_no_tuple_of_strings():
    with pytest.raises(BadInput, match="tuple of strings"):
        Stop("abc")


# ---- when an answer is over


class Counts:
    """A constraint that is done after so many tokens."""

    def __init__(self, tokens: int):
        self.left = tokens

    def allow(self, logits_V) -> None: ...

    def take(self, token: int) -> None:
        self.left -= 1

    def done(self) -> bool:
        return self.left < 1


def grown(answer: AnswerText, tokens, constraint=None) -> tuple[list[str], int]:
    """The text after each token, and how many were taken."""
    pieces = []
    for n, token in enumerate(tokens, 1):
        if constraint is not None:
            constraint.take(token)
        last = answer.push(token)
        pieces.append(answer.take())
        if last:
            return pieces, n
    return pieces, len(tokens)


def test_the_first_reason_ends_an_answer():
    tokenizer = TOKENIZERS["bytes"]
    tokens = tokenizer.encode("ab ba\nab", special=False)
    for stop, most, held_to, ended_by, finish, text in (
        (Stop(), 99, None, None, None, "ab ba\nab"),
        (Stop(), 4, None, "length", "length", "ab b"),
        (Stop(tokens=frozenset(tokens[4:5])), 9, None, "stop token", "stop", ""),  # "a" is the first token already
        (Stop(tokens=frozenset(tokens[2:3])), 3, None, "stop token", "stop", "ab"),
        (Stop(("ba",)), 5, None, "stop string", "stop", "ab "),
        (Stop(("ba",)), 4, None, "length", "length", "ab b"),  # what was held back is shown after all
        (Stop(("ba",)), 9, Counts(2), "constraint", "stop", "ab"),
    ):
        answer = AnswerText(stop, tokenizer, max_tokens=most, constraint=held_to)
        pieces, taken = grown(answer, tokens, held_to)
        assert (answer.ended_by, answer.finish) == (ended_by, finish), (stop, most)
        assert "".join(pieces) == text
        assert answer.left == most - taken


def test_an_answer_without_a_tokenizer_has_no_text():
    answer = AnswerText(Stop(tokens=frozenset((7,))), None, max_tokens=9)
    assert grown(answer, [1, 2, 7, 3]) == (["", "", ""], 3)
    with pytest.raises(BadInput, match="need a tokenizer"):
        AnswerText(Stop(("x",)), None, max_tokens=9)


def test_an_answer_that_is_broken_off_shows_what_was_held_back():
    tokenizer = TOKENIZERS["bytes"]
    answer = AnswerText(Stop(("ba!",)), tokenizer, max_tokens=99)
    assert "".join(grown(answer, tokenizer.encode("ab ba", special=False))[0]) == "ab "
    assert answer.ended_by is None
    assert answer.flush() == "ba"
