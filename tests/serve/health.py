"""Asks /health again and again from a process of its own, so that nobody's Python but the server's is timed.

``python tests/serve/health.py HOST PORT``: a line of two numbers a time, until its input is closed: the milliseconds
that the answer took, and by how many this process woke up too late, which is what the machine alone is to blame for.
"""

import http.client
import sys
import threading
import time

over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
PAUSE = 0.1
asleep = time.perf_counter()
while not over.wait(PAUSE):
    began = time.perf_counter()
    late = 1e3 * (began - asleep - PAUSE)
    connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=30)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    asleep = time.perf_counter()
    print(1e3 * (asleep - began) if answer.status == 200 else 1e9, late, flush=True)
