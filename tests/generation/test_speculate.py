"""Speculation changes the number of passes and nothing else: the same tokens, or the same distribution."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vantage as vt
from tests.generation import zoo
from tests.generation.folder import chat_model, tokenizer
from vantage.checkpoints.tokenizer import About, Tokenizer
from vantage.errors import BadInput, CacheError, Refused
from vantage.generation import Picker, Sampling, generate
from vantage.generation.cached_sequence import CachedSequence, WorkCounts, common_length
from vantage.generation.constrain import regex
from vantage.generation.decode import DecodeLoop, speculative
from vantage.generation.speculate import Draft, DraftModel, Guess, Lookup
from vantage.generation.stops import AnswerText, Stop
from vantage.model import Model


def fits(length: int, n: int) -> int:
    while length < n:
        length *= 2
    return length


@torch.inference_mode()
def plain(model: Model, prompt: list[int], n: int, kind: str, source: torch.Tensor | None = None) -> list[int]:
    """Greedy decoding, token by token; without a cache where frequencies depend on the length."""
    out = list(prompt)
    cache = None if model.spec.original_length else zoo.cache(model, kind)
    new = out
    for _ in range(n):
        if cache is None:
            length = fits(model.spec.original_length or 0, len(out))
            logits = model(torch.tensor([out]), length=length)
        else:
            logits = model(torch.tensor([new]), cache=cache, source=source)
        source = None
        new = [int(logits[0, -1].argmax())]
        out += new
    return out[len(prompt) :]


def repeating(seed: int) -> list[int]:
    """A text in which look-up finds something."""
    part = zoo.tokens(6, seed=seed)[0].tolist()
    return part + zoo.tokens(3, seed=seed + 1)[0].tolist() + part


DRAFTS: dict[str, Any] = {
    "lookup": lambda kind: Lookup(tokens=5, longest=3, shortest=1),
    "other": lambda kind: DraftModel(zoo.model("plain", seed=99), 4),  # almost always wrong
    "itself": lambda kind: DraftModel(zoo.model(kind), 3),  # always right
}
# held to a whole pass where frequencies depend on the length
NTK = [("ntk", "quantised"), ("ntk", "kivi"), ("ntk", "sinks")]
TAKES_BACK = [case for case in zoo.CASES if case not in NTK]
GREEDY = [(m, k, d) for m, k in TAKES_BACK for d in DRAFTS]


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "kind", "draft"), GREEDY)
def test_greedy_tokens_are_those_of_plain_decoding(name: str, kind: str, draft: str) -> None:
    if (name, draft) == ("encoder-decoder", "itself"):
        return  # refused, below
    model, guesses = zoo.model(name), DRAFTS[draft](name)
    prompt, source = repeating(len(name)), zoo.tokens(5) if model.encoder is not None else None
    cache = zoo.cache(model, kind, draft=guesses.tokens)
    row = CachedSequence(model, cache, source=source)
    got = speculative(model, prompt, max_tokens=24, draft=guesses, row=row)
    assert list(got.tokens) == plain(model, prompt, 24, kind, source)
    assert got.finish_reason == "length"
    assert got.proposed > 0
    assert got.accepted <= got.proposed
    # each pass brings one token and the guesses that were right
    assert got.calls == 24 - got.accepted
    assert got.computed == len(prompt) + got.proposed + 23 - got.accepted
    assert row.cache.tokens == (len(prompt) + 23,)
    if draft == "itself" and kind not in ("quantised", "kivi", "sinks"):  # the draft's own keys are all there
        assert got.accepted == got.proposed
        assert got.calls < 12 if name != "ntk" else got.calls < 15
    if name == "ntk":
        assert got.recomputed == row.cache.recomputed > 0
        assert row.cache.length == 64


def test_what_cannot_be_taken_back_cannot_be_guessed() -> None:
    model = zoo.model("plain")
    row = CachedSequence(model, model.new_cache(1, kind=vt.HeavyHitterCache(4, 4)))
    with pytest.raises(CacheError, match="later queries have had a say in what is kept"):
        speculative(model, repeating(1), max_tokens=24, draft=DRAFTS["other"]("plain"), row=row)


@settings(max_examples=25)
@given(st.data())
def test_greedy_on_many_models(data: st.DataObject) -> None:
    name, kind = data.draw(
        st.sampled_from([c for c in TAKES_BACK if c[0] != "encoder-decoder" and c[1] != "quantised"])
    )
    model = zoo.model(name, seed=data.draw(st.integers(0, 5)))
    prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    n = data.draw(st.integers(1, 14))
    draft: Draft = data.draw(
        st.one_of(
            st.builds(lambda t, s, m: Lookup(t, s + m, s), st.integers(1, 6), st.integers(1, 2), st.integers(0, 2)),
            st.builds(lambda s, t: DraftModel(zoo.model(name, seed=s), t), st.integers(0, 3), st.integers(1, 4)),
        )
    )
    held = CachedSequence(model, zoo.cache(model, kind, draft=draft.tokens))
    got = speculative(model, prompt, max_tokens=n, draft=draft, row=held)
    assert list(got.tokens) == plain(model, prompt, n, kind)


@pytest.mark.parametrize("draft", [Lookup(tokens=4, shortest=1), DraftModel(zoo.model("plain", seed=1))])
def test_penalties_and_constraints_hold_with_guesses_too(draft: Draft) -> None:
    model = zoo.model("plain")
    prompt = repeating(2)
    sampling = Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={3: -4.0})
    one = speculative(model, prompt, max_tokens=25, draft=draft, sampling=sampling)
    other = speculative(model, prompt, max_tokens=25, draft=None, sampling=sampling)
    assert one.tokens == other.tokens
    assert one.proposed > 0
    assert other.proposed == 0
    for a, b in zip(one.picks, other.picks, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-9)
    chat = chat_model()
    words = chat.tokenizer.encode("the cat sat on the cat", special=False)
    got = speculative(
        chat,
        words,
        max_tokens=40,
        draft=Lookup(shortest=1),
        sampling=Sampling(temperature=1.0, seed=5),
        constraint=regex("(cat ?|sat ?){2,6}!", chat.tokenizer),
    )
    assert got.finish_reason == "stop"
    assert chat.tokenizer.decode(got.tokens).endswith("!")


@pytest.mark.parametrize("seed", range(6))
def test_lookup_gives_the_very_tokens_of_plain_sampling(seed: int) -> None:
    """A guess that was not drawn is kept if the draw of that step agrees, so the text is the seed's own."""
    model = zoo.model("plain", seed=seed)
    sampling = Sampling(temperature=0.7, top_k=6, seed=seed)
    one, other = (
        speculative(model, repeating(seed), max_tokens=40, draft=draft, sampling=sampling)
        for draft in (Lookup(shortest=1), None)
    )
    assert one.tokens == other.tokens
    assert one.proposed > 0
    assert one.seed == other.seed == seed


