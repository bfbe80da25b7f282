"""Tables of a report as columns and cells of text, drawn by the terminal and Markdown alike."""

from __future__ import annotations

from collections.abc import Callable

from distprof.report.model import Report
from distprof.report.views.communication import (
    collectives_table,
    overlap_table,
    stragglers_table,
)
from distprof.report.views.device import idle_table, kernels_table, speed_table, sync_table
from distprof.report.views.efficiency import efficiency_table
from distprof.report.views.gradients import gradients_table
from distprof.report.views.job import job_table
from distprof.report.views.moe import (
    exchanges_table,
    expert_ranks_table,
    moe_table,
    pairs_table,
    placement_table,
)
from distprof.report.views.nccl import (
    choices_table,
    communicators_table,
    nccl_hosts_table,
    nccl_settings_table,
    nccl_warnings_table,
    transports_table,
)
from distprof.report.views.operations import slowdown_table
from distprof.report.views.pipeline import bubble_table, pipeline_table, predictions_table
from distprof.report.views.pipeline_picture import pipeline_picture
from distprof.report.views.placement import (
    card_paths_table,
    groups_on_nodes_table,
    nodes_table,
)
from distprof.report.views.recording import clocks_table, not_checked_table, quality_table
from distprof.report.views.records import (
    memory_table,
    pauses_table,
    steps_table,
    telemetry_table,
    training_table,
)
from distprof.report.views.settings import settings_table
from distprof.report.views.sharding import sharding_table
from distprof.report.views.summaries import (
    readiness_table,
    summarised_classes_table,
    summarised_ranks_table,
)
from distprof.report.views.table import TableView
from distprof.report.views.telemetry import (
    device_errors_table,
    devices_table,
    energy_table,
    nvlinks_table,
    step_sensors_table,
)
from distprof.report.views.time import breakdown_table, waterfall_table
from distprof.report.views.training import (
    slow_iterations_table,
    timers_table,
    training_log_table,
)
from distprof.report.views.whatif import path_table, whatif_table

__all__ = ["tables_of"]

_TABLES: tuple[Callable[..., TableView | None], ...] = (
    job_table,
    waterfall_table,
    breakdown_table,
    whatif_table,
    path_table,
    slowdown_table,
    stragglers_table,
    overlap_table,
    collectives_table,
    gradients_table,
    sharding_table,
    groups_on_nodes_table,
    nodes_table,
    card_paths_table,
    transports_table,
    communicators_table,
    nccl_hosts_table,
    choices_table,
    nccl_settings_table,
    nccl_warnings_table,
    pipeline_table,
    bubble_table,
    pipeline_picture,
    predictions_table,
    moe_table,
    placement_table,
    expert_ranks_table,
    exchanges_table,
    pairs_table,
    idle_table,
    sync_table,
    pauses_table,
    kernels_table,
    speed_table,
    efficiency_table,
    step_sensors_table,
    telemetry_table,
    energy_table,
    devices_table,
    device_errors_table,
    nvlinks_table,
    memory_table,
    training_table,
    settings_table,
    steps_table,
    training_log_table,
    timers_table,
    slow_iterations_table,
    summarised_classes_table,
    summarised_ranks_table,
    readiness_table,
    quality_table,
    clocks_table,
    not_checked_table,
)


def tables_of(report: Report, *, show_all: bool) -> tuple[TableView, ...]:
    """All tables worth showing, in the order of reading."""
    tables = (make(report, show_all=show_all) for make in _TABLES)
    return tuple(table for table in tables if table is not None)
