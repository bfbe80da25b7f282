"""The result of a scaling sweep, and its document."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import msgspec

from distprof.artefacts.record import Record
from distprof.artefacts.summary_file import Fingerprint
from distprof.bounds import table_beside
from distprof.rules.base import Finding, NotChecked
from distprof.sections.base import Result
from distprof.terms import Subject
from distprof.units import sentence
from distprof.verbs import PARTS, Displayed

Mode = Literal["weak", "strong"]

CAUSES = {f"{field}_ns": part.cause for field, part in PARTS.items()}
"""Causes of a loss by part of the step, in the order of display."""

says = partial(sentence, table_beside(__package__, "show.toml"))


class ScalingLoss(Record, frozen=True, kw_only=True):
    """Time that one cause adds to a step, over the same work at the baseline's efficiency."""

    cause: str  # A value of :data:`CAUSES`.
    lost_ns: int  # Time lost per step; negative if that part shrank.
    ratio: float  # The same as a share of the step: its contribution to 1 − efficiency.


class ScalingSize(Record, frozen=True, kw_only=True):
    """Results for one number of ranks."""

    num_ranks: int  # Number of ranks, N.
    num_repeats: int  # Number of runs.
    num_steps: int  # Number of steady steps of all runs.
    step_ns: int  # Centre of the runs' median steps.
    step_low_ns: int | None  # Lower end of its 95 % interval; None if unknown.
    step_high_ns: int | None  # Upper end of that interval.
    # Work of all ranks, in the unit of the result; None if only steps are known.
    work_per_step: float | None
    throughput_per_s: float  # Work of all ranks per second.
    speedup: float  # Speed-up over the baseline.
    ideal_speedup: float  # N divided by the baseline's N.
    efficiency: float  # Speed-up divided by the ideal speed-up.
    efficiency_low: float | None  # Lower end of its 95 % interval; None if unknown.
    efficiency_high: float | None  # Upper end of that interval.
    # Whether the intervals come from repeats. Otherwise they come from the steps of one run, and
    # other runs may differ by more.
    is_between_runs: bool
    is_traced: bool  # Whether a profiler was active, which makes times longer.
    ideal_step_ns: int  # Step time at the efficiency of the baseline.
    lost_ns: int  # Step time minus the ideal step time; negative if it is shorter.
    # Losses by cause, which add up to ``lost_ns``. Empty without traces of both sizes.
    losses: tuple[ScalingLoss, ...] = ()
    # Traced step time over step time, by which parts are scaled; None without traces.
    traced_ratio: float | None = None
    computation_ns: int | None = None  # Computation of a traced step, scaled to the step time.
    # Transfers of a traced step, overlapped or not, scaled to the step time; None if unknown.
    transfer_ns: int | None = None
    # Exposed transfers, including waits that cannot be separated.
    exposed_transfer_ns: int | None = None
    # Whether only data-parallel mesh axes have several ranks; None if the mesh is unknown.
    is_data_parallel: bool | None = None
    run_step_ns: tuple[int, ...] = ()  # Median step of each run, in order of time.


class ScalingParameter(Record, frozen=True, kw_only=True):
    """A parameter of a law with its 95 % interval; ``high`` is None if it has no upper end."""

    name: str
    value: float
    low: float
    high: float | None


class ScalingPrediction(Record, frozen=True, kw_only=True):
    """Efficiency over the baseline, predicted by a law."""

    num_ranks: int  # Number of ranks, N.
    efficiency: float  # Predicted efficiency.
    # Lower end of the 95 % interval, which covers measurement error but not the error of the law.
    low: float
    high: float  # Upper end of the interval.
    is_extrapolated: bool  # Whether N is beyond the measured sizes.


class ScalingLaw(Record, frozen=True, kw_only=True):
    """A law fitted to all repeats."""

    law: str  # ``amdahl``, ``gustafson`` or ``usl``.
    # ``serial`` for the first two, ``sigma`` and ``kappa`` for the third.
    parameters: tuple[ScalingParameter, ...]
    residual_ratio: float  # Median relative deviation of a throughput from the fit.
    # Number of ranks with the highest throughput by the law; None without a peak.
    peak_ranks: float | None
    peak_low: float | None  # Lower end of its interval.
    peak_high: float | None  # Upper end of its interval; None if there may be no peak.
    # Predictions at measured sizes, and at two, four and eight times the largest.
    predictions: tuple[ScalingPrediction, ...]
    # Reasons why the law does not describe the sweep, one sentence each.
    notes: tuple[str, ...] = ()


class ScalingResult(Result, frozen=True, kw_only=True):
    """Efficiency over the number of ranks."""

    subject: ClassVar[Subject] = Subject.SWEEP

    # ``weak`` if the work per rank is constant, ``strong`` if the work of all ranks is constant.
    # None if there are no runs to compare.
    mode: Mode | None = None
    how: str = ""  # How the mode was determined, one sentence.
    unit: str = "steps"  # Unit of work: ``tokens``, ``samples`` or ``steps``.
    baseline_ranks: int | None = None  # Size whose efficiency is 1.
    sizes: tuple[ScalingSize, ...] = ()  # Results by number of ranks.
    laws: tuple[ScalingLaw, ...] = ()  # The laws that could be fitted.


class ScalingReport(
    Displayed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A sweep: its result, its findings, and its runs."""

    schema: str = "distprof.scaling/1"  # Schema id of this document.
    distprof_version: str  # Version of distprof that wrote it.
    source: str  # The input, as the user named it.
    fingerprint: Fingerprint  # Fingerprint of the smallest run.
    scaling: ScalingResult  # Speed-up, efficiency, losses and laws.
    findings: tuple[Finding, ...] = ()  # Findings of the rules.
    not_checked: tuple[NotChecked, ...] = ()  # Rules that lack the evidence they need.
    # Differences between the compared runs, and sizes too large for the machine.
    notes: tuple[str, ...] = ()