@pytest.mark.parametrize("name", ["mixed", "latent", "ntk"])
def test_the_engine_says_the_same(name: str) -> None:
    """Both grow past a declared length at the same token."""
    model = zoo.model(name)
    for n in (3, 15, 16, 17, 33):
        prompt = zoo.tokens(n, seed=n)[0].tolist()
        got = speculative(model, prompt, max_tokens=20, draft=Lookup(shortest=1))
        assert got.tokens == tuple(generate(model, prompt, max_tokens=20).tokens)


# ---- the distribution


class Table:
    """A language model that is a table: the logits after every text over a small vocabulary."""

    def __init__(self, vocab: int, seed: int):
        self.vocab, self.seed = vocab, seed
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self._known:
            rng = torch.Generator().manual_seed(hash((self.seed, key)) % 2**31)
            self._known[key] = torch.randn(self.vocab, generator=rng, dtype=torch.float64)
        return self._known[key]


class Evaluating:
    """All that a decode loop asks of the model of such a row."""

    training = False


class TableRow:
    """What a decode loop needs of a row."""

    room = None

    def __init__(self, table: Table):
        self.model, self.table, self.tokens, self.work = Evaluating(), table, [], WorkCounts()

    def feed(self, new: Sequence[int], want: int = 1) -> torch.Tensor:
        self.tokens += new
        n = len(self.tokens)
        return torch.stack([self.table.logits(self.tokens[:end]) for end in range(n - want + 1, n + 1)])

    def crop(self, to: int) -> None:
        del self.tokens[to:]

    def match(self, tokens: Sequence[int], images: object = None) -> int:
        return 0


class TableGuesser:
    """The draft model's part, over a table: guesses drawn from q with random numbers of their own."""

    def __init__(self, table: Table, picker: Picker):
        self.table, self.picker = table, picker

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        from vantage.generation.speculate import GUESS, drawn, uniform

        said, qs = list(tokens), []
        for i in range(most):
            q = torch.softmax(self.table.logits(said), -1)
            said.append(drawn(q, uniform(self.picker.seed, GUESS, self.picker.step + i)))
            qs.append(q)
        return Guess(tuple(said[len(tokens) :]), torch.stack(qs))

    def learn(self, proposed: int, accepted: int) -> None: ...


