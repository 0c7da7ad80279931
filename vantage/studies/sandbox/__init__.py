"""Runs code that is not trusted, each file in a process of its own, and calls its functions from outside.

``with CodeSandbox() as sandbox`` starts a process that loads torch once. ``with sandbox.process(name, seconds=…,
memory=…) as process`` forks one for a file: ``process.run_file(source)`` runs it, ``process.call(function, *args)`` and
``process.value(name)`` ask for what it computes. ``ProcessEnded`` is raised when the process is gone or was stopped,
``CodeFailed`` when the code raised. Values go over a socket as JSON (``messages.py``), never as pickles; what the code
may not do is held by the kernel where it can be (``restrictions.py``). ``worker.py`` runs inside and imports nothing of
the library.
"""

from vantage.studies.sandbox.messages import UnknownValue
from vantage.studies.sandbox.process import CodeFailed, ProcessEnded, SandboxProcess
from vantage.studies.sandbox.sandbox import CodeSandbox
from vantage.studies.sandbox.worker import CLOSED_CONNECTION

__all__ = ["CLOSED_CONNECTION", "CodeFailed", "CodeSandbox", "ProcessEnded", "SandboxProcess", "UnknownValue"]
