"""The files that a session writes about itself, kept from ever stopping it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from distprof.artefacts.run_file import Outcome, Overhead, ProbeStatus
from distprof_probes.environment import Placement
from distprof_probes.options import ProbeOptions
from distprof_probes.rank_file import (
    Mesh,
    conclude_run_file,
    start_run_file,
    write_error_file,
    write_rank_file,
)
from distprof_probes.termination import Terminated

__all__ = ["SessionFiles", "outcome_of"]

_log = logging.getLogger("distprof.probes")


class SessionFiles:
    """Writes rank.json, error.json, and run.json where no launcher did.

    Args:
        run_dir: The run directory.
        rank_dir: This rank's directory in it.
        place: Where this rank runs.
        mesh: Sizes and coordinates.
        started_ns: Start of the session, ns since the epoch.
    """

    def __init__(
        self, run_dir: Path, rank_dir: Path, place: Placement, mesh: Mesh, started_ns: int
    ) -> None:
        self._run_dir = run_dir
        self._rank_dir = rank_dir
        self._place = place
        self._mesh = mesh
        self._started_ns = started_ns
        self._owns_run_file = False
        self._notes: dict[str, None] = {}

    def note(self, text: str) -> None:
        """Add a sentence to rank.json; the same one is kept once."""
        self._notes[text] = None

    def begin(self, options: ProbeOptions, probes: tuple[ProbeStatus, ...]) -> None:
        """Write what is known at the start."""
        try:
            if self._place.rank == 0:
                self._owns_run_file = start_run_file(
                    self._run_dir, self._place, self._mesh, options, self._started_ns
                )
            self._write_rank_file(probes, (), None)
        except OSError as error:
            self.note(f"not all files could be written: {error.strerror}")

    def error(self, error: BaseException, last_step: int) -> None:
        """Write why training stopped; ``last_step`` is negative before the first was over."""
        try:
            write_error_file(
                self._rank_dir, self._place.rank, error, last_step if last_step >= 0 else None
            )
        except OSError as failure:
            self.note(f"error.json could not be written: {failure.strerror}")

    def end(
        self,
        outcome: Outcome,
        probes: tuple[ProbeStatus, ...],
        overhead: tuple[Overhead, ...],
        ended_ns: int,
    ) -> None:
        """Write what is known at the end."""
        try:
            self._write_rank_file(probes, overhead, ended_ns)
            if self._owns_run_file:
                conclude_run_file(self._run_dir, outcome, ended_ns)
        except (OSError, msgspec.MsgspecError) as failure:
            _log.warning("distprof: %s is incomplete: %s", self._run_dir, failure)

    def _write_rank_file(
        self,
        probes: tuple[ProbeStatus, ...],
        overhead: tuple[Overhead, ...],
        ended_ns: int | None,
    ) -> None:
        write_rank_file(
            self._rank_dir,
            self._place,
            self._mesh,
            started_ns=self._started_ns,
            ended_ns=ended_ns,
            probes=probes,
            overhead=overhead,
            notes=tuple(self._notes),
        )


def outcome_of(error: BaseException | None) -> Outcome:
    """What the reason for which training ended makes of the run.

    Args:
        error: What left the session's ``with`` block; None when nothing did.
    """
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "interrupted"
    if isinstance(error, SystemExit):
        return "completed" if error.code in (None, 0) else "failed"
    return "failed" if isinstance(error, Exception) else "completed"
