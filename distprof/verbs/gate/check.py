"""Compares every metric of a run with its baseline, and the parts of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from distprof.artefacts.summary_file import BaselineFile, BaselineSession, Fingerprint
from distprof.config import CheckConfig
from distprof.verbs.compare.measure import part_changes
from distprof.verbs.displayed import Displayed
from distprof.verbs.gate.baseline import acknowledgement, baseline_values
from distprof.verbs.gate.decide import ALPHA, Decision, decide
from distprof.verbs.gate.metrics import METRICS, Metric
from distprof.version import __version__

CHECK_SCHEMA = "distprof.check/1"

State = Literal["passed", "regressed", "improved", "inconclusive", "acknowledged"]
_WORST = ("regressed", "inconclusive", "acknowledged", "passed", "improved")


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result for one metric."""

    metric: str  # Name of the metric.
    label: str  # Name in reports.
    unit: str  # ``ns``, ``B`` or ``ratio``.
    # As in :class:`~distprof.verbs.gate.decide.Decision`; ``acknowledged`` if the baseline accepts
    # the loss.
    state: State
    # ``ratio``: ``change`` is candidate over baseline; ``difference``: candidate minus baseline.
    scale: str
    baseline: float  # Median of the baseline's repeats.
    candidate: float  # Median of the candidate's repeats.
    change: float  # Estimated change.
    low: float | None  # Lower end of its 90 % interval; None if there are too few repeats for one.
    high: float | None  # Upper end of the interval.
    p: float  # p-value of the rank test.
    tolerance: float  # Accepted loss.
    num_baseline: int  # Repeats of the baseline.
    num_candidate: int  # Repeats of the candidate.
    # Number of further repeats that would settle it; None if it is settled, or if no reasonable
    # number would settle it.
    needed_repeats: int | None
    is_gated: bool  # Whether it decides the outcome; other metrics are informational.
    why: str  # Reason for the state, one sentence.
    assumes: str = ""  # Assumption of the decision; empty if there is none.
    reason: str = ""  # Why the loss is accepted; empty unless acknowledged.


class PartLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the mean traced step; the changes of all parts add up to the change of the step."""

    part: str
    baseline_ns: int
    candidate_ns: int
    change_ns: int


class CheckResult(Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a check."""

    schema: str = CHECK_SCHEMA  # Schema id of this document.
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
    """Compare one session of repeats with a baseline, which reports call ``source``.

    Acknowledged losses expire, so the current time counts. ``alpha`` is the level of the rank test.
    ``unlike`` are differences that would forbid the comparison, but which the user allowed.
    """
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
        notes=tuple(
            dict.fromkeys(f"Assumed: {check.assumes}" for check in deciding if check.assumes)
        ),
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
    return MetricCheck(
        metric=metric.name,
        label=metric.label,
        unit={"step_time": "ns", "memory": "B"}.get(metric.name, "ratio"),
        state=state,
        scale=metric.scale,
        baseline=float(np.median(before)),
        candidate=float(np.median(after)),
        change=found.change,
        low=found.low,
        high=found.high,
        p=found.p,
        tolerance=tolerance,
        num_baseline=found.num_baseline,
        num_candidate=found.num_candidate,
        needed_repeats=found.needed_repeats if state == "inconclusive" else None,
        is_gated=True,
        why=found.why,
        assumes=found.assumes,
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
    after = candidate.parts
    if before is None or after is None:
        return ()
    return tuple(
        PartLoss(part=part, baseline_ns=mine, candidate_ns=theirs, change_ns=change)
        for part, mine, theirs, change in part_changes(before, after)
    )
