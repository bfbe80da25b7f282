"""Every way a program's process may end, so that what was recorded is kept.

At exit, at an exception nobody caught, at the end of a ``multiprocessing`` child (which skips
``atexit``), and at SIGTERM where the program leaves that to the system. Nothing helps against
``os._exit`` and SIGKILL: of those the line-wise files are kept, and a trace whose window had ended.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["Finish", "when_it_ends"]

Finish = Callable[[BaseException | None], None]

PATIENCE_S = 2.0
KEEPING_S = 10.0  # launchers wait 30 s before they kill


def when_it_ends(finish: Finish) -> None:
    """Have ``finish`` called once the process ends, with the exception that ended it, if any.

    It may be called more than once. What the program set up itself stays in force.
    """
    end = _End(finish)
    _at_exception(end)
    atexit.register(lambda: end(_last_exception()))
    if multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, lambda: end(_exception_in_flight()), exitpriority=10)
    if threading.current_thread() is threading.main_thread():
        _OnTermination(end).install()


class _End:
    """The call of ``finish``, which a signal may meet half-way: it is then let come to its end."""

    def __init__(self, finish: Finish) -> None:
        self._finish = finish
        self._depth = 0
        self.is_terminated = False

    def __call__(self, error: BaseException | None) -> None:
        self._depth += 1
        try:
            self._finish(error)
        finally:
            self._depth -= 1
        if self.is_terminated and not self.is_running:
            die_of_sigterm()

    @property
    def is_running(self) -> bool:
        return self._depth > 0


def die_of_sigterm() -> None:
    """End as the signal alone would have ended the process; from any thread."""
    ctypes.CDLL(None).signal(
        int(signal.SIGTERM), 0
    )  # SIG_DFL; Python allows it the main thread only
    os.kill(os.getpid(), signal.SIGTERM)


def _last_exception() -> BaseException | None:
    """The exception that ended the main program: also where another hook hid it from ours."""
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return last if isinstance(last, BaseException) else None


def _exception_in_flight() -> BaseException | None:
    """What ends a ``multiprocessing`` child, whose end runs before the exception is handled.

    Ranks that ``torch.multiprocessing`` spawns turn theirs into ``sys.exit(1)``.
    """
    error = sys.exception()
    return error.__context__ if isinstance(error, SystemExit) and error.code else error


def _at_exception(finish: Finish) -> None:
    before = sys.excepthook

    def keep_and_go_on(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        finish(error)

    sys.excepthook = keep_and_go_on


class _OnTermination:
    """Keeps the evidence at SIGTERM, then lets the process end by that signal as it would have.

    A Python handler waits for the main thread to come back to Python, which a thread stuck in a
    collective never does: so a thread of our own is woken by the signal too, and ends the process
    if the main thread has not answered in time. A captured job dies no later than it would alone,
    save for the writing.
    """

    def __init__(self, end: _End) -> None:
        self._end = end
        self._answered = threading.Event()
        self._pid = os.getpid()

    def install(self) -> None:
        """Take SIGTERM, unless the program has a handler or a wake-up file of its own."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            os.close(reading)
            os.close(writing)
            return
        threading.Thread(
            target=self._watch, args=(reading,), daemon=True, name="distprof-end"
        ).start()
        signal.signal(signal.SIGTERM, self._in_main_thread)

    def _in_main_thread(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._answered.set()
        is_ours = signal.getsignal(signal.SIGTERM) == self._in_main_thread
        if os.getpid() != self._pid:
            die_of_sigterm()
        elif not is_ours:  # the program has its own handler by now, which called this one
            self._end(None)
        else:
            self._end.is_terminated = True
            if not self._end.is_running:
                self._end(None)

    def _watch(self, reading: int) -> None:
        while news := os.read(reading, 64):
            if signal.SIGTERM in news and not self._answered.wait(PATIENCE_S):
                if signal.getsignal(signal.SIGTERM) != self._in_main_thread:
                    continue
                keeping = threading.Thread(target=self._end, args=(None,), daemon=True)
                keeping.start()
                keeping.join(KEEPING_S)
                die_of_sigterm()