class TableDraft:
    tokens = 3

    def __init__(self, table: Table):
        self.table = table

    def start(self, model: Any, picker: Picker) -> TableGuesser:
        return TableGuesser(self.table, picker)


def exact(table: Table, prompt: tuple[int, ...], n: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The joint distribution of n tokens by enumeration."""
    out = {}
    for text in itertools.product(range(table.vocab), repeat=n):
        p, picker = 1.0, Picker(sampling, prompt, vocab=table.vocab)
        for i, token in enumerate(text):
            p *= float(picker.distribution(table.logits(prompt + text[:i]))[token])
            picker.took(token)
        out[text] = p
    return out


def chi_square(seen: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; what is expected less than 5 times is put together."""
    n, rare, rare_seen, stat, cells = sum(seen.values()), 0.0, 0, 0.0, 0
    for text, p in wanted.items():
        if p * n < 5:
            rare, rare_seen = rare + p * n, rare_seen + seen[text]
        else:
            stat, cells = stat + (seen[text] - p * n) ** 2 / (p * n), cells + 1
    if rare > 0:
        stat, cells = stat + (rare_seen - rare) ** 2 / rare, cells + 1
    return stat, cells - 1


def beyond(stat: float, df: int) -> bool:
    """Whether chance would do this less than about once in 10,000 times (Wilson and Hilferty 1931)."""
    return (stat / df) ** (1 / 3) > 1 - 2 / (9 * df) + 3.72 * math.sqrt(2 / (9 * df))


PROMPT = (1, 2, 0, 1, 2)
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "cold": Sampling(temperature=0.8, top_p=0.95),
    "penalised": Sampling(temperature=1.2, top_k=3, presence_penalty=0.8, repetition_penalty=1.3),
}


def sampled(draft: Any, sampling: Sampling, n: int, runs: int) -> tuple[Counter[tuple[int, ...]], int]:
    table, seen, kept = Table(4, 0), Counter(), 0
    for seed in range(runs):
        picker = Picker(Sampling(**{**vars(sampling), "seed": seed}), PROMPT, vocab=4)
        ending = AnswerText(Stop(), None, max_tokens=n)
        loop = DecodeLoop(TableRow(table), PROMPT, picker, ending, draft)  # type: ignore[arg-type]
        for _ in loop.run():
            pass
        seen[loop.answer().tokens] += 1
        kept += loop.answer().accepted
    return seen, kept


@pytest.mark.sampled
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("draft", [Lookup(tokens=3, shortest=1), TableDraft(Table(4, 1))], ids=["lookup", "model"])
def test_three_tokens_are_distributed_as_without_guesses(name: str, draft: Any) -> None:
    seen, kept = sampled(draft, SAMPLINGS[name], 3, 1500)
    stat, df = chi_square(seen, exact(Table(4, 0), PROMPT, 3, SAMPLINGS[name]))
    assert kept > 40
    assert df > 10
    assert not beyond(stat, df), (stat, df)


@pytest.mark.sampled
def test_the_test_sees_a_wrong_distribution() -> None:
    """What comes out is not the draft's distribution, nor that of another temperature."""
    seen, _ = sampled(TableDraft(Table(4, 1)), SAMPLINGS["plain"], 3, 1500)
    for wrong in (exact(Table(4, 1), PROMPT, 3, SAMPLINGS["plain"]), exact(Table(4, 0), PROMPT, 3, Sampling(1.3))):
        assert beyond(*chi_square(seen, wrong))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_real_models_are_distributed_as_without_guesses(kind: str) -> None:
    spec = vt.decoder(vocab=4, width=8, layers=1, heads=2)
    model, small = (zoo.sharpen(vt.build(spec, seed=s), s).double() for s in (0, 1))
    sampling = Sampling(temperature=0.9)
    draft = Lookup(tokens=2, shortest=1) if kind == "lookup" else DraftModel(small, 2)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(2500):
        got = speculative(model, PROMPT, max_tokens=3, draft=draft, sampling=Sampling(temperature=0.9, seed=seed))
        seen[got.tokens] += 1
    wanted = {}
    with torch.inference_mode():
        for text in itertools.product(range(4), repeat=3):
            logits = model(torch.tensor([[*PROMPT, *text]]))[0, len(PROMPT) - 1 :]
            picker, p = Picker(sampling, PROMPT, vocab=4), 1.0
            for i, token in enumerate(text):
                p *= float(picker.distribution(logits[i])[token])
            wanted[text] = p
    stat, df = chi_square(seen, wanted)
    assert not beyond(stat, df), (stat, df)


# ---- edges


