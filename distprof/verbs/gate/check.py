"""Compares every metric of a run with its baseline, and the parts of the step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import asdict

from distprof.artefacts.record import made_from
from distprof.artefacts.summary_file import (
    BaselineFile,
    BaselineSession,
    Fingerprint,
    SummaryFile,
    SweepFile,
    flat_config,
)
from distprof.config import CheckConfig
from distprof.errors import InputError, UsageError
from distprof.verbs import Displayed
from distprof.verbs.compare.measure import part_changes
from distprof.verbs.gate import ALPHA, Decision, State, decide
from distprof.verbs.gate.baseline import (
    METRICS,
    Metric,
    acknowledgement,
    baseline_values,
    make_baseline,
    unlike_baseline,
    unlike_job,
)
from distprof.verbs.sweep.running import configuration_of, load_sweep
from distprof.verbs.sweep.runs import parse_workload, plan_workload
from distprof.version import __version__

_WORST = ("regressed", "inconclusive", "acknowledged", "passed", "improved")


class MetricCheck(Decision, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result for one metric."""

    metric: str  # Name of the metric.
    label: str  # Name in reports.
    unit: str  # ``ns``, ``B`` or ``ratio``.
    # ``ratio``: ``change`` is candidate over baseline; ``difference``: candidate minus baseline.
    scale: str
    baseline: float  # Median of the baseline's repeats.
    candidate: float  # Median of the candidate's repeats.
    is_gated: bool  # Whether it decides the outcome; other metrics are informational.
    reason: str = ""  # Why the loss is accepted; empty unless acknowledged.


class PartLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the mean traced step; the changes of all parts add up to the change of the step."""

    part: str
    baseline_ns: int
    candidate_ns: int
    change_ns: int


class CheckResult(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a check."""

    schema: str = "distprof.check/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    state: State  # The worst state of the gated metrics.
    baseline: str  # File of the baseline, or the runs compared with.
    baseline_commit: str  # Newest commit of the baseline; empty if unknown.
    candidate_commit: str  # Commit of the code that ran.
    fingerprint: Fingerprint  # Fingerprint of the candidate.
    # Differences that would forbid the comparison, but which the user allowed.
    unlike: tuple[str, ...] = ()
    metrics: tuple[MetricCheck, ...] = ()  # The metrics that both sides have.
    # Change of the traced step by part; empty without traces of both sides.
    parts: tuple[PartLoss, ...] = ()
    # Number of further repeats that would settle all gated metrics; None if they are settled, or if
    # no reasonable number would settle them.
    needed_repeats: int | None = None
    not_checked: dict[str, str] = {}  # Requested metrics that one side lacks, with the reason.
    notes: tuple[str, ...] = ()  # Assumptions and other notes, one sentence each.
    inconclusive_fails: bool = False  # Whether an inconclusive check counts as a failure.

    @property
    def is_failed(self) -> bool:
        """Whether the check fails."""
        return fails(self.state, inconclusive_fails=self.inconclusive_fails)


def fails(state: State, *, inconclusive_fails: bool) -> bool:
    """Whether a state fails the check."""
    return state == "regressed" or (state == "inconclusive" and inconclusive_fails)


def judge(
    baseline: BaselineFile,
    candidate: BaselineSession,
    *,
    source: str,
    fingerprint: Fingerprint,
    now_ns: int,
    settings: CheckConfig | None = None,
    alpha: float = ALPHA,
    is_paired: bool = False,
    unlike: Sequence[str] = (),
) -> CheckResult:
    """Compare a session of repeats with a baseline, called ``source``; losses accepted expire."""
    settings = settings or CheckConfig()
    wanted = settings.metrics or [metric.name for metric in METRICS if metric.decides]
    found = {
        metric.name: _check(
            metric, baseline, candidate, settings, alpha=alpha, is_paired=is_paired, now_ns=now_ns
        )
        for metric in METRICS
    }
    checks = [
        msgspec.structs.replace(check, is_gated=name in wanted)
        for name, check in found.items()
        if not isinstance(check, str)
    ]
    recorded = {name for one in baseline.sessions for name, each in one.values.items() if each}
    deciding = [check for check in checks if check.is_gated]
    needed = [check.needed_repeats for check in deciding if check.state == "inconclusive"]
    known = [number for number in needed if number is not None]
    assumed = (f"Assumed: {check.assumes}" for check in deciding if check.assumes)
    return CheckResult(
        distprof_version=__version__,
        state=min((check.state for check in deciding), key=_WORST.index, default="inconclusive"),
        baseline=source,
        baseline_commit=baseline.sessions[-1].git_commit,
        candidate_commit=candidate.git_commit,
        fingerprint=fingerprint,
        unlike=tuple(unlike),
        metrics=tuple(checks),
        parts=_parts(baseline, candidate),
        needed_repeats=max(known, default=None) if len(known) == len(needed) else None,
        not_checked={
            name: why
            for name, why in found.items()
            if isinstance(why, str)
            and (name in settings.metrics or (name in wanted and name in recorded))
        },
        notes=tuple(dict.fromkeys(assumed)),
        inconclusive_fails=settings.inconclusive_fails,
    )


