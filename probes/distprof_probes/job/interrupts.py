"""Ctrl-C and SIGTERM while a job runs: once for a clean end, twice to end at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from distprof_probes.job.supervise import Supervisor

_ONE_REQUEST_S = 3.0
"""SLURM ends the step and then the job, so SIGTERM arrives twice. Only a repeated Ctrl-C asks for
an immediate end."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interrupted(KeyboardInterrupt):
    """An interruption that Python does not remember once it is caught.

    ``python -m`` ends by SIGINT if a ``KeyboardInterrupt`` proper has left the ``exec`` of a
    string, which many imports contain, even if it was caught.
    """


class Interrupts:
    """Counts interruptions instead of raising them at an arbitrary point of the launcher.

    Use it as a context manager, which restores the previous handlers at its end. Until a rank is
    watched, there is nothing to end cleanly, so an interruption raises ``KeyboardInterrupt``.
    ``say`` gets one line for the user at each interruption.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal: signal.Signals | None = None
        self.has_ranks = False
        self._say = say
        self._count = 0
        self._served = 0
        self._noted_s = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Install the handlers."""
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the previous handlers, and pass on a SIGTERM that ended the block."""
        self.release()
        if isinstance(error, KeyboardInterrupt) and self.signal is signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)

    def release(self) -> None:
        """Restore the handlers now: from here on, interruptions work as in any program."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def install(self) -> None:
        """Install the handlers (again): torch's launcher sets its own when it starts.

        Ignored signals stay ignored: SIGHUP under nohup, SIGINT of a script's background jobs.
        """
        for number in _SIGNALS:
            is_ignored = self._before[number] is signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if is_ignored else self._note)

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects of an interrupted program."""
        return 143 if self.signal is signal.SIGTERM else 130

    def serve(self, supervisor: Supervisor) -> None:
        """Act on the signals since the last call."""
        while self._served < self._count:
            self._served += 1
            if self._served == 1:
                self._say("stopping the ranks; press Ctrl-C again to stop at once")
                supervisor.interrupt()
            else:
                supervisor.kill()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        now_s = time.monotonic()
        is_repeat = self._count > 0 and number != signal.SIGINT
        if is_repeat and now_s - self._noted_s < _ONE_REQUEST_S:
            return
        self._noted_s = now_s
        self.signal = self.signal or signal.Signals(number)
        self._count += 1
        if not self.has_ranks and self._count == 1:
            raise _Interrupted
