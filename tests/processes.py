"""Processes that a test starts by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr

__all__ = ["ended"]


@contextmanager
def ended(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """A process that is killed at the end of the block, if it still runs.

    ``with process`` alone waits for it without a limit: what hangs would hang the tests.
    """
    with process:
        try:
            yield process
        finally:
            process.kill()
