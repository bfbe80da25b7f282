"""Lines of the line-wise files in a rank's directory. The first line of each file is a Header."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = [
    "ClockStamp",
    "DiaryLine",
    "Header",
    "MemoryRecord",
    "MoeRecord",
    "NvmlRecord",
    "Pause",
    "Phase",
    "StepRecord",
]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a line-wise file.

    Args:
        schema: ``distprof.steps/1``, ``distprof.nvml/1``, ``distprof.memory/1``,
            ``distprof.moe/1``, ``distprof.pauses/1`` or ``distprof.clock/1``.
        rank: Global rank.
        about: What all lines share, for example the device's name or the sampling period.
    """

    schema: str
    rank: int
    about: dict[str, Any] = {}


class Phase(msgspec.Struct, frozen=True, array_like=True):
    """A part of a step. Written as ``[name, start_ns, end_ns]``.

    Args:
        name: ``input``, ``forward``, ``backward``, ``optimizer``, or one of the user's own.
        start_ns: ns since the epoch.
        end_ns: ns since the epoch.
    """

    name: str
    start_ns: int
    end_ns: int


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step (one optimizer update) as the training thread saw it. File ``steps.jsonl``.

    Args:
        step: Number, from 0 at the start of the session.
        start_ns: End of the step before, ns since the epoch.
        end_ns: Its end; monotonic within a rank.
        phases: In order of time; phases of several micro-batches repeat.
        tokens: Tokens this rank trained on, None when unknown. Ranks that work on the same ones
            (tensor, pipeline, context parallel) count a part each, so that ranks add up to the job.
        samples: Samples, counted in the same way; None when unknown.
        loss: As the training code gave it, None when it gave none.
        num_micro_batches: Forward passes in the step, None when unknown.
        is_traced: Whether torch.profiler was recording.
        is_probed: False in the steps that were left alone to measure overhead.
    """

    step: int
    start_ns: int
    end_ns: int
    phases: tuple[Phase, ...] = ()
    tokens: int | None = None
    samples: int | None = None
    loss: float | None = None
    num_micro_batches: int | None = None
    is_traced: bool = False
    is_probed: bool = True


class NvmlRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of the device's sensors. File ``nvml.jsonl``. None: the device does not tell.

    Args:
        t_ns: ns since the epoch, middle of the reading.
        sm_clock_mhz: Streaming multiprocessors' clock.
        memory_clock_mhz: Memory clock.
        throttle_reasons: Names of NVML's reasons that hold, without idle; empty when none holds.
        power_w: Watts.
        energy_j: Joules since the driver was loaded.
        temperature_c: Degrees Celsius.
        gpu_utilization_ratio: Share of the last period with a kernel running, 0 to 1.
        memory_utilization_ratio: Share of the last period with memory busy, 0 to 1.
        memory_used_bytes: Of the whole device, all processes.
        pcie_tx_bytes_per_s: From the device.
        pcie_rx_bytes_per_s: To the device.
        nvlink_tx_bytes: Since start of the counters, all links.
        nvlink_rx_bytes: Since start of the counters, all links.
        ecc_uncorrected: Uncorrected errors since the driver was loaded.
        xid: Numbers of XID errors seen since the last sample.
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


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory at the end of a step. File ``memory.jsonl``. None: not measurable here.

    Args:
        step: Its number.
        t_ns: ns since the epoch.
        allocated_bytes: Held by tensors on the accelerator.
        peak_allocated_bytes: Highest since the step before.
        reserved_bytes: Held by the caching allocator.
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
        step: Its number.
        layer: Index or name of the layer.
        micro_batch: Index within the step.
        tokens_per_expert: Assignments of this rank's tokens to each of all experts.
        num_tokens: Tokens routed (each goes to ``top_k`` experts).
        top_k: Experts per token.
        capacity: Most assignments an expert takes from this rank, None without a limit.
        dropped: Assignments over capacity.
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
    """Time the training thread lost to something other than the model. File ``pauses.jsonl``.

    Args:
        kind: ``gc`` garbage collection, ``input`` waiting for the data loader.
        start_ns: ns since the epoch.
        end_ns: ns since the epoch.
        step: During which it happened.
        generation: Of the garbage collector; None for others.
        num_collected: Objects freed; None for others.
    """

    kind: Literal["gc", "input"]
    start_ns: int
    end_ns: int
    step: int | None = None
    generation: int | None = None
    num_collected: int | None = None


class ClockStamp(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange of time with rank 0 (as NTP does it). File ``clock.jsonl``.

    Args:
        t_sent_ns: Own clock when the question left.
        t_server_ns: Rank 0's clock when it answered.
        t_received_ns: Own clock when the answer came.
    """

    t_sent_ns: int
    t_server_ns: int
    t_received_ns: int


class DiaryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``distprof capture`` met in one process. File ``capture.jsonl`` of the run, no header.

    Args:
        event: ``python`` an interpreter took the hook up; ``torch`` it imported torch;
            ``recording`` it is a rank and probes started; ``passed_over`` it is not recorded;
            ``unusable`` probes cannot work in it; ``closed`` probes ended in order.
        t_ns: ns since the epoch.
        pid: Process id.
        host: Host name.
        program: What the interpreter was started with.
        python: Path of the interpreter.
        rank: Global rank, None where it is not known.
        steps: Steps recorded, with ``closed``.
        detail: Why, or what was noticed.
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
