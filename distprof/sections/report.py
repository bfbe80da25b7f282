"""What a report holds: everything one analysis found, as written to ``report.json``.

Tables and sentences are functions of these data. The report that users hold, with all that it can
do, is :class:`distprof.documents.saved.Report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distprof.artefacts import REPORT_SCHEMA
from distprof.artefacts.record import Record, records_to_pandas
from distprof.rules.base import Finding, NotChecked
from distprof.sections.base import Verdict
from distprof.sections.capture import CaptureResult
from distprof.sections.collective_log import CollectiveLogResult
from distprof.sections.collectives import CollectivesResult
from distprof.sections.computation import ComputationResult
from distprof.sections.efficiency import EfficiencyResult
from distprof.sections.ending import EndingResult
from distprof.sections.gradients import GradientsResult
from distprof.sections.idle import IdleResult, PausesResult
from distprof.sections.job import JobResult
from distprof.sections.kernels import KernelsResult
from distprof.sections.memory import MemoryResult
from distprof.sections.moe import MoeResult
from distprof.sections.nccl import NcclResult
from distprof.sections.overlap import OverlapResult
from distprof.sections.perturbation import PerturbationResult
from distprof.sections.picture import StepPicture
from distprof.sections.pipeline import PipelineResult
from distprof.sections.placement import PlacementResult
from distprof.sections.ras import RasResult
from distprof.sections.settings import SettingsResult
from distprof.sections.sharding import ShardingResult
from distprof.sections.step_log import StepLogResult
from distprof.sections.stragglers import MessagesResult, StragglersResult
from distprof.sections.summaries import (
    CollectiveSummaryResult,
    InputReadinessResult,
    OperatorTableResult,
    ScalingTableResult,
)
from distprof.sections.telemetry import TelemetryResult
from distprof.sections.time import BreakdownResult, StepTimeResult, WaterfallResult
from distprof.sections.training_log import TrainingLogResult
from distprof.sections.whatif import RepairPlan, WhatIfResult

if TYPE_CHECKING:
    import pandas as pd


class GroupInfo(Record, frozen=True, kw_only=True):
    """A process group of the run."""

    name: str  # Name of the process group as PyTorch gives it.
    description: str  # Description that the program gave the group; empty without one.
    size: int | None  # Ranks in the group; null if unknown.
    axis: str | None  # Mesh axis that it spans, for example ``tp``; null if unknown.
    num_groups: int  # Groups with this description, for example one per data-parallel replica.


class RunInfo(Record, frozen=True, kw_only=True):
    """What was recorded."""

    source: str  # Path or URL that was analysed.
    world_size: int | None  # Ranks of the job; null if the recording does not show it.
    ranks: tuple[int, ...]  # Global ranks with a readable trace, ascending.
    num_steps: int  # Analysed steps; 0 if nothing marks steps and the whole capture was analysed.
    backend: str  # Communication library, for example ``nccl`` or ``gloo``; empty if unknown.
    device: str  # Name of the GPU, or ``cpu``; empty if unknown.
    # Kind of parallelism according to run.json, for example ``fsdp``; null without a run directory.
    strategy: str | None
    mesh: dict[str, int]  # Size of each mesh axis, outermost first; empty if unknown.
    nodes: dict[str, tuple[int, ...]]  # Ranks of each node.
    # Source of the nodes, for example ``run.json``, host names or ``device_count``.
    node_origin: str
    groups: tuple[GroupInfo, ...]  # Process groups, with identical ones folded into one row.
    versions: dict[str, str]  # Version of each software, for example ``torch``, ``nccl``, ``cuda``.


class Report(Record, frozen=True, kw_only=True):
    """One analysis: measurements, findings and what could not be checked."""

    schema: str = REPORT_SCHEMA  # Version of this document's format.
    distprof_version: str  # Version of distprof that wrote it.
    # The report in one or two sentences, and why; empty in reports of older versions.
    verdict: Verdict = Verdict()
    # Which changes to make, in which order, and how long the step takes after each; empty without a
    # simulation.
    plan: RepairPlan = RepairPlan()
    # One step of every rank on one clock, packed for drawing; empty if no rank was measured.
    picture: StepPicture = StepPicture()
    run: RunInfo  # What was recorded: ranks, nodes, groups, software.
    capture: CaptureResult  # Quality of the recording: what is missing, how well clocks agree.
    step_time: StepTimeResult  # Duration of the analysed steps.
    # Exclusive split of each rank's time into computation, exposed communication, exposed copies
    # and idle.
    breakdown: BreakdownResult
    # How much communication overlaps with computation, by rank and by mesh axis.
    overlap: OverlapResult
    # Collectives by kind, group and size, with bandwidth and waiting.
    collectives: CollectivesResult
    stragglers: StragglersResult  # Which ranks the others wait for, in which pattern, and why.
    idle: IdleResult  # Why GPUs are idle.
    kernels: KernelsResult  # Kernels by name, and how ranks differ in them.
    waterfall: WaterfallResult  # The mean step as an exact sum of computation and all losses.
    # How the job was launched and how it ended; empty without a run directory.
    job: JobResult = JobResult(kind=None)
    # How the job ended, or why it stands, according to what it printed; empty without output that
    # says so.
    ending: EndingResult = EndingResult()
    # Steps as the job logged them itself; empty without a run directory.
    step_log: StepLogResult = StepLogResult()
    memory: MemoryResult = MemoryResult()  # Memory by rank; empty if it was not recorded.
    # GPU sensors and errors, and energy; empty without samples.
    telemetry: TelemetryResult = TelemetryResult()
    moe: MoeResult = MoeResult()  # Experts: load, routing and exchanges; empty without experts.
    # Pauses of the training thread: garbage collection and waiting for input; empty if they were
    # not recorded.
    pauses: PausesResult = PausesResult()
    # Pipeline schedule, bubble fraction and stages; empty without a pipeline.
    pipeline: PipelineResult = PipelineResult()
    # Ranks that leave their GPU idle while others wait for their messages.
    messages: MessagesResult = MessagesResult()
    # The step simulated as it was and without each of its causes.
    whatif: WhatIfResult = WhatIfResult()
    nccl: NcclResult = NcclResult()  # Contents of NCCL's own log; empty without one.
    # Process groups on nodes, scale-up domains and network cards.
    placement: PlacementResult = PlacementResult()
    # How data parallelism reduces gradients; empty if nothing marks it.
    gradients: GradientsResult = GradientsResult()
    # Data moved by sharded parameters and tensor parallelism; empty without them.
    sharding: ShardingResult = ShardingResult()
    # Computation by category and operator, with FLOP and bytes; empty on CPUs.
    computation: ComputationResult = ComputationResult()
    efficiency: EfficiencyResult = EfficiencyResult()  # FLOP, MFU and memory against the hardware.
    # Configuration read from the job's live objects; empty without a run directory.
    settings: SettingsResult = SettingsResult()
    # What a training program printed about its iterations; empty without a log.
    training_log: TrainingLogResult = TrainingLogResult()
    # A table of collectives by rank from another tool; empty without one.
    collective_summary: CollectiveSummaryResult = CollectiveSummaryResult()
    # Collectives over hours or days, as recorded by ranks; empty without these records.
    collective_log: CollectiveLogResult = CollectiveLogResult()
    # State of a running job according to NCCL's RAS; empty without output of ncclras.
    ras: RasResult = RasResult()
    # Measured readiness of each rank's input over time; empty without it.
    input_readiness: InputReadinessResult = InputReadinessResult()
    # Throughput by the number of GPUs, as people type it; empty without it.
    scaling_table: ScalingTableResult = ScalingTableResult()
    # A table of operators without a time line; empty without one.
    operator_table: OperatorTableResult = OperatorTableResult()
    # What the profiler cost, and whether the report is free of it.
    perturbation: PerturbationResult = PerturbationResult()
    findings: tuple[Finding, ...]  # Problems, each with its cost and fix, most important first.
    not_checked: tuple[NotChecked, ...]  # Rules that lacked their evidence, and why.

    def findings_to_pandas(self) -> pd.DataFrame:
        """The findings as a frame, one row each in the report's order, and a column per field."""
        return records_to_pandas(self.findings, Finding)
