"""A gate's verdict on a run: every metric against its baseline, and what explains a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from distprof.artefacts.baseline_file import BaselineFile, BaselineSession
from distprof.artefacts.summary_file import Fingerprint, StepParts
from distprof.gate.baseline import acknowledgement, baseline_values
from distprof.gate.decide import Decision, decide
from distprof.gate.metrics import METRICS, Metric

__all__ = ["CHECK_SCHEMA", "CheckResult", "MetricCheck", "PartLoss", "judge"]

CHECK_SCHEMA = "distprof.check/1"

State = Literal["passed", "regressed", "improved", "inconclusive", "acknowledged"]
_WORST = ("regressed", "inconclusive", "acknowledged", "passed", "improved")


class MetricCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric.

    Args:
        metric: Its name.
        label: For people.
        unit: ``ns``, ``B`` or ``ratio``.
        state: Of :class:`~distprof.gate.decide.Decision`; ``acknowledged`` where the loss is one
            that the baseline accepts.
        scale: ``ratio``: ``change`` is candidate over baseline; ``difference``: their difference.
        baseline: Median of the baseline's repeats.
        candidate: Median of the candidate's.
        change: Estimate.
        low: Lower end of its 95 % interval; None where there are too few repeats for one.
        high: Upper end.
        p: Of the rank test.
        tolerance: Accepted loss.
        num_baseline: Repeats.
        num_candidate: Repeats.
        needed_repeats: More repeats that would decide; None where decided, or where none would.
        is_gated: Whether it decides the outcome; others are shown.
        why: One sentence.
        assumes: What is taken for granted; empty if nothing.
        reason: Why the loss is accepted; empty unless acknowledged.
    """

    metric: str
    label: str
    unit: str
    state: State
    scale: str
    baseline: float
    candidate: float
    change: float
    low: float | None
    high: float | None
    p: float
    tolerance: float
    num_baseline: int
    num_candidate: int
    needed_repeats: int | None
    is_gated: bool
    why: str
    assumes: str = ""
    reason: str = ""


class PartLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the mean traced step; changes add up to that of the step."""

    part: str
    baseline_ns: int
    candidate_ns: int
    change_ns: int


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate's answer.

    Args:
        schema: Of this document.
        distprof_version: Who made it.
        state: The worst of the gated metrics.
        baseline: File of the baseline, or what else was compared with.
        baseline_commit: Newest commit of the baseline; empty where unknown.
        candidate_commit: Of the code that ran.
        fingerprint: Of the candidate.
        unlike: What forbids to compare, where the user allowed it all the same.
        metrics: Those known of both.
        parts: Where the change of the traced step lies; empty without traces of both.
        needed_repeats: More repeats that would decide all gated metrics; None where they are
            decided, or no reasonable number would.
        not_checked: Gated metrics that one side lacks, with the reason.
        notes: What else to know, one sentence each.
    """

    schema: str = CHECK_SCHEMA
    distprof_version: str
    state: State
    baseline: str
    baseline_commit: str
    candidate_commit: str
    fingerprint: Fingerprint
    unlike: tuple[str, ...] = ()
    metrics: tuple[MetricCheck, ...] = ()
    parts: tuple[PartLoss, ...] = ()
    needed_repeats: int | None = None
    not_checked: dict[str, str] = {}
    notes: tuple[str, ...] = ()


