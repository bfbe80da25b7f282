"""Sources that are no traces: tables and logs of other tools that say where a job's time went.

A reader looks at what the user named (its beginning at most) and says whether it is of its kind;
the first that does reads it. Such a run has no ranks with tables: analyzers that need them say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from distprof.ingest.assemble import assemble_run
from distprof.ingest.kinds.collective_summary import (
    fits_collective_summary,
    read_collective_summary,
)
from distprof.ingest.kinds.expert_counts import fits_expert_counts, read_expert_counts
from distprof.ingest.kinds.input_readiness import fits_input_readiness, read_input_readiness
from distprof.ingest.kinds.machine import fits_machine, read_machine
from distprof.ingest.kinds.nccl_log import fits_nccl_log, read_nccl_log
from distprof.ingest.kinds.operation_table import fits_operation_table, read_operation_table
from distprof.ingest.kinds.operation_timeline import (
    fits_operation_timeline,
    read_operation_timeline,
)
from distprof.ingest.kinds.pipeline_timeline import fits_pipeline_timeline, read_pipeline_timeline
from distprof.ingest.kinds.sensors.read import fits_device_log, read_device_log
from distprof.ingest.kinds.training_log import fits_training_log, read_training_log
from distprof.run.device_log import DeviceLog
from distprof.run.evidence import CollectiveSummary, ExpertCounts, InputReadiness, OperationLog
from distprof.run.machine import Machines
from distprof.run.nccl_log import NcclLog
from distprof.run.run import Gap, Run
from distprof.run.training_log import TrainingLog

__all__ = ["OtherKind", "open_other"]

_MAX_FILES_ASKED = 8
"""Of many ranks' logs of NCCL, so many are asked whether they tell of iterations too."""

Content: TypeAlias = (
    OperationLog
    | ExpertCounts
    | NcclLog
    | DeviceLog
    | Machines
    | TrainingLog
    | CollectiveSummary
    | InputReadiness
)


@dataclass(frozen=True, slots=True)
class OtherKind:
    """One kind of source.

    Args:
        fits: Whether a path or URL is of this kind; never raises for what is not.
        read: Reads it; raises InputError where it is damaged.
    """

    fits: Callable[[str], bool]
    read: Callable[[str], Content]


KINDS: tuple[OtherKind, ...] = (
    OtherKind(fits_expert_counts, read_expert_counts),
    OtherKind(fits_operation_table, read_operation_table),
    OtherKind(fits_operation_timeline, read_operation_timeline),
    OtherKind(fits_pipeline_timeline, read_pipeline_timeline),
    OtherKind(fits_nccl_log, read_nccl_log),
    OtherKind(fits_device_log, read_device_log),
    OtherKind(fits_machine, read_machine),
    OtherKind(fits_training_log, read_training_log),
    OtherKind(fits_collective_summary, read_collective_summary),
    OtherKind(fits_input_readiness, read_input_readiness),
)


def open_other(source: str) -> Run | None:
    """The run that a source of another kind tells of; None where it is none of them.

    Raises:
        InputError: If it is one, and cannot be read.
    """
    for kind in KINDS:
        if kind.fits(source):
            return _run_of(source, kind.read(source))
    return None


def _run_of(source: str, content: Content) -> Run:
    what = "damaged" if isinstance(content, NcclLog | DeviceLog | Machines) else "assumed"
    gaps = [Gap(what=what, message=note) for note in content.notes]
    run = assemble_run(source, (), gaps, may_be_empty=True)
    if isinstance(content, ExpertCounts):
        return replace(run, expert_counts=content)
    if isinstance(content, DeviceLog):
        return replace(run, devices=content)
    if isinstance(content, NcclLog):
        return _with_iterations(replace(run, nccl=content))
    if isinstance(content, Machines):
        return replace(run, machines=content.machines)
    if isinstance(content, TrainingLog):
        return replace(run, training_log=content, gaps=())  # notes stand beside the figures
    if isinstance(content, CollectiveSummary):
        return replace(run, collective_summary=content, gaps=())
    if isinstance(content, InputReadiness):
        return replace(run, input_readiness=content, gaps=())
    return replace(run, operations=content)


def _with_iterations(run: Run) -> Run:
    """The run with what the training program printed among NCCL's lines, if it did."""
    files = () if run.nccl is None else run.nccl.files[:_MAX_FILES_ASKED]
    found = next((file for file in files if fits_training_log(file)), None)
    return run if found is None else replace(run, training_log=read_training_log(found))
