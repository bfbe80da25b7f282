"""The end of a rank's process: its error message and exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from distprof.errors import UsageError


def run_and_leave(
    work: Callable[[], None], *, note: Callable[[Exception], None] | None = None
) -> NoReturn:
    """Do a rank's work and exit by ``os._exit``: 0, 1 after an error, 128 + a signal's number.

    gloo's threads may abort an interpreter during its shutdown, after all work is done and written.
    ``note`` is called with an error before the process ends.
    """
    code = 1
    try:
        work()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except SystemExit as leaving:  # on SIGTERM, from a session
        code = leaving.code if isinstance(leaving.code, int) else 1
    except Exception as error:
        code = _say(error)
        if note is not None:
            note(error)
    finally:
        _flush()
        os._exit(code)


def _flush() -> None:
    """Flush the output streams, which may be closed, replaced, or on a full disk."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _say(error: Exception) -> int:
    """Print an error, with its traceback unless it is a usage error; return the exit code."""
    if isinstance(error, UsageError):
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    traceback.print_exception(error)
    return 1
