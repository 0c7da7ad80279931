"""Images in the studio's chat: the library's own answer, checked as the API checks them, and never lost."""

from __future__ import annotations

import json
import stat

import pytest
import torch

import vantage as vt
from tests.generation.folder import chat_model
from tests.generation.vision_chat import image_token, pixels, vision_chat_model
from tests.serve.studios import of, running
from tests.serve.test_images import data_url
from vantage.serve import bounds
from vantage.serve.studio.chat import images as chat_images
from vantage.serve.studio.chat.images import image_places

PNG, OTHER = data_url(pixels()), data_url(pixels(8, 32, seed=3))  # 6 and 4 tokens
MODELS = {"eyes": vision_chat_model, "tiny": chat_model}


def studio(folder):
    return running(folder, *MODELS, load=lambda served: MODELS[served.name]())


@pytest.fixture
def eyes(tmp_path):
    with studio(tmp_path) as it:
        yield it


def say(message: str, *images: str, **more) -> dict:
    return {"model": "eyes", "message": message, "images": images, "sampling": {"max_tokens": 6}, **more}


def chat(it, body: dict) -> tuple[dict, dict]:
    """What an answer began and ended with."""
    events = it.events("/chat", body)
    return of(events, "start")[0], of(events, "done")[0]


def shown(it, id: str) -> dict:
    with it.http() as http:
        return http.get(f"/studio/api/chat/{id}").raise_for_status().json()


