"""The result of a scaling sweep, and its document."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from distprof.artefacts.record import Record
from distprof.artefacts.summary_file import Fingerprint
from distprof.formats import Displayed
from distprof.rules.base import Finding, NotChecked
from distprof.sections.base import Result
from distprof.terms import Subject

Mode = Literal["weak", "strong"]

CAUSES = {
    "exposed_transfer_ns": "exposed transfer",
    "exposed_wait_ns": "imbalance and stragglers",
    "bubble_ns": "pipeline bubble",
    "unsplit_comm_ns": "exposed communication, not split",
    "host_ns": "host",
    "input_ns": "input",
    "copy_ns": "copies",
    "computation_ns": "computation grew",
    "other_ns": "other",
}
"""Causes of a loss by part of the step, in the order of display."""


class ScalingLoss(Record, frozen=True, kw_only=True):
    """Time that one cause adds to a step, relative to the same work at the baseline's efficiency.

    Args:
        cause: A value of :data:`CAUSES`.
        lost_ns: Time lost per step; negative if that part shrank.
        ratio: The same as a share of the step: its contribution to 1 − efficiency.
    """

    cause: str
    lost_ns: int
    ratio: float


class ScalingSize(Record, frozen=True, kw_only=True):
    """Results for one number of ranks.

    Args:
        num_ranks: Number of ranks, N.
        num_repeats: Number of runs.
        num_steps: Number of steady steps of all runs.
        step_ns: Centre of the runs' median steps.
        step_low_ns: Lower end of its 95 % interval; None if unknown.
        step_high_ns: Upper end of that interval.
        work_per_step: Work of all ranks, in the unit of the result; None if only steps are known.
        throughput_per_s: Work of all ranks per second.
        speedup: Speed-up over the baseline.
        ideal_speedup: N divided by the baseline's N.
        efficiency: Speed-up divided by the ideal speed-up.
        efficiency_low: Lower end of its 95 % interval; None if unknown.
        efficiency_high: Upper end of that interval.
        is_between_runs: Whether the intervals come from repeats. Otherwise they come from the steps
            of one run, and other runs may differ by more.
        is_traced: Whether a profiler was active, which makes times longer.
        ideal_step_ns: Step time at the efficiency of the baseline.
        lost_ns: Step time minus the ideal step time; negative if it is shorter.
        losses: Losses by cause, which add up to ``lost_ns``. Empty without traces of both sizes.
        traced_ratio: Traced step time over step time, by which parts are scaled; None without
            traces.
        computation_ns: Computation of a traced step, scaled to the step time.
        transfer_ns: Transfers of a traced step, overlapped or not, scaled to the step time; None if
            unknown.
        exposed_transfer_ns: Exposed transfers, including waits that cannot be separated.
        is_data_parallel: Whether only data-parallel mesh axes have several ranks; None if the mesh
            is unknown.
        run_step_ns: Median step of each run, in order of time.
    """

    num_ranks: int
    num_repeats: int
    num_steps: int
    step_ns: int
    step_low_ns: int | None
    step_high_ns: int | None
    work_per_step: float | None
    throughput_per_s: float
    speedup: float
    ideal_speedup: float
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    is_between_runs: bool
    is_traced: bool
    ideal_step_ns: int
    lost_ns: int
    losses: tuple[ScalingLoss, ...] = ()
    traced_ratio: float | None = None
    computation_ns: int | None = None
    transfer_ns: int | None = None
    exposed_transfer_ns: int | None = None
    is_data_parallel: bool | None = None
    run_step_ns: tuple[int, ...] = ()


class ScalingParameter(Record, frozen=True, kw_only=True):
    """A parameter of a law with its 95 % interval; ``high`` is None if it has no upper end."""

    name: str
    value: float
    low: float
    high: float | None


class ScalingPrediction(Record, frozen=True, kw_only=True):
    """Efficiency over the baseline, predicted by a law.

    Args:
        num_ranks: Number of ranks, N.
        efficiency: Predicted efficiency.
        low: Lower end of the 95 % interval, which covers measurement error but not the error of the
            law.
        high: Upper end of the interval.
        is_extrapolated: Whether N is beyond the measured sizes.
    """

    num_ranks: int
    efficiency: float
    low: float
    high: float
    is_extrapolated: bool


class ScalingLaw(Record, frozen=True, kw_only=True):
    """A law fitted to all repeats.

    Args:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: ``serial`` for the first two, ``sigma`` and ``kappa`` for the third.
        residual_ratio: Median relative deviation of a throughput from the fit.
        peak_ranks: Number of ranks with the highest throughput by the law; None without a peak.
        peak_low: Lower end of its interval.
        peak_high: Upper end of its interval; None if there may be no peak.
        predictions: Predictions at measured sizes, and at two, four and eight times the largest.
        notes: Reasons why the law does not describe the sweep, one sentence each.
    """

    law: str
    parameters: tuple[ScalingParameter, ...]
    residual_ratio: float
    peak_ranks: float | None
    peak_low: float | None
    peak_high: float | None
    predictions: tuple[ScalingPrediction, ...]
    notes: tuple[str, ...] = ()


class ScalingResult(Result, frozen=True, kw_only=True):
    """Efficiency over the number of ranks.

    Args:
        mode: ``weak`` if the work per rank is constant, ``strong`` if the work of all ranks is
            constant. None if there are no runs to compare.
        how: How the mode was determined, one sentence.
        unit: Unit of work: ``tokens``, ``samples`` or ``steps``.
        baseline_ranks: Size whose efficiency is 1.
        sizes: Results by number of ranks.
        laws: The laws that could be fitted.
    """

    subject: ClassVar[Subject] = Subject.SWEEP

    mode: Mode | None = None
    how: str = ""
    unit: str = "steps"
    baseline_ranks: int | None = None
    sizes: tuple[ScalingSize, ...] = ()
    laws: tuple[ScalingLaw, ...] = ()


SCALING_SCHEMA = "distprof.scaling/1"


class ScalingReport(
    Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A sweep: its result, its findings, and its runs.

    Args:
        schema: Schema id of this document.
        distprof_version: Version of distprof that wrote it.
        source: The input, as the user named it.
        fingerprint: Fingerprint of the smallest run.
        scaling: Speed-up, efficiency, losses and laws.
        findings: Findings of the rules.
        not_checked: Rules that lack the evidence they need.
        notes: Differences between the compared runs, and sizes too large for the machine.
    """

    schema: str = SCALING_SCHEMA
    distprof_version: str
    source: str
    fingerprint: Fingerprint
    scaling: ScalingResult
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[str, ...] = ()