def test_it_ends_where_plain_decoding_ends() -> None:
    model = chat_model()
    prompt = model.tokenizer.encode("the cat sat on the cat", special=False)
    free = speculative(model, prompt, max_tokens=40, draft=None)
    text = model.tokenizer.decode(free.tokens)
    for stop in (free.tokens[7], text[9:12]):
        rows = [CachedSequence(model, model.new_cache()) for _ in range(2)]
        drafts = zip((None, DraftModel(model, 5)), rows, strict=True)
        ends = [speculative(model, prompt, max_tokens=40, draft=d, stop=stop, row=row) for d, row in drafts]
        assert ends[0].tokens == ends[1].tokens
        assert len(ends[0].tokens) < 40
        assert ends[0].text == ends[1].text == (text[: text.index(stop)] if isinstance(stop, str) else ends[0].text)
        assert text.startswith(ends[0].text or "?")
        assert {end.finish_reason for end in ends} == {"stop"}
        assert {row.cache.tokens for row in rows} == {(len(prompt) + len(ends[0].tokens) - 1,)}
    assert ends[1].accepted > 0


def test_a_cache_may_hold_the_front_of_the_prompt() -> None:
    model, prompt = zoo.model("plain"), repeating(1)
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.tensor([prompt[:9]]), cache=cache)
    got = speculative(
        model, prompt, max_tokens=9, draft=Lookup(shortest=1), row=CachedSequence(model, cache, prompt[:9])
    )
    assert list(got.tokens) == plain(model, prompt, 9, "contiguous")
    assert got.computed == len(prompt) - 9 + got.proposed + 8 - got.accepted


def test_long_prompts_are_read_in_pieces() -> None:
    model, prompt = zoo.model("window"), zoo.tokens(1100)[0].tolist()
    got = speculative(model, prompt, max_tokens=3, draft=None, row=CachedSequence(model, model.new_cache(kind="ring")))
    assert got.calls == 5  # 512, 512, the rest, and two tokens
    assert list(got.tokens) == plain(model, prompt, 3, "contiguous")


def test_what_cannot_be_right_is_refused() -> None:
    model = zoo.model("plain")
    for draft in (lambda: Lookup(tokens=0), lambda: Lookup(longest=1, shortest=2), lambda: DraftModel(model, 0)):
        with pytest.raises(BadInput):
            draft()
    with pytest.raises(BadInput, match="at least 1"):
        speculative(model, [], max_tokens=3, draft=None)
    with pytest.raises(BadInput, match="tokenizer"):
        speculative(model, [1], max_tokens=3, draft=None, stop="x")
    with pytest.raises(BadInput, match="batch=1"):
        CachedSequence(model, model.new_cache(2))
    with pytest.raises(Refused, match="vocabulary of 40"):
        speculative(chat_model(), [1], max_tokens=3, draft=DraftModel(model))
    with pytest.raises(Refused, match="encoder-decoder"):
        speculative(model, [1], max_tokens=3, draft=DraftModel(zoo.model("encoder-decoder")))
    alien = chat_model(seed=3)
    alien.tokenizer = Tokenizer(lambda: type(tokenizer().backend).from_str(swapped()), About())
    with pytest.raises(Refused, match="other texts"):
        speculative(chat_model(), [1], max_tokens=3, draft=DraftModel(alien))


def test_a_ring_without_room_for_the_guess_says_so() -> None:
    model = zoo.model("window")
    prompt = zoo.tokens(30)[0].tolist()
    row = CachedSequence(model, model.new_cache(kind="ring"))
    with pytest.raises(CacheError, match=r"draft of \d+ or more"):
        speculative(model, prompt, max_tokens=9, draft=DraftModel(zoo.model("plain")), row=row)


def swapped() -> str:
    """The vocabulary with two tokens exchanged."""
    said = json.loads(tokenizer().backend.to_str())
    vocab = said["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    return json.dumps(said)


def test_common() -> None:
    assert [
        common_length(*pair) for pair in (([], [1]), ([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 2, 3], [1, 5, 3]))
    ] == [
        0,
        2,
        2,
        1,
    ]
    assert common_length(list(range(100)), (*range(63), 0, *range(64, 100))) == 63


def test_a_row_that_must_go_back_behind_its_window_begins_anew() -> None:
    model = zoo.model("window")
    row = CachedSequence(model, model.new_cache(kind="ring"))
    with torch.inference_mode():
        row.feed(zoo.tokens(30)[0].tolist())
        assert row.match(zoo.tokens(12)[0].tolist()) == 0
        assert row.work.recomputed == 11
        got = row.feed(zoo.tokens(12)[0].tolist())
        assert torch.allclose(got[0], model(zoo.tokens(12))[0, -1])
