"""Weights and caches in pages of 2 MiB, some time after they were written."""

import re
import sys
import time
from pathlib import Path

import pytest
import torch

from vantage.kernels.native import huge_pages
from vantage.kernels.native.huge_pages import HUGE_PAGE, PageExchange, use_huge_pages_later, wait_for_huge_pages

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has them")


def in_huge_pages(memory: torch.Tensor) -> int:
    """Bytes, by what the system says of this memory."""
    held, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            low, high = (int(x, 16) for x in span.groups())
            inside = low < memory.data_ptr() + memory.nbytes and memory.data_ptr() < high
        elif inside and line.startswith("AnonHugePages:"):
            held += 1024 * int(line.split()[1])
    return held


@pytest.mark.skipif(not SWITCH.exists() or "[never]" in SWITCH.read_text(), reason="this system gives none")
def test_pages_are_exchanged_and_hold_what_they_held(monkeypatch):
    monkeypatch.setattr(huge_pages, "IDLE_S", 0.05)
    memory = torch.arange(5 * HUGE_PAGE // 4, dtype=torch.int32)
    if not huge_pages._advise(-(-memory.data_ptr() // HUGE_PAGE) * HUGE_PAGE, HUGE_PAGE, huge_pages.COLLAPSE):
        pytest.skip("this Linux cannot do it on request")
    use_huge_pages_later(memory)
    wait_for_huge_pages()
    assert in_huge_pages(memory) >= 3 * HUGE_PAGE
    assert torch.equal(memory, torch.arange(len(memory), dtype=torch.int32))


def test_it_waits_until_nothing_has_come_for_a_while(monkeypatch):
    asked = []
    monkeypatch.setattr(huge_pages, "IDLE_S", 0.2)
    monkeypatch.setattr(huge_pages, "_advise", lambda *what: asked.append((time.monotonic(), *what)) or True)
    exchange = PageExchange()
    begun = time.monotonic()
    exchange.add(0, 2 * HUGE_PAGE)
    time.sleep(0.1)
    exchange.add(4 * HUGE_PAGE, HUGE_PAGE)
    thread = exchange.thread
    assert thread is not None
    thread.join(30)
    assert [at for _, at, *_ in asked] == [0, HUGE_PAGE, 4 * HUGE_PAGE]
    assert asked[0][0] - begun >= 0.3
    assert exchange.thread is None  # and another one begins with what comes next


def test_memory_that_is_gone_or_too_small_is_let_be(monkeypatch):
    exchange = PageExchange()
    monkeypatch.setattr(huge_pages, "_exchange", exchange)
    use_huge_pages_later(torch.empty(1000))
    assert exchange.thread is None  # nothing to do
    assert not huge_pages._advise(HUGE_PAGE, HUGE_PAGE, huge_pages.COLLAPSE)  # nobody's


def test_tensors_side_by_side_count_as_one(monkeypatch):
    added = []
    monkeypatch.setattr(PageExchange, "add", lambda self, begin, length: added.append((begin, length)))
    memory, half = torch.zeros(6 * HUGE_PAGE, dtype=torch.uint8), HUGE_PAGE // 2
    first = -memory.data_ptr() % HUGE_PAGE + half  # in the middle of a huge page
    whole = memory[first + half :].data_ptr()

    def part(begin: int, end: int) -> torch.Tensor:
        return memory[first + begin : first + end]

    use_huge_pages_later(part(3 * half + 64, 5 * half), part(0, 3 * half))  # in any order; an allocator's 64 bytes
    assert added == [(whole, 2 * HUGE_PAGE)]
    added.clear()
    use_huge_pages_later(part(0, half), part(2 * half, 3 * half))  # others' memory is in between
    assert not added
