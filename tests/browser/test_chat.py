"""Chat and watch, with SmolLM2: what streams, what can be looked at again, stopping, branching, other settings."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import select
import socket
import time

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watching import Visit, check_looks, saved

ASK = "Why is the sky blue?"


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def answered(page: Page, turn: int = 1) -> None:
    again = page.get_by_role("button", name=f"Answer again (message {turn},")
    expect(again).to_be_enabled()


def tokens(page: Page):
    return page.locator("[data-token]")


def card(page: Page, title: str):
    return page.get_by_role("region", name=title, exact=True)


def fact(page: Page, name: str) -> str:
    shown = card(page, "What this turn cost").locator("div", has=page.locator("dt", has_text=name)).locator("dd")
    return shown.last.inner_text().strip()


def thousands(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit]


@pytest.fixture
def talk(reader: Visit) -> Page:
    """A conversation of one short turn, with the likeliest tokens."""
    page = reader.go("chat?temperature=0&max_tokens=12")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    say(page, ASK)
    answered(page)
    return page


def test_an_answer_streams_and_is_watched(reader):
    page = reader.go("chat?max_tokens=40&seed=3")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    page.get_by_role("button", name=ASK, exact=True).click()
    expect(page.get_by_role("button", name="Stop").first).to_be_visible()
    expect(tokens(page).nth(2)).to_be_attached()
    early = tokens(page).count()
    assert early < 40, "the whole answer came at once"
    expect(card(page, "Next token").get_by_role("img")).to_have_attribute("aria-label", re.compile("%"))
    answered(page)
    assert tokens(page).count() == 40
    held = card(page, "Cache").get_by_role("img")
    expect(held).to_have_attribute(
        "aria-label", re.compile(r"Cache of 30 layers: \d+ positions held, 0 of them reused")
    )
    cached, uncached = (thousands(fact(page, name)) for name in ("with the cache", "Without the cache"))
    assert 0 < 10 * cached < uncached
    # attention lies over the words of the question as well
    assert page.locator(".chat-bubble [style*=background]").count() > 0


def test_a_token_can_be_looked_at_again(reader, talk):
    third, tenth = tokens(talk).nth(2), tokens(talk).nth(9)
    index = int(third.get_attribute("data-token"))
    third.hover()
    expect(card(talk, "Next token")).to_contain_text(f"At token {index},")
    talk.get_by_role("heading", level=1).hover()
    expect(card(talk, "Next token")).not_to_contain_text(f"At token {index},")
    tenth.click()
    expect(talk).to_have_url(re.compile(f"token={index + 7}(&|$)"))
    talk.get_by_label("Answer. Arrow keys").focus()
    talk.keyboard.press("ArrowLeft")
    expect(card(talk, "Next token")).to_contain_text(f"At token {index + 6},")
    talk.get_by_label("Show every token the model reads").check()
    expect(talk.get_by_label("Every token the model reads", exact=True)).to_contain_text("<|im_start|>")
    check_looks(reader)


def test_other_settings_change_the_distribution(talk):
    shown = card(talk, "Next token").get_by_role("img")
    expect(shown).to_have_attribute("aria-label", re.compile(r"tokens: \S+ 100 %"))
    for _ in range(20):  # to 1.0
        talk.get_by_label("Temperature").press("ArrowRight")
    expect(shown).to_have_attribute("aria-label", re.compile(r"tokens: \S+ (?!100)[\d.]+ %"))
    table = list(csv.DictReader(io.StringIO(saved_csv(talk))))
    for row in table:  # at temperature 1 without filters both are the model's own
        assert float(row["p_raw"]) == pytest.approx(float(row["p_sampled"]), rel=1e-3)
    talk.get_by_label("Top-k").press("ArrowRight")
    expect(shown).to_have_attribute("aria-label", re.compile(r"tokens: \S+ 100 %"))


def saved_csv(page: Page) -> str:
    name = card(page, "Next token").get_by_role("button", name="CSV").get_attribute("aria-label")
    return saved(page, name).decode()


def test_pictures_are_saved(talk):
    assert saved(talk, "Download cache as PNG")[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"<svg" in saved(talk, "Download cache as SVG")
    rows = list(csv.DictReader(io.StringIO(saved(talk, "Download cache as CSV").decode())))
    assert len(rows) == 30
    assert all(int(row["held"]) == int(row["length"]) > 12 for row in rows)


def test_a_turn_is_stopped_and_the_next_one_reuses_it(reader):
    page = reader.go("chat?max_tokens=400")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    say(page, "Tell me a long story about a lighthouse.")
    expect(tokens(page).nth(3)).to_be_attached()
    page.get_by_role("button", name="Stop").first.click()
    answered(page)
    expect(page.get_by_text("stopped by you")).to_be_visible()
    assert 3 < tokens(page).count() < 400
    page.goto(page.url.replace("max_tokens=400", "max_tokens=5"))
    say(page, "Go on.")
    answered(page, 2)
    reused = re.compile(r"positions held, (?!0 )\d+ of them reused")
    expect(card(page, "Cache").get_by_role("img")).to_have_attribute("aria-label", reused)


def test_an_edited_message_is_a_branch(talk):
    first = talk.get_by_label("Answer. Arrow keys").inner_text()
    talk.get_by_role("button", name="Edit this message, as a branch").click()
    talk.get_by_label("Edit the message").fill("What is the sea made of?")
    talk.get_by_role("button", name="Send as a branch").click()
    answered(talk)
    branches = talk.get_by_role("group", name="Branches").get_by_role("button")
    expect(branches).to_have_count(2)
    expect(branches.nth(1)).to_have_attribute("aria-pressed", "true")
    assert talk.get_by_label("Answer. Arrow keys").inner_text() != first
    # the template before the message was computed once
    reused = re.compile(r"positions held, (?!0 )\d+ of them reused")
    expect(card(talk, "Cache").get_by_role("img")).to_have_attribute("aria-label", reused)
    branches.nth(0).click()
    expect(talk.locator(".chat-bubble")).to_have_text(ASK)
    assert talk.get_by_label("Answer. Arrow keys").inner_text() == first


def test_the_address_holds_the_conversation(reader, talk):
    answer = talk.get_by_label("Answer. Arrow keys").inner_text()
    expect(talk).to_have_url(re.compile("conversation=[0-9a-f]{16}"))
    talk.reload()
    expect(talk.locator(".chat-bubble")).to_have_text(ASK)
    expect(talk.locator(".chat-text")).to_have_text(answer.strip())
    expect(talk.get_by_label("Temperature")).to_have_value("0")
    talk.get_by_role("button", name="New conversation").click()
    expect(talk.get_by_text("Write a message, or start with one of these")).to_be_visible()
    reader.go("chat?conversation=0123456789abcdef")
    expect(talk.get_by_role("alert")).to_contain_text("no longer exists")
    reader.errors.clear()  # the browser notes a 404 by itself


def test_a_text_too_long_is_refused_in_words(reader):
    page = reader.go("chat")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    say(page, "word " * 9000)
    expect(page.get_by_role("alert")).to_contain_text("context is 8,192")
    expect(page.get_by_label("Message", exact=True)).to_have_value(re.compile("^(word ){9000}$"))
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    reader.errors.clear()  # the browser notes a 400 by itself


def test_a_long_message_shows_its_progress_and_can_be_stopped(reader):
    page = reader.go("chat?max_tokens=4")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    say(page, "word " * 6000)
    expect(page.get_by_text(re.compile(r"Reading: [\d,]+ of 6,\d+ tokens"))).to_be_visible()
    expect(page.get_by_role("progressbar", name="Reading the message")).to_be_visible()
    page.get_by_role("button", name="Stop").first.click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.get_by_text("Write a message, or start with one of these")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_have_value("word " * 6000)


def test_a_full_queue_is_said_and_can_be_waited_for(reader, studio):
    page = reader.go("chat?max_tokens=4")
    expect(page.get_by_role("button", name=ASK, exact=True)).to_be_enabled()
    token = page.locator("meta[name=vantage-token]").get_attribute("content")
    with contextlib.ExitStack() as others:
        # other readers, each with a long story: more than are let in
        sockets = [others.enter_context(long_story(studio.port, token)) for _ in range(20)]
        assert refused(sockets), "twenty were let in"
        say(page, ASK)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(re.compile("busy|full|wait", re.IGNORECASE))
        expect(page.get_by_role("button", name="Stop")).to_have_count(0)
        expect(page.get_by_label("Message", exact=True)).to_have_value(ASK)  # nothing that was typed is lost
    alert.get_by_role("button", name="Retry").click()
    answered(page)
    assert tokens(page).count() > 0
    reader.errors.clear()  # the browser notes a 429 by itself


def refused(sockets: list[socket.socket]) -> bool:
    """Whether one is answered with 429. Those that are let in are silent while they wait for their turn."""
    silent, until = list(sockets), time.monotonic() + 60
    while silent and time.monotonic() < until:
        for sock in select.select(silent, (), (), 1)[0]:
            if b" 429 " in sock.recv(64):
                return True
            silent.remove(sock)
    return False


def long_story(port: int, token: str) -> socket.socket:
    """An order for one, on a connection of its own. Closing it ends the work."""
    body = json.dumps({"model": "smollm2", "message": "Tell me a story.", "sampling": {"max_tokens": 2000}}).encode()
    head = f"POST /studio/api/chat HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Vantage-Token: {token}\r\n"
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return sock
