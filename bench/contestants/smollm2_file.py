"""Where `vantage pull smollm2` put the file."""

import os
from pathlib import Path


def default_file() -> str:
    home = Path(os.environ.get("VANTAGE_HOME") or Path.home() / ".cache" / "vantage")
    return str(next((home / "models" / "smollm2").glob("*.gguf")))
