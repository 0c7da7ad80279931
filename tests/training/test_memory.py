"""Freed memory stays while a model trains, and not afterwards. Seen from a process of its own: it is the process's."""

import json
import os
import platform
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest

from vantage.training.memory import MALLOC_VARIABLES

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's memory")


def told(code: str, **env: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if name not in MALLOC_VARIABLES}
    start = """
        import contextlib, ctypes, json, resource, torch
        from vantage.training.memory import keep_freed_memory
        torch.set_num_threads(1)
        cpu = torch.device("cpu")
        """
    done = subprocess.run(
        [sys.executable, "-c", dedent(start) + dedent(code)], env=kept | env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


FAULTS = """
    ctypes.CDLL(None).mallopt(-3, 131072)  # as glibc begins; it would go on by chance

    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def step():  # blocks that live side by side and end in turn, as activations do
        blocks = [torch.ones(300_000 + 50_000 * i) for i in range(12)]
        while blocks:
            blocks.pop()

    def counted():
        for _ in range(3):
            step()
        before = faults()
        for _ in range(5):
            step()
        return faults() - before
    """


def test_blocks_are_taken_again_and_not_asked_for_anew():
    found = told(
        dedent(FAULTS)
        + dedent("""
            with keep_freed_memory(torch.device("cuda")):
                gpu = counted()
            with keep_freed_memory(cpu):
                kept = counted()
            print(json.dumps([gpu, kept]))
            """)
    )
    gpu, kept = found
    assert gpu > 5000  # 5 x 28 MB in pages of 4 KiB are 34,000
    assert kept < gpu / 50


def test_what_the_environment_chose_stays():
    found = told(dedent(FAULTS) + "with keep_freed_memory(cpu): print(counted())", MALLOC_MMAP_THRESHOLD_="131072")
    assert found > 5000


@pytest.mark.sampled
def test_it_is_given_back_at_the_end_of_the_outermost():
    found = told("""
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

        def use():
            blocks = [torch.ones(4_000_000) for _ in range(10)]

        use()
        seen = []
        with keep_freed_memory(cpu):
            before = resident()
            with contextlib.suppress(ValueError), keep_freed_memory(cpu):
                use()
                raise ValueError
            seen.append(resident() - before)
        seen.append(resident() - before)
        print(json.dumps(seen))
        """)
    kept, after = found
    assert kept > 100e6
    assert after < 30e6
