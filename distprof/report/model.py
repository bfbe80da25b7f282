"""Report: everything one analysis found, as written to ``report.json``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.analyzers.breakdown import BreakdownResult, StepTimeResult
from distprof.analyzers.capture import CaptureResult
from distprof.analyzers.collective_summary import CollectiveSummaryResult
from distprof.analyzers.collectives import CollectivesResult
from distprof.analyzers.efficiency import EfficiencyResult
from distprof.analyzers.gradients import GradientsResult
from distprof.analyzers.idle import IdleResult
from distprof.analyzers.input_readiness import InputReadinessResult
from distprof.analyzers.job import JobResult
from distprof.analyzers.kernels import KernelsResult
from distprof.analyzers.memory import MemoryResult
from distprof.analyzers.messages import MessagesResult
from distprof.analyzers.moe.result import MoeResult
from distprof.analyzers.nccl import NcclResult
from distprof.analyzers.overlap import OverlapResult
from distprof.analyzers.pauses import PausesResult
from distprof.analyzers.pipeline.analysis import PipelineResult
from distprof.analyzers.placement import PlacementResult
from distprof.analyzers.result import Record
from distprof.analyzers.settings import SettingsResult
from distprof.analyzers.sharding import ShardingResult
from distprof.analyzers.step_log import StepLogResult
from distprof.analyzers.stragglers.analysis import StragglersResult
from distprof.analyzers.telemetry import TelemetryResult
from distprof.analyzers.training_log import TrainingLogResult
from distprof.analyzers.waterfall import WaterfallResult
from distprof.analyzers.whatif.analysis import WhatIfResult
from distprof.artefacts import REPORT_SCHEMA
from distprof.rules.finding import Finding, NotChecked

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["GroupInfo", "Report", "RunInfo"]


class GroupInfo(Record, frozen=True, kw_only=True):
    """A process group of the run."""

    name: str
    description: str
    size: int | None
    axis: str | None
    num_groups: int  # groups of the same description, for example one per data-parallel replica


class RunInfo(Record, frozen=True, kw_only=True):
    """What was recorded."""

    source: str
    world_size: int | None
    ranks: tuple[int, ...]
    num_steps: int
    backend: str
    device: str
    strategy: str | None
    mesh: dict[str, int]
    nodes: dict[str, tuple[int, ...]]
    node_origin: str
    groups: tuple[GroupInfo, ...]
    versions: dict[str, str]


class Report(Record, frozen=True, kw_only=True):
    """One analysis: measurements, findings and what could not be checked."""

    schema: str = REPORT_SCHEMA
    distprof_version: str
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
    input_readiness: InputReadinessResult = InputReadinessResult()
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as JSON, replacing what is there; returns the path.

        Raises:
            InputError: If the file cannot be written.
        """
        from distprof.report.saved import save_report

        return save_report(self, path)

    def __str__(self) -> str:
        """The whole report as text, 100 columns wide."""
        from distprof.report.registry import RenderOptions
        from distprof.report.text import render

        return render(self, RenderOptions(width=100))

    def __repr__(self) -> str:
        """One line: a report may hold thousands of rows."""
        from distprof.report.escape import plain
        from distprof.report.verdict import judge

        return f"<Report on {self.run.source!r}: {plain(judge(self).line)}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Verdict, why and findings, as a console shows them."""
        from distprof.report.registry import RenderOptions
        from distprof.report.text import head

        yield head(self, RenderOptions(width=options.max_width))

    def _repr_html_(self) -> str:
        """Verdict and findings, as a notebook shows them."""
        from distprof.report.notebook import notebook_html

        return notebook_html(self)
