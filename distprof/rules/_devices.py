"""What rules on memory and efficiency need alike, or the reason why they cannot judge."""

from __future__ import annotations

from distprof.analyzers.device_memory import DeviceMemory
from distprof.analyzers.efficiency import EfficiencyResult
from distprof.analyzers.memory import MemoryResult
from distprof.rules.base import InsufficientEvidenceError

__all__ = ["measured_memory", "sized_memory"]


def measured_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks whose device memory was counted.

    Raises:
        InsufficientEvidenceError: If it was on none.
    """
    if not efficiency.memory:
        why = "; ".join(memory.unavailable) or "the ranks have no device memory"
        raise InsufficientEvidenceError(f"device memory was not counted: {why}")
    return efficiency.memory


def sized_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Those whose device's size is known too.

    Raises:
        InsufficientEvidenceError: If there is none.
    """
    sized = tuple(
        rank
        for rank in measured_memory(efficiency, memory)
        if rank.capacity_bytes and rank.allocated_ratio is not None
    )
    if not sized:
        raise InsufficientEvidenceError(
            "how much memory the devices have is neither in traces nor on the hardware sheet"
        )
    return sized
