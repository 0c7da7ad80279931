"""Chat and watch: every event against what the library says of the same tokens."""

from __future__ import annotations

import threading

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import PATIENCE, until
from tests.serve.running import pulled
from tests.serve.studios import of, running, told
from vantage.families import load as load_model
from vantage.generation import Engine
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve.studio import state
from vantage.serve.studio.chat import conversations
from vantage.serve.studio.chat import running as answers_running

EVENTS = ["start", "prompt", "token", "done"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with running(tmp_path_factory.mktemp("chat")) as it:
        yield it


def say(message: str, tokens: int = 6, **more) -> dict:
    return {"model": "tiny", "message": message, "sampling": {"max_tokens": tokens}, **more}


def ids(it, events) -> list[int]:
    """The tokens of a whole turn, prompt included."""
    (start,) = of(events, "start")
    transcript = it.studio.part(conversations.Conversations).transcript(start["conversation"])
    tokens = list(transcript.turns[start["turn"]].past.tokens)
    assert [token["id"] for token in of(events, "token")] == tokens[start["prompt_tokens"] :]
    return tokens


def code(answer) -> str:
    return answer.json()["error"]["code"]


# ---- what the events say


def test_events_are_complete_and_agree(tiny):
    events = tiny.events("/chat", say("hello"))
    names = [name for name, _ in events]
    assert names == sorted(names, key=EVENTS.index)
    assert set(names) == set(EVENTS)
    (start,), (done,), tokens = of(events, "start"), of(events, "done"), of(events, "token")
    assert "".join(start["tokens"]).startswith("<|im_start|>user\nhello<|im_end|>")
    assert len(start["tokens"]) == start["prompt_tokens"]
    assert [token["index"] for token in tokens] == list(range(start["prompt_tokens"], start["prompt_tokens"] + 6))
    assert done["usage"] == {"prompt_tokens": 12, "completion_tokens": 6, "total_tokens": 18, "reused_tokens": 0}
    assert done["text"].startswith("".join(token["text"] for token in tokens))
    assert done["finish"] == "length"
    assert 0 < done["cost"]["ms_first"] <= done["cost"]["ms_total"]
    solo = vt.generate(chat_model(), [{"role": "user", "content": "hello"}], max_tokens=6)
    assert done["text"] == solo.text
    for i, token in enumerate(tokens):
        assert [layer["held"] for layer in token["cache"]["layers"]] == [12 + i] * 2  # the newest token is not in yet
        assert len(token["top"]) == 12
        assert token["top"][0]["p_raw"] == pytest.approx(2.718281828 ** token["logprob"], rel=1e-5)
    with tiny.http() as http:
        seen = http.get(f"/studio/api/chat/{start['conversation']}").json()
    assert [(t["role"], t["text"], t["turn"]) for t in seen["turns"]] == [
        ("user", "hello", 0),
        ("assistant", done["text"], 0),
    ]
    assert len(seen["tokens"]) == 18
    assert seen["cache"]["layers"][0]["held"] == 17


def test_the_cost_is_what_the_engine_counts(tiny):
    """Key projections over all layers: with the cache, and what the engine does without one."""
    events = tiny.events("/chat", say("the cat sat", 7))
    (done,) = of(events, "done")
    prompt = ids(tiny, events)[:-7]
    counted = {}
    for cached in (True, False):
        engine = Engine(chat_model(), cache=cached)
        engine.submit(prompt, max_tokens=7)
        while not engine.idle:
            engine.step()
        counted[cached] = sum(engine.stats.projections)
    assert done["cost"]["projections_cached"] == counted[True]
    assert done["cost"]["projections_uncached"] == counted[False]


def test_the_next_turn_reuses_what_the_cache_held(tiny):
    first = tiny.events("/chat", say("hello"))
    (start,) = of(first, "start")
    held = of(first, "token")[-1]["cache"]["layers"][0]["held"]
    second = tiny.events("/chat", say("and a dog?", conversation=start["conversation"]))
    (again,) = of(second, "start")
    assert (again["conversation"], again["turn"]) == (start["conversation"], 1)
    assert again["reused_tokens"] == held == 17
    assert all(layer == {"length": 17, "held": 17, "reused": 17} for layer in again["cache"]["layers"])
    last = of(second, "token")[-1]["cache"]["layers"][0]
    assert (last["reused"], last["held"]) == (17, again["prompt_tokens"] + 5)
    cost = of(second, "done")[0]["cost"]
    assert cost["projections_cached"] == 2 * (again["prompt_tokens"] - 17 + 5)


@pytest.mark.parametrize("layer", [0, 1, "mean"])
def test_attention_is_what_capture_says(tiny, layer):
    events = tiny.events("/chat", say("the cat sat on a mat", watch={"attention": {"layer": layer}}))
    check_attention(tiny, events, chat_model(), layer)


def check_attention(it, events, model, layer) -> None:
    tokens = ids(it, events)
    kept = vt.capture(model, tokens)
    layers = [layer] if layer != "mean" else [n for _, n in kept.sites]
    mean = torch.stack([kept.weights(n).mean(0) for n in layers]).mean(0)
    for token in of(events, "token"):
        line = mean[token["index"] - 1]  # the query that this token was written from
        best = line.topk(min(32, token["index"]))
        said = {one["key"]: one["weight"] for one in token["attention"]}
        assert len(said) == len(best.values)
        weights = [one["weight"] for one in token["attention"]]
        assert weights == sorted(weights, reverse=True)
        assert weights == pytest.approx(best.values.tolist(), abs=1e-3)
        assert all(weight == pytest.approx(float(line[key]), abs=1e-3) for key, weight in said.items())


def check_distribution(it, events, model, off: float = 1e-4) -> None:
    """Raw and sampled probabilities of every token against the model's logits over the whole text."""
    tokens, (start,) = ids(it, events), of(events, "start")
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]))[0].double()
    for token in of(events, "token"):
        raw = torch.softmax(logits[token["index"] - 1], -1)
        for one in token["top"]:
            assert one["p_raw"] == pytest.approx(float(raw[one["id"]]), abs=off)
    index = of(events, "token")[1]["index"]
    cut = torch.softmax(logits[index - 1] / 0.7, -1).topk(5)
    with it.http() as http:
        body = {"conversation": start["conversation"], "index": index}
        answer = http.post("/studio/api/distribution", json={**body, "sampling": {"temperature": 0.7, "top_k": 5}})
        top = answer.raise_for_status().json()["top"]
        assert len(top) == 20
        assert [one["id"] for one in top[:5]] == cut.indices.tolist()
        assert [one["p_sampled"] for one in top[:5]] == pytest.approx((cut.values / cut.values.sum()).tolist(), abs=off)
        assert [one["p_sampled"] for one in top[5:]] == [0.0] * 15
        assert http.post("/studio/api/distribution", json={**body, "index": 0}).json() == {"top": None}


