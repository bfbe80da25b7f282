"""``python -m distprof``: the same as the command ``distprof``."""

from __future__ import annotations

import sys

from distprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
