"""An image in the chat: added, pasted, dropped, refused in words, and never lost. On a tiny model with eyes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

import vantage as vt
from tests.browser.test_chat import answered
from tests.browser.test_conversations import box, number_of_turns, opened
from tests.browser.watching import Process, Visit, check_looks, saved, started
from tests.generation.folder import chat_folder
from tests.generation.vision_chat import vision_chat_model

GIVE = """(area, {kind, name, data, type}) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], name, {type}));
  const how = {bubbles: true, cancelable: true};
  const event = kind === 'paste' ? new ClipboardEvent(kind, {...how, clipboardData: files})
    : new DragEvent(kind, {...how, dataTransfer: files});
  return area.dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eyes")
    vt.save(vision_chat_model(), folder / "model")
    chat_folder(folder / "tiny")
    Image.new("RGB", (24, 16), "#2b6cb0").save(folder / "blue.png")  # 6 tokens
    Image.new("RGB", (4100, 4100)).save(folder / "vast.png")  # few bytes, too many pixels
    (folder / "film.gif").write_bytes(b"GIF89a")
    return folder


@pytest.fixture(scope="module")
def eyes(folder: Path) -> Iterator[Process]:
    with started(folder / "studio", f"eyes={folder / 'model'}", f"tiny={folder / 'tiny'}") as it:
        yield it


@pytest.fixture
def chat(visit, eyes) -> Visit:
    return visit(eyes.url)


def thumbnails(page: Page) -> Locator:
    return page.get_by_role("list", name="Images of this message").get_by_role("img")


def add(page: Page, file: Path, text: str = "") -> None:
    page.get_by_label("Image files").set_input_files(file)
    expect(thumbnails(page)).to_have_count(1)
    if text:
        box(page).fill(text)


def send(page: Page) -> None:
    page.get_by_role("button", name="Send", exact=True).click()


def bubble(page: Page) -> Locator:
    return page.locator(".chat-bubble").get_by_role("img")


def test_an_image_is_added_sent_and_shown(chat, folder):
    page = opened(chat, "chat?temperature=0&max_tokens=6&tokens=true")
    add(page, folder / "blue.png", "What is this?")
    send(page)
    answered(page)
    expect(thumbnails(page)).to_have_count(0)
    expect(bubble(page)).to_have_count(1)
    assert bubble(page).evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [24, 16]
    expect(page.locator(".chat-token.image")).to_have_text(["image, 6 tokens"])
    expect(page.locator("p", has_text="Attends most to")).to_contain_text("the image")
    expect(page.get_by_role("link", name="Show in Attention")).to_have_count(0)
    # an image alone is a message too, and the first one is still read
    add(page, folder / "blue.png")
    send(page)
    answered(page, 2)
    expect(page.locator(".chat-token.image")).to_have_text(["image, 6 tokens"] * 2)
    add(page, folder / "blue.png")
    check_looks(chat)


def test_pasted_dropped_and_removed(chat, folder):
    page = opened(chat)
    data = base64.b64encode((folder / "blue.png").read_bytes()).decode()
    file = {"name": "blue.png", "data": data, "type": "image/png"}
    for count, kind in enumerate(("paste", "drop"), 1):
        taken = not box(page).evaluate(GIVE, {"kind": kind, **file})
        assert taken  # the browser is not to open the file in the page's place
        expect(thumbnails(page)).to_have_count(count)
    page.get_by_role("button", name="Remove image 1").click()
    expect(thumbnails(page)).to_have_count(1)
    page.get_by_role("button", name="Remove image 1").click()
    expect(thumbnails(page)).to_have_count(0)


def test_a_wrong_file_is_refused_in_words_before_it_is_sent(chat, folder):
    page = opened(chat)
    page.get_by_label("Image files").set_input_files(folder / "film.gif")
    expect(page.get_by_role("alert")).to_contain_text("“film.gif” is no image that can be read here")
    expect(thumbnails(page)).to_have_count(0)


def test_what_the_server_refuses_stays_in_the_box(visit, eyes, folder):
    reader = visit(eyes.url)
    page = opened(reader)
    add(page, folder / "vast.png", "How large is this?")
    send(page)
    expect(page.get_by_text("4100 × 4100 pixels")).to_be_visible()
    expect(box(page)).to_have_value("How large is this?")
    expect(thumbnails(page)).to_have_count(1)
    assert all("400" in error for error in reader.errors)  # the browser's own line about the answer
    reader.errors.clear()


def test_an_image_outlives_a_reload_a_branch_and_an_answer_again(chat, folder):
    page = opened(chat)
    add(page, folder / "blue.png", "hello")
    page.reload()
    expect(thumbnails(page)).to_have_count(1)
    expect(box(page)).to_have_value("hello")
    send(page)
    answered(page)
    page.reload()
    expect(bubble(page)).to_have_count(1)
    page.get_by_role("button", name="Answer again").click()
    answered(page)
    expect(page.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(2)
    expect(bubble(page)).to_have_count(1)
    page.get_by_role("button", name="Edit this message").click()
    expect(thumbnails(page)).to_have_count(1)
    page.get_by_label("Edit the message").fill("hello again")
    page.get_by_role("button", name="Send as a branch").click()
    answered(page)
    expect(page.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(3)
    expect(bubble(page)).to_have_count(1)
    expect(page.locator(".chat-bubble")).to_have_text("hello again")


def test_an_image_outlives_a_restart_and_travels_in_a_file(visit, folder, tmp_path):
    models = (f"eyes={folder / 'model'}",)
    with started(tmp_path / "studio", *models) as it:
        reader, port = visit(it.url), it.port
        page = opened(reader)
        add(page, folder / "blue.png", "hello")
        send(page)
        answered(page)
        text = page.locator(".chat-text").inner_text()
        file = saved(page, "Export all")
        add(page, folder / "blue.png", "still to be sent")
    assert json.loads(file)["conversations"][0]["turns"][0]["images"][0].startswith("data:image/png;base64,")
    with started(tmp_path / "studio", *models, port=port):
        page.reload()
        expect(bubble(page)).to_have_count(1)
        expect(thumbnails(page)).to_have_count(1)
        send(page)
        answered(page, 2)
        page.get_by_role("button", name="Delete all").click()
        page.get_by_role("button", name="Yes, delete all").click()
        number_of_turns(page, 0)
        moved = {"name": "conversations.json", "mimeType": "application/json", "buffer": file}
        page.get_by_label("A file of conversations").set_input_files(moved)
        expect(bubble(page)).to_have_count(1)
        assert page.locator(".chat-text").inner_text() == text
    reader.errors.clear()  # of calls while no server was there


def test_a_model_without_eyes_offers_nothing(chat):
    page = opened(chat, "chat?model=tiny&temperature=0&max_tokens=6")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Add an image")).to_have_count(0)
