"""Tables of a report as columns and cells of text, drawn by the terminal and Markdown alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from distprof.sections.capture.show import clocks_table, not_checked_table, quality_table
from distprof.sections.collectives.show import collectives_table
from distprof.sections.efficiency.show import efficiency_table
from distprof.sections.gradients.show import gradients_table
from distprof.sections.idle.show import idle_table, pauses_table, sync_table
from distprof.sections.job.show import job_table
from distprof.sections.kernels.show import kernels_table, speed_table
from distprof.sections.memory.show import memory_table
from distprof.sections.moe.show import (
    exchanges_table,
    expert_ranks_table,
    moe_table,
    pairs_table,
    placement_table,
)
from distprof.sections.nccl.show import (
    choices_table,
    communicators_table,
    nccl_hosts_table,
    nccl_settings_table,
    nccl_warnings_table,
    transports_table,
)
from distprof.sections.overlap.show import overlap_table
from distprof.sections.pipeline.show import (
    bubble_table,
    pipeline_picture,
    pipeline_table,
    predictions_table,
)
from distprof.sections.placement.show import card_paths_table, groups_on_nodes_table, nodes_table
from distprof.sections.settings.show import settings_table
from distprof.sections.sharding.show import sharding_table
from distprof.sections.step_log.show import steps_table, training_table
from distprof.sections.stragglers.show import stragglers_table
from distprof.sections.summaries.show import (
    readiness_table,
    summarised_classes_table,
    summarised_ranks_table,
)
from distprof.sections.table import TableView
from distprof.sections.telemetry.show import (
    device_errors_table,
    devices_table,
    energy_table,
    nvlinks_table,
    step_sensors_table,
    telemetry_table,
)
from distprof.sections.time.show import breakdown_table, waterfall_table
from distprof.sections.training_log.show import (
    slow_iterations_table,
    timers_table,
    training_log_table,
)
from distprof.sections.whatif.show import path_table, slowdown_table, whatif_table

if TYPE_CHECKING:
    from distprof.sections.report import Report

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