def test_distributions_are_the_models(tiny):
    check_distribution(tiny, tiny.events("/chat", say("hello world")), chat_model())


def test_sampling_is_reproducible_and_settings_are_heard(tiny):
    how = {"temperature": 1.0, "seed": 7, "top_k": 50, "max_tokens": 8}
    texts = [of(tiny.events("/chat", say("hello", sampling=how)), "done")[0]["text"] for _ in range(2)]
    assert texts[0] == texts[1]
    other = of(tiny.events("/chat", say("hello", sampling={**how, "seed": 8})), "done")[0]["text"]
    assert other != texts[0]


# ---- branches


def test_a_branch_says_what_a_fresh_conversation_would(tiny):
    one = tiny.events("/chat", say("hello"))
    (start,) = of(one, "start")
    at = start["conversation"]
    tiny.events("/chat", say("and a dog?", conversation=at))
    with tiny.http() as http:
        before = http.get(f"/studio/api/chat/{at}").json()
    branch = tiny.events("/chat", say("no! 3 birds", branch_of={"conversation": at, "turn": 1}))
    (begun,) = of(branch, "start")
    assert begun["conversation"] != at
    assert begun["turn"] == 1
    assert begun["reused_tokens"] >= 17  # all of the first turn, and what two second messages have in common
    fresh = of(tiny.events("/chat", say("hello")), "start")[0]["conversation"]
    again = tiny.events("/chat", say("no! 3 birds", conversation=fresh))
    assert of(branch, "done")[0]["text"] == of(again, "done")[0]["text"]
    assert ids(tiny, branch) == ids(tiny, again)
    with tiny.http() as http:
        assert http.get(f"/studio/api/chat/{at}").json() == before  # the one it came from is as it was
        seen = http.get(f"/studio/api/chat/{begun['conversation']}").json()
        assert [turn["parent"] for turn in seen["turns"]] == [at, at, None, None]
        body = {"conversation": begun["conversation"], "index": of(one, "token")[0]["index"]}
        assert http.post("/studio/api/distribution", json=body).status_code == 200  # of the turn it took over
        for turn in (3, 2**31):
            answer = http.post("/studio/api/chat", json=say("x", branch_of={"conversation": at, "turn": turn}))
            assert answer.status_code == 400
    whole = tiny.events("/chat", say("hello", branch_of={"conversation": at, "turn": 0}))
    assert of(whole, "done")[0]["text"] == of(one, "done")[0]["text"]


# ---- leaving, waiting, and being refused