def refused(it, body: dict) -> dict:
    with it.http() as http:
        answer = http.post("/studio/api/chat", json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def message(text: str, *images: torch.Tensor) -> dict:
    parts = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def test_the_answer_is_the_librarys_turn_by_turn(eyes):
    model = vision_chat_model()
    wanted = vt.generate(model, [message("hello", pixels())], max_tokens=6)
    start, done = chat(eyes, say("hello", PNG))
    assert done["text"] == wanted.text
    assert start["prompt_tokens"] == len(wanted.prompt)
    assert (start["message"], start["images"]) == ("hello", [PNG])
    (place,) = start["image_places"]
    assert place["tokens"] == 6
    assert set(wanted.prompt[place["start"] : place["start"] + 6]) == {image_token(model)}
    # a second image goes on from what the cache holds, the first one with it
    history = [message("hello", pixels()), {"role": "assistant", "content": wanted.text}]
    second = vt.generate(model, [*history, message("and", pixels(8, 32, seed=3))], max_tokens=6)
    start, done = chat(eyes, say("and", OTHER, conversation=start["conversation"], turn=1))
    assert done["text"] == second.text
    assert start["reused_tokens"] > place["start"] + 6
    assert [one["tokens"] for one in start["image_places"]] == [6, 4]


def test_which_models_take_images(eyes):
    with eyes.http() as http:
        entries = [http.post("/studio/api/models/load", json={"name": name}).json() for name in MODELS]
    assert [(entry["name"], entry["images"]) for entry in entries] == [("eyes", True), ("tiny", False)]


@pytest.mark.sampled
def test_images_are_kept_over_a_restart_and_the_conversation_goes_on(tmp_path):
    with studio(tmp_path) as it:
        start, _ = chat(it, say("hello", PNG))
        id = start["conversation"]
        twin = chat(it, say("and", OTHER, branch_of={"conversation": id, "turn": 1}))[1]["text"]
    files = list((tmp_path / "conversations").glob("*.jsonl"))
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    with studio(tmp_path) as it:
        seen = shown(it, id)
        assert [turn.get("images") for turn in seen["turns"]] == [[PNG], None]
        assert seen["image_places"] == start["image_places"]
        again, done = chat(it, say("and", OTHER, conversation=id, turn=1))
        assert done["text"] == twin
        assert again["reused_tokens"] == 0
        assert PNG not in it.log.getvalue()


def test_a_branch_an_answer_again_and_a_forced_token(eyes):
    start, done = chat(eyes, say("hello", PNG))
    id = start["conversation"]
    again, same = chat(eyes, say("hello", PNG, branch_of={"conversation": id, "turn": 0}))
    assert same["text"] == done["text"]
    assert again["conversation"] != id
    assert again["reused_tokens"] == start["prompt_tokens"] - 1
    # the same words with another image are another message
    other, _ = chat(eyes, say("hello", data_url(pixels(seed=9)), branch_of={"conversation": id, "turn": 0}))
    assert other["reused_tokens"] == start["image_places"][0]["start"]
    forced = {"conversation": id, "turn": 0, "token": {"index": start["prompt_tokens"], "id": 40}}
    _, branch = chat(eyes, say("hello", PNG, branch_of=forced))
    assert branch["text"] != done["text"]
    assert "the message that was sent" in refused(eyes, say("hello", OTHER, branch_of=forced))["message"]


def test_export_and_import_bring_images_along(eyes, tmp_path):
    start, _ = chat(eyes, say("", PNG))
    id = start["conversation"]
    with eyes.http() as http:
        file = http.get("/studio/api/conversations/export").json()
        (saved,) = file["conversations"]
        assert saved["title"] == "An image"
        assert saved["turns"][0]["images"] == [PNG]
        assert http.delete(f"/studio/api/chat/{id}").status_code == 204
        assert http.post("/studio/api/conversations/import", json=saved).json()["new"]
        for wrong in ("https://example.com/a.png", "data:text/html;base64,aGk=", "data:image/svg+xml;base64,aGk="):
            bad = {**saved, "id": "0" * 16, "turns": [{**saved["turns"][0], "images": [wrong]}]}
            assert http.post("/studio/api/conversations/import", json=bad).status_code in (400, 422)
    assert shown(eyes, id)["turns"][0]["images"] == [PNG]
    _, done = chat(eyes, say("and", conversation=id, turn=1))
    assert done["finish"]


def test_a_file_whose_images_stand_elsewhere_is_not_gone_on_with(eyes):
    start, _ = chat(eyes, say("hello", PNG))
    with eyes.http() as http:
        (saved,) = http.get("/studio/api/conversations/export").json()["conversations"]
        saved["id"] = "1" * 16
        saved["turns"][0]["image_starts"] = [start["image_places"][0]["start"] + 1]
        http.post("/studio/api/conversations/import", json=saved).raise_for_status()
    said = refused(eyes, say("and", conversation="1" * 16, turn=1))["message"]
    assert "do not stand where this conversation says" in said


def test_refusals_before_anything_is_written(eyes, monkeypatch):
    for url, code, says in (
        ("data:image/png;base64,%%%", "invalid_image", "not base64"),
        ("data:image/png;base64,aGVsbG8=", "invalid_image", "no image of a kind that is read here"),
        (data_url(torch.zeros(3, 4100, 4100, dtype=torch.uint8)), "invalid_image", "4100 × 4100 pixels: at most"),
    ):
        error = refused(eyes, say("hello", url))
        assert (error["code"], error["param"]) == (code, "images")
        assert says in error["message"]
    assert "tiny reads no images" in refused(eyes, {**say("hello", PNG), "model": "tiny"})["message"]
    start, _ = chat(eyes, say("hello", PNG))
    more = {"conversation": start["conversation"], "turn": 1}
    error = refused(eyes, say("hello", *[PNG] * bounds.IMAGES, **more))
    assert error["message"].startswith("17 images in this conversation: at most 16")
    monkeypatch.setattr(chat_images, "MAX_CHARACTERS", len(PNG) + len(OTHER) - 1)
    assert refused(eyes, say("hello", OTHER, **more))["code"] == "images_too_large"
    assert len(shown(eyes, start["conversation"])["turns"]) == 2  # a message and its answer: nothing came of these
    with eyes.http() as http:
        answer = {"conversation": start["conversation"], "turn": 0}
        looked = http.post("/studio/api/attention", json={"model": "eyes", "answer": answer})
    assert "written with an image" in json.dumps(looked.json())


def test_places_of_images_that_follow_one_another():
    assert image_places([1, 2], ()) == []
    assert image_places([1, 7, 7, 7, 7, 2, 7], [1, 3, 6]) == [
        {"start": 1, "tokens": 2},
        {"start": 3, "tokens": 2},
        {"start": 6, "tokens": 1},
    ]
