"""The repeats that ``distprof check`` compares: from what a user names, or made on the spot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from distprof.cli.output import note
from distprof.errors import InputError, UsageError

if TYPE_CHECKING:
    from distprof.artefacts.baseline_file import BaselineFile, BaselineSession
    from distprof.artefacts.summary_file import SummaryFile
    from distprof.artefacts.sweep_file import SweepFile

__all__ = [
    "Sizes",
    "are_in_turns",
    "baseline_of",
    "load_sizes",
    "make_repeats",
    "new_place",
    "repeat_until",
    "session_of_sizes",
    "sizes_of",
]

Runs: TypeAlias = "tuple[SummaryFile, ...]"
Sizes: TypeAlias = tuple[Runs, Runs]
"""Runs of the smaller size, none where there is one; and of the larger, which is guarded."""


def load_sizes(sources: Sequence[str]) -> Sizes:
    """Runs as a user names them, by size.

    Raises:
        InputError: If one cannot be read, or as :func:`sizes_of`.
    """
    from distprof.cli.source import summaries_of

    return sizes_of(summaries_of(sources))


def sizes_of(runs: Runs) -> Sizes:
    """Runs by size.

    Raises:
        InputError: If runs have no steps, come twice, or have more than two sizes.
    """
    without = next((run.source for run in runs if not run.step_ns), None)
    if not runs or without is not None:
        raise InputError(
            without or "the runs",
            expected="repeats with steps",
            found="a run without any" if runs else "no run at all",
            fix="check repeats of the same job, for example those of distprof check --run",
        )
    _refuse_twice(runs)
    sizes = sorted({run.fingerprint.world_size or 0 for run in runs})
    if len(sizes) > 2:
        raise InputError(
            ", ".join(run.source for run in runs[:3]),
            expected="repeats of one size, or of two for the scaling efficiency",
            found=f"runs on {', '.join(map(str, sizes))} ranks",
            fix="name runs of two sizes; distprof scale looks at more",
        )
    large = tuple(run for run in runs if (run.fingerprint.world_size or 0) == sizes[-1])
    return tuple(run for run in runs if run not in large), large


def _refuse_twice(runs: Runs) -> None:
    """A run that counts twice would make chance look smaller than it is."""
    seen: dict[tuple[int, ...], str] = {}
    for run in runs:
        if len(run.step_ns) < 2:  # a row of a table: figures may well be the same
            continue
        key = (run.created_ns, *run.step_ns)
        if key in seen:
            raise InputError(
                run.source,
                expected="every run once",
                found=f"the run of {seen[key]} again",
                fix="name each run, or the folder that holds it, once",
            )
        seen[key] = run.source


def session_of_sizes(sizes: Sizes) -> BaselineSession:
    """The repeats as one session.

    Raises:
        InputError: If they are unlike each other.
    """
    from distprof.verbs.gate.baseline import session_of

    try:
        return session_of(sizes[1], sizes[0])
    except ValueError as error:
        raise _unlike(sizes, error) from error


def baseline_of(sizes: Sizes) -> BaselineFile:
    """The repeats as a baseline of one session, to compare others with.

    Raises:
        InputError: If they are unlike each other.
    """
    from distprof.verbs.gate.baseline import make_baseline
    from distprof.version import __version__

    try:
        return make_baseline(sizes[1], sizes[0], distprof_version=__version__)
    except ValueError as error:
        raise _unlike(sizes, error) from error


def _unlike(sizes: Sizes, error: ValueError) -> InputError:
    return InputError(
        ", ".join(run.source for run in sizes[1][:3]),
        expected="repeats of the same run",
        found=str(error),
        fix="check runs of one job on one machine at a time",
    )


def are_in_turns(first: Runs, second: Runs) -> bool:
    """Whether runs of both sides ended one by one in pairs, as what drifts cancels only so."""
    if len(first) != len(second):
        return False
    ended = sorted([(run.created_ns, 0) for run in first] + [(run.created_ns, 1) for run in second])
    sides = [side for _, side in ended]
    is_known = len({at for at, _ in ended}) == len(ended)
    return is_known and all(a != b for a, b in zip(sides[::2], sides[1::2], strict=True))


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
