"""What rules on memory and efficiency need alike, or the reason why they cannot judge."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.efficiency.measure import CPU
from distprof.sections.efficiency.result import DeviceMemory, EfficiencyResult
from distprof.sections.job.measure import NO_RUN_DIRECTORY
from distprof.sections.memory.result import MemoryResult

__all__ = ["measured_memory", "sized_memory"]


def measured_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks whose device memory was counted; none of bare traces and of ranks on a CPU.

    Raises:
        InsufficientEvidenceError: If it should have been counted, and was on none.
    """
    if efficiency.device == CPU or NO_RUN_DIRECTORY in memory.unavailable:
        return ()
    if not efficiency.memory:
        why = "; ".join(memory.unavailable) or "the ranks have no device memory"
        raise InsufficientEvidenceError(f"device memory was not counted: {why}")
    return efficiency.memory


def sized_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Those whose device's size is known too.

    Raises:
        InsufficientEvidenceError: If memory was counted, and no size is known.
    """
    measured = measured_memory(efficiency, memory)
    sized = tuple(r for r in measured if r.capacity_bytes and r.allocated_ratio is not None)
    if measured and not sized:
        raise InsufficientEvidenceError(
            "how much memory the devices have is neither in traces nor on the hardware sheet"
        )
    return sized
