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
from distprof.sections.capture.result import CaptureResult
from distprof.sections.collective_log.result import CollectiveLogResult
from distprof.sections.collectives.result import CollectivesResult
from distprof.sections.efficiency.result import EfficiencyResult
from distprof.sections.ending.result import EndingResult
from distprof.sections.gradients.result import GradientsResult
from distprof.sections.idle.result import IdleResult, PausesResult
from distprof.sections.job.result import JobResult
from distprof.sections.kernels.result import KernelsResult
from distprof.sections.memory.result import MemoryResult
from distprof.sections.moe.result import MoeResult
from distprof.sections.nccl.result import NcclResult
from distprof.sections.overlap.result import OverlapResult
from distprof.sections.perturbation.result import PerturbationResult
from distprof.sections.pipeline.result import PipelineResult
from distprof.sections.placement.result import PlacementResult
from distprof.sections.ras.result import RasResult
from distprof.sections.settings.result import SettingsResult
from distprof.sections.sharding.result import ShardingResult
from distprof.sections.step_log.result import StepLogResult
from distprof.sections.stragglers.result import MessagesResult, StragglersResult
from distprof.sections.summaries.result import (
    CollectiveSummaryResult,
    InputReadinessResult,
    OperatorTableResult,
)
from distprof.sections.telemetry.result import TelemetryResult
from distprof.sections.time.result import BreakdownResult, StepTimeResult, WaterfallResult
from distprof.sections.training_log.result import TrainingLogResult
from distprof.sections.whatif.result import RepairPlan, WhatIfResult

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
    """One analysis: measurements, findings and what could not be checked.

    Args:
        schema: Version of this document's format.
        distprof_version: Version of distprof that wrote it.
        verdict: The report in one or two sentences, and why; empty in reports of older versions.
        plan: Which changes to make, in which order, and how long the step takes after each; empty
            without a simulation.
        run: What was recorded: ranks, nodes, groups, software.
        capture: Quality of the recording: what is missing, how well clocks agree.
        step_time: Duration of the analysed steps.
        breakdown: Exclusive split of each rank's time into computation, exposed communication,
            exposed copies and idle.
        overlap: How much communication overlaps with computation, by rank and by mesh axis.
        collectives: Collectives by kind, group and size, with bandwidth and waiting.
        stragglers: Which ranks the others wait for, in which pattern, and why.
        idle: Why GPUs are idle.
        kernels: Kernels by name, and how ranks differ in them.
        waterfall: The mean step as an exact sum of computation and all losses.
        job: How the job was launched and how it ended; empty without a run directory.
        ending: How the job ended, or why it stands, according to what it printed; empty without
            output that says so.
        step_log: Steps as the job logged them itself; empty without a run directory.
        memory: Memory by rank; empty if it was not recorded.
        telemetry: GPU sensors and errors, and energy; empty without samples.
        moe: Experts: load, routing and exchanges; empty without experts.
        pauses: Pauses of the training thread: garbage collection and waiting for input; empty if
            they were not recorded.
        pipeline: Pipeline schedule, bubble fraction and stages; empty without a pipeline.
        messages: Ranks that leave their GPU idle while others wait for their messages.
        whatif: The step simulated as it was and without each of its causes.
        nccl: Contents of NCCL's own log; empty without one.
        placement: Process groups on nodes, scale-up domains and network cards.
        gradients: How data parallelism reduces gradients; empty if nothing marks it.
        sharding: Data moved by sharded parameters and tensor parallelism; empty without them.
        efficiency: FLOP, MFU and memory against the hardware.
        settings: Configuration read from the job's live objects; empty without a run directory.
        training_log: What a training program printed about its iterations; empty without a log.
        collective_summary: A table of collectives by rank from another tool; empty without one.
        collective_log: Collectives over hours or days, as recorded by ranks; empty without these
            records.
        ras: State of a running job according to NCCL's RAS; empty without output of ncclras.
        input_readiness: Measured readiness of each rank's input over time; empty without it.
        operator_table: A table of operators without a time line; empty without one.
        perturbation: What the profiler cost, and whether the report is free of it.
        findings: Problems, each with its cost and fix, most important first.
        not_checked: Rules that lacked their evidence, and why.
    """

    schema: str = REPORT_SCHEMA
    distprof_version: str
    verdict: Verdict = Verdict()
    plan: RepairPlan = RepairPlan()
    run: RunInfo
    capture: CaptureResult
    step_time: StepTimeResult
    breakdown: BreakdownResult
    overlap: OverlapResult
    collectives: CollectivesResult
    stragglers: StragglersResult
    idle: IdleResult
    kernels: KernelsResult
    waterfall: WaterfallResult
    job: JobResult = JobResult(kind=None)
    ending: EndingResult = EndingResult()
    step_log: StepLogResult = StepLogResult()
    memory: MemoryResult = MemoryResult()
    telemetry: TelemetryResult = TelemetryResult()
    moe: MoeResult = MoeResult()
    pauses: PausesResult = PausesResult()
    pipeline: PipelineResult = PipelineResult()
    messages: MessagesResult = MessagesResult()
    whatif: WhatIfResult = WhatIfResult()
    nccl: NcclResult = NcclResult()
    placement: PlacementResult = PlacementResult()
    gradients: GradientsResult = GradientsResult()
    sharding: ShardingResult = ShardingResult()
    efficiency: EfficiencyResult = EfficiencyResult()
    settings: SettingsResult = SettingsResult()
    training_log: TrainingLogResult = TrainingLogResult()
    collective_summary: CollectiveSummaryResult = CollectiveSummaryResult()
    collective_log: CollectiveLogResult = CollectiveLogResult()
    ras: RasResult = RasResult()
    input_readiness: InputReadinessResult = InputReadinessResult()
    operator_table: OperatorTableResult = OperatorTableResult()
    perturbation: PerturbationResult = PerturbationResult()
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]

    def findings_to_pandas(self) -> pd.DataFrame:
        """The findings as a frame, one row each in the report's order, and a column per field."""
        return records_to_pandas(self.findings, Finding)