def judge(
    baseline: BaselineFile,
    candidate: BaselineSession,
    *,
    source: str,
    fingerprint: Fingerprint,
    version: str,
    now_ns: int,
    tolerances: Mapping[str, float] | None = None,
    gated: Sequence[str] = (),
    is_paired: bool = False,
    unlike: Sequence[str] = (),
) -> CheckResult:
    """Hold one session of repeats against a baseline.

    Args:
        baseline: What is compared with.
        candidate: The session.
        source: The baseline, for people.
        fingerprint: Of the candidate.
        version: Of distprof.
        now_ns: For acknowledged losses that run out, ns since the epoch.
        tolerances: Metric to its tolerance, where that is not the usual one.
        gated: Metrics that decide; empty for all.
        is_paired: Whether repeats of both were measured in turns.
        unlike: What forbids to compare and was allowed.
    """
    wanted = [metric for metric in METRICS if not gated or metric.name in gated]
    not_checked: dict[str, str] = {}
    checks = []
    for metric in METRICS:
        check = _check(metric, baseline, candidate, tolerances or {}, now_ns, is_paired=is_paired)
        if isinstance(check, str):
            if metric in wanted and gated:
                not_checked[metric.name] = check
            continue
        checks.append(msgspec.structs.replace(check, is_gated=metric in wanted))
    deciding = [check for check in checks if check.is_gated]
    states = [check.state for check in deciding]
    needed = [c.needed_repeats for c in deciding if c.state == "inconclusive"]
    known = [number for number in needed if number is not None]
    return CheckResult(
        distprof_version=version,
        state=min(states, key=_WORST.index, default="inconclusive"),
        baseline=source,
        baseline_commit=baseline.sessions[-1].git_commit,
        candidate_commit=candidate.git_commit,
        fingerprint=fingerprint,
        unlike=tuple(unlike),
        metrics=tuple(checks),
        parts=_parts(baseline, candidate),
        needed_repeats=max(known, default=None) if len(known) == len(needed) else None,
        not_checked=not_checked,
        notes=tuple(dict.fromkeys(check.assumes for check in deciding if check.assumes)),
    )


def _check(
    metric: Metric,
    baseline: BaselineFile,
    candidate: BaselineSession,
    tolerances: Mapping[str, float],
    now_ns: int,
    *,
    is_paired: bool,
) -> MetricCheck | str:
    """The metric's verdict, or why there is none."""
    before, sessions = baseline_values(baseline, metric.name)
    after = candidate.values.get(metric.name, ())
    if not before or not after:
        return f"the {'run' if before else 'baseline'} does not have it"
    tolerance = tolerances.get(metric.name, metric.tolerance)
    pairs = is_paired and len(before) == len(after)
    found = decide(
        before,
        after,
        tolerance=tolerance,
        better=metric.better,
        scale=metric.scale,
        is_paired=pairs,
        sessions=None if pairs else sessions,
        can_repeat_baseline=False,
    )
    state, reason = _as_acknowledged(metric, baseline, found, now_ns)
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
        needed_repeats=found.needed_repeats,
        is_gated=True,
        why=found.why,
        assumes=found.assumes,
        reason=reason,
    )


def _as_acknowledged(
    metric: Metric, baseline: BaselineFile, found: Decision, now_ns: int
) -> tuple[State, str]:
    """A loss that somebody accepts fails nothing, as long as it is no larger."""
    loss = acknowledgement(baseline, metric.name, now_ns)
    if loss is None or found.state != "regressed":
        return found.state, ""
    return (
        ("acknowledged", loss.reason) if _loss(metric, found) <= loss.up_to else (found.state, "")
    )


def _loss(metric: Metric, found: Decision) -> float:
    """How much worse, as tolerances are counted."""
    if metric.scale == "difference":
        return found.change if metric.better == "lower" else -found.change
    return found.change - 1 if metric.better == "lower" else 1 - found.change


def _parts(baseline: BaselineFile, candidate: BaselineSession) -> tuple[PartLoss, ...]:
    """The newest session with traces, and the candidate."""
    before = next((s.parts for s in reversed(baseline.sessions) if s.parts is not None), None)
    after = candidate.parts
    if before is None or after is None:
        return ()
    names = [name for name in StepParts.__struct_fields__ if name != "span_ns"]
    return tuple(
        PartLoss(
            part=name.removesuffix("_ns"),
            baseline_ns=getattr(before, name),
            candidate_ns=getattr(after, name),
            change_ns=getattr(after, name) - getattr(before, name),
        )
        for name in names
    )
