"""Handles SIGTERM in distprof's own programs: saves records even while the main thread hangs.

Python runs signal handlers in the main thread, between two instructions. A rank that waits for a
dead peer inside gloo or NCCL never reaches that point, and is killed before it can save its
records. A separate thread notices the signal at once, because it reads the wake-up socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_CODE = 128 + signal.SIGTERM
_PATIENCE_S = 2.0  # time for the main thread to exit by itself


class Terminated(SystemExit):
    """Raised in the main thread on SIGTERM, so that ``with`` blocks exit cleanly."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


def close_on_sigterm(close: Callable[[], None], *, patience_s: float = _PATIENCE_S) -> None:
    """End this process cleanly on SIGTERM. Only for a program's own main thread.

    The main thread gets :class:`Terminated`. If it still runs after ``patience_s``, ``close``,
    which saves the records, is called from another thread and the process ends with exit code 143.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.signal(signal.SIGTERM, _terminate)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    not_in_children(writer.fileno(), _terminate, before)
    threading.Thread(
        target=_wait_for_signal,
        args=(reader, writer, close, patience_s),
        name="distprof-sigterm",
        daemon=True,
    ).start()


class _Children:
    """Gives forked children the signal handling that they would have without distprof.

    A child shares the wake-up file, so terminating a helper process would look like the end of this
    one. SIGTERM is blocked around the fork, because Python drops signals that reach a child before
    it is ready.
    """

    def __init__(self, wakeup: int, handler: object, before: Any) -> None:
        self._wakeup, self._handler, self._before = wakeup, handler, before
        self._here = threading.local()

    def about_to_fork(self) -> None:
        """Block SIGTERM in the thread that forks."""
        self._here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def go_on(self) -> None:
        """In the parent: restore the signal mask."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._here.mask)

    def begin(self) -> None:
        """In the child: drop the parent's wake-up file and handler."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            current = signal.set_wakeup_fd(-1)
            if current not in (-1, self._wakeup):
                signal.set_wakeup_fd(current)
            if signal.getsignal(signal.SIGTERM) == self._handler:
                signal.signal(signal.SIGTERM, self._before)
        self.go_on()


def not_in_children(wakeup: int, handler: object, before: Any) -> None:
    """Keep the parent's signal handling (wake-up file, handler) out of forked children."""
    children = _Children(wakeup, handler, before)
    os.register_at_fork(
        before=children.about_to_fork,
        after_in_parent=children.go_on,
        after_in_child=children.begin,
    )


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore further ones
    raise Terminated


def _is_ours() -> bool:
    """Whether the program has not set its own handler since."""
    return signal.getsignal(signal.SIGTERM) in (_terminate, signal.SIG_IGN)


def _wait_for_signal(
    reader: socket.socket,
    _writer: socket.socket,  # kept open for the signal handler in C
    close: Callable[[], None],
    patience_s: float,
) -> None:
    while signal.SIGTERM not in reader.recv(64) or not _is_ours():
        pass
    if not threading.main_thread().is_alive():
        return
    threading.main_thread().join(patience_s)
    close()
    os._exit(EXIT_CODE)
