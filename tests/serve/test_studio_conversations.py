"""Conversations that are never lost: joined again, told apart by turns, kept over restarts, branched by a token."""

from __future__ import annotations

import json
import stat
import threading

import pytest

import vantage as vt
from tests.generation.folder import chat_model
from tests.processes import PATIENCE, until
from tests.serve.studios import of, running, told
from vantage.model.shared_copy import copy_sharing_weights
from vantage.serve.studio.chat.conversations import Conversations

SECRET = "a secret about birds"


def say(message: str, tokens: int = 6, **more) -> dict:
    return {"model": "tiny", "message": message, "sampling": {"max_tokens": tokens}, **more}


def shown(it, id: str) -> dict:
    with it.http() as http:
        return http.get(f"/studio/api/chat/{id}").raise_for_status().json()


def listed(it) -> dict:
    with it.http() as http:
        return http.get("/studio/api/conversations").raise_for_status().json()


@pytest.fixture
def tiny(tmp_path):
    with running(tmp_path) as it:
        yield it


# ---- an answer and its readers


@pytest.fixture
def slow(tmp_path):
    """A studio whose model writes a token each time it is let."""
    step = threading.Semaphore(0)

    def load(served):
        model = copy_sharing_weights(chat_model())

        def wait(module, args):
            step.acquire(timeout=PATIENCE)

        model.blocks[0].register_forward_pre_hook(wait)
        return model

    with running(tmp_path, load=load) as it:
        try:
            yield it, step
        finally:
            step.release(10_000)


def test_a_reader_that_comes_back_gets_the_whole_answer(slow):
    it, step = slow
    step.release(4)
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("hello", 8)) as answer:
        first = []
        for name, said in told(answer):
            first.append((name, said))
            if len(of(first, "token")) == 2:
                break  # a reload
    id = of(first, "start")[0]["conversation"]
    seen = shown(it, id)
    assert seen["writing"]
    assert seen["turns"] == []
    assert [(one["conversation"], one["writing"]) for one in listed(it)["conversations"]] == [(id, True)]
    with it.http() as http, http.stream("GET", f"/studio/api/chat/{id}/events") as answer:
        again = []
        for event in told(answer):
            again.append(event)
            step.release(100)
    assert again[: len(first)] == first
    assert again[-1][0] == "done"
    assert len(of(again, "token")) == 8
    assert of(again, "start")[0]["message"] == "hello"
    seen = shown(it, id)
    assert not seen["writing"]
    # what was watched is there for a page that is opened now
    assert seen["turns"][1]["written"] == of(again, "token")
    assert seen["turns"][1]["text"] == of(again, "done")[0]["text"]
    assert seen["turns"][1]["cost"] == of(again, "done")[0]["cost"]
    with it.http() as http:
        assert http.get(f"/studio/api/chat/{id}/events").text == ""


def test_stop_ends_after_the_present_token_and_nothing_is_hidden(slow):
    it, step = slow
    step.release(4)
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("hello", 3000)) as answer:
        events = []
        for name, said in told(answer):
            events.append((name, said))
            if len(of(events, "token")) == 2:
                with it.http() as other:
                    id = of(events, "start")[0]["conversation"]
                    assert other.post(f"/studio/api/chat/{id}/stop").status_code == 204
                step.release(100)
    (done,) = of(events, "done")
    assert (done["finish"], done["turns"]) == ("stopped", 1)
    seen = shown(it, id)["turns"][1]
    # what the page was shown is what the model has written, to the token
    assert seen["written"] == of(events, "token")
    assert seen["finish"] == "stopped"
    assert seen["text"] == done["text"]


def test_what_is_stopped_before_its_first_token_did_not_happen(slow):
    it, step = slow
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("the cat sat on a mat. " * 60)) as answer:
        events = []
        for name, said in told(answer):
            events.append((name, said))
            if name == "start":
                with it.http() as other:
                    other.post(f"/studio/api/chat/{said['conversation']}/stop")
                step.release(100)
    (done,) = of(events, "done")
    assert (done["finish"], done["turns"]) == ("stopped", 0)
    assert of(events, "token") == []
    assert listed(it)["conversations"] == []


# ---- two tabs


def test_the_later_tab_is_told_and_may_branch(tiny):
    id = of(tiny.events("/chat", say("hello")), "start")[0]["conversation"]
    tiny.events("/chat", say("and a dog?", conversation=id, turn=1))
    with tiny.http() as http:
        answer = http.post("/studio/api/chat", json=say("no! 3 birds", conversation=id, turn=1))
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "conversation_moved"
        assert "has 2 messages by now, and this page shows 1" in answer.json()["error"]["message"]
    assert len(shown(tiny, id)["turns"]) == 4  # nothing was added
    branch = tiny.events("/chat", say("no! 3 birds", branch_of={"conversation": id, "turn": 1}))
    seen = shown(tiny, of(branch, "start")[0]["conversation"])
    assert [turn["text"] for turn in seen["turns"] if turn["role"] == "user"] == ["hello", "no! 3 birds"]
    assert seen["origin"] == {"conversation": id, "turn": 1}


