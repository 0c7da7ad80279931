"""A chat that never loses or misleads: reloads, two tabs, restarts, refusals, branches by a token. On a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_chat import answered, card, say, tokens
from tests.browser.watching import Process, Visit, check_looks, saved, started
from tests.generation.folder import chat_folder
from tests.serve.running import pulled

HELLO = "hello world"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    chat_folder(folder / "model")
    return folder


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Iterator[Process]:
    with started(folder / "studio", f"tiny={folder / 'model'}", pulled("minilm")) as it:
        yield it


@pytest.fixture
def chat(visit, tiny) -> Visit:
    return visit(tiny.url)


def opened(reader: Visit, place: str = "chat?temperature=0&max_tokens=6") -> Page:
    page = reader.go(place)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.get_by_role("group", name="Start with").get_by_role("button").first).to_be_enabled()
    return page


def talked(reader: Visit, *messages: str) -> Page:
    page = opened(reader)
    for turn, message in enumerate(messages or (HELLO,), 1):
        say(page, message)
        answered(page, turn)
    return page


def box(page: Page):
    return page.get_by_label("Message", exact=True)


def number_of_turns(page: Page, count: int) -> None:
    expect(page.locator(".chat-turn")).to_have_count(count)


def test_a_reload_while_it_writes_joins_the_answer_again(chat):
    page = opened(chat, "chat?temperature=0&max_tokens=3000&watch=off")
    say(page, "hello")
    expect(tokens(page).nth(3)).to_be_attached()
    page.reload()
    expect(page.locator(".chat-bubble")).to_have_text("hello")
    expect(tokens(page).nth(5)).to_be_attached()  # from its first token on, and still growing
    page.get_by_role("button", name="Stop").last.click()  # beside the box: the other one moves with the text
    answered(page)
    expect(page.get_by_text("stopped by you")).to_be_visible()
    count = tokens(page).count()
    text = page.locator(".chat-text").inner_text()
    assert 5 < count < 3000
    # what the page shows is what the model has written
    page.reload()
    expect(tokens(page)).to_have_count(count)
    assert page.locator(".chat-text").inner_text() == text
    expect(card(page, "What this turn cost")).to_contain_text(str(count))


def test_what_was_watched_is_there_after_a_reload(chat):
    page = talked(chat)
    before = card(page, "Next token").get_by_role("img").get_attribute("aria-label")
    words = page.get_by_text("Attends most to").inner_text()
    cost = card(page, "What this turn cost").inner_text()
    page.reload()
    expect(card(page, "Next token").get_by_role("img")).to_have_attribute("aria-label", before)
    expect(page.get_by_text("Attends most to")).to_have_text(words)
    expect(card(page, "What this turn cost")).to_have_text(cost, use_inner_text=True)
    tokens(page).nth(2).click()
    expect(page).to_have_url(re.compile("token="))


def test_of_two_tabs_the_later_is_told_and_branches(chat, visit, tiny):
    page = talked(chat)
    other = visit(tiny.url)
    there = other.go(page.url.split("#/")[1])
    number_of_turns(there, 1)
    say(page, "and a dog?")
    answered(page, 2)
    say(there, "3 birds?")
    alert = there.get_by_role("alert")
    expect(alert).to_contain_text("it has 2 messages there, 1 here")
    expect(box(there)).to_have_value("3 birds?")
    number_of_turns(there, 1)
    check_looks(other)
    alert.get_by_role("button", name="Send as a branch").click()
    answered(there, 2)
    expect(there.locator(".chat-bubble").nth(1)).to_have_text("3 birds?")
    expect(there.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(2)
    page.reload()
    expect(page.locator(".chat-bubble").nth(1)).to_have_text("and a dog?")  # that one is as it was
    other.errors.clear()  # the browser notes a 409 by itself


def test_a_tab_that_is_looked_at_again_is_told_before_anything_is_sent(chat, visit, tiny):
    page = talked(chat)
    there = visit(tiny.url).go(page.url.split("#/")[1])
    number_of_turns(there, 1)
    say(page, "and a dog?")
    answered(page, 2)
    there.evaluate("() => dispatchEvent(new Event('focus'))")
    there.get_by_role("alert").get_by_role("button", name="Show the current version").click()
    number_of_turns(there, 2)
    expect(there.get_by_role("alert")).to_have_count(0)


def test_after_a_restart_all_is_there_and_goes_on(visit, folder, tmp_path):
    model = f"tiny={folder / 'model'}"
    with started(tmp_path, model) as first:
        port = first.port
        reader = visit(first.url)
        page = talked(reader)
        answer = page.locator(".chat-text").inner_text()
        box(page).fill("and a dog?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
    expect(box(page)).to_have_value("and a dog?")
    with started(tmp_path, model, port=port):
        # the page has the token of the server that is gone: it asks for the new one by itself
        page.get_by_role("button", name="Retry now").click()
        expect(page.get_by_role("button", name="Retry now")).to_have_count(0)
        expect(box(page)).to_have_value("and a dog?")  # nothing is lost, however often it is tried
        for _ in range(5):  # the page may find out only now that the server it knew is gone
            page.get_by_role("button", name="Send", exact=True).click()
            page.wait_for_timeout(3000)
            if not box(page).input_value():  # it went out: what did not stays in the box
                break
        answered(page, 2)
        page.reload()
        number_of_turns(page, 2)
        assert page.locator(".chat-text").first.inner_text() == answer
        expect(card(page, "Conversations").get_by_role("button", name=HELLO).first).to_contain_text("2 messages")
    reader.errors.clear()  # of the time without a server


def test_a_draft_outlives_a_reload_and_a_refused_edit_stays_open(chat):
    page = talked(chat)
    box(page).fill("not sent yet")
    page.reload()
    expect(box(page)).to_have_value("not sent yet")
    page.get_by_role("button", name="Edit this message, as a branch").click()
    page.get_by_label("Edit the message").fill("the cat " * 3000)
    page.get_by_role("button", name="Send as a branch").click()
    expect(page.get_by_role("alert")).to_contain_text("context is 4,096")
    expect(page.get_by_label("Edit the message")).to_have_value("the cat " * 3000)
    expect(box(page)).to_have_value("not sent yet")
    chat.errors.clear()  # the browser notes a 400 by itself


def test_another_answer_has_another_seed(chat):
    page = opened(chat, "chat?temperature=2&max_tokens=12&seed=7")
    say(page, HELLO)
    answered(page)
    expect(page.get_by_text("seed 7", exact=True)).to_be_visible()
    first = page.locator(".chat-text").inner_text()
    page.get_by_role("button", name="Answer again").click()
    answered(page)
    expect(page.get_by_text("seed 7", exact=True)).to_have_count(0)
    assert page.locator(".chat-text").inner_text() != first
    expect(page.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(2)
    page.reload()  # both are still known as branches of one another
    expect(page.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(2)


def test_a_candidate_is_forced_and_goes_on_as_a_branch(chat):
    page = talked(chat)
    tokens(page).nth(2).click()
    shown = card(page, "Next token")
    written = tokens(page).nth(1).inner_text()
    choice = shown.get_by_role("list", name="Write another token here").get_by_role("button").nth(3)
    name = choice.get_attribute("aria-label")
    choice.click()
    answered(page)
    expect(page.get_by_role("group", name="Branches").get_by_role("button")).to_have_count(2)
    assert tokens(page).nth(1).inner_text() == written
    forced = tokens(page).nth(2)
    forced.click()
    index = forced.get_attribute("data-token")
    token = re.fullmatch(rf"Write (.*) at token {index}, as a branch", name, re.DOTALL)
    assert token is not None
    expect(shown).to_contain_text(f"At token {index}, {token[1]} was written")
    assert tokens(page).count() == 3 + 6


def test_an_answer_is_looked_at_in_attention(chat):
    page = talked(chat)
    count = int(tokens(page).last.get_attribute("data-token")) + 1
    page.get_by_role("link", name="Show in Attention (answer 1)").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Attention")
    expect(page.get_by_text(f"{count} tokens, read in")).to_be_visible()
    expect(page.get_by_role("group", name=re.compile("Attention lines"))).to_be_visible()
    check_looks(chat)
    page.get_by_role("button", name="Look at a text of your own").click()
    expect(page.get_by_label("Text", exact=True)).to_be_visible()


def test_an_encoder_is_not_offered(chat):
    page = opened(chat)
    option = page.get_by_label("Model", exact=True).locator("option", has_text="minilm")
    expect(option).to_have_text("minilm (encoder)")
    expect(option).to_be_disabled()
    page = chat.go("chat?model=minilm")
    expect(page.get_by_role("alert")).to_contain_text("minilm is an encoder")
    box(page).fill("hello")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()


def test_parts_of_a_character_are_readable(chat):
    page = talked(chat, "a 🙂 and שלום")
    expect(page.locator(".chat-bubble")).to_have_text("a 🙂 and שלום")
    page.get_by_label("Show every token the model reads").check()
    every = page.get_by_label("Every token the model reads", exact=True)
    expect(every).to_contain_text("⟨F0⟩")
    assert "�" not in every.inner_text()


def test_the_list_is_exported_imported_and_emptied(chat, tmp_path):
    talked(chat, "another one")  # what "Delete all" deletes once the first is gone, whichever tests ran before
    page = talked(chat, "to be kept")
    listed = card(page, "Conversations")
    entry = listed.get_by_role("button", name=re.compile("^to be kept"))
    expect(entry).to_have_count(1)
    expect(listed).to_contain_text("readable only by you")
    file = tmp_path / "conversations.json"
    file.write_bytes(saved(page, "Export all"))
    kept = json.loads(file.read_text())["conversations"]
    assert "to be kept" in [one["turns"][0]["message"] for one in kept]
    check_looks(chat)
    page.get_by_role("button", name="Delete “to be kept”").click()
    listed.get_by_role("button", name="Delete", exact=True).click()
    expect(entry).to_have_count(0)
    expect(page.get_by_text("Write a message, or start with one of these")).to_be_visible()
    listed.get_by_role("button", name="Delete all").click()
    listed.get_by_role("button", name="Yes, delete all").click()
    expect(listed).to_contain_text("None yet")
    page.get_by_label("A file of conversations").set_input_files(file)
    expect(listed).to_contain_text(f"{len(kept)} of {len(kept)} conversations were new")
    entry.click()
    expect(page.locator(".chat-bubble")).to_have_text(["to be kept"])  # the first of the file may have had several
    page.get_by_label("Keep conversations on this machine").uncheck()
    expect(listed).to_contain_text("lost when the server stops")
    page.get_by_label("Keep conversations on this machine").check()
    expect(listed).to_contain_text("readable only by you")


def test_the_composer_is_in_reach_under_a_long_talk(chat):
    page = talked(chat, *["hello world " * 40] * 3)
    page.evaluate("() => scrollTo(0, 0)")
    expect(box(page)).to_be_in_viewport()
