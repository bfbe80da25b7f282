"""Memory that ranks hold on their devices, against the size of the devices."""

from __future__ import annotations

from collections.abc import Mapping

from distprof.hardware.sheet import Gpu
from distprof.run.run import Run
from distprof.run.topology import coordinates_of
from distprof.schema import Record
from distprof.sections.memory.result import MemoryResult
from distprof.terms import MeshAxis

__all__ = ["DeviceMemory", "device_memory"]


class DeviceMemory(Record, frozen=True, kw_only=True):
    """One rank's device, over all steps. None is not known.

    Args:
        rank: Global rank.
        stage: Pipeline rank, whose peers are to hold as much; 0 without a pipeline.
        capacity_bytes: Size of the device: as the trace says, else as the hardware sheet does.
        allocated_bytes: Highest held by tensors.
        reserved_bytes: Highest held by the caching allocator.
        allocated_ratio: Held by tensors over the size.
        reserved_ratio: Held by the allocator over the size.
        num_retries: Allocations retried in the second half of the steps.
        retry_ns_per_step: What they cost, where it was measured.
    """

    rank: int
    stage: int = 0
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_ratio: float | None = None
    reserved_ratio: float | None = None
    num_retries: int | None = None
    retry_ns_per_step: int | None = None


def device_memory(
    run: Run, memory: MemoryResult, known: Mapping[int, Gpu]
) -> tuple[DeviceMemory, ...]:
    """Each rank with counters of a device; ranks on a CPU have none.

    Args:
        run: The recording.
        memory: Counters of each rank.
        known: Rank to what the sheet says of its device.
    """
    places = coordinates_of(run.job) if run.job else {}
    told = {rank.rank: rank.device.memory_bytes for rank in run.ranks}
    rows = []
    for rank in memory.ranks:
        if rank.peak_allocated_bytes is None and rank.reserved_bytes is None:
            continue
        gpu = known.get(rank.rank)
        size = told.get(rank.rank) or (round(gpu.memory_bytes) if gpu else None)
        size = size if size is not None and size > 0 else None
        rows.append(
            DeviceMemory(
                rank=rank.rank,
                stage=places.get(rank.rank, {}).get(MeshAxis.PP, 0),
                capacity_bytes=size,
                allocated_bytes=rank.peak_allocated_bytes,
                reserved_bytes=rank.reserved_bytes,
                allocated_ratio=_ratio(rank.peak_allocated_bytes, size),
                reserved_ratio=_ratio(rank.reserved_bytes, size),
                num_retries=rank.num_steady_retries,
                retry_ns_per_step=rank.retry_ns_per_step,
            )
        )
    return tuple(rows)


def _ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None