def test_while_one_tab_is_answered_another_is_refused_at_once(slow):
    it, step = slow
    step.release(3)
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("hello", 1)) as answer:
        id = of(list(told(answer)), "start")[0]["conversation"]
    thread = threading.Thread(target=lambda: it.events("/chat", say("a", 2, conversation=id, turn=1)))
    thread.start()
    until(lambda: shown(it, id)["writing"])
    with it.http() as http:
        answer = http.post("/studio/api/chat", json=say("b", conversation=id, turn=1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conversation_moved")
    step.release(100)
    thread.join(PATIENCE)
    assert [turn["text"] for turn in shown(it, id)["turns"] if turn["role"] == "user"] == ["hello", "a"]


# ---- over restarts


def test_a_conversation_goes_on_after_a_restart_with_the_same_tokens(tmp_path):
    words = ["hello", "é ü 世界?", "and a dog"]
    with running(tmp_path) as it:
        events = [it.events("/chat", say(words[0], system="no dogs"))]
        id = of(events[0], "start")[0]["conversation"]
        events.append(it.events("/chat", say(words[1], conversation=id, turn=1)))
        before = shown(it, id)
        third = it.events("/chat", say(words[2], conversation=id, turn=2))
    (file,) = (tmp_path / "conversations").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:40])  # the last turn was cut off by a crash
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with running(tmp_path) as it:
        (entry,) = listed(it)["conversations"]
        assert (entry["title"], entry["turns"], entry["kept"], entry["model"]) == ("hello", 2, True, "tiny")
        after = shown(it, id)
        assert after == {**before, "cache": after["cache"]}
        again = it.events("/chat", say(words[2], conversation=id, turn=2))
        assert of(again, "start")[0]["reused_tokens"] == 0  # computed anew
        assert of(again, "start")[0]["tokens"] == of(third, "start")[0]["tokens"]
        assert [t["id"] for t in of(again, "token")] == [t["id"] for t in of(third, "token")]
        assert of(again, "done")[0]["text"] == of(third, "done")[0]["text"]
        assert listed(it)["conversations"][0]["turns"] == 3
    assert len(file.read_bytes().splitlines()) == 4


@pytest.mark.sampled
def test_another_model_under_the_name_is_said(tmp_path):
    with running(tmp_path) as it:
        id = of(it.events("/chat", say("hello")), "start")[0]["conversation"]
    with running(tmp_path, load=lambda served: chat_model(seed=1)) as it:
        seen = shown(it, id)
        assert "another model" in seen["problem"]
        assert len(seen["turns"]) == 2
        with it.http() as http:
            answer = http.post("/studio/api/chat", json=say("a", conversation=id, turn=1))
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "other_model")
    with running(tmp_path, "other") as it:
        assert "vantage studio tiny" in shown(it, id)["problem"]


def test_the_switch_deleting_one_and_deleting_all(tmp_path):
    folder = tmp_path / "conversations"
    with running(tmp_path) as it, it.http() as http:
        ids = [of(it.events("/chat", say(word)), "start")[0]["conversation"] for word in ("hello", "the cat", SECRET)]
        assert len(list(folder.glob("*.jsonl"))) == 3
        assert http.delete(f"/studio/api/chat/{ids[0]}").status_code == 204
        assert http.get(f"/studio/api/chat/{ids[0]}").status_code == 404
        assert not (folder / f"{ids[0]}.jsonl").exists()
        http.post("/studio/api/conversations/keeping", json={"keeping": False}).raise_for_status()
        off = of(it.events("/chat", say("no!")), "start")[0]["conversation"]
        state = listed(it)
        assert not state["keeping"]
        assert {one["conversation"]: one["kept"] for one in state["conversations"]} == {
            ids[1]: True,
            ids[2]: True,
            off: False,
        }
        assert not (folder / f"{off}.jsonl").exists()
        http.post("/studio/api/conversations/keeping", json={"keeping": True}).raise_for_status()
        it.events("/chat", say("and?", conversation=off, turn=1))
        assert len((folder / f"{off}.jsonl").read_text().splitlines()) == 3  # both turns, with the one before
        assert http.delete("/studio/api/conversations").status_code == 204
        assert listed(it)["conversations"] == []
        assert list(folder.glob("*.jsonl")) == []
        assert len(it.studio.part(Conversations)) == 0
        assert "birds" not in it.log.getvalue()
        assert "secret" not in it.log.getvalue()


