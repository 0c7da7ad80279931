"""``python -m vantage`` is ``vantage``."""

import sys

from vantage.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
