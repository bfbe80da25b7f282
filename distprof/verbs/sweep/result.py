"""What a scaling sweep shows, and the document that is written of it."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from distprof.artefacts.summary_file import Fingerprint
from distprof.rules.base import Finding, NotChecked
from distprof.schema import Record
from distprof.sections.base import Result
from distprof.terms import Subject

__all__ = [
    "CAUSES",
    "SCALING_SCHEMA",
    "Mode",
    "ScalingLaw",
    "ScalingLoss",
    "ScalingParameter",
    "ScalingPrediction",
    "ScalingReport",
    "ScalingResult",
    "ScalingSize",
]

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
"""Part of a step to the cause of a loss, in the order in which they are shown."""


class ScalingLoss(Record, frozen=True, kw_only=True):
    """What one cause adds to a step, against the same work at the efficiency of the baseline.

    Args:
        cause: A value of :data:`CAUSES`.
        lost_ns: Of the step; negative where that part shrank.
        ratio: Of the step: its share of 1 − efficiency.
    """

    cause: str
    lost_ns: int
    ratio: float


class ScalingSize(Record, frozen=True, kw_only=True):
    """One number of ranks.

    Args:
        num_ranks: N.
        num_repeats: Runs.
        num_steps: Steady steps of all of them.
        step_ns: Centre of the runs' median steps.
        step_low_ns: Lower end of its 95 % interval; None where nothing tells.
        step_high_ns: Upper end.
        work_per_step: Of all ranks, in the unit of the result; None where only steps are known.
        throughput_per_s: Work of all ranks per second.
        speedup: Over the baseline.
        ideal_speedup: N over the baseline's N.
        efficiency: Speed-up over the ideal one.
        efficiency_low: Lower end of its 95 % interval; None where nothing tells.
        efficiency_high: Upper end.
        is_between_runs: Whether the intervals are of repeats. Otherwise there was one run, and they
            are of its steps: other runs may differ by more.
        is_traced: Whether a profiler was recording; then times are longer than without.
        ideal_step_ns: The step at the efficiency of the baseline.
        lost_ns: Step beyond that, negative where it is shorter.
        losses: By cause; they add up to ``lost_ns`` exactly. Empty without traces of both sizes.
        traced_ratio: Traced step over the step: how far parts were scaled; None without traces.
        computation_ns: Computation of a traced step, scaled to the step.
        transfer_ns: Transfers of the step, hidden ones included, scaled too; None where unknown.
        exposed_transfer_ns: Transfers that hide behind nothing, waiting not split off included.
        is_data_parallel: Whether no mesh axis but those of data parallelism has several ranks;
            None where the mesh is not known.
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
    """One parameter of a law with its 95 % interval; None is no upper end."""

    name: str
    value: float
    low: float
    high: float | None


class ScalingPrediction(Record, frozen=True, kw_only=True):
    """Efficiency over the baseline by a law.

    Args:
        num_ranks: N.
        efficiency: By the law.
        low: Lower end of the 95 % interval: the error of the measurements, not that of the law.
        high: Upper end.
        is_extrapolated: Whether N is beyond the sizes that were measured.
    """

    num_ranks: int
    efficiency: float
    low: float
    high: float
    is_extrapolated: bool


class ScalingLaw(Record, frozen=True, kw_only=True):
    """One law, fitted to all repeats.

    Args:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: ``serial`` of the first two; ``sigma`` and ``kappa`` of the third.
        residual_ratio: Median of how far a throughput is from the fitted one.
        peak_ranks: Beyond it more ranks are slower, by the law; None where it has no peak.
        peak_low: Lower end of its interval.
        peak_high: Upper end; None where there may be no peak.
        predictions: At measured sizes, and at two, four and eight times the largest.
        notes: Where it does not describe the sweep, one sentence each.
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
        mode: ``weak``: every rank keeps its work; ``strong``: all ranks share the same work. None
            where there is nothing to compare.
        how: How the mode is known, one sentence.
        unit: Of work: ``tokens``, ``samples`` or ``steps``.
        baseline_ranks: What efficiency is measured against: its own is 1.
        sizes: By number of ranks.
        laws: Those that could be fitted.
    """

    subject: ClassVar[Subject] = Subject.SWEEP

    mode: Mode | None = None
    how: str = ""
    unit: str = "steps"
    baseline_ranks: int | None = None
    sizes: tuple[ScalingSize, ...] = ()
    laws: tuple[ScalingLaw, ...] = ()


SCALING_SCHEMA = "distprof.scaling/1"


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep: what it shows, what rules say of it, and what it was made of.

    Args:
        schema: Of this document.
        distprof_version: Who made it.
        source: As the user named it.
        fingerprint: Of the smallest run.
        scaling: Speed-up, efficiency, losses, laws.
        findings: What rules found.
        not_checked: Rules that lacked their evidence.
        notes: What is not alike in runs that are compared, and where the machine was too small.
    """

    schema: str = SCALING_SCHEMA
    distprof_version: str
    source: str
    fingerprint: Fingerprint
    scaling: ScalingResult
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[str, ...] = ()
