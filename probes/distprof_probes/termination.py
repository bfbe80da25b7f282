"""Handles SIGTERM in distprof's own programs: saves records even while the main thread hangs.

Python runs signal handlers in the main thread, between two instructions. A rank that waits for a
dead peer inside gloo or NCCL never reaches that point, and is killed before it can save its
records. A separate thread notices the signal at once, because it reads the wake-up socket.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["Terminated", "close_on_sigterm"]

EXIT_CODE = 128 + signal.SIGTERM
_PATIENCE_S = 2.0  # time for the main thread to exit by itself


class Terminated(SystemExit):
    """Raised in the main thread on SIGTERM, so that ``with`` blocks exit cleanly."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


def close_on_sigterm(close: Callable[[], None], *, patience_s: float = _PATIENCE_S) -> None:
    """End this process cleanly on SIGTERM. Only for a program's own main thread.

    The main thread gets :class:`Terminated`. If it still runs after ``patience_s``, ``close``
    is called from another thread and the process ends with exit code 143.

    Args:
        close: Saves the records, or waits while the main thread does.
        patience_s: Seconds that the main thread may take.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGTERM, _terminate)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(
        target=_wait_for_signal,
        args=(reader, writer, close, patience_s),
        name="distprof-sigterm",
        daemon=True,
    ).start()


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Terminated


def _wait_for_signal(
    reader: socket.socket,
    _writer: socket.socket,  # kept open for the signal handler in C
    close: Callable[[], None],
    patience_s: float,
) -> None:
    while signal.SIGTERM not in reader.recv(64):
        pass
    if not threading.main_thread().is_alive():
        return
    threading.main_thread().join(patience_s)
    close()
    os._exit(EXIT_CODE)
