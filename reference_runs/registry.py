"""The reference runs by name. Free of torch: a workload's module is imported when it is built."""

from __future__ import annotations

from dataclasses import dataclass

from reference_runs.model_parallel_options import (
    CpOptions,
    MoeOptions,
    PpOptions,
    ThreeDOptions,
    TpOptions,
)
from reference_runs.options import DdpOptions, FsdpOptions, WorkloadOptions

__all__ = ["WORKLOADS", "Entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One workload: its options and the module whose ``build`` makes its trainer."""

    options: type[WorkloadOptions]
    module: str


WORKLOADS: dict[str, Entry] = {
    "ddp": Entry(options=DdpOptions, module="reference_runs.ddp"),
    "fsdp": Entry(options=FsdpOptions, module="reference_runs.fsdp"),
    "tp": Entry(options=TpOptions, module="reference_runs.tp"),
    "pp": Entry(options=PpOptions, module="reference_runs.pp"),
    "moe": Entry(options=MoeOptions, module="reference_runs.moe"),
    "cp": Entry(options=CpOptions, module="reference_runs.cp"),
    "3d": Entry(options=ThreeDOptions, module="reference_runs.three_d"),
}