def _check(
    metric: Metric,
    baseline: BaselineFile,
    candidate: BaselineSession,
    settings: CheckConfig,
    *,
    alpha: float,
    is_paired: bool,
    now_ns: int,
) -> MetricCheck | str:
    """The result for a metric, or why there is none."""
    before, sessions = baseline_values(baseline, metric.name)
    after = candidate.values.get(metric.name, ())
    if not before or not after:
        return f"the {'runs do' if before else 'baseline does'} not have it"
    tolerance = settings.tolerance.get(metric.name, metric.tolerance)
    is_paired = is_paired and len(before) == len(after)
    noise = settings.session_noise if metric.decides and not is_paired else None

    def decided(tolerance: float) -> Decision:
        return decide(
            before,
            after,
            tolerance=tolerance,
            better=metric.better,
            scale=metric.scale,
            is_paired=is_paired,
            sessions=None if is_paired else sessions,
            session_noise=noise,
            can_repeat_baseline=is_paired,
            alpha=alpha,
        )

    found = decided(tolerance)
    loss = acknowledgement(baseline, metric.name, now_ns)
    state: State = found.state
    if loss is not None and loss.up_to > tolerance:
        state = _as_acknowledged(found, decided(loss.up_to))
    needed = found.needed_repeats if state == "inconclusive" else None
    return MetricCheck(
        **asdict(found) | {"state": state, "needed_repeats": needed},
        metric=metric.name,
        label=metric.label,
        unit={"step_time": "ns", "memory": "B"}.get(metric.name, "ratio"),
        scale=metric.scale,
        baseline=float(np.median(before)),
        candidate=float(np.median(after)),
        is_gated=True,
        reason=loss.reason if loss is not None and state == "acknowledged" else "",
    )


def _as_acknowledged(found: Decision, accepting: Decision) -> State:
    """The state after accepting an acknowledged loss, unless the loss is clearly larger than it."""
    if found.state in ("passed", "improved") or accepting.state == "regressed":
        return found.state
    is_within = found.state == "regressed" or accepting.state != "inconclusive"
    return "acknowledged" if is_within else "inconclusive"


def _parts(baseline: BaselineFile, candidate: BaselineSession) -> tuple[PartLoss, ...]:
    """Parts of the newest session with traces, compared with those of the candidate."""
    before = next((s.parts for s in reversed(baseline.sessions) if s.parts is not None), None)
    return tuple(
        made_from(one, PartLoss, baseline_ns=one.first_ns, candidate_ns=one.second_ns)
        for one in part_changes(before, candidate.parts)
    )


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


def baseline_of(sizes: Sizes) -> BaselineFile:
    """The repeats as a baseline of one session; InputError if they are not of the same run."""
    try:
        return make_baseline(sizes[1], sizes[0])
    except ValueError as error:
        raise InputError(
            ", ".join(run.source for run in sizes[1][:3]),
            expected="repeats of the same run",
            found=str(error),
            fix="check runs of one job on one machine at a time",
        ) from error


def are_alternating(first: Runs, second: Runs) -> bool:
    """Whether the runs of both sides ended in alternating pairs: only then does drift cancel."""
    ended = sorted([(run.created_ns, 0) for run in first] + [(run.created_ns, 1) for run in second])
    if len(first) != len(second) or len({at for at, _ in ended}) < len(ended):
        return False
    return all(a[1] != b[1] for a, b in zip(ended[::2], ended[1::2], strict=True))


def judge_runs(
    sizes: Sizes,
    against: BaselineFile | Sizes,
    *,
    source: str,
    settings: CheckConfig,
    alpha: float = ALPHA,
    allow_unlike: bool = False,
) -> CheckResult:
    """Compare runs with a baseline, or with other runs; InputError if they are not comparable."""
    others = None if isinstance(against, BaselineFile) else against
    baseline = against if isinstance(against, BaselineFile) else baseline_of(against)
    is_paired = others is not None and are_alternating(others[1], sizes[1])
    found = unlike_baseline(baseline, sizes[1], sizes[0])
    if found and not allow_unlike:
        raise _unlike_error(source, found)
    result = judge(
        baseline,
        baseline_of(sizes).sessions[0],
        source=source,
        fingerprint=sizes[1][-1].fingerprint,
        now_ns=time.time_ns(),
        settings=settings,
        alpha=alpha,
        is_paired=is_paired,
        unlike=found,
    )
    if is_paired or others is None:
        return result
    note = "The runs of both sides did not alternate, so drift between them may look like a change."
    return msgspec.structs.replace(result, notes=(*result.notes, note))


def _unlike_error(source: str, found: tuple[str, ...]) -> InputError:
    more = f"; and {len(found) - 4} more" if len(found) > 4 else ""
    return InputError(
        source,
        expected="a baseline of the same hardware, job and software",
        found="; ".join(found[:4]) + more,
        fix="create a baseline here (--update-baseline with a new FILE), or use --allow-unlike",
    )


def refuse_unlike_plan(sweep: SweepFile, baseline: BaselineFile, source: str) -> None:
    """Before the first run, reject a plan whose runs cannot compare with a baseline."""
    sizes = sorted({run.ranks for run in sweep.runs})
    largest = next(run.arguments for run in sweep.runs if run.ranks == sizes[-1])
    known, options = baseline.fingerprint.config, flat_config(configuration_of(largest))
    planned = Fingerprint(
        world_size=sizes[-1],
        workload=sweep.workload,
        config={**known, **{name: text for name, text in options.items() if name in known}},
    )
    found = unlike_job(baseline, planned, sizes[0] if len(sizes) == 2 else None)
    if found:
        raise _unlike_error(source, found)


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


def num_repeats(sweep: SweepFile) -> int:
    """Number of runs per size."""
    return max(run.repeat for run in sweep.runs) + 1
