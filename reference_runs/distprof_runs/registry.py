"""The reference runs by name. Does not import torch: a workload's module is imported on use."""

from __future__ import annotations

from dataclasses import dataclass

from distprof_runs.model_parallel_options import (
    CpOptions,
    MoeOptions,
    PpOptions,
    ThreeDOptions,
    TpOptions,
)
from distprof_runs.options import DdpOptions, FsdpOptions, WorkloadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One workload: its options and the module whose ``build`` makes its trainer."""

    options: type[WorkloadOptions]
    module: str


WORKLOADS: dict[str, Entry] = {
    "ddp": Entry(options=DdpOptions, module="distprof_runs.workloads.ddp"),
    "fsdp": Entry(options=FsdpOptions, module="distprof_runs.workloads.fsdp"),
    "tp": Entry(options=TpOptions, module="distprof_runs.workloads.tp"),
    "pp": Entry(options=PpOptions, module="distprof_runs.workloads.pp"),
    "moe": Entry(options=MoeOptions, module="distprof_runs.workloads.moe"),
    "cp": Entry(options=CpOptions, module="distprof_runs.workloads.cp"),
    "3d": Entry(options=ThreeDOptions, module="distprof_runs.workloads.three_d"),
}
