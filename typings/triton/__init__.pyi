# Triton, for type checkers: it comes with torch for CUDA, is absent elsewhere, and its kernels are no Python that types
# describe. With this the checks say the same on every machine.
from typing import Any

def __getattr__(name: str) -> Any: ...
