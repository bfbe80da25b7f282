"""Saves the records however the process ends.

It covers normal exit, an uncaught exception, the end of a ``multiprocessing`` child (which skips
``atexit``), and SIGTERM if the program does not handle it. ``os._exit`` and SIGKILL cannot be
intercepted: the line-wise files survive them, and so does a trace whose window has ended.
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

from distprof_probes.own_files import out_of_the_way
from distprof_probes.termination import not_in_children

Finish = Callable[[BaseException | None], None]

PATIENCE_S = 2.0
KEEPING_S = 10.0  # launchers wait 30 s before they kill


def when_it_ends(finish: Finish) -> None:
    """Call ``finish`` when the process ends, with the exception that ended it, if any.

    It may be called more than once. The program's own hooks and handlers stay in force.
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
    """The call of ``finish``. A signal that arrives during the call does not interrupt it."""

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
    """End the process as SIGTERM alone would have; works from any thread."""
    ctypes.CDLL(None).signal(
        int(signal.SIGTERM), 0
    )  # SIG_DFL; Python permits this in the main thread only
    os.kill(os.getpid(), signal.SIGTERM)


def _last_exception() -> BaseException | None:
    """The exception that ended the main program, even if another hook kept it from ours."""
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return last if isinstance(last, BaseException) else None


def _exception_in_flight() -> BaseException | None:
    """The exception that ends a ``multiprocessing`` child, which ends before it is handled.

    Ranks spawned by ``torch.multiprocessing`` turn their exception into ``sys.exit(1)``.
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


def _read(reading: int) -> bytes:
    """The signals that arrive next; nothing if the program closed the pipe."""
    try:
        return os.read(reading, 64)
    except OSError:
        return b""


class _OnTermination:
    """Saves the records on SIGTERM, then lets the signal end the process as it would have.

    A Python handler runs only when the main thread returns to Python, which a thread stuck in a
    collective never does. Therefore the signal also wakes a separate thread, which ends the process
    if the main thread has not answered in time. Except for the time to write, a captured job ends
    no later than it would without capture.
    """

    def __init__(self, end: _End) -> None:
        self._end = end
        self._answered = threading.Event()
        self._pid = os.getpid()

    def install(self) -> None:
        """Handle SIGTERM, unless the program has its own handler or wake-up file."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        reading, writing = (out_of_the_way(number) for number in os.pipe())
        os.set_blocking(writing, False)
        others = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if others != -1:
            signal.set_wakeup_fd(others)
            os.close(reading)
            os.close(writing)
            return
        not_in_children(writing, self._in_main_thread, signal.SIG_DFL)
        threading.Thread(
            target=self._watch, args=(reading,), daemon=True, name="distprof-end"
        ).start()
        signal.signal(signal.SIGTERM, self._in_main_thread)

    def _in_main_thread(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._answered.set()
        is_ours = signal.getsignal(signal.SIGTERM) == self._in_main_thread
        if os.getpid() != self._pid:
            die_of_sigterm()
        elif not is_ours:  # the program has installed its own handler since, which called this one
            self._end(None)
        else:
            self._end.is_terminated = True
            if not self._end.is_running:
                self._end(None)

    def _watch(self, reading: int) -> None:
        while news := _read(reading):
            if signal.SIGTERM in news and not self._answered.wait(PATIENCE_S):
                if signal.getsignal(signal.SIGTERM) != self._in_main_thread:
                    continue
                keeping = threading.Thread(target=self._end, args=(None,), daemon=True)
                keeping.start()
                keeping.join(KEEPING_S)
                die_of_sigterm()
