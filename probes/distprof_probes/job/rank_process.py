"""Starts a rank's process: redirects its output, and ties its life to the launcher's.

The launcher runs this file, which replaces itself with the rank's program. It imports only the
standard library for a quick start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # Linux, prctl(2)


def command(run_dir: Path, program: Sequence[str]) -> list[str]:
    """The command that runs ``program`` as a rank of the calling process.

    Both output streams, in order, go to ``output.log`` in the directory of the rank that the
    environment variable RANK names.
    """
    from distprof.artefacts import OUTPUT_FILE, RANK_DIR_FORMAT

    output = f"{RANK_DIR_FORMAT}/{OUTPUT_FILE}"
    return [sys.executable, "-S", __file__, str(run_dir), output, str(os.getpid()), *program]


def _become(run_dir: str, output: str, launcher: int, program: list[str]) -> None:
    _end_with(launcher)
    file = Path(run_dir, output.format(rank=int(os.environ["RANK"])))
    file.parent.mkdir(parents=True, exist_ok=True)
    stream = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.execvp(program[0], program)


def _end_with(launcher: int) -> None:
    """Ask the kernel for SIGTERM when the launcher ends for any reason; survives exec."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    except (OSError, AttributeError):  # not Linux: ranks then outlive a killed launcher
        return
    if os.getppid() != launcher:  # it ended before the request
        sys.exit(1)


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
