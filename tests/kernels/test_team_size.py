"""How many threads the native kernels take while other processes want the cores (team_size.h), at given times."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from vantage.kernels.native.build import HERE, CannotBuild, find_compiler

PROGRAM = """
#include "team_size.h"
vantage::TeamSize team;
extern "C" int choose(int wanted, double ms, int idle) {
    return team.choose(wanted, (int64_t)(ms * 1e6), [&] { return idle; });
}
extern "C" int idle_cores() { return vantage::idle_cores(); }
extern "C" void ran(double ms, double elapsed, double lost) {
    team.ran((int64_t)(ms * 1e6), (int64_t)(elapsed * 1e6), (int64_t)(lost * 1e6));
}
"""
Load = Callable[
    [float, int], float
]  # at a time, with so many threads: the share of it in which the caller does not run
UNKNOWN = 2**31 - 1  # how many cores nobody wants


class Machine:
    """Runs of 5 ms, one after another."""

    def __init__(self, library: ctypes.CDLL):
        self._library, self.now = library, 0.0
        library.choose.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_int]
        library.ran.argtypes = [ctypes.c_double] * 3
        library.ran.restype = None
        self.idle_cores = library.idle_cores

    def run(self, wanted: int, ms: float, load: Load, idle: int = UNKNOWN) -> list[int]:
        """How many threads each run had."""
        sizes, end = [], self.now + ms
        while self.now < end:
            sizes.append(self._library.choose(wanted, self.now, idle))
            lost = 5 * load(self.now, sizes[-1])
            self.now += 5
            self._library.ran(self.now, 5, lost)
        return sizes


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    try:
        compiler = find_compiler()
    except CannotBuild as why:
        pytest.skip(str(why))
    source, library = tmp_path / "team.cpp", tmp_path / "team.so"
    source.write_text(PROGRAM)
    subprocess.run([*compiler, "-std=c++17", "-shared", "-fPIC", f"-I{HERE}", "-o", library, source], check=True)
    return Machine(ctypes.CDLL(str(library)))


def test_quiet(machine: Machine):
    assert set(machine.run(8, 5000, lambda now, size: 0.02)) == {8}


def test_one_hiccup_changes_nothing(machine: Machine):
    assert set(machine.run(2, 1000, lambda now, size: 0.8 if now == 500 else 0.0)) == {2}


def test_cores_taken_by_others(machine: Machine):
    sizes = machine.run(2, 5000, lambda now, size: 0.4)  # alone too: nothing is tried while it is held up alone
    assert sizes.count(2) <= 10
    after = machine.run(2, 1000, lambda now, size: 0.0)
    assert after[-1] == 2  # and all are back when the others have gone
    assert after.index(2) * 5 <= 300


def test_nothing_is_tried_while_others_have_every_core(machine: Machine):
    """They may leave the caller a core for a while, and take it back from two threads."""
    machine.run(2, 500, lambda now, size: 0.0)
    others = machine.run(2, 1500, lambda now, size: 0.4 if size == 2 or now % 200 < 100 else 0.0, idle=0)
    assert set(others[10:]) == {1}
    gone = machine.run(2, 500, lambda now, size: 0.0, idle=1)
    assert gone.index(2) * 5 <= 60
    assert set(gone[gone.index(2) :]) == {2}


def test_after_long_it_is_tried_whoever_has_the_cores(machine: Machine):
    """The load may be on cores that are not ours, as in a container."""
    machine.run(2, 500, lambda now, size: 0.6)
    after = machine.run(2, 4000, lambda now, size: 0.0, idle=0)
    assert 1000 <= after.index(2) * 5 <= 1700
    assert after[-1] == 2


def test_as_many_more_as_cores_are_idle(machine: Machine):
    machine.run(8, 2000, lambda now, size: 0.4)
    sizes = machine.run(8, 1000, lambda now, size: 0.0, idle=2)
    assert sizes[-1] == 8
    assert {b - a for a, b in itertools.pairwise(sizes)} <= {0, 1, 2}


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the system does not say what runs")
def test_who_runs_is_counted(machine: Machine):
    """This thread does."""
    assert machine.idle_cores() < (os.cpu_count() or 1)


def test_a_short_disturbance_costs_the_threads_for_a_short_time(machine: Machine):
    """A server answers a client while the next request comes in: that must not compute its prompt with one thread."""
    machine.run(2, 500, lambda now, size: 0.0)
    assert machine.run(2, 30, lambda now, size: 0.6)[-1] == 1
    after = machine.run(2, 500, lambda now, size: 0.0)
    assert after.index(2) * 5 <= 30
    assert set(after[after.index(2) :]) == {2}


def test_one_core_taken_of_several(machine: Machine):
    sizes = machine.run(8, 20000, lambda now, size: 0.4 if size == 8 else 0.0)
    assert sizes[-100:].count(7) >= 95  # with seven nobody waits; eight are tried ever less often
    sizes = machine.run(8, 20000, lambda now, size: 0.4 if size > 3 else 0.0)
    assert sizes[-100:].count(3) >= 90
    assert machine.run(8, 4000, lambda now, size: 0.0)[-1] == 8


def test_another_number_is_wanted(machine: Machine):
    machine.run(4, 1000, lambda now, size: 0.5)
    assert machine.run(2, 5, lambda now, size: 0.0) == [2]
