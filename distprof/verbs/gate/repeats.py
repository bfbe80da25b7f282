"""Repeats of a run, by size, held against a baseline or against other repeats."""

from __future__ import annotations

import time
from typing import TypeAlias

from msgspec.structs import replace

from distprof.artefacts.baseline_file import BaselineFile, BaselineSession
from distprof.artefacts.summary_file import SummaryFile
from distprof.config import CheckConfig
from distprof.errors import InputError
from distprof.verbs.gate.baseline import make_baseline, read_baseline, session_of, unlike_baseline
from distprof.verbs.gate.check import CheckResult, GateSettings, judge
from distprof.verbs.gate.decide import ALPHA
from distprof.version import __version__

__all__ = ["Sizes", "baseline_of", "judge_sizes", "session_of_sizes", "sizes_of"]

Runs: TypeAlias = tuple[SummaryFile, ...]
Sizes: TypeAlias = tuple[Runs, Runs]
"""Runs of the smaller size, none where there is one; and of the larger, which is guarded."""


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
    try:
        return session_of(sizes[1], sizes[0])
    except ValueError as error:
        raise _mixed(sizes, error) from error


def baseline_of(sizes: Sizes) -> BaselineFile:
    """The repeats as a baseline of one session, to compare others with.

    Raises:
        InputError: If they are unlike each other.
    """
    try:
        return make_baseline(sizes[1], sizes[0], distprof_version=__version__)
    except ValueError as error:
        raise _mixed(sizes, error) from error


def _mixed(sizes: Sizes, error: ValueError) -> InputError:
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


def judge_sizes(
    sizes: Sizes,
    others: Sizes | None,
    *,
    source: str,
    settings: CheckConfig,
    allow_unlike: bool = False,
    alpha: float | None = None,
) -> CheckResult:
    """Hold repeats against others, or against a baseline.

    Args:
        sizes: What is checked.
        others: What it is compared with; None for the baseline.
        source: The baseline's file, or what the others are called.
        settings: Metrics, tolerances and noise.
        allow_unlike: Compare other hardware, jobs or software too.
        alpha: Chance of a false alarm; None for the usual one.

    Raises:
        InputError: If the baseline cannot be read, or is of something else.
    """
    baseline = baseline_of(others) if others else read_baseline(source)
    session = session_of_sizes(sizes)
    unlike = _unlike(source, baseline, sizes, allow=allow_unlike)
    is_paired = others is not None and are_in_turns(others[1], sizes[1])
    result = judge(
        baseline,
        session,
        source=source,
        fingerprint=sizes[1][-1].fingerprint,
        version=__version__,
        now_ns=time.time_ns(),
        settings=GateSettings(
            metrics=settings.metrics,
            tolerance=settings.tolerance,
            session_noise=settings.session_noise,
            is_paired=is_paired,
            inconclusive_fails=settings.inconclusive_fails,
            alpha=ALPHA if alpha is None else alpha,
        ),
        unlike=unlike,
    )
    return result if is_paired or others is None else _not_in_turns(result)


def _unlike(source: str, baseline: BaselineFile, sizes: Sizes, *, allow: bool) -> tuple[str, ...]:
    """What differs and was allowed."""
    told = unlike_baseline(baseline, sizes[1], sizes[0])
    if told and not allow:
        more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
        raise InputError(
            source,
            expected="a baseline of the same hardware, job and software",
            found="; ".join(told[:4]) + more,
            fix="make a baseline here (--update-baseline with a new FILE), or --allow-unlike",
        )
    return told


def _not_in_turns(result: CheckResult) -> CheckResult:
    said = (
        "By their times the runs of both sides were not made in turns, one each, so that drift"
        " between them may look like a change."
    )
    return replace(result, notes=(*result.notes, said))
