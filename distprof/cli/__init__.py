"""The command line: one file per verb. Commands parse options and call; reporters write."""

from __future__ import annotations

from distprof.cli.app import main

__all__ = ["main"]