def test_one_deleted_while_it_is_written_stays_deleted(slow):
    it, step = slow
    with it.http() as http, http.stream("POST", "/studio/api/chat", json=say("hello", 3000)) as answer:
        for name, said in told(answer):
            if name == "start":
                with it.http() as other:
                    assert other.delete(f"/studio/api/chat/{said['conversation']}").status_code == 204
                step.release(100)
    until(lambda: it.studio.thread("chat tiny").busy == 0)
    assert listed(it)["conversations"] == []


@pytest.mark.sampled
def test_exported_and_imported_as_one_file(tmp_path):
    with running(tmp_path / "a") as it, it.http() as http:
        id = of(it.events("/chat", say("hello")), "start")[0]["conversation"]
        other = of(it.events("/chat", say("the cat", branch_of={"conversation": id, "turn": 1})), "start")[0]
        before = {one: shown(it, one) for one in (id, other["conversation"])}
        file = http.get("/studio/api/conversations/export").json()
        one = http.get("/studio/api/conversations/export", params={"conversation": id}).json()
        assert [talk["id"] for talk in one["conversations"]] == [id]
        assert len(file["conversations"]) == 2
        again = http.post("/studio/api/conversations/import", json=one["conversations"][0]).json()
        assert again == {"conversation": id, "new": False}
    with running(tmp_path / "b") as it, it.http() as http:
        for talk in file["conversations"]:
            assert http.post("/studio/api/conversations/import", json=talk).json()["new"]
        for one, was in before.items():
            now = shown(it, one)
            assert now == {**was, "cache": now["cache"]}
        assert of(it.events("/chat", say("and?", conversation=id, turn=1)), "done")
        # the same conversation has gone another way here: what is imported stands beside it
        talk = json.loads(json.dumps(file["conversations"][0]))
        talk["turns"][0]["text"] = "something else"
        answer = http.post("/studio/api/conversations/import", json=talk).json()
        assert answer["new"]
        assert answer["conversation"] != talk["id"]
        for wrong in ({}, {**talk, "id": "../../x"}, {**talk, "format": "other"}, {**talk, "turns": [{"message": 1}]}):
            assert http.post("/studio/api/conversations/import", json=wrong).status_code == 400


# ---- a branch by a token


def test_a_forced_token_is_written_and_the_rest_follows_from_it(tiny):
    first = tiny.events("/chat", say("hello", 6))
    (start,), written = of(first, "start"), of(first, "token")
    id, at = start["conversation"], written[2]
    other = at["top"][3]
    token = {"index": at["index"], "id": other["id"]}
    branch = tiny.events("/chat", say("hello", 4, branch_of={"conversation": id, "turn": 0, "token": token}))
    (begun,), now = of(branch, "start"), of(branch, "token")
    assert begun["conversation"] != id
    assert begun["reused_tokens"] == at["index"]  # all before it had been computed
    assert [t["id"] for t in now[:2]] == [t["id"] for t in written[:2]]
    assert now[2]["id"] == other["id"] != at["id"]
    assert now[2]["top"] == at["top"]  # what could have come there is what could have come there
    assert len(now) == 3 + 4
    # against the library: greedy from the same tokens
    transcript = tiny.studio.part(Conversations).transcript(begun["conversation"])
    tokens = list(transcript.turns[0].past.tokens)
    assert vt.generate(chat_model(), tokens[: at["index"] + 1], max_tokens=4).tokens == tuple(tokens[at["index"] + 1 :])
    assert transcript.turns[0].past.text == chat_model().tokenizer.decode(tokens[start["prompt_tokens"] :])
    (done,) = of(branch, "done")
    assert done["text"] == transcript.turns[0].past.text
    with tiny.http() as http:
        for wrong in ({"index": 0, "id": 5}, {"index": at["index"], "id": 10**6}):
            body = say("hello", branch_of={"conversation": id, "turn": 0, "token": wrong})
            assert http.post("/studio/api/chat", json=body).status_code == 400
        body = say("other", branch_of={"conversation": id, "turn": 0, "token": token})
        assert http.post("/studio/api/chat", json=body).status_code == 400


def test_a_forced_end_ends_the_answer(tiny):
    first = tiny.events("/chat", say("hello", 6))
    id, at = of(first, "start")[0]["conversation"], of(first, "token")[1]
    end = chat_model().tokenizer.eos
    token = {"index": at["index"], "id": end}
    branch = tiny.events("/chat", say("hello", 4, branch_of={"conversation": id, "turn": 0, "token": token}))
    assert [t["id"] for t in of(branch, "token")][1:] == [end]
    assert of(branch, "done")[0]["finish"] == "stop"


# ---- tokens that are half a character


def test_bytes_of_a_character_can_be_read(tiny):
    (start,) = of(tiny.events("/chat", say("a 🙂 b")), "start")
    assert "�" not in "".join(start["tokens"])
    assert "⟨F0⟩⟨9F⟩⟨99⟩⟨82⟩" in "".join(start["tokens"])
