"""Asks /health again and again from a process of its own, so that nobody's Python but the server's is timed.

``python tests/serve/health.py HOST PORT PAUSE``: a line of two numbers a time, with so many seconds between them, until
its input is closed: the milliseconds that the answer took, and those of a twin, asked in the same moment in the same
way: a process that does nothing but answer. What the twin takes is what the machine alone is to blame for.
"""

import http.client
import socket
import subprocess
import sys
import threading
import time

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nConnection: close\r\n\r\n{" + b'"status":"ok"}'


def twin() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(ANSWER)


def asked(host: str, port: int) -> float:
    """Milliseconds, or a number beyond all bounds where the answer is not 200."""
    began = time.perf_counter()
    connection = http.client.HTTPConnection(host, port, timeout=300)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return 1e3 * (time.perf_counter() - began) if answer.status == 200 else 1e9


def main(host: str, port: int, pause: float) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    command = [sys.executable, __file__, "twin"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as idle:
        try:
            assert idle.stdout is not None
            beside = int(idle.stdout.readline())
            while not over.wait(pause):
                print(asked(host, port), asked("127.0.0.1", beside), flush=True)
        finally:
            idle.kill()


if __name__ == "__main__":
    twin() if sys.argv[1] == "twin" else main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