def test_a_reader_that_leaves_frees_the_desk_and_keeps_what_was_said(tiny, monkeypatch):
    monkeypatch.setattr(answers_running, "UNREAD_TIMEOUT_S", 0.0)
    with tiny.http() as http, http.stream("POST", "/studio/api/chat", json=say("hello", 3000)) as answer:
        seen = []
        for name, said in told(answer):
            seen.append((name, said))
            if len(of(seen, "token")) == 3:
                break
    until(lambda: tiny.studio.thread("chat tiny").busy == 0)
    at = of(seen, "start")[0]["conversation"]
    with tiny.http() as http:
        shown = http.get(f"/studio/api/chat/{at}").json()
    assert shown["turns"][1]["finish"] == "stopped"
    assert shown["turns"][1]["text"].startswith("".join(token["text"] for token in of(seen, "token")))
    assert 12 + 3 <= len(shown["tokens"]) < 2000
    again = of(tiny.events("/chat", say("and?", conversation=at)), "start")[0]
    assert again["reused_tokens"] == len(shown["tokens"]) - 1


@pytest.fixture
def held(tmp_path):
    """A studio whose model does not move before it is let go."""
    go = threading.Event()

    def load(served):
        model = copy_sharing_weights(chat_model())
        model.blocks[0].register_forward_pre_hook(lambda module, args: [go.wait(PATIENCE)].clear())
        return model

    with running(tmp_path, load=load) as it:
        try:
            yield it, go
        finally:
            go.set()


def test_a_full_queue_is_refused_in_words_and_the_page_still_answers(held):
    it, go = held
    with it.http() as http:
        http.post("/studio/api/models/load", json={"name": "tiny"}).raise_for_status()
    done = []
    askers = [threading.Thread(target=lambda: done.append(it.events("/chat", say("a", 1)))) for _ in range(5)]
    for asker in askers:
        asker.start()
    until(lambda: it.studio.thread("chat tiny").busy == 5)
    with it.http() as http:
        answer = http.post("/studio/api/chat", json=say("a"))
        assert answer.status_code == 429
        assert answer.headers["retry-after"]
        assert code(answer) == "queue_full"
        assert "wait until one has ended" in answer.json()["error"]["message"]
        assert http.get("/studio/api/models").json()["models"][0]["loaded"]
        assert http.get("/health").json() == {"status": "ok"}
        go.set()
        for asker in askers:
            asker.join(PATIENCE)
        assert [events[-1][0] for events in done] == ["done"] * 5
        until(lambda: it.studio.thread("chat tiny").busy == 0)
        assert http.post("/studio/api/chat", json=say("a", 1)).status_code == 200


def test_a_long_step_is_not_silent(held, monkeypatch):
    """A reader that hears nothing could not tell a long step from a server that is gone."""
    it, go = held
    monkeypatch.setattr(state, "PING_S", 0.02)
    lines = []
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("a", 1)) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if lines.count(": still at work") == 3:
                go.set()
    assert [line for line in lines if line.startswith("event: ")] == [
        f"event: {name}" for name in ("start", "prompt", "token", "done")
    ]


def test_who_leaves_the_queue_is_never_answered(held):
    it, go = held
    with it.http() as http:
        http.post("/studio/api/models/load", json={"name": "tiny"}).raise_for_status()
        first = threading.Thread(target=lambda: it.events("/chat", say("a", 1)))
        first.start()
        until(lambda: it.studio.thread("chat tiny").busy == 1)
        with pytest.raises(Exception, match="timed out"):
            http.post("/studio/api/chat", json=say("b", 1), timeout=0.3)
    until(lambda: it.studio.thread("chat tiny").busy == 1)
    go.set()
    first.join(PATIENCE)
    until(lambda: it.studio.thread("chat tiny").busy == 0)
    assert len(it.studio.part(conversations.Conversations)) == 1  # the first one's


def test_what_is_refused_says_why(tiny):
    with tiny.http() as http:
        for body, status, said in (
            (say("the cat " * 2100), 400, "context is 4,096"),
            (say("a", conversation="0" * 16), 404, "no longer exists"),
            (say("a", conversation="../x"), 400, "conversation"),
            (say("a", model="none"), 404, "no model"),
            (say("a", watch={"attention": {"layer": 99}}), 400, "no layer 99"),
            (say("a", sampling={"temperature": -1}), 400, "temperature"),
            (say("a", sampling={"max_tokens": 2**63}), 400, "max_tokens"),
        ):
            answer = http.post("/studio/api/chat", json=body)
            assert answer.status_code == status, answer.text
            assert said in answer.json()["error"]["message"]
        at = of(tiny.events("/chat", say("hello", system="no dogs")), "start")[0]["conversation"]
        assert http.post("/studio/api/chat", json=say("a", conversation=at, system="dogs")).status_code == 400
        both = say("a", conversation=at, branch_of={"conversation": at, "turn": 0})
        assert http.post("/studio/api/chat", json=both).status_code == 400
        assert http.delete(f"/studio/api/chat/{at}").status_code == 204
        assert http.get(f"/studio/api/chat/{at}").status_code == 404


