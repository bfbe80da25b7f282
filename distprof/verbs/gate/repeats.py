"""Collects the repeats that a check compares, and checks that they are comparable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from distprof.artefacts.summary_file import (
    BaselineFile,
    BaselineSession,
    Fingerprint,
    SummaryFile,
    SweepFile,
)
from distprof.config import CheckConfig
from distprof.errors import InputError, UsageError
from distprof.run.fingerprint import flat_config
from distprof.verbs.gate.baseline import (
    make_baseline,
    session_of,
    unlike_baseline,
    unlike_job,
)
from distprof.verbs.gate.check import CheckResult, judge
from distprof.verbs.gate.decide import ALPHA
from distprof.verbs.sweep.plan import parse_workload, plan_workload
from distprof.verbs.sweep.running import configuration_of, load_sweep

Runs: TypeAlias = tuple[SummaryFile, ...]
Sizes: TypeAlias = tuple[Runs, Runs]
"""Runs of the smaller size (empty if there is only one size), and of the larger, guarded size."""


def sizes_of(runs: Runs) -> Sizes:
    """Group runs by size; InputError if they have no steps, occur twice, or have over two sizes."""
    without = next((run.source for run in runs if not run.step_ns), None)
    if not runs or without is not None:
        raise InputError(
            without or "the runs",
            expected="repeats with steps",
            found="a run without steps" if runs else "no run",
            fix="check repeats of the same job, for example those of distprof check --run",
        )
    _reject_duplicates(runs)
    sizes = sorted({run.fingerprint.world_size or 0 for run in runs})
    if len(sizes) > 2:
        raise InputError(
            ", ".join(run.source for run in runs[:3]),
            expected="repeats of one size, or of two for the scaling efficiency",
            found=f"runs on {', '.join(map(str, sizes))} ranks",
            fix="name runs of two sizes; for more sizes use distprof scale",
        )
    large = tuple(run for run in runs if (run.fingerprint.world_size or 0) == sizes[-1])
    return tuple(run for run in runs if run not in large), large


def _reject_duplicates(runs: Runs) -> None:
    """Reject a run that is named twice: it would make the noise look smaller than it is."""
    seen: dict[tuple[int, ...], str] = {}
    for run in runs:
        if len(run.step_ns) < 2:  # a row of a table: equal figures are possible
            continue
        key = (run.created_ns, *run.step_ns)
        if key in seen:
            raise InputError(
                run.source,
                expected="every run once",
                found=f"the same run as {seen[key]}",
                fix="name each run, or its folder, only once",
            )
        seen[key] = run.source


def session_of_sizes(sizes: Sizes) -> BaselineSession:
    """The repeats as one session; InputError if they are not repeats of the same run."""
    try:
        return session_of(sizes[1], sizes[0])
    except ValueError as error:
        raise _not_repeats(sizes, error) from error


def baseline_of(sizes: Sizes) -> BaselineFile:
    """The repeats as a baseline with one session, to compare other runs with."""
    try:
        return make_baseline(sizes[1], sizes[0])
    except ValueError as error:
        raise _not_repeats(sizes, error) from error


def _not_repeats(sizes: Sizes, error: ValueError) -> InputError:
    return InputError(
        ", ".join(run.source for run in sizes[1][:3]),
        expected="repeats of the same run",
        found=str(error),
        fix="check runs of one job on one machine at a time",
    )


def are_alternating(first: Runs, second: Runs) -> bool:
    """Whether the runs of both sides ended in alternating pairs: only then does drift cancel."""
    if len(first) != len(second):
        return False
    ended = sorted([(run.created_ns, 0) for run in first] + [(run.created_ns, 1) for run in second])
    sides = [side for _, side in ended]
    is_known = len({at for at, _ in ended}) == len(ended)
    return is_known and all(a != b for a, b in zip(sides[::2], sides[1::2], strict=True))


def judge_runs(
    sizes: Sizes,
    against: BaselineFile | Sizes,
    *,
    source: str,
    settings: CheckConfig,
    alpha: float = ALPHA,
    allow_unlike: bool = False,
) -> CheckResult:
    """Compare runs with a baseline, or with other runs; InputError if they are not comparable.

    Other runs count as pairs if both sides were measured alternately; otherwise a note says that
    they were not.
    """
    others = None if isinstance(against, BaselineFile) else against
    baseline = against if isinstance(against, BaselineFile) else baseline_of(against)
    is_paired = others is not None and are_alternating(others[1], sizes[1])
    result = judge(
        baseline,
        session_of_sizes(sizes),
        source=source,
        fingerprint=sizes[1][-1].fingerprint,
        now_ns=time.time_ns(),
        settings=settings,
        alpha=alpha,
        is_paired=is_paired,
        unlike=_differences(source, baseline, sizes, allow=allow_unlike),
    )
    return result if is_paired or others is None else _with_drift_note(result)


def _differences(
    source: str, baseline: BaselineFile, sizes: Sizes, *, allow: bool
) -> tuple[str, ...]:
    """Differences that were allowed."""
    found = unlike_baseline(baseline, sizes[1], sizes[0])
    if found and not allow:
        raise _unlike_error(source, found)
    return found


def _unlike_error(source: str, found: tuple[str, ...]) -> InputError:
    more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
    return InputError(
        source,
        expected="a baseline of the same hardware, job and software",
        found="; ".join(found[:4]) + more,
        fix="create a baseline here (--update-baseline with a new FILE), or use --allow-unlike",
    )


def refuse_unlike_plan(sweep: SweepFile, baseline: BaselineFile, source: str) -> None:
    """Before the first run, reject a plan whose runs cannot be comparable with a baseline.

    Facts that only a run shows (GPU, versions, variables) are compared when the runs are judged.
    """
    sizes = sorted({run.ranks for run in sweep.runs})
    largest = next(run.arguments for run in sweep.runs if run.ranks == sizes[-1])
    planned = _planned_fingerprint(sweep, sizes[-1], configuration_of(largest), baseline)
    found = unlike_job(baseline, planned, sizes[0] if len(sizes) == 2 else None)
    if found:
        raise _unlike_error(source, found)


def _planned_fingerprint(
    sweep: SweepFile, world_size: int, configuration: dict[str, Any], baseline: BaselineFile
) -> Fingerprint:
    """Fingerprint of planned runs, with only those options that the baseline also has."""
    known, options = baseline.fingerprint.config, flat_config(configuration)
    return Fingerprint(
        world_size=world_size,
        workload=sweep.workload,
        config={**known, **{name: text for name, text in options.items() if name in known}},
    )


def _with_drift_note(result: CheckResult) -> CheckResult:
    note = "The runs of both sides did not alternate, so drift between them may look like a change."
    return msgspec.structs.replace(result, notes=(*result.notes, note))


def planned_repeats(text: str, place: Path, *, repeats: int) -> SweepFile:
    """The runs of ``ddp --ranks 2``, for example, including those already done in the folder."""
    try:
        workload, device, sizes, arguments = parse_workload(text)
    except ValueError as error:  # an unclosed quote
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
    return _resumed(place, planned)


def num_repeats(sweep: SweepFile) -> int:
    """Number of runs per size."""
    return max(run.repeat for run in sweep.runs) + 1


def _resumed(place: Path, planned: SweepFile) -> SweepFile:
    """The series in the folder, if it matches the plan; it may have more repeats."""
    found = load_sweep(place) if place.is_dir() else None
    if found is None:
        if place.is_dir() and any(place.iterdir()):
            raise UsageError(
                f"{place} contains files that are not runs of a check: choose a new folder"
            )
        return planned
    count = len(planned.runs)
    if [run.arguments for run in found.runs[:count]] == [run.arguments for run in planned.runs]:
        return found
    raise UsageError(
        f"{place} contains runs of another workload, or with other options: choose a new folder"
    )
