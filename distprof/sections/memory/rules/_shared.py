"""Ranks whose GPU memory the rules can judge, or the reason why they cannot."""

from __future__ import annotations

from distprof.rules.base import InsufficientEvidenceError
from distprof.sections.efficiency.result import CPU, DeviceMemory, EfficiencyResult
from distprof.sections.job.result import NO_RUN_DIRECTORY
from distprof.sections.memory.result import MemoryResult


def measured_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory; none for bare traces and for ranks on a CPU.

    Raises:
        InsufficientEvidenceError: If memory should have been recorded, but no rank has it.
    """
    if efficiency.device == CPU or NO_RUN_DIRECTORY in memory.unavailable:
        return ()
    if not efficiency.memory:
        why = "; ".join(memory.unavailable) or "the ranks have no GPU memory"
        raise InsufficientEvidenceError(f"GPU memory was not recorded: {why}")
    return efficiency.memory


def sized_memory(efficiency: EfficiencyResult, memory: MemoryResult) -> tuple[DeviceMemory, ...]:
    """Ranks with recorded GPU memory whose GPU's memory size is known.

    Raises:
        InsufficientEvidenceError: If memory was recorded, but no size is known.
    """
    measured = measured_memory(efficiency, memory)
    sized = tuple(r for r in measured if r.capacity_bytes and r.allocated_ratio is not None)
    if measured and not sized:
        raise InsufficientEvidenceError(
            "the memory size of the GPUs is neither in the traces nor on the hardware sheet"
        )
    return sized
