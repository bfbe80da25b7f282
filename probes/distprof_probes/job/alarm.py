"""Alerts all launchers of a job when a rank fails.

The ranks find out by themselves, but late: NCCL waits for its timeout, and a rank that hangs makes
only the others fail. A file in the run directory is faster, and needs no connection that could be
lost. If hosts do not share the folder, each ends its own ranks without it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from distprof.errors import InputError
from distprof_probes.job.directory import read_run_file
from distprof_probes.job.supervise import Phase, Supervisor

ANSWER_S = 15.0
"""Time after the alarm within which running launchers end their ranks and write exit.json."""

_LISTEN_EVERY_S = 1.0
_LOOK_S = 0.1
_REPORT_S = 300.0


@dataclass(slots=True)
class Alarm:
    """A file that exists from the first trouble until the first launcher has finished the job."""

    run_dir: Path  # The run directory.
    _listened_s: float = field(default=-_LISTEN_EVERY_S, init=False)
    _has_rung: bool = field(default=False, init=False)

    @property
    def _file(self) -> Path:
        return self.run_dir / ".trouble"

    def serve(self, supervisor: Supervisor) -> None:
        """Report local trouble to the other launchers, and theirs to the supervisor."""
        if supervisor.phase is not Phase.RUNNING:
            if not (self._has_rung or supervisor.is_sound or supervisor.is_interrupted):
                self.ring()
            return
        now_s = time.monotonic()
        if now_s - self._listened_s >= _LISTEN_EVERY_S:
            self._listened_s = now_s
            if self.is_ringing:
                supervisor.remote_failure()

    @property
    def is_ringing(self) -> bool:
        """Whether any launcher has seen trouble."""
        return self._file.exists()

    def ring(self) -> None:
        """Alert the other launchers, unless the job is complete."""
        self._has_rung = True
        if self._is_running():
            try:
                self._file.touch()
            except OSError:  # a full disk: the others find out by themselves
                return

    def silence(self) -> None:
        """The first launcher has finished, so the others need not wait."""
        self._file.unlink(missing_ok=True)

    def wait_for_the_end(self, *, conclude_s: float = 2 * ANSWER_S) -> None:
        """Wait until the first launcher has completed run.json and reported.

        mpirun and torchrun end all processes as soon as one fails, including the one that reports.
        So a failed launcher stays until the report is complete, but no longer than ``conclude_s``
        for run.json.
        """
        started_s = time.monotonic()
        while self.is_ringing:
            limit_s = conclude_s if self._is_running() else _REPORT_S
            if time.monotonic() - started_s > limit_s:
                return
            time.sleep(_LOOK_S)

    def _is_running(self) -> bool:
        try:
            return read_run_file(self.run_dir).outcome == "running"
        except InputError:
            return False
