"""Other processes that want the cores as well."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if others:
            time.sleep(0.5)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
