"""The repeats that ``distprof check`` compares: from what a user names, or made on the spot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.cli.output import note
from distprof.errors import UsageError

if TYPE_CHECKING:
    from distprof.artefacts.sweep_file import SweepFile
    from distprof.verbs.gate.repeats import Sizes

__all__ = [
    "load_sizes",
    "make_repeats",
    "new_place",
    "repeat_until",
]


def load_sizes(sources: Sequence[str]) -> Sizes:
    """Runs as a user names them, by size.

    Raises:
        InputError: If one cannot be read, or as :func:`distprof.verbs.gate.repeats.sizes_of`.
    """
    from distprof.cli.source import summaries_of
    from distprof.verbs.gate.repeats import sizes_of

    return sizes_of(summaries_of(sources))


def make_repeats(text: str, place: Path, *, repeats: int, quiet: bool) -> tuple[SweepFile, int]:
    """Plan runs of a workload and make those that are not done yet.

    Args:
        text: The workload as it was typed, for example ``ddp --ranks 2``.
        place: Folder of the runs; where it holds an interrupted series of them, that goes on.
        repeats: Of each size.
        quiet: Say nothing but what went wrong.

    Returns:
        The series, and the exit code: 0 where all are done.

    Raises:
        InputError: If the folder cannot be read or written.
        UsageError: If the workload, or what lies in the folder, does not fit.
    """
    from distprof.verbs.sweep.plan import parse_workload, plan_workload
    from distprof.verbs.sweep.running import configuration_of

    try:
        workload, device, sizes, arguments = parse_workload(text)
    except ValueError as error:  # a quotation that does not end
        raise UsageError(f"--run {text!r}: {str(error)[:1].lower()}{str(error)[1:]}") from error
    planned = plan_workload(
        workload,
        sizes,
        arguments,
        repeats=repeats,
        scaling="weak",
        device=device,
        configuration=configuration_of,
    )
    sweep = _taken_up(place, planned)
    return sweep, _made(place, sweep, quiet=quiet)


def repeat_until(
    decided: Callable[[], int],
    place: Path,
    sweep: SweepFile,
    *,
    most: int,
    quiet: bool,
) -> int:
    """Make more repeats as long as they may decide something; returns the exit code.

    Args:
        decided: Looks at the runs in the folder: how many more it takes, 0 for none.
        place: Folder of the runs.
        sweep: Those that are done.
        most: Repeats of each size, at most.
        quiet: Say nothing but what went wrong.
    """
    from distprof.verbs.sweep.plan import with_more_repeats

    repeats = _repeats(sweep)
    while repeats < most:
        needed = decided()
        if not needed:
            return 0
        note(f"Not decided with {repeats} repeats: {needed} more may do it", quiet=quiet)
        sweep = with_more_repeats(sweep, min(needed, most - repeats))
        repeats = _repeats(sweep)
        code = _made(place, sweep, quiet=quiet)
        if code:
            return code
    return 0


def new_place() -> Path:
    """Where runs are kept unless told."""
    return Path("runs", f"check-{time.strftime('%Y%m%d-%H%M%S')}")


def _repeats(sweep: SweepFile) -> int:
    return max(run.repeat for run in sweep.runs) + 1


def _made(place: Path, sweep: SweepFile, *, quiet: bool) -> int:
    from distprof.cli.making import make_sweep

    again = f"to go on, repeat the command with --sweep {place}"
    return make_sweep(place, sweep, again=again, quiet=quiet)


def _taken_up(place: Path, planned: SweepFile) -> SweepFile:
    """The series that was begun in the folder, if it is this one; it may have more repeats."""
    from distprof.verbs.sweep.running import load_sweep

    found = load_sweep(place) if place.is_dir() else None
    if found is None:
        if place.is_dir() and any(place.iterdir()):
            raise UsageError(
                f"{place} holds something else than runs of a check: name a new folder"
            )
        return planned
    count = len(planned.runs)
    if [run.arguments for run in found.runs[:count]] == [run.arguments for run in planned.runs]:
        return found
    raise UsageError(
        f"{place} holds runs of another workload, or with other options: name a new folder"
    )
