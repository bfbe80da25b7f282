"""Lines of the line-wise files in a rank's directory, which begin with a Header; and its stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a line-wise file."""

    # ``distprof.steps/1``, ``distprof.nvml/1``, ``distprof.memory/1``, ``distprof.moe/1``,
    # ``distprof.pauses/1``, ``distprof.clock/1`` or ``distprof.collectives/1``.
    schema: str
    rank: int  # Global rank.
    # Facts common to all lines, for example the name of the GPU or the sampling period.
    about: dict[str, Any] = {}


class Phase(msgspec.Struct, frozen=True, array_like=True):
    """A part of a step. Written as ``[name, start_ns, end_ns]``."""

    name: str  # ``input``, ``forward``, ``backward``, ``optimizer``, or a user-defined name.
    start_ns: int  # ns since the epoch.
    end_ns: int  # ns since the epoch.


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step (one optimizer update) as the training thread saw it. File ``steps.jsonl``."""

    step: int  # Step number, from 0 at the start of the session.
    start_ns: int  # End of the previous step, ns since the epoch.
    end_ns: int  # End of the step; monotonic within a rank.
    phases: tuple[Phase, ...] = ()  # Phases in order of time, repeated for each micro-batch.
    # Tokens this rank trained on, None when unknown. Ranks that share tokens (tensor, pipeline,
    # context parallel) count a part each, so that ranks add up to the job.
    tokens: int | None = None
    samples: int | None = None  # Samples, counted in the same way; None when unknown.
    loss: float | None = None  # Loss passed by the training code, None if it passed none.
    num_micro_batches: int | None = None  # Forward passes in the step, None when unknown.
    # Time in which the training thread was ready to run but had no CPU, None if the system does not
    # report it.
    run_queue_ns: int | None = None
    # Time in which the training thread ran on a CPU, None if the system does not report it.
    cpu_ns: int | None = None
    # Time in ``input`` phases in which the training thread slept, None if the system does not
    # report it or the step has no ``input`` phase. ``cpu_ns``, ``run_queue_ns`` and this time add
    # up to the own time of a CPU rank: in other phases, a sleeping thread mostly waits for other
    # ranks.
    input_asleep_ns: int | None = None
    is_traced: bool = False  # Whether torch.profiler was recording.
    is_light: bool = False  # Whether it recorded the GPU alone, without operators.
    # Whether the GPU had not finished the step before when the CPU ended this one; None if that is
    # unknown.
    gpu_behind: bool | None = None
    is_probed: bool = True  # False in steps without probes, which are used to measure overhead.


class NvmlRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of the GPU's sensors. File ``nvml.jsonl``. None if the GPU does not report it."""

    t_ns: int  # ns since the epoch, middle of the reading.
    sm_clock_mhz: int | None = None  # Clock of the streaming multiprocessors.
    memory_clock_mhz: int | None = None  # Memory clock.
    # Names of NVML's active reasons, except idle; empty if none is active.
    throttle_reasons: tuple[str, ...] | None = None
    power_w: float | None = None  # Watts.
    energy_j: float | None = None  # Joules since the driver was loaded.
    temperature_c: int | None = None  # Degrees Celsius.
    # Share of the last period with a kernel running, 0 to 1.
    gpu_utilization_ratio: float | None = None
    # Share of the last period with memory busy, 0 to 1.
    memory_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None  # Used memory of the whole GPU, all processes.
    pcie_tx_bytes_per_s: int | None = None  # PCIe traffic from the GPU.
    pcie_rx_bytes_per_s: int | None = None  # PCIe traffic to the GPU.
    nvlink_tx_bytes: int | None = None  # Bytes sent on all links since the counters started.
    nvlink_rx_bytes: int | None = None  # Bytes received on all links since the counters started.
    ecc_uncorrected: int | None = None  # Uncorrected errors since the driver was loaded.
    xid: tuple[int, ...] = ()  # Numbers of XID errors seen since the last sample.
    # Processes that compute on the GPU, of this job or others, as far as the driver makes them
    # visible.
    num_processes: int | None = None


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory at the end of a step. File ``memory.jsonl``. None if not measurable here."""

    step: int  # Step number.
    t_ns: int  # ns since the epoch.
    allocated_bytes: int | None = None  # Memory held by tensors on the accelerator.
    peak_allocated_bytes: int | None = None  # Peak since the previous step.
    reserved_bytes: int | None = None  # Memory held by the caching allocator.
    num_retries: int | None = None  # Allocations retried after freeing the cache, since the start.
    rss_bytes: int | None = None  # Resident memory of the process.


class MoeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Routing of one micro-batch by one layer on one rank. File ``moe.jsonl``."""

    step: int  # Step number.
    layer: str  # Index or name of the layer.
    micro_batch: int  # Index within the step.
    # Assignments of this rank's tokens to each expert of the layer.
    tokens_per_expert: tuple[int, ...]
    num_tokens: int  # Tokens routed (each goes to ``top_k`` experts).
    top_k: int  # Experts per token.
    # Maximum assignments from this rank to an expert, None without a limit.
    capacity: int | None = None
    dropped: int = 0  # Assignments above capacity.
    aux_loss: float | None = None  # Load-balancing loss, None when there is none.


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which the training thread did not run the model. File ``pauses.jsonl``."""

    # ``gc`` garbage collection, ``input`` waiting for the data loader.
    kind: Literal["gc", "input"]
    start_ns: int  # ns since the epoch.
    end_ns: int  # ns since the epoch.
    step: int | None = None  # Step in which it happened.
    generation: int | None = None  # Generation of the garbage collector; None for other kinds.
    num_collected: int | None = None  # Objects freed; None for other kinds.
    # Time in which the training thread, or the worker that loads the batch, ran on a CPU; None if
    # the system does not report it, while CPUs are not scarce, and for other kinds.
    cpu_ns: int | None = None
    # Time in which that thread or worker was ready to run but had no CPU.
    run_queue_ns: int | None = None
    in_phase: bool = False  # Whether it is inside an ``input`` phase, which counts instead.


class ClockStamp(msgspec.Struct, frozen=True, kw_only=True):
    """One time exchange with rank 0, as in NTP. File ``clock.jsonl``."""

    t_sent_ns: int  # Own clock when the request was sent.
    t_server_ns: int  # Rank 0's clock when it answered.
    t_received_ns: int  # Own clock when the answer arrived.


class GroupTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operations of one process group in a step, as NCCL timed them on the GPU."""

    # Name of the group and digest of its members: equal on all members, unique per group.
    group: str
    # ``all`` no member leaves before all have arrived (all-reduce, all-gather, reduce-scatter,
    # barrier); ``some`` other collectives; ``messages`` sends and receives.
    kind: Literal["all", "some", "messages"]
    num_ranks: int = 0  # Members of the group, 0 if unknown.
    # Sequence number of the first operation. All members count in the same way, so equal numbers
    # are the same operation; 0 for messages.
    first: int = 0
    num: int  # Number of operations.
    num_untimed: int = 0  # Number of operations without a duration.
    # Durations in order, one per operation; above 64 operations, sums over runs of consecutive
    # operations, at most 64 of them. A duration includes waiting for other members.
    total_ns: tuple[int, ...] = ()
    # Duration of the last operation of each sum; empty if each entry is one operation.
    last_ns: tuple[int, ...] = ()


class CollectivesRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations of a rank's collectives on its GPU in a step. File ``collectives.jsonl``.

    An operation belongs to the step in which the rank enqueued it. Operations that torch's Flight
    Recorder does not see are missing, for example those of a replayed CUDA graph.
    """

    step: int  # Step number.
    # A row for each process group and kind; empty if nothing was recorded.
    groups: tuple[GroupTimes, ...] = ()


class DiaryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of ``distprof capture`` in a process, in ``capture.jsonl`` of the run, no header."""

    # ``python`` an interpreter loaded the hook; ``torch`` it imported torch; ``recording`` it is a
    # rank and probes started; ``passed_over`` it is not recorded; ``unusable`` probes cannot work
    # in it; ``closed`` probes stopped cleanly.
    event: Literal["python", "torch", "recording", "passed_over", "unusable", "closed"]
    t_ns: int  # ns since the epoch.
    pid: int  # Process id.
    host: str = ""  # Host name.
    program: str = ""  # Program that the interpreter was started with.
    python: str = ""  # Path of the interpreter.
    rank: int | None = None  # Global rank, None when unknown.
    steps: int | None = None  # Steps recorded, with ``closed``.
    detail: str = ""  # Reason or remark.


# Bits of nvmlDeviceGetCurrentClocksEventReasons, named as nvidia-smi does (clocks_event_reasons.*).
# Bit 0, "GPU idle", is not throttling.
_REASONS: tuple[tuple[int, str], ...] = (
    (0x002, "applications_clocks_setting"),
    (0x004, "sw_power_cap"),
    (0x008, "hw_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "sw_thermal_slowdown"),
    (0x040, "hw_thermal_slowdown"),
    (0x080, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
_KNOWN = 0x001 | sum(bit for bit, _ in _REASONS)


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the active reasons, except idle; unknown bits as one hexadecimal number."""
    named = tuple(name for bit, name in _REASONS if bits & bit)
    unknown = bits & ~_KNOWN
    return (*named, f"0x{unknown:x}") if unknown else named


_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-fA-F]+)")
FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)$')
"""One call; Python may not know its line number."""

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<frozen")
"""Paths of code that the user did not write."""

_ENDING = re.compile(r'distprof_probes[/\\]session\.py", line \d+ in _end$')
"""A rank that was asked to end and is saving its records: no longer running the program."""


def main_stack(lines: Iterable[str]) -> list[str]:
    """The main thread's frames in the last dump that shows the program, innermost call first.

    :mod:`faulthandler` prints it last. A later dump may show it saving distprof's records, because
    the job was being ended.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in lines:
        if thread := _THREAD.match(line):
            threads.append((thread[1], []))
        elif threads and FRAME.match(line):
            threads[-1][1].append(line)
    threads = [(thread, frames) for thread, frames in threads if frames]
    main = threads[-1][0] if threads else ""
    dumps = [frames for thread, frames in threads if thread == main]
    running = [frames for frames in dumps if not any(map(_ENDING.search, frames))]
    return next(reversed(running or dumps), [])
