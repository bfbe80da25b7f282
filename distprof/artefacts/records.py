"""Lines of the line-wise files in a rank's directory. The first line of each file is a Header."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a line-wise file.

    Args:
        schema: ``distprof.steps/1``, ``distprof.nvml/1``, ``distprof.memory/1``,
            ``distprof.moe/1``, ``distprof.pauses/1``, ``distprof.clock/1`` or
            ``distprof.collectives/1``.
        rank: Global rank.
        about: Facts common to all lines, for example the name of the GPU or the sampling period.
    """

    schema: str
    rank: int
    about: dict[str, Any] = {}


class Phase(msgspec.Struct, frozen=True, array_like=True):
    """A part of a step. Written as ``[name, start_ns, end_ns]``.

    Args:
        name: ``input``, ``forward``, ``backward``, ``optimizer``, or a user-defined name.
        start_ns: ns since the epoch.
        end_ns: ns since the epoch.
    """

    name: str
    start_ns: int
    end_ns: int


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step (one optimizer update) as the training thread saw it. File ``steps.jsonl``.

    Args:
        step: Step number, from 0 at the start of the session.
        start_ns: End of the previous step, ns since the epoch.
        end_ns: End of the step; monotonic within a rank.
        phases: Phases in order of time, repeated for each micro-batch.
        tokens: Tokens this rank trained on, None when unknown. Ranks that share tokens (tensor,
            pipeline, context parallel) count a part each, so that ranks add up to the job.
        samples: Samples, counted in the same way; None when unknown.
        loss: Loss passed by the training code, None if it passed none.
        num_micro_batches: Forward passes in the step, None when unknown.
        run_queue_ns: Time in which the training thread was ready to run but had no CPU, None if the
            system does not report it.
        cpu_ns: Time in which the training thread ran on a CPU, None if the system does not report
            it.
        input_asleep_ns: Time in ``input`` phases in which the training thread slept, None if the
            system does not report it or the step has no ``input`` phase. ``cpu_ns``,
            ``run_queue_ns`` and this time add up to the own time of a CPU rank: in other phases, a
            sleeping thread mostly waits for other ranks.
        is_traced: Whether torch.profiler was recording.
        is_light: Whether it recorded the GPU alone, without operators.
        gpu_behind: Whether the GPU had not finished the step before when the CPU ended this one;
            None if that is unknown.
        is_probed: False in steps without probes, which are used to measure overhead.
    """

    step: int
    start_ns: int
    end_ns: int
    phases: tuple[Phase, ...] = ()
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    num_micro_batches: int | None = None
    run_queue_ns: int | None = None
    cpu_ns: int | None = None
    input_asleep_ns: int | None = None
    is_traced: bool = False
    is_light: bool = False
    gpu_behind: bool | None = None
    is_probed: bool = True


class NvmlRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of the GPU's sensors. File ``nvml.jsonl``. None if the GPU does not report it.

    Args:
        t_ns: ns since the epoch, middle of the reading.
        sm_clock_mhz: Clock of the streaming multiprocessors.
        memory_clock_mhz: Memory clock.
        throttle_reasons: Names of NVML's active reasons, except idle; empty if none is active.
        power_w: Watts.
        energy_j: Joules since the driver was loaded.
        temperature_c: Degrees Celsius.
        gpu_utilization_ratio: Share of the last period with a kernel running, 0 to 1.
        memory_utilization_ratio: Share of the last period with memory busy, 0 to 1.
        memory_used_bytes: Used memory of the whole GPU, all processes.
        pcie_tx_bytes_per_s: PCIe traffic from the GPU.
        pcie_rx_bytes_per_s: PCIe traffic to the GPU.
        nvlink_tx_bytes: Bytes sent on all links since the counters started.
        nvlink_rx_bytes: Bytes received on all links since the counters started.
        ecc_uncorrected: Uncorrected errors since the driver was loaded.
        xid: Numbers of XID errors seen since the last sample.
        num_processes: Processes that compute on the GPU, of this job or others, as far as the
            driver makes them visible.
    """

    t_ns: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    gpu_utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    pcie_tx_bytes_per_s: int | None = None
    pcie_rx_bytes_per_s: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    ecc_uncorrected: int | None = None
    xid: tuple[int, ...] = ()
    num_processes: int | None = None


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory at the end of a step. File ``memory.jsonl``. None if not measurable here.

    Args:
        step: Step number.
        t_ns: ns since the epoch.
        allocated_bytes: Memory held by tensors on the accelerator.
        peak_allocated_bytes: Peak since the previous step.
        reserved_bytes: Memory held by the caching allocator.
        num_retries: Allocations retried after freeing the cache, since the start.
        rss_bytes: Resident memory of the process.
    """

    step: int
    t_ns: int
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    num_retries: int | None = None
    rss_bytes: int | None = None


class MoeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Routing of one micro-batch by one layer on one rank. File ``moe.jsonl``.

    Args:
        step: Step number.
        layer: Index or name of the layer.
        micro_batch: Index within the step.
        tokens_per_expert: Assignments of this rank's tokens to each expert of the layer.
        num_tokens: Tokens routed (each goes to ``top_k`` experts).
        top_k: Experts per token.
        capacity: Maximum assignments from this rank to an expert, None without a limit.
        dropped: Assignments above capacity.
        aux_loss: Load-balancing loss, None when there is none.
    """

    step: int
    layer: str
    micro_batch: int
    tokens_per_expert: tuple[int, ...]
    num_tokens: int
    top_k: int
    capacity: int | None = None
    dropped: int = 0
    aux_loss: float | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time in which the training thread did not run the model. File ``pauses.jsonl``.

    Args:
        kind: ``gc`` garbage collection, ``input`` waiting for the data loader.
        start_ns: ns since the epoch.
        end_ns: ns since the epoch.
        step: Step in which it happened.
        generation: Generation of the garbage collector; None for other kinds.
        num_collected: Objects freed; None for other kinds.
        cpu_ns: Time in which the training thread, or the worker that loads the batch, ran on a CPU;
            None if the system does not report it, while CPUs are not scarce, and for other kinds.
        run_queue_ns: Time in which that thread or worker was ready to run but had no CPU.
        in_phase: Whether it is inside an ``input`` phase, which counts instead.
    """

    kind: Literal["gc", "input"]
    start_ns: int
    end_ns: int
    step: int | None = None
    generation: int | None = None
    num_collected: int | None = None
    cpu_ns: int | None = None
    run_queue_ns: int | None = None
    in_phase: bool = False


class ClockStamp(msgspec.Struct, frozen=True, kw_only=True):
    """One time exchange with rank 0, as in NTP. File ``clock.jsonl``.

    Args:
        t_sent_ns: Own clock when the request was sent.
        t_server_ns: Rank 0's clock when it answered.
        t_received_ns: Own clock when the answer arrived.
    """

    t_sent_ns: int
    t_server_ns: int
    t_received_ns: int


class GroupTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operations of one process group in a step, as NCCL timed them on the GPU.

    Args:
        group: Name of the group and digest of its members: equal on all members, unique per group.
        kind: ``all`` no member leaves before all have arrived (all-reduce, all-gather,
            reduce-scatter, barrier); ``some`` other collectives; ``messages`` sends and receives.
        num_ranks: Members of the group, 0 if unknown.
        first: Sequence number of the first operation. All members count in the same way, so equal
            numbers are the same operation; 0 for messages.
        num: Number of operations.
        num_untimed: Number of operations without a duration.
        total_ns: Durations in order, one per operation; above 64 operations, sums over runs of
            consecutive operations, at most 64 of them. A duration includes waiting for other
            members.
        last_ns: Duration of the last operation of each sum; empty if each entry is one operation.
    """

    group: str
    kind: Literal["all", "some", "messages"]
    num_ranks: int = 0
    first: int = 0
    num: int
    num_untimed: int = 0
    total_ns: tuple[int, ...] = ()
    last_ns: tuple[int, ...] = ()


class CollectivesRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations of a rank's collectives on its GPU in a step. File ``collectives.jsonl``.

    An operation belongs to the step in which the rank enqueued it. Operations that torch's Flight
    Recorder does not see are missing, for example those of a replayed CUDA graph.

    Args:
        step: Step number.
        groups: A row for each process group and kind; empty if nothing was recorded.
    """

    step: int
    groups: tuple[GroupTimes, ...] = ()


class DiaryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of ``distprof capture`` in a process. File ``capture.jsonl`` of the run, no header.

    Args:
        event: ``python`` an interpreter loaded the hook; ``torch`` it imported torch;
            ``recording`` it is a rank and probes started; ``passed_over`` it is not recorded;
            ``unusable`` probes cannot work in it; ``closed`` probes stopped cleanly.
        t_ns: ns since the epoch.
        pid: Process id.
        host: Host name.
        program: Program that the interpreter was started with.
        python: Path of the interpreter.
        rank: Global rank, None when unknown.
        steps: Steps recorded, with ``closed``.
        detail: Reason or remark.
    """

    event: Literal["python", "torch", "recording", "passed_over", "unusable", "closed"]
    t_ns: int
    pid: int
    host: str = ""
    program: str = ""
    python: str = ""
    rank: int | None = None
    steps: int | None = None
    detail: str = ""