def test_a_step_that_fails_is_an_event(tmp_path):
    model = copy_sharing_weights(chat_model())

    def fail(module, args):
        if args[0].shape[1] == 1:
            raise RuntimeError("the roof fell in")

    model.blocks[1].register_forward_pre_hook(fail)
    with running(tmp_path, load=lambda served: model) as it:
        events = it.events("/chat", say("hello"))
        assert events[-1][0] == "error"
        assert "failed" in events[-1][1]["message"]
        assert "roof" in it.log.getvalue()
        until(lambda: it.studio.thread("chat tiny").busy == 0)


# ---- what is kept


def test_few_conversations_and_few_logits_are_kept(tiny, monkeypatch):
    monkeypatch.setattr(conversations, "CONVERSATIONS", 2)
    at = [of(tiny.events("/chat", say(word)), "start")[0] for word in ("a", "b", "c")]
    with tiny.http() as http:
        seen = [http.get(f"/studio/api/chat/{one['conversation']}").json() for one in at]
        # the first has lost its cache, and is read from its file
        assert [len(one["turns"]) for one in seen] == [2, 2, 2]
        assert [bool(one["cache"]["layers"]) for one in seen] == [False, True, True]
        monkeypatch.setattr(conversations, "LOGIT_BYTES", 3 * 4 * chat_model().spec.vocab)
        events = tiny.events("/chat", say("hello"))
        start = of(events, "start")[0]
        body = {"conversation": start["conversation"]}
        kept = [
            http.post("/studio/api/distribution", json={**body, "index": token["index"]}).json()["top"] is not None
            for token in of(events, "token")
        ]
    assert kept == [False, False, False, True, True, True]


def test_text_stays_text(tiny):
    (start,) = of(tiny.events("/chat", say("a<|im_end|>b")), "start")
    tokens = start["tokens"]
    assert tokens.count("<|im_end|>") == 1  # the template's own
    assert "a<|im_end|>b" in "".join(tokens)


def test_a_model_without_a_template_goes_on_from_the_text(tmp_path):
    with running(tmp_path, load=lambda served: chat_model(template=None)) as it:
        first = it.events("/chat", say("the cat"))
        (start,), (done,) = of(first, "start"), of(first, "done")
        assert "".join(start["tokens"]) == "the cat"
        assert done["text"] == vt.generate(chat_model(template=None), "the cat", max_tokens=6).text
        (again,) = of(it.events("/chat", say(" sat", conversation=start["conversation"])), "start")
        assert again["tokens"][: len(start["tokens"])] == start["tokens"]
        assert again["tokens"][-1] == " sat"
        assert again["reused_tokens"] == len(start["tokens"]) + 5


# ---- the real model


@pytest.mark.sampled
def test_with_smollm2(tmp_path):
    names = (pulled("smollm2"), pulled("minilm"))
    with running(tmp_path, *names, load=lambda served: load_model(served.source, dtype="auto")) as it:
        body = {"model": "smollm2", "message": "Hello!", "sampling": {"max_tokens": 4}}
        first = it.events("/chat", {**body, "watch": {"attention": {"layer": 3}}})
        (start,), (done,) = of(first, "start"), of(first, "done")
        model = copy_sharing_weights(next(one.model for one in it.studio.model_pool.loaded() if one.name == "smollm2"))
        check_attention(it, first, model, 3)
        # 30 layers by another path than whole steps: a key between two 16-bit numbers may become the other one
        check_distribution(it, first, model, off=3e-3)
        held = of(first, "token")[-1]["cache"]["layers"]
        assert len(held) == 30
        second = it.events("/chat", {**body, "message": "Why?", "conversation": start["conversation"]})
        assert of(second, "start")[0]["reused_tokens"] == held[0]["held"] == start["prompt_tokens"] + 3
        saved = of(second, "done")[0]["cost"]
        assert saved["projections_cached"] < saved["projections_uncached"] / 4
        branch = it.events("/chat", {**body, "branch_of": {"conversation": start["conversation"], "turn": 0}})
        assert of(branch, "done")[0]["text"] == done["text"]
        with it.http() as http:
            answer = http.post("/studio/api/chat", json={**body, "model": "minilm"})
            assert answer.status_code == 400
            assert "cannot converse" in answer.json()["error"]["message"]
            listed = {one["name"]: one for one in http.get("/studio/api/models").json()["models"]}
        assert (listed["smollm2"]["kind"], listed["smollm2"]["layers"]) == ("decoder", 30)
        assert (listed["minilm"]["kind"], listed["minilm"]["chat"]) == ("encoder", False)
