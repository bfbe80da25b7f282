"""Idle time of the GPU by cause, and pauses of the training thread."""

from __future__ import annotations

import re

from distprof.artefacts.record import Record
from distprof.sections.base import Result

COLLECTION = "garbage collection"
MEMORY = "memory calls"
PYTHON = "Python"
COMPILES = "torch.compile"
"""Names of pauses that no call or range names; ``MEMORY`` stands for all calls of its kind, and
``COMPILES`` names what ran in one."""

CPU_OPTIMIZER = "cpu-optimizer"
"""Scenario in which no optimizer runs on the CPU and nothing is copied for it."""

_OPTIMIZERS = re.compile(r"adam|sgd|lamb|adagrad|rmsprop|adafactor|lion", re.IGNORECASE)


def is_optimizer(operator: str) -> bool:
    """Whether an operator updates parameters, such as ``aten::_fused_adamw_``."""
    return _OPTIMIZERS.search(operator) is not None


class RankIdle(Record, frozen=True, kw_only=True):
    """Idle time of one rank over all analysed steps; the causes add up to ``idle_ns`` exactly.

    ``within_launch_ns`` is the part of ``unknown_ns`` between two activities of one launch call, or
    before the first recorded activity of a CUDA graph: the trace may lack kernels there.
    """

    rank: int  # Global rank.
    # Time in which the GPU neither computes, communicates nor copies; the causes add up to it
    # exactly.
    idle_ns: int
    input_ns: int  # Idle while the training thread waited for input.
    sync_ns: int  # Idle because a CPU call had waited for the GPU.
    host_ns: int  # Idle because the CPU launched too late.
    comm_wait_ns: int  # Idle between work launched in time and communication on another stream.
    unknown_ns: int  # Idle without a cause in the trace.
    num_kernels: int  # Kernels in the analysed time.
    median_kernel_ns: int | None  # Their median duration; null without kernels.
    # Share of launches made after the GPU had run out of work, 0 to 1; null without launches.
    late_launch_ratio: float | None
    # Part of ``unknown_ns`` inside one launch call or before the first recorded kernel of a CUDA
    # graph, where the trace may lack kernels.
    within_launch_ns: int = 0
    # Idle because the CPU did something else than launching: garbage collection, memory calls, a
    # named range, or code outside of PyTorch.
    pause_ns: int = 0
    num_launches: int = 0  # Launches with a record in the analysed time.
    num_zeroing: int = 0  # The part of them made by ``zero_grad``.


# What CPUs did instead of launching ---------------------------------------------------------------


class CpuPause(Record, frozen=True, kw_only=True):
    """What CPUs did instead of launching, summed over all ranks and analysed steps."""

    # ``sync`` (a call that waits for the GPU), ``input`` (waiting for a batch or loading it),
    # ``collection`` (garbage collection), ``memory`` (a call that allocates or frees memory of the
    # GPU), ``range`` (a range that the program named) or ``python`` (code outside of PyTorch).
    kind: str
    # Runtime call or range, for example ``cudaStreamSynchronize`` or ``save_checkpoint``.
    name: str
    # Operator or range that made most of these calls, for example ``aten::item``; of ``python``,
    # the operator that ran on the CPU, or ``torch.compile`` while it compiled; empty if unknown.
    caller: str
    ranks: tuple[int, ...]  # Ranks that paused.
    count_per_step: float  # Number of pauses, mean per rank and step.
    cpu_ns_per_step: int  # CPU time in them, mean per rank and step.
    idle_ns_per_step: int  # Idle GPU time that they caused, mean per rank and step.


class IdleResult(Result, frozen=True, kw_only=True):
    """Idle time by cause, and the pauses of CPUs that drained the GPU's queue."""

    needs_traces = True

    ranks: tuple[RankIdle, ...]  # Each rank over all analysed steps.
    pauses: tuple[CpuPause, ...]  # What CPUs did instead of launching, most idle time first.
    # Whether the ranks compute on CPUs. Idle is then the time between operators.
    is_cpu: bool = False

    @property
    def sync_calls(self) -> tuple[CpuPause, ...]:
        """Calls that waited for the GPU, most idle time first."""
        return tuple(pause for pause in self.pauses if pause.kind == "sync")

    @property
    def nothing_runs(self) -> str:
        """Clause that says what is idle, for use within a sentence."""
        return "the GPU idles" if self.ranks and not self.is_cpu else "nothing computes"


# Time that training threads lost to garbage collection and to waiting for input ------------------


class RankPauses(Record, frozen=True, kw_only=True):
    """Pauses of one rank over all logged steps except the first, which includes initialisation."""

    rank: int  # Global rank.
    step_ns: int  # Mean of the steps in which pauses were recorded.
    gc_ns_per_step: int  # Garbage collection, mean per step; overlapping times count once.
    num_gc: int  # Number of collections.
    longest_gc_ns: int | None  # Longest collection; null without one.
    input_ns_per_step: int  # Waiting for the data loader, mean per step.
    num_input: int  # Number of waits.
    longest_input_ns: int | None  # Longest wait; null without one.
    # Time the training thread was ready to run but had no CPU, mean over steps of at most twice the
    # median duration. Profiled steps count only if there are few others. Null where not recorded.
    run_queue_ns_per_step: int | None = None
    # Time the training thread ran on a CPU, mean over the same steps; null where not recorded.
    cpu_ns_per_step: int | None = None
    # Time it did neither: it slept or waited, mean over the same steps; null where not recorded.
    slept_ns_per_step: int | None = None
    # Time the loaders of a batch had no CPU while training waited for it, inside phases too, mean
    # per step; null unless recorded, which needs scarce CPUs.
    input_queue_ns_per_step: int | None = None


class PausesResult(Result, frozen=True, kw_only=True):
    """Pauses of each rank that recorded them."""

    ranks: tuple[RankPauses, ...] = ()  # Pauses of each rank.

    @property
    def queued_ns(self) -> dict[int, int]:
        """Time per step without a free CPU, by rank; 0 if unknown."""
        return {rank.rank: rank.run_queue_ns_per_step or 0 for rank in self.ranks}

    @property
    def slept_ns(self) -> dict[int, int]:
        """Time per step for which the training thread slept, by rank; without ranks not known."""
        slept = {rank.rank: rank.slept_ns_per_step for rank in self.ranks}
        return {rank: ns for rank, ns in slept.items() if ns is not None}
