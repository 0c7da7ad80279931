"""Which kernels a wheel carries, and its tag: hatchling asks here while it builds one.

``VANTAGE_WHEEL`` names a machine (``x86_64``, ``aarch64``): the wheel carries the kernels built ahead for it and is
tagged for Linux with glibc 2.28. ``none``: it carries none and is for every machine. Without the variable a wheel
carries what `make kernels` has left and is for every machine: the libraries are only opened where they fit.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILT = "/vantage/kernels/native/built"
LIBC = "manylinux_2_28"


class WheelHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        machine = os.environ.get("VANTAGE_WHEEL", "")
        if not machine:
            build_data["artifacts"].append(BUILT)
        elif machine != "none":
            build_data["artifacts"].append(f"{BUILT}/{machine}-*.so")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{LIBC}_{machine}"
