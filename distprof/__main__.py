"""``python -m distprof``: same as the ``distprof`` command."""

from __future__ import annotations

import sys

from distprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
