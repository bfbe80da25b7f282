"""The command line: one file per verb. A command parses and calls; a reporter writes."""

from __future__ import annotations

from distprof.cli.app import main

__all__ = ["main"]
