"""Make the runs of a sweep for a user who watches: what is said on the way and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distprof.cli.app import ExitCode
from distprof.cli.output import note
from distprof.errors import UsageError

if TYPE_CHECKING:
    from distprof.artefacts.sweep_file import SweepFile

__all__ = ["RUN_FAILED", "make_sweep"]

RUN_FAILED = 4
"""Exit code where a run failed; what is done stays."""


def make_sweep(place: Path, sweep: SweepFile, *, again: str, quiet: bool) -> int:
    """Make every run that is not done; returns the exit code, 0 where all are done.

    Args:
        place: Folder of the sweep, made where it is missing.
        sweep: Its plan.
        again: How the user goes on after an interruption, for people.
        quiet: Say nothing but what went wrong.

    Raises:
        UsageError: If the folder cannot be made.
    """
    from distprof.sweep.running import load_sweep, make_runs

    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{place} cannot be made: {error.strerror}") from error
    note(f"{len(sweep.runs)} runs in {place}", quiet=quiet)
    try:
        outcome = make_runs(place, sweep, say=lambda text: note(text, quiet=quiet))
    except KeyboardInterrupt:
        done = load_sweep(place)
        count = sum(run.state == "done" for run in done.runs) if done else 0
        note(f"Interrupted: {count} of {len(sweep.runs)} runs are done; {again}")
        return ExitCode.INTERRUPTED
    if not outcome.exit_code:
        return ExitCode.FINE
    note(
        f"{outcome.num_done} of {len(sweep.runs)} runs are done; one ended with "
        f"{outcome.exit_code}:"
    )
    for line in outcome.why.splitlines():
        note(f"  {line}")
    note(again)
    return RUN_FAILED
